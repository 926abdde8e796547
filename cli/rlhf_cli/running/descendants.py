"""Ends everything that this process has started, however deep, and whatever session it moved itself into.

Ray's workers leave the process group of what started them, and notice the death of their raylet only after a while.
On Linux an orphan is given to its nearest living ancestor that asked for it; so all of them stay in this process's
tree, and are found there.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """From now on, what a descendant leaves behind becomes this process's child. Only Linux can; elsewhere nothing."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(number)}")


def end_descendants(seconds: float) -> list[int]:
    """Kill all descendants until none is left; the ids of those that still are after `seconds`.

    Their exit codes are lost: to be called when nothing that was started is waited for any more.
    """
    deadline = time.monotonic() + seconds
    while True:
        left = _descendants(os.getpid())
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reap()
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(0.05)


def _descendants(root: int) -> list[int]:
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat") if sys.platform == "linux" else ():
        # A process that ended meanwhile has no file any more. The name, in brackets, may hold anything.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = entry.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            parents[int(entry.parent.name)] = int(fields[1])
    found: list[int] = []
    level = {root}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found += level
    return sorted(found)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
