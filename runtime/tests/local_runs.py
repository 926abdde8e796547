"""Attempts on a local Ray cluster, and what several test modules ask of them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rlhf_api import names
from rlhf_api.run import RunConfig
from rlhf_runtime.coordinator import Run, failure_of
from rlhf_runtime.storage.run_directory import RunDirectory
from tiny_run import PROMPTS, SAMPLES, RecordingChannel, run_config, write_policy
from transformers import AutoModelForCausalLM

TESTS = Path(__file__).parent


HOLD = f"""
import sys, ray
context = ray.init(address="local", include_dashboard=False, num_cpus=1, object_store_memory=256 * 2**20,
                   resources={{"{names.MAKER_RESOURCE}": 4, "{names.TRAINER_RESOURCE}": 4}})
print(context.address_info["gcs_address"], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """A Ray to connect to, in whose environment the test's reward functions can be imported."""
    before = dict(os.environ)
    os.environ["PYTHONPATH"] = os.pathsep.join([*(path for path in sys.path if path), str(TESTS)])
    # Ray reads its token when it is imported, which is too early for this fixture.
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["JUDGE_TOKEN"] = "s3cret"
    holder = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdin is not None
    assert holder.stdout is not None
    os.environ["RAY_ADDRESS"] = next(line.strip() for line in holder.stdout if ":" in line and " " not in line.strip())
    yield
    holder.stdin.close()
    holder.wait(60)
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    write_policy(folder)
    return folder


async def attempt(config: RunConfig, channel: RecordingChannel | None = None) -> RecordingChannel:
    """Run one attempt as the coordinator's process does, without that process."""
    channel = channel or RecordingChannel(config)
    RunDirectory(config.run_directory).attempt(config.attempt).path.mkdir(parents=True)
    try:
        await Run(config, channel).run()
    except Exception as error:
        await channel.finished(failure_of(error))
    else:
        await channel.finished(None)
    return channel


def weights(folder: Path | str) -> dict[str, torch.Tensor]:
    """As plain transformers loads them."""
    state: dict[str, torch.Tensor] = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    return state


def pid_of(pod: str) -> int:
    """Outside of Kubernetes an actor reports HOST/PID for a pod's name."""
    return int(pod.rpartition("/")[2])


class KillsAfter(RecordingChannel):
    """Kills a process when it hears of an episode, once."""

    def __init__(self, config: RunConfig, episode: int, role: str) -> None:
        super().__init__(config)
        self._episode = episode
        self._role = role
        self.killed = 0

    async def episode(self, report: Any) -> None:
        await super().episode(report)
        if report.episode == self._episode:
            pods = getattr(self.states[-1], self._role).pods
            self.killed = pid_of(pods[0])
            os.kill(self.killed, signal.SIGKILL)


def assert_the_plan_was_trained(config: RunConfig, channel: RecordingChannel) -> None:
    """Every prompt of the plan in one group, each whole, in the trainers' own words."""
    directory = RunDirectory(config.run_directory).attempt(config.attempt).path / "trained"
    groups = [group for path in sorted(directory.iterdir()) for group in json.loads(path.read_text())]
    assert sorted(group["prompt"] for group in groups) == list(range(config.episodes * PROMPTS))
    assert {group["samples"] for group in groups} == {SAMPLES}
    assert [report.episode for report in channel.episodes] == list(range(1, config.episodes + 1))
    assert max(report.staleness_max for report in channel.episodes) <= config.max_staleness


PPO: dict[str, Any] = {
    "type": "PPO",
    "optimizer": {"learningRate": 1e-2, "schedule": "Linear"},
    "critic": {"valueClip": 0.5},
    "kl": {"coefficient": 0.05, "appliesTo": "Reward", "refreshEveryEpisodes": 2},
    "oldLogProbs": "Recomputed",
    "epochs": 2,
    "minibatches": 2,
}


class StopsAfter(RecordingChannel):
    def __init__(self, config: RunConfig, episode: int) -> None:
        super().__init__(config)
        self._episode = episode

    async def episode(self, report: Any) -> None:
        await super().episode(report)
        self.stop = self.stop or report.episode >= self._episode


def ppo(folder: Path, policy: Path, **changes: Any) -> RunConfig:
    return run_config(
        folder,
        policy,
        **{"algorithm": PPO, "episodes": 6, "maxStaleness": 0, "rewards": [{"function": "tiny_rewards:sevens"}]}
        | changes,
    )
