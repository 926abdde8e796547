"""Real runs on a local Ray with all that PPO and GRPO can have beside the policy, stopped, resumed and killed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from local_runs import KillsAfter, StopsAfter, assert_the_plan_was_trained, attempt, cluster, policy, ppo, weights
from rlhf_runtime.storage.run_directory import RunDirectory
from safetensors.torch import load_file
from tiny_run import run_config

__all__ = ["cluster", "policy"]


pytestmark = [pytest.mark.timeout(600), pytest.mark.full]


GRPO: dict[str, Any] = {
    "type": "GRPO",
    "optimizer": {"learningRate": 1e-2},
    "kl": {"coefficient": 0.05, "appliesTo": "Loss", "refreshEveryEpisodes": 2},
    "oldLogProbs": "Recomputed",
    "offPolicy": {"correction": "TIS"},
    "distillation": {"weight": 0.1},
    "minibatches": 2,
}


async def test_ppo_stopped_and_resumed_ends_with_the_weights_of_the_run_that_was_not(
    tmp_path: Path, policy: Path
) -> None:
    """Case R16: actor, critic, both optimisers, the schedule and the refreshed reference go on."""
    straight = ppo(tmp_path / "straight", policy)
    whole = await attempt(straight)
    assert whole.last_word == [None]
    for report in whole.episodes:
        assert None not in (report.reference_kl, report.value_loss, report.explained_variance)
        assert report.teacher_kl is None
    # Just refreshed, the reference is the policy that sampled; later it is not.
    assert whole.episodes[1].reference_kl != pytest.approx(whole.episodes[2].reference_kl, rel=0.1)

    broken = ppo(tmp_path / "broken", policy)
    first = await attempt(broken, StopsAfter(broken, 3))
    assert first.last_word[0] is not None
    assert first.last_word[0].reason == "Stopped"
    second = await attempt(ppo(tmp_path / "broken", policy, attempt=2))
    assert second.last_word == [None]
    assert 3 <= second.states[0].resumed_from < 6
    for part in ("model", "model/critic"):
        expected, found = (
            load_file(f"{config.run_directory}/{part}/model.safetensors") for config in (straight, broken)
        )
        assert expected.keys() == found.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, atol=1e-6, rtol=0)
    assert not torch.equal(
        weights(f"{broken.run_directory}/model")["lm_head.weight"], weights(policy)["lm_head.weight"]
    )


async def test_grpo_with_reference_teacher_and_correction_replaces_a_killed_maker(tmp_path: Path, policy: Path) -> None:
    """Of a truncated policy, whose log-probs are the trainers' too."""
    changes: dict[str, Any] = {
        "models": {"actor": {"uri": str(policy)}, "teacher": {"uri": str(policy)}},
        "trainers": {"replicas": 2},
        "rollout": {"promptsPerEpisode": 4, "samplesPerPrompt": 4, "maxNewTokens": 4, "topP": 0.9, "topK": 8},
    }
    config = run_config(tmp_path, policy, algorithm=GRPO, episodes=6, **changes)
    channel = await attempt(config, KillsAfter(config, 3, "makers"))
    assert channel.last_word == [None]
    assert_the_plan_was_trained(config, channel)
    assert channel.states[-1].repairs.makers == 1
    assert all(report.reference_kl is not None and report.teacher_kl is not None for report in channel.episodes)
    assert all(0 < (report.effective_sample_size or 0) <= 1 for report in channel.episodes)
    assert max(report.logprob_gap_max or 0 for report in channel.episodes) < 1e-4


async def test_a_loss_that_is_no_number_ends_the_attempt_with_what_was_found_and_trains_nothing(
    tmp_path: Path, policy: Path
) -> None:
    algorithm = GRPO | {"group": {"normalization": "None"}, "minibatches": 1}
    models = {"actor": {"uri": str(policy)}, "teacher": {"uri": str(policy)}}
    config = run_config(
        tmp_path, policy, algorithm=algorithm, models=models, rewards=[{"function": "tiny_rewards:huge"}]
    )
    channel = await attempt(config)
    [failure] = channel.last_word
    assert failure is not None
    assert (failure.reason, failure.permanent) == ("NotFinite", False)
    assert "step 1: found " in failure.message
    assert channel.episodes == []
    assert not (RunDirectory(config.run_directory).path / "model").exists()
