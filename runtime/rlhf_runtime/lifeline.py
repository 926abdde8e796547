"""Runs a command so that it, and all it starts, ends with its owner: ``python -m rlhf_runtime.lifeline FD COMMAND...``

The owner starts this in a session of its own and holds the other end of the pipe FD. When the owner closes the
pipe or dies, by SIGKILL too, the whole process group is killed. Otherwise this process ends the way the command
did: with its exit code, or by its signal.

It is a process of its own, and not PR_SET_PDEATHSIG, which would reach the command but not what it has started,
and which fires when the starting *thread* ends.
"""

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

#: A fresh interpreter that imports from PYTHONPATH and not, by accident, from the working directory.
PYTHON = (sys.executable, "-P")


class Tethered:
    """A started command whose process group dies with this process, or at ``kill``."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        pass_fds: Sequence[int] = (),
        stdout: int | None = None,
        stderr: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        reading, self._lifeline = os.pipe()
        try:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                [*PYTHON, "-m", "rlhf_runtime.lifeline", str(reading), *command],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=env,
                pass_fds=(reading, *pass_fds),
                start_new_session=True,
            )
        except OSError:
            os.close(self._lifeline)
            raise
        finally:
            os.close(reading)

    def wait(self, seconds: float) -> int | None:
        """How the command ended, as ``Popen.returncode`` says it; None if it still runs after ``seconds``.

        What the command has started may live on until ``kill``.
        """
        deadline = time.monotonic() + seconds
        # Not reaped before `kill`, so that no other process group can have the number that `kill` uses.
        while (ended := os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)) is None:
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.02)
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def signal(self, number: int) -> None:
        """Send a signal to the whole process group; it is no error if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """Kill the whole process group, also what outlived the command, and reap it. Again does nothing."""
        if self._lifeline < 0:
            return
        self.signal(signal.SIGKILL)
        os.close(self._lifeline)
        self._lifeline = -1
        self.process.wait()


def describe_exit(returncode: int) -> str:
    """How a process ended, for messages: by which signal, or with which exit code."""
    if returncode >= 0:
        return f"exit code {returncode}"
    number = -returncode
    name = signal.Signals(number).name if number in {known.value for known in signal.Signals} else str(number)
    hint = " (often the kernel's out-of-memory killer)" if number == signal.SIGKILL else ""
    return f"signal {name}{hint}"


def _guard(lifeline: int, command: Sequence[str]) -> NoReturn:
    # A handler and not SIG_IGN, which the command would inherit: it shall hear SIGTERM, and this process outlive it.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, _pass)
    waking, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(waking, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    os.set_inheritable(lifeline, False)
    # All other descriptors that this process was given are the command's.
    child = subprocess.Popen(command, close_fds=False)
    # An end of a socket must be the command's alone: its peer is to see it close when the command ends.
    for descriptor in set(map(int, os.listdir("/dev/fd"))) - {0, 1, 2, lifeline, waking, wake}:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    watched = select.poll()
    watched.register(lifeline, select.POLLIN)
    watched.register(waking, select.POLLIN)
    while child.poll() is None:
        ready = [descriptor for descriptor, _ in watched.poll()]
        if lifeline in ready:
            os.killpg(0, signal.SIGKILL)
        with contextlib.suppress(BlockingIOError):
            os.read(waking, 4096)
    _end_like(child.returncode)


def _end_like(returncode: int) -> NoReturn:
    if returncode < 0:
        # Its own death by the same signal leaves no second core file.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -returncode != signal.SIGKILL:
            signal.signal(-returncode, signal.SIG_DFL)
        os.kill(os.getpid(), -returncode)
        signal.pause()
    sys.exit(returncode)


def _pass(*_: Any) -> None:
    pass


if __name__ == "__main__":
    _guard(int(sys.argv[1]), sys.argv[2:])
