"""A real run on a local Ray whose maker is of two processes: one of them dies, the maker is replaced, none is left."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from local_runs import assert_the_plan_was_trained, attempt, cluster, pid_of, policy
from rlhf_runtime.engines.tensor_parallel.progress import state_of
from tiny_run import RecordingChannel, run_config

__all__ = ["cluster", "policy"]
pytestmark = [pytest.mark.timeout(900), pytest.mark.full]


def followers_of(pid: int) -> list[int]:
    """Processes of an engine below this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and state_of(int(entry.name)) not in ("?", "Z"):
            command = (entry / "cmdline").read_bytes().split(b"\0")
            # The guard that keeps it is the maker's child, and has its command behind its own.
            if b"rlhf_runtime.engines.tensor_parallel.follower" in command and b"rlhf_runtime.lifeline" not in command:
                guard = _parent(int(entry.name))
                if guard is not None and _parent(guard) == pid:
                    found.append(int(entry.name))
    return found


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


class KillsAFollower(RecordingChannel):
    """When it hears of the second episode."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.followers: set[int] = set()

    async def episode(self, report: Any) -> None:
        await super().episode(report)
        found = [follower for pod in self.states[-1].makers.pods for follower in followers_of(pid_of(pod))]
        self.followers.update(found)
        if report.episode == 2:
            [follower] = found
            os.kill(follower, signal.SIGKILL)


async def test_a_maker_that_loses_a_rank_is_replaced_and_no_process_is_left(tmp_path: Path, policy: Path) -> None:
    """And in fp32 it says of its samples what the trainer says of them."""
    config = run_config(tmp_path, policy, makers={"tensorParallel": 2}, episodes=8)
    channel = await attempt(config, KillsAFollower(config))
    assert channel.last_word == [None]
    assert_the_plan_was_trained(config, channel)
    last = channel.states[-1]
    assert last.repairs.makers == 1
    assert last.ledger.dispatched == last.ledger.trained + last.ledger.dropped_lost
    gaps = [report.logprob_gap_max for report in channel.episodes if report.logprob_gap_max is not None]
    assert len(gaps) >= 4
    assert max(gaps) <= 1e-5
    assert len(channel.followers) == 2
    deadline = time.monotonic() + 20
    while any(state_of(pid) not in ("?", "Z") for pid in channel.followers):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
