"""One optimiser step of a policy, and of its critic, over micro-batches, alone or as one of several ranks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from rlhf_runtime.experience.batch import Batch
from rlhf_runtime.maths.logprobs import token_logprobs, token_logprobs_and_entropy
from rlhf_runtime.maths.statistics import Sums, TokenMeans, means
from rlhf_runtime.models.forwards import completion_logits, completion_values
from rlhf_runtime.training.objective import PolicyObjective, ValueObjective, added, stacked
from rlhf_runtime.training.optimized import OptimizedModel, not_finite
from rlhf_runtime.training.strategy import SingleProcess, Strategy


class NonFiniteError(RuntimeError):
    """A loss or gradient was NaN or infinite; raised on every rank, with weights and optimisers unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures(TokenMeans):
    """What one optimiser step came to, over all ranks; the means compare the policy before the step with others.

    Gradient norms are before clipping. The last three are None without a critic.
    """

    loss: float
    gradient_norm: float
    learning_rate: float
    tokens: float
    samples: float
    value_loss: float | None = None
    value_gradient_norm: float | None = None
    value_learning_rate: float | None = None


class Learner:
    """Actor and, for PPO, critic, and the step that every rank takes together.

    Each rank of the `strategy` passes its own micro-batches, at least one. The step is the same as that of one
    process with all of them: counts, loss, gradients, metrics and failures are global.
    """

    def __init__(
        self,
        actor: OptimizedModel,
        objective: PolicyObjective,
        *,
        critic: OptimizedModel | None = None,
        value_objective: ValueObjective | None = None,
        strategy: Strategy | None = None,
    ) -> None:
        if (critic is None) != (value_objective is None):
            raise ValueError("learner: found one of critic and its objective, expected both or neither")
        self.actor = actor
        self.critic = critic
        self._objective = objective
        self._value_objective = value_objective
        self._strategy = strategy or SingleProcess()
        self._steps = 0

    @property
    def steps(self) -> int:
        """Optimiser steps taken."""
        return self._steps

    def step(self, micro_batches: Sequence[Batch], version: int = 1) -> StepFigures:
        """Take one optimiser step; raise NonFiniteError on all ranks, or ValueError on all, and take none.

        `version` is the one that the update in progress makes.
        """
        tokens, samples = self._counts(micro_batches)
        for model in self._models():
            model.zero_grad()
        sums: Sums = {}
        for waiting, is_last in _with_last(micro_batches):
            batch = waiting.to(self.actor.device)
            sums = added(sums, self._policy_backward(batch, version, tokens, samples, is_last))
        # One model after the other: ranks with different numbers of micro-batches have collectives in the same order.
        if self.critic is not None:
            for waiting, is_last in _with_last(micro_batches):
                batch = waiting.to(self.critic.device)
                sums = added(sums, self._value_backward(self.critic, batch, tokens, samples, is_last))
        norms = [model.clip() for model in self._models()]
        totals = dict(zip(sums, self._strategy.sum_over_ranks(stacked(sums)).tolist(), strict=True))
        # All are sums over all ranks by now, so all ranks decide alike without another collective.
        self._raise_if_not_finite(totals, norms)
        rates = [model.step(self._steps) for model in self._models()]
        self._steps += 1
        return StepFigures(
            loss=totals["loss"],
            gradient_norm=norms[0],
            learning_rate=rates[0],
            tokens=tokens,
            samples=samples,
            value_loss=None if self.critic is None else totals["value_loss"],
            value_gradient_norm=None if self.critic is None else norms[1],
            value_learning_rate=None if self.critic is None else rates[1],
            **asdict(means(totals)),
        )

    @torch.no_grad()
    def logprobs(self, micro_batch: Batch) -> Tensor:
        """The actor's log-probs of the completion tokens, [B, T] fp32, nats, on the CPU. All ranks call it alike."""
        batch = micro_batch.to(self.actor.device)
        logits, objective = completion_logits(self.actor.call, batch), self._objective
        return token_logprobs(
            logits, batch.completion_ids, objective.temperature, objective.truncation, objective.vocabulary
        ).cpu()

    def state_dict(self) -> dict[str, Any]:
        """Optimisers and step count: with the weights and the data's cursor, all a resume needs. A collective."""
        return {"steps": self._steps, "optimizers": [model.optimizer_state() for model in self._models()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave; every rank loads the same."""
        self._steps = state["steps"]
        for model, optimizer in zip(self._models(), state["optimizers"], strict=True):
            model.load_optimizer_state(optimizer)

    def _models(self) -> list[OptimizedModel]:
        return [self.actor] if self.critic is None else [self.actor, self.critic]

    def _counts(self, batches: Sequence[Batch]) -> tuple[float, float]:
        """Tokens and samples of the whole step."""
        own = [sum(int(b.mask.sum()) for b in batches), sum(int(b.mask.any(-1).sum()) for b in batches), not batches]
        counts = torch.tensor(own, dtype=torch.float64, device=self.actor.device)
        tokens, samples, empty_ranks = self._strategy.sum_over_ranks(counts).tolist()
        if empty_ranks:
            raise ValueError(f"micro-batches: {int(empty_ranks)} ranks have none, expected at least one each")
        return tokens, samples

    def _policy_backward(self, batch: Batch, version: int, tokens: float, samples: float, is_last: bool) -> Sums:
        objective, actor = self._objective, self.actor
        with self._strategy.accumulate(actor.call, last=is_last):
            logits = completion_logits(actor.call, batch)
            logprobs, entropy = token_logprobs_and_entropy(
                logits, batch.completion_ids, objective.temperature, objective.truncation, objective.vocabulary
            )
            denominator = objective.mean.denominator(tokens, samples)
            loss, sums = objective.share(logprobs, entropy, batch, version=version, denominator=denominator)
            (loss * self._strategy.loss_scale).backward()  # type: ignore[no-untyped-call]
        return {"loss": loss.detach().double(), **sums}

    def _value_backward(
        self, critic: OptimizedModel, batch: Batch, tokens: float, samples: float, is_last: bool
    ) -> Sums:
        objective = self._value_objective
        assert objective is not None
        with self._strategy.accumulate(critic.call, last=is_last):
            values = completion_values(critic.call, batch)[:, :-1]
            loss, sums = objective.share(values, batch, denominator=objective.mean.denominator(tokens, samples))
            (loss * self._strategy.loss_scale).backward()  # type: ignore[no-untyped-call]
        return sums

    def _raise_if_not_finite(self, totals: Mapping[str, float], norms: Sequence[float]) -> None:
        values = {"loss": totals["loss"], "gradient_norm": norms[0]}
        if self.critic is not None:
            values |= {"value_loss": totals["value_loss"], "value_gradient_norm": norms[1]}
        found = not_finite(**values)
        if found:
            for model in self._models():
                model.zero_grad()
            raise NonFiniteError(f"step {self._steps + 1}: found {found}, expected finite numbers; not applied")


def _with_last(batches: Sequence[Batch]) -> Iterator[tuple[Batch, bool]]:
    """Each micro-batch, and whether it is the last."""
    return ((batch, i == len(batches) - 1) for i, batch in enumerate(batches))
