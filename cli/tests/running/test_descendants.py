"""Whatever a command started ends with it, also what moved into a session of its own and lost its parent."""

import os
import subprocess
import sys
import time
from pathlib import Path

#: Starts a child that starts a grandchild in a session of its own and leaves it behind; then ends them all.
PROGRAM = """
import subprocess, sys
from rlhf_cli.running.descendants import adopt_orphans, end_descendants
adopt_orphans()
sleeper = "import time; time.sleep(600)"
leaver = (
    "import subprocess, sys;"
    f"child = subprocess.Popen([sys.executable, '-c', {sleeper!r}], stdout=subprocess.DEVNULL, start_new_session=True);"
    "print(child.pid)"
)
left = subprocess.run([sys.executable, "-c", leaver], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
held = subprocess.Popen([sys.executable, "-c", sleeper])
print(*left, held.pid, flush=True)
print(end_descendants(20), flush=True)
"""


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").exists()


def test_children_and_orphans_end() -> None:
    started = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    pids, left = ended.stdout.splitlines()
    assert left == "[]"
    assert len(pids.split()) == 2
    assert not [pid for pid in map(int, pids.split()) if alive(pid)]
    assert alive(os.getpid())
    assert time.monotonic() - started < 20
