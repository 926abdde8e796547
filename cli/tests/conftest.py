"""What the command line's tests share: episodes, a run folder by the runtime's own classes, a manifest."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rlhf_api.job import RLHFJob
from rlhf_api.run import RunConfig, run_config
from rlhf_api.status import EpisodeReport
from rlhf_runtime.storage.journal import Journal
from rlhf_runtime.storage.run_directory import RunDirectory

START = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
UID = "0123abcd-0000-0000-0000-000000000000"


@pytest.fixture
def spec() -> dict[str, Any]:
    """A small valid spec, as YAML gives it; tests change it."""
    return {
        "episodes": 8,
        "algorithm": {"type": "GRPO", "optimizer": {"learningRate": 0.01}},
        "models": {"actor": {"uri": "/mnt/rlhf/policy"}},
        "rewards": [{"function": "my_rewards:ones"}],
        "prompts": {"uri": "/mnt/rlhf/prompts.jsonl"},
        "rollout": {"promptsPerEpisode": 4, "samplesPerPrompt": 4, "maxNewTokens": 4},
        "checkpoint": {"everyEpisodes": 2, "storage": {"persistentVolumeClaim": {"claimName": "shared"}}},
    }


@pytest.fixture
def make_job(spec: dict[str, Any]) -> Callable[..., RLHFJob]:
    """Makes a job from the spec, with top-level fields of it replaced."""

    def make(**changes: Any) -> RLHFJob:
        metadata = {"name": "tiny", "namespace": "default", "uid": UID}
        return RLHFJob.model_validate(
            {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": metadata, "spec": {**spec, **changes}}
        )

    return make


@pytest.fixture
def make_episode() -> Callable[..., EpisodeReport]:
    """Makes the report of an episode by its number, with fields replaced."""

    def make(episode: int, **changes: Any) -> EpisodeReport:
        values: dict[str, Any] = {
            "attempt": 1,
            "seq": episode,
            "episode": episode,
            "policyVersion": episode,
            "reward": episode / 100,
            "rewardStd": 0.5,
            "kl": 0.001 * episode,
            "loss": -0.1,
            "entropy": 1.5,
            "clipFraction": 0.01,
            "gradientNorm": 0.4,
            "stalenessMean": 0.5,
            "stalenessMax": 1,
            "samples": 16,
            "tokens": 64,
            "tokensPerSecond": 32.0,
            "truncatedFraction": 0.0,
            "dropped": 0,
            "seconds": 2.0,
            "trainSeconds": 1.0,
            "waitSeconds": 0.5,
            "syncSeconds": 0.25,
            "time": START + timedelta(seconds=2 * episode),
        }
        return EpisodeReport.model_validate({**values, **changes})

    return make


@pytest.fixture
def write_run(
    tmp_path: Path, make_job: Callable[..., RLHFJob], make_episode: Callable[..., EpisodeReport]
) -> Callable[..., RunDirectory]:
    """Writes a run folder below tmp_path by the runtime's own classes: one attempt for each (resumed from, up to)."""

    def write(attempts: Sequence[tuple[int, int]] = ((0, 3),)) -> RunDirectory:
        directory = RunDirectory(tmp_path / "default" / f"tiny-{UID[:8]}")
        for number, (resumed, last) in enumerate(attempts, 1):
            config: RunConfig = run_config(make_job(), str(tmp_path), attempt=number, incarnation=1)
            directory.write(directory.attempt(number).config, config.to_json().encode())
            journal = Journal(directory, number)
            journal.begin(resumed)
            for episode in range(resumed + 1, last + 1):
                journal.append(make_episode(episode, reward=episode / 100 + number, score=episode / 10))
        return directory

    return write
