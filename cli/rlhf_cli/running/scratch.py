"""The folder for an attempt's logs and sockets. Its path is short: a socket's may have about a hundred characters."""

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rlhf_cli.exits import BadInput

#: Most characters of a socket's path, by the operating system.
_MAX_SOCKET = 107 if sys.platform == "linux" else 103
#: The longest that Ray appends, with a process id of seven digits.
_OF_RAY = "/ray/session_2026-12-01_00-00-00_000000_4194304/sockets/plasma_store.1"
_PREFIX = "rlhf-"
#: Characters that mkdtemp appends to a prefix.
_RANDOM = 8
#: Most characters of a folder that an attempt's own can be made in.
MAX_PARENT = _MAX_SOCKET - len(_OF_RAY) - len(f"/{_PREFIX}") - _RANDOM


def scratch_folder(parents: Sequence[str] | None = None) -> Path:
    """A new folder in the first of `parents` that is short enough and takes one: TMPDIR, /tmp, /var/tmp by default.

    Raises BadInput that says what to set.
    """
    wanted = list(dict.fromkeys(parents if parents is not None else (tempfile.gettempdir(), "/tmp", "/var/tmp")))
    for parent in wanted:
        if len(os.fsencode(parent)) <= MAX_PARENT:
            try:
                return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            except OSError:
                continue
    raise BadInput(
        f"no folder for an attempt's logs and sockets: tried {', '.join(wanted)}; set TMPDIR to a folder that can be "
        f"written, with a path of at most {MAX_PARENT} characters (a socket's path has {_MAX_SOCKET} at most)"
    )
