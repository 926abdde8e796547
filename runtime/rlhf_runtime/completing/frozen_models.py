"""What a run's frozen models say of whole rollouts.

Rollouts of like length share a pass, and a pass is bounded by its padded tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rlhf_runtime.completing.completion import ModelViews
from rlhf_runtime.experience.batch import Rows, rows_of
from rlhf_runtime.experience.rollout import Float32Array, Rollout
from rlhf_runtime.maths.logprobs import token_logprobs
from rlhf_runtime.maths.vocabulary import Vocabulary
from rlhf_runtime.models.forwards import TOKENS_AT_ONCE, completion_logits, completion_values, passes


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenModels:
    """The models that complete experiences and are not trained here.

    `temperature` is the sampler's, and so is `vocabulary`: log-probs are of what the policy may say, whatever rows
    these models' own embeddings have beyond it.
    """

    pad_id: int
    temperature: float
    vocabulary: Vocabulary | None = None
    reference: nn.Module | None = None
    teacher: nn.Module | None = None
    critic: nn.Module | None = None

    def views(self, rollouts: Sequence[Rollout]) -> ModelViews:
        """What each model says of every rollout, in the order given."""
        return ModelViews(
            reference_logprobs=None if self.reference is None else self._logprobs(self.reference, rollouts),
            teacher_logprobs=None if self.teacher is None else self._logprobs(self.teacher, rollouts),
            values=None if self.critic is None else self._values(self.critic, rollouts),
        )

    def _logprobs(self, model: nn.Module, rollouts: Sequence[Rollout]) -> list[Float32Array]:
        def of_rows(rows: Rows) -> Tensor:
            return token_logprobs(
                completion_logits(model, rows), rows.completion_ids, self.temperature, vocabulary=self.vocabulary
            )

        return self._in_passes(model, rollouts, of_rows, after=0)

    def _values(self, critic: nn.Module, rollouts: Sequence[Rollout]) -> list[Float32Array]:
        return self._in_passes(critic, rollouts, lambda rows: completion_values(critic, rows), after=1)

    @torch.no_grad()
    def _in_passes(
        self, model: nn.Module, rollouts: Sequence[Rollout], of_rows: Callable[[Rows], Tensor], after: int
    ) -> list[Float32Array]:
        """[T + after] float32 of each rollout; `after`: columns that follow a row's last token."""
        device = next(model.parameters()).device
        found: dict[int, Float32Array] = {}
        for part in passes([len(r.prompt_ids) + len(r.completion_ids) for r in rollouts], TOKENS_AT_ONCE):
            chosen = [rollouts[i] for i in part]
            values = of_rows(rows_of(chosen, self.pad_id).to(device)).float().cpu().numpy()
            for row, (i, rollout) in enumerate(zip(part, chosen, strict=True)):
                found[i] = values[row, : len(rollout.completion_ids) + after].copy()
        return [found[i] for i in range(len(rollouts))]
