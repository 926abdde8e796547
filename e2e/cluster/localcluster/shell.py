"""Running commands and waiting, each with a deadline and a failure that says which part failed and why."""

import fcntl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


class ClusterError(Exception):
    """A part of the cluster failed; the message says which, and ends with what it last said."""


def say(message: str) -> None:
    print(f"[cluster] {message}", file=sys.stderr, flush=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Callers at the same time (a test run and a person, say) take turns instead of doing two halves."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def tail(log: Path, lines: int = 25) -> str:
    """The end of a log, or a word about why there is none."""
    try:
        kept = log.read_text(errors="replace").splitlines()[-lines:]
    except OSError as error:
        return f"(no log: {error})"
    return "\n".join(["", f"--- last lines of {log}", *kept])


def run(
    command: Sequence[str | Path],
    *,
    part: str,
    timeout: float = 60,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
) -> str:
    """The command's standard output; on failure the part's name with what the command said."""
    try:
        done = subprocess.run(
            [str(word) for word in command],
            env=env,
            cwd=cwd,
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{part}: `{command[0]}` gave no answer within {timeout:.0f} s") from error
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-25:])
        raise ClusterError(f"{part}: `{' '.join(map(str, command))}` exited {done.returncode}\n{said}")
    return done.stdout


def run_logged(
    command: Sequence[str | Path],
    *,
    part: str,
    log: Path,
    timeout: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> None:
    """For long builds: output goes to a log, of which a failure shows the end."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        try:
            done = subprocess.run(
                [str(word) for word in command],
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ClusterError(f"{part}: not done within {timeout:.0f} s{tail(log)}") from error
    if done.returncode != 0:
        raise ClusterError(f"{part}: `{command[0]}` exited {done.returncode}{tail(log)}")


def succeeds(command: Sequence[str | Path], *, timeout: float = 10, env: Mapping[str, str] | None = None) -> bool:
    try:
        run(command, part="probe", timeout=timeout, env=env)
    except (ClusterError, OSError):
        return False
    return True


def wait_until(
    check: Callable[[], bool],
    *,
    part: str,
    wanted: str,
    deadline: float,
    log: Path | None = None,
    pause: float = 0.2,
) -> None:
    """Polls until the check holds; past the deadline fails with the end of the part's log."""
    started = time.monotonic()
    while not check():
        if time.monotonic() - started > deadline:
            raise ClusterError(f"{part}: {wanted}: not within {deadline:.0f} s{tail(log) if log else ''}")
        time.sleep(pause)
