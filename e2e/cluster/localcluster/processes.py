"""Starting daemons, and finding and ending everything that belongs to the cluster."""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from . import namespaces
from .settings import Layout
from .shell import ClusterError, say, tail

_CGROUPS = Path("/sys/fs/cgroup")


def start(layout: Layout, name: str, command: Sequence[str | Path]) -> None:
    """A daemon in the cluster's namespaces, with a session of its own, so that it outlives this program."""
    log = layout.logs / f"{name}.log"
    with log.open("w") as output:
        daemon = subprocess.Popen(
            [*namespaces.enter(layout), *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=_environment(layout),
            cwd=layout.state,
        )
    (layout.pids / name).write_text(str(daemon.pid))


def _environment(layout: Layout) -> dict[str, str]:
    """Nothing of the caller's but the path: a proxy variable, say, would reach into the cluster's own calls."""
    return {"PATH": os.environ["PATH"], "HOME": str(layout.state), **layout.mark}


def alive(layout: Layout, name: str) -> bool:
    """Whether the daemon runs: a process of that number that carries the cluster's mark, and no other one.

    Just started, it may still be on its way from `nsenter` to the daemon, and has no environment for a moment.
    """
    try:
        pid = int((layout.pids / name).read_text())
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except (OSError, ValueError):
        return False
    return not _zombie(pid) and (not environment or _needle(layout) in b"\0" + environment)


def require_alive(layout: Layout, names: Iterable[str]) -> None:
    for name in names:
        if not alive(layout, name):
            raise ClusterError(f"{name}: ended by itself{tail(layout.logs / f'{name}.log')}")


def stop(layout: Layout, name: str, deadline: float = 5) -> None:
    """One daemon, asked first and then made to."""
    if not alive(layout, name):
        return
    pid = int((layout.pids / name).read_text())
    _signal([pid], signal.SIGTERM)
    give_up = time.monotonic() + deadline
    while alive(layout, name):
        if time.monotonic() > give_up:
            _signal([pid], signal.SIGKILL)
        time.sleep(0.05)


def end_everything(layout: Layout, deadline: float = 20) -> None:
    """Kills daemons, shims and containers until none is left.

    Daemons and containerd's shims inherit a variable that marks them, so no record of process numbers is
    trusted; the processes of pods do not, and are found by their cgroup. Only a second look in a row that
    finds nothing counts: a process is without its environment while it changes from one program to another.
    """
    give_up = time.monotonic() + deadline
    looks_without = 0
    while looks_without < 2:
        left = [*_marked_processes(layout), *_pod_processes(layout)]
        if left and time.monotonic() > give_up:
            raise ClusterError(f"down: processes that do not die: {left}")
        _signal(left, signal.SIGKILL)
        looks_without = 0 if left else looks_without + 1
        time.sleep(0.05)


def remove_cgroups(layout: Layout, deadline: float = 10) -> None:
    """Innermost first. A cgroup whose last process was just killed may stay busy for a moment."""
    give_up = time.monotonic() + deadline
    while folders := [folder for top in _cgroups(layout) for folder in _below(top)]:
        busy = [folder for folder in folders if not _removed(folder)]
        if busy and time.monotonic() > give_up:
            say(f"down: cgroups that stay busy: {', '.join(map(str, busy))}")
            return
        if busy:
            time.sleep(0.1)


def create_cgroups(layout: Layout) -> None:
    """The kubelet wants its root cgroup to exist, in each hierarchy where there are several (cgroup v1)."""
    hierarchies = [_CGROUPS]
    if not (_CGROUPS / "cgroup.controllers").exists():
        hierarchies = [folder for folder in _CGROUPS.iterdir() if folder.is_dir() and not folder.is_symlink()]
    for hierarchy in hierarchies:
        (hierarchy / layout.cgroup).mkdir(exist_ok=True)


def _cgroups(layout: Layout) -> list[Path]:
    tops = [_CGROUPS / layout.cgroup, *_CGROUPS.glob(f"*/{layout.cgroup}")]
    return [top for top in tops if top.is_dir()]


def _below(top: Path) -> list[Path]:
    return [Path(folder) for folder, _, _ in os.walk(top, topdown=False)]


def _removed(cgroup: Path) -> bool:
    try:
        cgroup.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _needle(layout: Layout) -> bytes:
    ((name, value),) = layout.mark.items()
    return f"\0{name}={value}\0".encode()


def _marked(process: Path, needle: bytes) -> bool:
    try:
        return needle in b"\0" + (process / "environ").read_bytes()
    except OSError:
        return False


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (OSError, IndexError):
        return True


def _marked_processes(layout: Layout) -> list[int]:
    needle = _needle(layout)
    pids = (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [int(entry.name) for entry in pids if _marked(entry, needle)]


def _pod_processes(layout: Layout) -> list[int]:
    found: set[int] = set()
    for top in _cgroups(layout):
        for folder in _below(top):
            try:
                found.update(int(pid) for pid in (folder / "cgroup.procs").read_text().split())
            except OSError:
                continue
    return sorted(pid for pid in found if pid and not _zombie(pid))


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
