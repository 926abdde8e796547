"""Runs on a local Ray whose makers compute in other numbers than the trainers, or end completions in other ways."""

from pathlib import Path
from typing import Any

import pytest
from local_runs import attempt, cluster, policy
from tiny_run import run_config

__all__ = ["cluster", "policy"]
pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(
    ("dtype", "makers", "rollout", "smallest", "largest"),
    [
        pytest.param("float32", {}, {}, 0.0, 1e-5, marks=pytest.mark.full, id="fp32"),
        pytest.param("float32", {}, {"topP": 0.9, "topK": 9}, 0.0, 1e-5, marks=pytest.mark.full, id="fp32, truncated"),
        pytest.param("float32", {"quantization": "Int8"}, {}, 1e-6, 0.05, id="int8"),
        pytest.param("bfloat16", {}, {}, 1e-6, 0.1, marks=pytest.mark.full, id="bf16"),
    ],
)
async def test_each_episode_says_how_far_makers_are_from_trainers(
    tmp_path: Path,
    policy: Path,
    dtype: str,
    makers: dict[str, Any],
    rollout: dict[str, Any],
    smallest: float,
    largest: float,
) -> None:
    """In fp32 by rounding alone; the first episode's samples are of a version that nothing had been trained for."""
    models = {"actor": {"uri": str(policy), "dtype": dtype}}
    rollout = {"promptsPerEpisode": 4, "samplesPerPrompt": 4, "maxNewTokens": 4} | rollout
    changes = {"models": models, "makers": makers, "rollout": rollout, "episodes": 3, "maxStaleness": 0}
    channel = await attempt(run_config(tmp_path, policy, **changes))
    assert channel.last_word == [None]
    first, *others = channel.episodes
    assert (first.logprob_gap_mean, first.logprob_gap_max) == (None, None)
    for report in others:
        assert report.logprob_gap_mean is not None
        assert report.logprob_gap_max is not None
        assert smallest <= report.logprob_gap_mean <= report.logprob_gap_max <= largest


@pytest.mark.full
async def test_completions_end_as_the_job_says(tmp_path: Path, policy: Path) -> None:
    rollout = {"promptsPerEpisode": 4, "samplesPerPrompt": 4, "maxNewTokens": 8, "stop": ["1", "2+", "3"]}
    config = run_config(tmp_path, policy, episodes=2, rollout=rollout | {"stopTokenIds": [6, 7]})
    channel = await attempt(config)
    assert channel.last_word == [None]
    free = await attempt(run_config(tmp_path / "free", policy, episodes=2, rollout=rollout | {"stop": []}))
    assert all(
        cut.tokens < whole.tokens and cut.truncated_fraction < whole.truncated_fraction
        for cut, whole in zip(channel.episodes, free.episodes, strict=True)
    )
