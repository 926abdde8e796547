"""Forward passes over whole rollouts: what a model says of tokens that are there already.

Rows are laid out and masked by the same code as in training, so that the same weights say the same. Rollouts of like
length share a pass, and a pass is bounded by its padded tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_runtime.completion import ModelViews
from rlhf_runtime.maths.logprobs import token_logprobs
from rlhf_runtime.models.shared_prompts import may_share_prompts, prompt_columns, read_prompts, worth_sharing
from rlhf_runtime.rollout import Float32Array, Rollout, Rows, rows_of

#: Tokens of one pass without gradient, padding counted: what bounds its logits and activations. One row may have more.
TOKENS_AT_ONCE = 8192


def completion_logits(model: nn.Module, rows: Rows) -> Tensor:
    """Logits that predict each completion token, [B, T, vocabulary].

    Rows that share prompts read each once, where the model allows it; the logits are the same but for rounding.
    """
    start, before = 0, {"use_cache": False}
    if worth_sharing(rows) and may_share_prompts(model):
        # A prompt's last token predicts a completion's first, so every row reads it.
        start = prompt_columns(rows) - 1
        before = read_prompts(model, rows, start)
    # The last token predicts nothing that is wanted.
    output: Any = model(
        input_ids=rows.input_ids[:, start:-1],
        attention_mask=rows.attention_mask[:, :-1],
        position_ids=rows.position_ids[:, start:-1],
        logits_to_keep=rows.mask.shape[1],
        **before,
    )
    logits: Tensor = output.logits
    return logits


def completion_values(critic: nn.Module, rows: Rows) -> Tensor:
    """Values of the state before each completion token, and after the last column: [B, T + 1] fp32."""
    values: Tensor = critic(
        input_ids=rows.input_ids, attention_mask=rows.attention_mask, position_ids=rows.position_ids
    )
    return values[:, -(rows.mask.shape[1] + 1) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenModels:
    """The models that complete experiences and are not trained here; `temperature` is the sampler's."""

    pad_id: int
    temperature: float
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
            return token_logprobs(completion_logits(model, rows), rows.completion_ids, self.temperature)

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


def passes(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Indices of rows that share a pass, by length: rows x longest is at most `tokens`, or it is one row."""
    part: list[int] = []
    # The longest first: memory is at its peak at once, and not after an hour.
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if part and (len(part) + 1) * lengths[part[0]] > tokens:
            yield part
            part = []
        part.append(i)
    if part:
        yield part
