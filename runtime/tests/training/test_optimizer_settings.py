"""Each field of the spec's optimiser changes the weights, and to what AdamW written out anew in plain numbers says."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rlhf_api.algorithm import Optimizer
from rlhf_runtime.training.optimized import OptimizedModel
from rlhf_runtime.training.settings import adamw_parameters
from rlhf_runtime.training.strategy import SingleProcess
from tiny_run import run_config
from torch import nn

STEPS = 5
START = [0.5, -1.5]
#: Of each step; the first one's norm is above the default bound, all others' are below it.
GRADIENTS = [[3.0, -0.4], [0.1, 0.2], [-0.3, 0.05], [0.02, -0.6], [0.4, 0.1]]


def trained(folder: Path, optimizer: dict[str, Any]) -> list[float]:
    """The weights that the runtime's optimiser makes of START, from the spec's settings."""
    config = run_config(folder, folder, episodes=STEPS, algorithm={"type": "GRPO", "optimizer": optimizer})
    module = nn.Linear(2, 1, bias=False)
    strategy = SingleProcess()
    weight = module.weight
    weight.data = torch.tensor([START])
    model = OptimizedModel(module, adamw_parameters(config.algorithm.optimizer, config), strategy, torch.float32)
    for step, gradient in enumerate(GRADIENTS):
        weight.grad = torch.tensor([gradient], device=strategy.device)
        model.clip()
        model.step(step)
    return [float(value) for value in model.weights()["weight"].flatten()]


def expected(**s: Any) -> list[float]:
    beta1, beta2, epsilon = s.get("beta1", 0.9), s.get("beta2", 0.999), s.get("epsilon", 1e-8)
    weights, first, second = list(START), [0.0, 0.0], [0.0, 0.0]
    for step, gradient in enumerate(GRADIENTS):
        clipped = min(1.0, s.get("maxGradientNorm", 1.0) / math.hypot(*gradient))
        for i, g in enumerate(gradient):
            first[i] = beta1 * first[i] + (1 - beta1) * clipped * g
            second[i] = beta2 * second[i] + (1 - beta2) * (clipped * g) ** 2
            mean, square = first[i] / (1 - beta1 ** (step + 1)), second[i] / (1 - beta2 ** (step + 1))
            weights[i] -= _rate(step, s) * s.get("weightDecay", 0.0) * weights[i]
            weights[i] -= _rate(step, s) * mean / (math.sqrt(square) + epsilon)
    return weights


def _rate(step: int, s: dict[str, Any]) -> float:
    peak, warmup = s["learningRate"], s.get("warmupSteps", 0)
    if step < warmup:
        return float(peak * (step + 1) / warmup)
    if "schedule" not in s:
        return float(peak)
    done = (step - warmup) / (STEPS - 1 - warmup)
    left = 1 - done if s["schedule"] == "Linear" else (1 + math.cos(math.pi * done)) / 2
    last = s.get("finalLearningRateFraction", 0.0)
    return float(peak * (last + (1 - last) * left))


PLAIN: dict[str, Any] = {"learningRate": 0.1}
CASES: list[dict[str, Any]] = [
    PLAIN,
    {"learningRate": 0.2},
    PLAIN | {"beta1": 0.5},
    PLAIN | {"beta2": 0.9},
    PLAIN | {"epsilon": 0.5},
    PLAIN | {"weightDecay": 0.3},
    PLAIN | {"maxGradientNorm": 0.25},
    PLAIN | {"warmupSteps": 2},
    PLAIN | {"schedule": "Linear"},
    PLAIN | {"schedule": "Cosine"},
    PLAIN | {"schedule": "Linear", "finalLearningRateFraction": 0.5},
    PLAIN | {"schedule": "Cosine", "finalLearningRateFraction": 0.5, "warmupSteps": 1},
]


@pytest.mark.parametrize("settings", CASES, ids=str)
def test_the_weights_are_what_the_optimisers_settings_say(tmp_path: Path, settings: dict[str, Any]) -> None:
    assert trained(tmp_path, settings) == pytest.approx(expected(**settings), rel=1e-4)


def test_every_field_has_a_case_and_no_two_cases_have_the_same_weights() -> None:
    fields = {info.alias or name for name, info in Optimizer.model_fields.items()}
    assert {field for settings in CASES for field in settings} == fields
    outcomes = {tuple(round(weight, 3) for weight in expected(**settings)) for settings in CASES}
    assert len(outcomes) == len(CASES)
