"""A coordinator without training, for tests of the supervisor: does what the scenario in its argument says."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

from rlhf_api.run import RUN_CONFIG_ENV, Failure, RoleReport, RunConfig, Wait
from rlhf_api.status import EpisodeReport, LedgerStatus, RepairsStatus
from rlhf_runtime.channel.coordinator_end import SocketChannel, connect
from rlhf_runtime.channel.messages import CoordinatorState

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def state(generation: int, running: bool, resumed_from: int = 0, version: int = 0) -> CoordinatorState:
    placing = Wait(reason="PlacementPending", owner="makers", message="1 of 2", since=NOW, deadline=NOW)
    return CoordinatorState(
        running=running,
        applied_generation=generation,
        waits=[] if running else [placing],
        makers=RoleReport(desired=2, ready=2 if running else 1, pods=["maker-a", "maker-b"]),
        trainers=RoleReport(desired=1, ready=1),
        ledger=LedgerStatus(dispatched=version, trained=version),
        policy_version=version,
        repairs=RepairsStatus(),
        resumed_from=resumed_from,
        final_model="/models/final" if version else None,
        last_progress=NOW,
    )


def report(episode: int) -> EpisodeReport:
    values = dict.fromkeys(
        ["reward", "reward_std", "kl", "loss", "entropy", "clip_fraction", "gradient_norm", "staleness_mean"], 0.5
    )
    times = dict.fromkeys(
        ["tokens_per_second", "truncated_fraction", "seconds", "train_seconds", "wait_seconds", "sync_seconds"], 1.0
    )
    return EpisodeReport(
        attempt=0, seq=0, episode=episode, policy_version=episode, staleness_max=0, samples=8, tokens=64, dropped=0,
        time=NOW, **values, **times,
    )  # fmt: skip


async def trains(channel: SocketChannel, first: int, last: int) -> None:
    generation = channel.settings.generation
    await channel.state(state(generation, running=False))
    await channel.state(state(generation, running=True, resumed_from=first - 1))
    for episode in range(first, last + 1):
        await channel.episode(report(episode))
        await channel.state(state(generation, running=True, resumed_from=first - 1, version=episode))


def hang() -> None:
    time.sleep(300)


def found_family(path: str) -> None:
    """Start a process, let both ignore SIGTERM, and write down their ids."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    with open(path, "w") as file:
        file.write(f"{os.getpid()} {child.pid}\n")


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(600):
        if holds():
            return
        await asyncio.sleep(0.05)
    raise TimeoutError


async def main(scenario: str, config: RunConfig) -> None:
    channel = await connect()
    await globals()[scenario](channel, config)


async def succeeds(channel: SocketChannel, config: RunConfig) -> None:
    await trains(channel, 1, channel.settings.episodes)
    await channel.finished(None)


async def resumes_from_2(channel: SocketChannel, config: RunConfig) -> None:
    await trains(channel, 3, channel.settings.episodes)
    await channel.finished(None)


async def fails(channel: SocketChannel, config: RunConfig) -> None:
    await trains(channel, 1, 1)
    print("what the log says", file=sys.stderr, flush=True)
    await channel.finished(Failure(reason="RewardFunctionInvalid", message="it is not there", permanent=True))


async def is_killed(channel: SocketChannel, config: RunConfig) -> None:
    await trains(channel, 1, 3)
    print("x" * 100_000 + "\nthe last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


async def raises(channel: SocketChannel, config: RunConfig) -> None:
    raise RuntimeError("no such thing")


async def succeeds_and_crashes_on_the_way_out(channel: SocketChannel, config: RunConfig) -> None:
    await trains(channel, 1, channel.settings.episodes)
    await channel.finished(None)
    os.kill(os.getpid(), signal.SIGSEGV)


async def succeeds_and_does_not_end(channel: SocketChannel, config: RunConfig) -> None:
    await succeeds(channel, config)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hang()


async def never_runs(channel: SocketChannel, config: RunConfig) -> None:
    await channel.state(state(1, running=False))
    await asyncio.sleep(300)


async def stops_training(channel: SocketChannel, config: RunConfig) -> None:
    await trains(channel, 1, 1)
    await asyncio.sleep(300)


async def ends_when_asked(channel: SocketChannel, config: RunConfig) -> None:
    await trains(channel, 1, 1)
    await until(channel.stop_requested)
    await channel.episode(report(2))
    await channel.finished(Failure(reason="Stopped", message="saved at episode 2", permanent=False))


async def takes_settings(channel: SocketChannel, config: RunConfig) -> None:
    await trains(channel, 1, 1)
    await until(lambda: channel.settings.generation > config.generation)
    await channel.state(state(channel.settings.generation, running=True))
    for episode in range(2, channel.settings.episodes + 1):
        await channel.episode(report(episode))
    await channel.finished(None)


async def says_nonsense(channel: SocketChannel, config: RunConfig) -> None:
    os.write(int(os.environ["RLHF_CHANNEL_FD"]), b'{"kind": "poem"}\n')
    await asyncio.sleep(300)


async def skips_an_episode(channel: SocketChannel, config: RunConfig) -> None:
    await trains(channel, 1, 1)
    await channel.episode(report(3))


async def has_a_family(channel: SocketChannel, config: RunConfig) -> None:
    found_family(f"{config.run_directory}/pids")
    await trains(channel, 1, 1)
    hang()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], RunConfig.model_validate_json(os.environ[RUN_CONFIG_ENV])))
