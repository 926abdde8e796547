"""One optimiser step of a policy over micro-batches, alone or as one of several ranks."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rlhf_runtime.maths.aggregation import Aggregation, loss_denominator
from rlhf_runtime.maths.logprobs import token_logprobs_and_entropy
from rlhf_runtime.maths.policy_loss import Clip, policy_loss
from rlhf_runtime.maths.statistics import Sums, means, policy_sums
from rlhf_runtime.rollout import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamWParameters:
    """AdamW and its schedule: the rate rises linearly over `warmup_steps` optimiser steps, then stays.

    `max_grad_norm` bounds the gradient's 2-norm over all parameters.
    """

    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    warmup_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyObjective:
    """The clipped policy loss of `maths.policy_loss`; `temperature` is the sampler's.

    `max_tokens`, the longest completion allowed, is used by the "Fixed" aggregation only.
    """

    clip_low: float
    clip_high: float
    aggregation: Aggregation
    temperature: float
    max_tokens: int


class NonFiniteError(RuntimeError):
    """A loss or gradient was NaN or infinite; raised on every rank, with weights and optimiser unchanged."""


class Learner:
    """A model, its optimiser, and the step that every rank takes together.

    With `distributed`, the default process group's ranks hold the same weights (rank 0's, from construction on),
    and each passes its own micro-batches, as many as it likes but at least one. The step is the same as that of
    one process with all of them: counts, loss, gradients, metrics and failures are global.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: AdamWParameters,
        objective: PolicyObjective,
        *,
        distributed: bool = False,
    ) -> None:
        # No dropout: a trained log-probability must be the sampled one while the weights are the same.
        self._model = model.eval()
        self._forward_model: nn.Module = DistributedDataParallel(model) if distributed else model
        self._world_size = dist.get_world_size() if distributed else 1
        self._distributed = distributed
        self._parameters = optimizer
        self._objective = objective
        self._optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=optimizer.learning_rate,
            betas=optimizer.betas,
            eps=optimizer.epsilon,
            weight_decay=optimizer.weight_decay,
        )
        self._steps = 0

    @property
    def model(self) -> nn.Module:
        return self._model

    @property
    def steps(self) -> int:
        """Optimiser steps taken."""
        return self._steps

    def step(self, micro_batches: Sequence[Batch]) -> dict[str, float]:
        """Take one optimiser step; raise NonFiniteError on all ranks, or ValueError on all, and take none.

        Returns, over the whole step: loss, grad_norm before clipping, learning_rate, tokens, samples, and the
        means of `maths.statistics.means`, which compare the policy before this step with the sampling one.
        """
        device = next(self._model.parameters()).device
        batches = [batch.to(device) for batch in micro_batches]
        tokens, samples, empty_ranks = self._sum_over_ranks(
            torch.tensor(
                [sum(int(b.mask.sum()) for b in batches), sum(len(b.mask) for b in batches), not batches],
                dtype=torch.float64,
                device=device,
            )
        ).tolist()
        if empty_ranks:
            raise ValueError(f"micro-batches: {int(empty_ranks)} ranks have none, expected at least one each")
        denominator = loss_denominator(
            self._objective.aggregation,
            tokens=int(tokens),
            samples=int(samples),
            max_tokens=self._objective.max_tokens,
        )
        self._optimizer.zero_grad()
        sums: Sums = {}
        for batch, is_last in _with_last(batches):
            # Gradients are summed over ranks once, in the backward of a rank's last micro-batch.
            sync = self._distributed and not is_last
            with self._forward_model.no_sync() if sync else nullcontext():  # type: ignore[operator]
                loss, batch_sums = self._share(batch, denominator)
                # DDP averages gradients over ranks; the shares are meant to be summed.
                (loss * self._world_size).backward()  # type: ignore[no-untyped-call]
            for name, value in {"loss": loss.detach().double(), **batch_sums}.items():
                sums[name] = sums[name] + value if name in sums else value
        grad_norm = nn.utils.clip_grad_norm_(self._model.parameters(), self._parameters.max_grad_norm)
        totals = dict(zip(sums, self._sum_over_ranks(torch.stack(list(sums.values()))).tolist(), strict=True))
        # Both are sums over all ranks by now, so all ranks decide alike without another collective.
        self._raise_if_not_finite(loss=totals["loss"], grad_norm=float(grad_norm))
        learning_rate = self._scheduled_rate()
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._steps += 1
        return {
            "loss": totals["loss"],
            "grad_norm": float(grad_norm),
            "learning_rate": learning_rate,
            "tokens": tokens,
            "samples": samples,
            **means(totals),
        }

    def state_dict(self) -> dict[str, Any]:
        """Model, optimiser and step count: with the data's cursor, all a resume needs."""
        return {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "steps": self._steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave; every rank loads the same."""
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._steps = state["steps"]

    def _share(self, batch: Batch, denominator: float) -> tuple[Tensor, Sums]:
        """This micro-batch's share of the loss (scalar) and its metric sums."""
        objective = self._objective
        longest = batch.mask.shape[1]
        # One position before the completion predicts its first token; the last position predicts nothing here.
        logits = self._forward_model(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            position_ids=batch.position_ids,
            use_cache=False,
            logits_to_keep=longest + 1,
        ).logits[:, :-1]
        logprobs, entropy = token_logprobs_and_entropy(logits, batch.completion_ids, objective.temperature)
        clip = Clip(low=objective.clip_low, high=objective.clip_high)
        advantages = batch.advantages.unsqueeze(-1).expand_as(batch.mask)
        loss = policy_loss(
            logprobs,
            batch.old_logprobs,
            advantages,
            batch.mask,
            clip=clip,
            aggregation=objective.aggregation,
            denominator=denominator,
        )
        return loss, policy_sums(
            logprobs, batch.old_logprobs, batch.old_logprobs, entropy, advantages, batch.mask, clip=clip
        )

    def _sum_over_ranks(self, values: Tensor) -> Tensor:
        if self._distributed:
            dist.all_reduce(values)
        return values

    def _raise_if_not_finite(self, **values: float) -> None:
        found = {name: value for name, value in values.items() if not math.isfinite(value)}
        if found:
            self._optimizer.zero_grad()
            raise NonFiniteError(f"step {self._steps + 1}: found {found}, expected finite numbers; not applied")

    def _scheduled_rate(self) -> float:
        warmup = self._parameters.warmup_steps
        return self._parameters.learning_rate * min(1.0, (self._steps + 1) / max(warmup, 1))


def _with_last(batches: Sequence[Batch]) -> Iterator[tuple[Batch, bool]]:
    """Each micro-batch, and whether it is the last."""
    return ((batch, i == len(batches) - 1) for i, batch in enumerate(batches))
