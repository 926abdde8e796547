"""Each setting of the algorithm changes the loss, and to what a formula written out anew says."""

import math
from typing import Any

import pytest
import torch
from rlhf_api.algorithm import Algorithm, Critic
from rlhf_api.run import RunConfig
from rlhf_runtime.experience.batch import Batch
from rlhf_runtime.training.settings import policy_objective, value_objective
from tiny_run import run_config

#: Two samples, of 3 tokens and of 1; what stands behind the second one's token must not count.
LOGPROBS = [[-1.0, -0.5, -2.0], [-0.7, -9.0, -9.0]]
SAMPLED = [[-1.2, -1.0, -0.4], [-0.9, 5.0, 5.0]]
RECOMPUTED = [[-1.1, -0.6, -1.0], [-0.8, 4.0, 4.0]]
ADVANTAGES = [[1.0, -0.5, -2.0], [0.5, 7.0, 7.0]]
REFERENCE = [[-1.3, -0.4, -1.5], [-0.2, 3.0, 3.0]]
TEACHER = [[-0.6, -0.9, -1.9], [-1.2, 2.0, 2.0]]
ENTROPY = [[1.0, 0.8, 0.6], [0.4, 8.0, 8.0]]
VERSIONS = [[3, 2, 1], [3, 0, 0]]
VERSION = 4
TOKENS = [(0, 0), (0, 1), (0, 2), (1, 0)]
MASK = torch.tensor([[True, True, True], [True, False, False]])


def batch(**changes: Any) -> Batch:
    ids = torch.ones(2, 5, dtype=torch.int64)
    values: dict[str, Any] = {
        "sampled_logprobs": torch.tensor(SAMPLED),
        "versions": torch.tensor(VERSIONS),
        "advantages": torch.tensor(ADVANTAGES),
        "returns": torch.tensor([[1.0, 0.5, 0.2], [0.9, 6.0, 6.0]]),
        "values": torch.tensor([[0.5, 0.5, 0.5], [0.5, 6.0, 6.0]]),
        "reference_logprobs": torch.tensor(REFERENCE),
        "teacher_logprobs": torch.tensor(TEACHER),
        "old_logprobs": torch.tensor(RECOMPUTED),
    }
    return Batch(input_ids=ids, attention_mask=ids, position_ids=ids, mask=MASK, **values | changes)


def config(tmp_path: Any, **algorithm: Any) -> RunConfig:
    rollout = {"promptsPerEpisode": 4, "samplesPerPrompt": 4, "maxNewTokens": 5}
    parsed = {"type": "PPO", "optimizer": {"learningRate": 1e-2}, **algorithm}
    return run_config(tmp_path, tmp_path, algorithm=parsed, rollout=rollout)


def expected(**s: Any) -> float:
    """The loss of the batch by plain numbers, token by token."""
    low, high, dual = s.get("clipLow", 0.2), s.get("clipHigh", 0.2), s.get("dualClip")
    old = {}
    for i, t in TOKENS:
        match s.get("oldLogProbs", "Sampled"):
            case "Sampled":
                old[i, t] = SAMPLED[i][t]
            case "Recomputed":
                old[i, t] = RECOMPUTED[i][t]
            case _:
                part = (VERSION - 1 - VERSIONS[i][t]) / (VERSION - VERSIONS[i][t])
                old[i, t] = SAMPLED[i][t] + part * (LOGPROBS[i][t] - SAMPLED[i][t])
    losses = {}
    for i, t in TOKENS:
        d = LOGPROBS[i][t] - old[i, t]
        if s.get("ratioLevel", "Token") != "Token":
            row = [LOGPROBS[i][u] - old[i, u] for j, u in TOKENS if j == i]
            d = sum(row) if s["ratioLevel"] == "Sequence" else sum(row) / len(row)
        ratio, a = math.exp(d), ADVANTAGES[i][t]
        loss = max(-ratio * a, -min(max(ratio, 1 - low), 1 + high) * a)
        if dual is not None and a < 0:
            loss = min(loss, -dual * a)
        if "offPolicy" in s:
            w = math.exp(old[i, t] - SAMPLED[i][t])
            cap = s["offPolicy"].get("cap", 2.0)
            loss *= min(w, cap) if s["offPolicy"]["correction"] == "TIS" else (w if w <= cap else 0.0)
        for pull, others in (("kl", REFERENCE), ("distillation", TEACHER)):
            if pull in s and s[pull].get("appliesTo") != "Reward":
                e = LOGPROBS[i][t] - others[i][t]
                k3 = s[pull].get("estimator", "K3" if pull == "kl" else "K2") == "K3"
                weight = s[pull].get("coefficient", s[pull].get("weight"))
                loss += weight * (math.exp(-e) - 1 + e if k3 else e * e / 2)
        losses[i, t] = loss - s.get("entropyCoefficient", 0.0) * ENTROPY[i][t]
    match s.get("lossAggregation", "Token"):
        case "Token":
            return sum(losses.values()) / 4
        case "Sequence":
            return (sum(losses[0, t] for t in range(3)) / 3 + losses[1, 0]) / 2
        case _:
            return sum(losses.values()) / (2 * 5)


CASES: list[dict[str, Any]] = [
    {},
    {"clipLow": 0.05},
    {"clipHigh": 0.01},
    {"dualClip": 1.01, "clipHigh": 5.0},
    {"ratioLevel": "Sequence"},
    {"ratioLevel": "GeometricMean"},
    {"lossAggregation": "Sequence"},
    {"lossAggregation": "Fixed"},
    {"oldLogProbs": "Recomputed"},
    {"oldLogProbs": "Interpolated"},
    {"oldLogProbs": "Recomputed", "offPolicy": {"correction": "TIS"}},
    {"oldLogProbs": "Recomputed", "offPolicy": {"correction": "TIS", "cap": 1.05}},
    {"oldLogProbs": "Recomputed", "offPolicy": {"correction": "Decoupled", "cap": 1.2}},
    {"kl": {"coefficient": 0.3, "appliesTo": "Loss"}},
    {"kl": {"coefficient": 0.3, "appliesTo": "Loss", "estimator": "K2"}},
    {"distillation": {"weight": 0.2}},
    {"distillation": {"weight": 0.2, "estimator": "K3"}},
    {"entropyCoefficient": 0.1},
]


@pytest.mark.parametrize("settings", CASES, ids=str)
def test_the_policys_loss_is_what_the_settings_say(tmp_path: Any, settings: dict[str, Any]) -> None:
    objective = policy_objective(config(tmp_path, **settings))
    denominator = objective.mean.denominator(4, 2)
    loss, _ = objective.share(
        torch.tensor(LOGPROBS), torch.tensor(ENTROPY), batch(), version=VERSION, denominator=denominator
    )
    assert float(loss) == pytest.approx(expected(**settings), rel=1e-5)


def test_no_two_settings_have_the_same_loss() -> None:
    losses = [round(expected(**settings), 6) for settings in CASES]
    assert len(set(losses)) == len(losses)


def test_a_kl_in_the_reward_is_no_term_of_the_loss(tmp_path: Any) -> None:
    settings = {"kl": {"coefficient": 0.3, "appliesTo": "Reward"}}
    objective = policy_objective(config(tmp_path, **settings))
    loss, sums = objective.share(torch.tensor(LOGPROBS), torch.tensor(ENTROPY), batch(), version=4, denominator=4.0)
    assert float(loss) == pytest.approx(expected(), rel=1e-5)
    assert "reference_kl" in sums, "it is reported"


@pytest.mark.parametrize(
    ("critic", "loss"),
    [({}, (0.09 + 0.0 + 0.16 + 0.04) / 8), ({"valueClip": 0.1}, (0.16 + 0.0 + 0.16 + 0.09) / 8)],
)
def test_the_critics_loss_and_its_clip(tmp_path: Any, critic: dict[str, Any], loss: float) -> None:
    """Values 0.7, 0.5, 0.6 against returns 1, 0.5, 0.2, and 0.7 against 0.9; the old ones are all 0.5."""
    objective = value_objective(config(tmp_path, critic=critic))
    values = torch.tensor([[0.7, 0.5, 0.6], [0.7, 50.0, 50.0]])
    found, _ = objective.share(values, batch(), denominator=objective.mean.denominator(4, 2))
    assert float(found) == pytest.approx(loss, rel=1e-5)


def test_a_critic_without_an_optimiser_of_its_own_has_the_policys() -> None:
    algorithm = Algorithm.model_validate({"type": "PPO", "optimizer": {"learningRate": 0.5}, "critic": {}})
    assert algorithm.critic == Critic()
    assert algorithm.critic_optimizer.learning_rate == 0.5
    own = {"type": "PPO", "optimizer": {"learningRate": 0.5}, "critic": {"optimizer": {"learningRate": 0.25}}}
    assert Algorithm.model_validate(own).critic_optimizer.learning_rate == 0.25
