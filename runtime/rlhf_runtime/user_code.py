"""The traceback of an error in the user's own code, without the code that called it.

Nothing but Python here: it is imported into the processes of the user's functions.
"""

import asyncio
import importlib
import os
import traceback
from itertools import dropwhile
from pathlib import Path

from rlhf_api.tails import last_lines

#: Longest traceback, characters.
_MAX_TEXT = 4000
#: Code before the user's: ours, and what imports, awaits and calls modules for it.
_CALLERS = (
    f"{Path(__file__).parent}{os.sep}",
    f"{Path(importlib.__file__).parent}{os.sep}",
    f"{Path(asyncio.__file__).parent}{os.sep}",
    "<frozen importlib",
)
_TORCH = f"{os.sep}site-packages{os.sep}torch{os.sep}"


def user_traceback(error: BaseException) -> str:
    """The error and the frames from the user's first one on; empty where the user's code did not run.

    Of a long one the first lines, which are the user's, and the last, which have the error.
    """
    shown = traceback.TracebackException.from_exception(error)
    chain: traceback.TracebackException | None = shown
    while chain is not None:
        chain.stack[:] = dropwhile(_is_caller, chain.stack)
        chain = chain.__cause__ or chain.__context__
    # An error of syntax has no frame, and shows its line all the same.
    if not shown.stack and not isinstance(error, SyntaxError):
        return ""
    return _ends("".join(shown.format()))


def _is_caller(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_CALLERS) or _TORCH in frame.filename


def _ends(text: str) -> str:
    if len(text) <= _MAX_TEXT:
        return text
    first = text[: _MAX_TEXT // 3].rpartition("\n")[0]
    return f"{first}\n  ... lines left out ...\n{last_lines(text, _MAX_TEXT // 2)}"
