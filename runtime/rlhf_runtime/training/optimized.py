"""One trained model with its optimiser: the actor, or the critic."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_runtime.models.pretrained import invalid
from rlhf_runtime.training.learning_rate import Schedule
from rlhf_runtime.training.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamWParameters:
    """AdamW and its schedule; `max_grad_norm` bounds the gradient's 2-norm over all parameters."""

    schedule: Schedule
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0


class OptimizedModel:
    """A module with fp32 parameters, spread by a strategy, and AdamW over those that are trained.

    The module is used up: `call` computes with it from here on, and `weights` gives what it has become.
    """

    def __init__(
        self, module: nn.Module, parameters: AdamWParameters, strategy: Strategy, compute_dtype: torch.dtype
    ) -> None:
        # No dropout: a trained log-probability must be the sampled one while the weights are the same.
        self.module = module.eval()
        self._strategy = strategy
        self._parameters = parameters
        self.call = strategy.prepare(self.module, compute_dtype)
        trained = [parameter for parameter in self.call.parameters() if parameter.requires_grad]
        if not trained:
            # Only the user's own code gives one.
            kind = type(module).__name__
            raise invalid(f"models.*.factory: the trained {kind} has no parameter with requires_grad, expected some")
        self._optimizer = torch.optim.AdamW(
            trained,
            lr=parameters.schedule.peak,
            betas=parameters.betas,
            eps=parameters.epsilon,
            weight_decay=parameters.weight_decay,
            # Without copies of all gradients; one pass over each parameter.
            fused=True,
        )

    @property
    def device(self) -> torch.device:
        return self._strategy.device

    def zero_grad(self) -> None:
        self._optimizer.zero_grad()

    def clip(self) -> float:
        """The whole gradient's 2-norm before it is clipped; the same on all ranks."""
        return self._strategy.clip_gradients(self.call, self._parameters.max_grad_norm)

    def step(self, number: int) -> float:
        """Apply the gradients as optimiser step `number`, from 0; returns the learning rate."""
        rate = self._parameters.schedule.rate(number)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        return rate

    def weights(self) -> dict[str, Tensor]:
        """Whole tensors by the module's own names; see `Strategy.full_weights`. All ranks call it together."""
        return self._strategy.full_weights(self.call)

    def optimizer_state(self) -> dict[str, Any]:
        return self._strategy.optimizer_state(self.call, self._optimizer)

    def load_optimizer_state(self, state: Mapping[str, Any]) -> None:
        self._strategy.load_optimizer_state(self.call, self._optimizer, state)


def not_finite(**values: float) -> dict[str, float]:
    """Those that are NaN or infinite."""
    return {name: value for name, value in values.items() if not math.isfinite(value)}
