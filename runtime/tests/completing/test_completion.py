"""A rollout becomes an experience: by numbers worked out by hand, and what models say of it whatever it shares a pass
with."""

from typing import Any

import numpy as np
import pytest
import torch
from rlhf_api.algorithm import Algorithm
from rlhf_runtime.completing.completion import ModelViews, completed
from rlhf_runtime.completing.frozen_models import FrozenModels
from rlhf_runtime.experience.rollout import Float32Array, Rollout
from rlhf_runtime.models import forwards
from rlhf_runtime.models.critic import Critic
from rlhf_runtime.models.forwards import passes
from transformers import GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel


def rollout(logprobs: list[float], truncated: bool = False, sample: int = 0, prompt: int = 1) -> Rollout:
    return Rollout(
        prompt_index=0,
        sample=sample,
        prompt_ids=np.arange(1, 1 + prompt, dtype=np.int32),
        completion_ids=np.arange(5, 5 + len(logprobs), dtype=np.int32),
        logprobs=np.array(logprobs, np.float32),
        versions=np.zeros(len(logprobs), np.int32),
        truncated=truncated,
    )


def f32(*values: float) -> Float32Array:
    return np.array(values, np.float32)


def algorithm(kind: str, **changes: Any) -> Algorithm:
    return Algorithm.model_validate({"type": kind, "optimizer": {"learningRate": 0.1}, **changes})


REWARD_K1 = {"coefficient": 0.1, "appliesTo": "Reward"}
#: Log-probs whose K1 to the reference is 0.2, 0.1, 0.3.
SAMPLED, REFERENCE = [-1.0, -1.0, -1.0], f32(-1.2, -1.1, -1.3)
VALUES = f32(0.5, 0.4, 0.3, 9.0)


@pytest.mark.parametrize(
    ("situation", "changes", "truncated", "advantages", "returns"),
    [
        ("a score at the last token", {}, False, [0.43675, 0.565, 0.7], [0.93675, 0.965, 1.0]),
        (
            "a discount",
            {"gae": {"gamma": 0.99}},
            False,
            [0.418306675, 0.55535, 0.7],
            [0.918306675, 0.95535, 1.0],
        ),
        (
            "a KL in the reward",
            {"kl": REWARD_K1},
            False,
            [0.380175, 0.5265, 0.67],
            [0.880175, 0.9265, 0.97],
        ),
        (
            "a KL in the loss leaves the reward alone",
            {"kl": {"coefficient": 0.1, "appliesTo": "Loss"}},
            False,
            [0.43675, 0.565, 0.7],
            [0.93675, 0.965, 1.0],
        ),
        (
            "a cut sample goes on with what the critic expects after it",
            {"gae": {"lambda": 0.0}},
            True,
            [-0.1, -0.1, 9.7],
            [0.4, 0.3, 10.0],
        ),
    ],
)
def test_ppos_advantages_and_returns(
    situation: str, changes: dict[str, Any], truncated: bool, advantages: list[float], returns: list[float]
) -> None:
    views = ModelViews(reference_logprobs=[REFERENCE], values=[VALUES])
    [experience] = completed([rollout(SAMPLED, truncated)], [1.0], views, algorithm("PPO", **changes))
    assert experience.advantages == pytest.approx(advantages, abs=1e-6), situation
    assert experience.returns == pytest.approx(returns, abs=1e-6), situation
    assert experience.values == pytest.approx(VALUES[:3])
    assert experience.reward == 1.0


def test_a_shorter_sample_beside_a_longer_one_has_what_it_has_alone() -> None:
    rollouts = [rollout([-1.0]), rollout(SAMPLED, sample=1)]
    views = ModelViews(values=[f32(0.25, 7.0), VALUES])
    short, long = completed(rollouts, [1.0, 1.0], views, algorithm("PPO"))
    assert short.advantages == pytest.approx([0.75])
    assert long.advantages == pytest.approx([0.43675, 0.565, 0.7], abs=1e-6)


def test_grpos_advantages_are_one_a_sample_and_the_kl_in_the_reward_is_the_samples_sum() -> None:
    rollouts = [rollout(SAMPLED), rollout([-1.0], sample=1)]
    plain = completed(rollouts, [1.0, 0.0], ModelViews(), algorithm("GRPO", group={"normalization": "None"}))
    assert [list(e.advantages) for e in plain] == [[0.5, 0.5, 0.5], [-0.5]]
    assert plain[0].returns is None
    # The rewards are 1 - 0.1 * 0.6 and 0 - 0.1 * 0.4 then.
    views = ModelViews(reference_logprobs=[REFERENCE, f32(-1.4)])
    taken = completed(rollouts, [1.0, 0.0], views, algorithm("GRPO", group={"normalization": "None"}, kl=REWARD_K1))
    assert [float(e.advantages[0]) for e in taken] == pytest.approx([0.49, -0.49], abs=1e-6)
    left_out = algorithm("GRPO", group={"normalization": "None", "baseline": "LeaveOneOut"})
    taken = completed(rollouts, [1.0, 0.0], ModelViews(), left_out)
    assert [float(e.advantages[0]) for e in taken] == [1, -1]


def test_what_the_algorithm_needs_and_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="needs the critic's values"):
        completed([rollout(SAMPLED)], [1.0], ModelViews(), algorithm("PPO"))
    with pytest.raises(ValueError, match=r"the critic's values: found \[0\.5 nan\], expected finite numbers"):
        completed([rollout([-1.0])], [1.0], ModelViews(values=[f32(0.5, float("nan"))]), algorithm("PPO"))
    with pytest.raises(ValueError, match="needs the reference's log-probs"):
        completed([rollout(SAMPLED)], [1.0], ModelViews(), algorithm("GRPO", kl=REWARD_K1))


def test_passes_are_bounded_by_their_padded_tokens_and_have_every_row_once() -> None:
    lengths = [3, 10, 2, 7, 7, 1, 40]
    parts = list(passes(lengths, 20))
    assert sorted(i for part in parts for i in part) == list(range(len(lengths)))
    assert all(len(part) == 1 or len(part) * max(lengths[i] for i in part) <= 20 for part in parts)
    assert parts == [[6], [1, 3], [4, 0], [2, 5]]


@pytest.mark.parametrize("tokens", [1, 24, 8192])
def test_models_say_the_same_of_a_rollout_whatever_it_shares_a_pass_with(
    tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Absolute positions, so that a shifted row would be seen."""
    monkeypatch.setattr(forwards, "TOKENS_AT_ONCE", tokens)
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=20, n_embd=16, n_layer=2, n_head=2, n_positions=32, num_labels=1, pad_token_id=0)
    policy = GPT2LMHeadModel(config).eval()
    critic = Critic(GPT2ForSequenceClassification(config)).eval()
    rollouts = [rollout([-1.0] * n, prompt=p) for n, p in ((3, 1), (1, 6), (7, 2), (2, 4))]
    models = FrozenModels(pad_id=0, temperature=0.7, reference=policy, teacher=policy, critic=critic)
    views = models.views(rollouts)
    assert views.reference_logprobs is not None
    assert views.values is not None
    for i, one in enumerate(rollouts):
        ids = torch.from_numpy(np.concatenate([one.prompt_ids, one.completion_ids])).long().unsqueeze(0)
        with torch.no_grad():
            logprobs = (policy(ids).logits[0] / 0.7).log_softmax(-1)
            values = critic(ids, torch.ones_like(ids), torch.arange(ids.shape[1]).unsqueeze(0))[0]
        start = len(one.prompt_ids)
        expected = logprobs[range(start - 1, ids.shape[1] - 1), ids[0, start:]]
        torch.testing.assert_close(torch.from_numpy(views.reference_logprobs[i]), expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(torch.from_numpy(views.values[i]), values[start - 1 :], atol=1e-5, rtol=0)
