"""What one micro-batch adds to the loss of an optimiser step: the terms of the policy, and those of the critic."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rlhf_runtime.experience.batch import Batch
from rlhf_runtime.maths.aggregation import Aggregation, loss_denominator, share
from rlhf_runtime.maths.kl import KlEstimator, kl_loss
from rlhf_runtime.maths.off_policy import Correction, interpolated_logprobs, off_policy_weights
from rlhf_runtime.maths.policy_loss import Clip, RatioLevel, policy_loss
from rlhf_runtime.maths.statistics import Sums, policy_sums, reference_sums, value_sums
from rlhf_runtime.maths.truncation import Truncation
from rlhf_runtime.maths.value_loss import value_loss
from rlhf_runtime.maths.vocabulary import Vocabulary

OldLogProbs = Literal["Sampled", "Recomputed", "Interpolated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """How losses of tokens become one: `max_tokens`, the longest completion allowed, is used by "Fixed" only."""

    aggregation: Aggregation
    max_tokens: int

    def denominator(self, tokens: float, samples: float) -> float:
        return loss_denominator(self.aggregation, tokens=int(tokens), samples=int(samples), max_tokens=self.max_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """A term that draws the policy to another one: to the reference, or to the teacher."""

    weight: float
    estimator: KlEstimator


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyObjective:
    """clipped policy loss + reference.weight * KL + teacher.weight * KL - entropy_coefficient * entropy.

    `temperature`, `truncation` and `vocabulary` are the sampler's: what is trained is what is sampled from. Reference
    and teacher are not truncated, so that they have a log-prob of every token that the policy draws. With `correction`,
    tokens are weighed by old against sampling policy.
    """

    clip: Clip
    mean: Mean
    temperature: float
    truncation: Truncation | None = None
    vocabulary: Vocabulary | None = None
    ratio_level: RatioLevel = "Token"
    old: OldLogProbs = "Sampled"
    correction: Correction | None = None
    correction_cap: float = 2.0
    reference: Pull | None = None
    teacher: Pull | None = None
    entropy_coefficient: float = 0.0

    def share(
        self, logprobs_bt: Tensor, entropy_bt: Tensor, batch: Batch, *, version: int, denominator: float
    ) -> tuple[Tensor, Sums]:
        """Share of the loss (scalar), and sums for the report. `version` is the one that this update makes."""
        mask = batch.mask
        old = self._old_logprobs(logprobs_bt, batch, version)
        weights = None
        if self.correction is not None:
            weights = off_policy_weights(
                old, batch.sampled_logprobs, mask, correction=self.correction, cap=self.correction_cap
            )
        loss = policy_loss(
            logprobs_bt,
            old,
            batch.advantages,
            mask,
            clip=self.clip,
            aggregation=self.mean.aggregation,
            denominator=denominator,
            ratio_level=self.ratio_level,
            weights_bt=weights,
        )
        sums = policy_sums(
            logprobs_bt,
            old,
            batch.sampled_logprobs,
            entropy_bt,
            batch.advantages,
            mask,
            clip=self.clip,
            ratio_level=self.ratio_level,
            weights_bt=weights,
        )
        for name, pull, others in (
            ("reference_kl", self.reference, batch.reference_logprobs),
            ("teacher_kl", self.teacher, batch.teacher_logprobs),
        ):
            if others is not None:
                sums |= reference_sums(logprobs_bt, others, mask, name)
            if pull is not None:
                loss = loss + pull.weight * self._pulled(pull, logprobs_bt, others, mask, denominator, name)
        if self.entropy_coefficient:
            loss = loss - self.entropy_coefficient * share(entropy_bt, mask, self.mean.aggregation, denominator)
        return loss, sums

    def _old_logprobs(self, logprobs_bt: Tensor, batch: Batch, version: int) -> Tensor:
        match self.old:
            case "Sampled":
                return batch.sampled_logprobs
            case "Recomputed":
                # Where they were not computed beforehand, this is the update's only step: it begins with them.
                return logprobs_bt.detach() if batch.old_logprobs is None else batch.old_logprobs
            case "Interpolated":
                return interpolated_logprobs(batch.sampled_logprobs, logprobs_bt, batch.versions, version)

    def _pulled(
        self, pull: Pull, logprobs_bt: Tensor, others: Tensor | None, mask: Tensor, denominator: float, name: str
    ) -> Tensor:
        if others is None:
            raise ValueError(f"{name}: the experiences have no log-probs of it")
        return kl_loss(
            logprobs_bt,
            others,
            mask,
            estimator=pull.estimator,
            aggregation=self.mean.aggregation,
            denominator=denominator,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueObjective:
    """The critic's clipped squared error."""

    clip: float | None
    mean: Mean

    def share(self, values_bt: Tensor, batch: Batch, *, denominator: float) -> tuple[Tensor, Sums]:
        """Share of the loss (scalar), and sums for the report."""
        if batch.returns is None or batch.values is None:
            raise ValueError("the critic's loss: the experiences have no returns")
        loss = value_loss(
            values_bt,
            batch.values,
            batch.returns,
            batch.mask,
            clip=self.clip,
            aggregation=self.mean.aggregation,
            denominator=denominator,
        )
        sums = value_sums(values_bt, batch.values, batch.returns, batch.mask, clip=self.clip)
        return loss, {"value_loss": loss.detach().double(), **sums}


def added(sums: Sums, more: Sums) -> Sums:
    """Both together, by name."""
    return {name: sums[name] + value if name in sums else value for name, value in more.items()} | {
        name: value for name, value in sums.items() if name not in more
    }


def stacked(sums: Sums) -> Tensor:
    """[names] float64, in their order: to be summed over ranks at once."""
    return torch.stack(list(sums.values()))
