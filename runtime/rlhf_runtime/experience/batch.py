"""How rollouts and experiences are laid out as tensors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from rlhf_runtime.experience.rollout import TOKEN_FIELDS, Experience, Rollout
from rlhf_runtime.maths.masks import position_ids


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Rollouts laid out as tensors: B rows, P longest prompt, T longest completion.

    A row is [pad.. prompt | completion pad..]: prompts end, and completions start, in the same column for every
    row. `attention_mask` and `mask` tell padding from tokens, never the token id, so padding with EOS is fine.

    input_ids      [B, P + T] int64
    attention_mask [B, P + T] int64, 1 at tokens
    position_ids   [B, P + T] int64, counted from the row's first token
    mask           [B, T] bool, True at completion tokens

    Where rows share prompts, else None:

    distinct_prompts [U] int64, for each distinct prompt the first row that has it
    prompt_of_row    [B] int64, which of those is the row's
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    position_ids: torch.Tensor
    mask: torch.Tensor
    distinct_prompts: torch.Tensor | None = None
    prompt_of_row: torch.Tensor | None = None

    @property
    def completion_ids(self) -> torch.Tensor:
        """[B, T] int64."""
        return self.input_ids[:, -self.mask.shape[1] :]

    def to(self, device: torch.device) -> Self:
        """A copy on the device; from page-locked memory it is made beside what the device computes."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> Self:
        """In page-locked memory of the host, which needs a GPU."""
        return self._each(lambda tensor: tensor.pin_memory())

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: change(tensor) for name, tensor in tensors.items() if tensor is not None})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch(Rows):
    """One micro-batch of experiences: their rows, and what each token has, [B, T] and 0 at padding.

    `versions` is int64, all others float32 as in an experience. None where the experiences have none.
    `old_logprobs` are those of the policy that an episode's training begins with, where they are computed beforehand.
    """

    sampled_logprobs: torch.Tensor
    versions: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor | None = None
    values: torch.Tensor | None = None
    reference_logprobs: torch.Tensor | None = None
    teacher_logprobs: torch.Tensor | None = None
    old_logprobs: torch.Tensor | None = None


def rows_of(rollouts: Sequence[Rollout], pad_id: int) -> Rows:
    """Lay rollouts out, in the order given. Padding cannot change what a model says of a row's tokens."""
    if not rollouts:
        raise ValueError("rollouts: found none, expected at least one")
    longest_prompt = max(len(r.prompt_ids) for r in rollouts)
    longest_completion = max(len(r.completion_ids) for r in rollouts)
    input_ids = np.full((len(rollouts), longest_prompt + longest_completion), pad_id, np.int64)
    attention = np.zeros_like(input_ids)
    for row, rollout in enumerate(rollouts):
        start, end = longest_prompt - len(rollout.prompt_ids), longest_prompt + len(rollout.completion_ids)
        input_ids[row, start:end] = np.concatenate([rollout.prompt_ids, rollout.completion_ids])
        attention[row, start:end] = 1
    attention_mask = torch.from_numpy(attention)
    shared = _shared_prompts(rollouts)
    return Rows(
        input_ids=torch.from_numpy(input_ids),
        attention_mask=attention_mask,
        position_ids=position_ids(attention_mask),
        mask=attention_mask[:, longest_prompt:].bool(),
        distinct_prompts=None if shared is None else torch.from_numpy(shared[0]),
        prompt_of_row=None if shared is None else torch.from_numpy(shared[1]),
    )


def collate(experiences: Sequence[Experience], pad_id: int) -> Batch:
    """Lay experiences out as one micro-batch, in the order given; all of them have the same fields."""
    rollouts = [experience.rollout for experience in experiences]
    rows = rows_of(rollouts, pad_id)
    by_token: dict[str, torch.Tensor] = {}
    for name in TOKEN_FIELDS:
        arrays = [getattr(experience, name) for experience in experiences]
        if any(array is not None for array in arrays):
            by_token[name] = torch.from_numpy(right_padded(arrays))
    return Batch(
        input_ids=rows.input_ids,
        attention_mask=rows.attention_mask,
        position_ids=rows.position_ids,
        mask=rows.mask,
        distinct_prompts=rows.distinct_prompts,
        prompt_of_row=rows.prompt_of_row,
        sampled_logprobs=torch.from_numpy(right_padded([rollout.logprobs for rollout in rollouts])),
        versions=torch.from_numpy(right_padded([rollout.versions for rollout in rollouts])).long(),
        **by_token,
    )


def right_padded(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """[rows, longest] of the arrays' own dtype, 0 at padding."""
    padded = np.zeros((len(arrays), max(len(array) for array in arrays)), arrays[0].dtype)
    for row, array in enumerate(arrays):
        padded[row, : len(array)] = array
    return padded


def _shared_prompts(rollouts: Sequence[Rollout]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
    """`distinct_prompts` and `prompt_of_row`."""
    numbers: dict[bytes, int] = {}
    of_row = np.array([numbers.setdefault(r.prompt_ids.tobytes(), len(numbers)) for r in rollouts], np.int64)
    return None if len(numbers) == len(rollouts) else (np.unique(of_row, return_index=True)[1], of_row)
