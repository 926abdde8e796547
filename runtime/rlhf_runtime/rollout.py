"""What travels from makers to trainers, and how a trainer lays it out as tensors.

A rollout is what the engine did and nothing else; an experience is a rollout that has been scored. Both hold
numpy arrays: the object store hands those to another process without a copy, and a process that only routes
them needs no torch. torch is therefore imported inside `rows_of` and `collate` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rollout:
    """One sampled completion of one prompt.

    prompt_index   cursor of the prompt in the run; with `sample` it names the rollout
    sample         which sample of the prompt's group, from 0
    prompt_ids     [P] int32, without padding
    completion_ids [T] int32, T >= 1; includes the EOS the policy chose, and nothing after it
    logprobs       [T] float32, nats: log-probability each token was sampled with (temperature applied)
    versions       [T] int32: policy version that sampled each token
    truncated      the token limit ended it, so its last token is not a chosen EOS
    """

    prompt_index: int
    sample: int
    prompt_ids: Int32Array
    completion_ids: Int32Array
    logprobs: Float32Array
    versions: Int32Array
    truncated: bool

    def __post_init__(self) -> None:
        _check_array("prompt_ids", self.prompt_ids, np.int32, None)
        _check_array("completion_ids", self.completion_ids, np.int32, None)
        tokens = len(self.completion_ids)
        _check_array("logprobs", self.logprobs, np.float32, tokens)
        _check_array("versions", self.versions, np.int32, tokens)
        if self.prompt_index < 0 or self.sample < 0:
            raise ValueError(
                f"rollout: found prompt_index {self.prompt_index}, sample {self.sample}; expected both >= 0"
            )
        if not np.isfinite(self.logprobs).all() or (self.logprobs > 0).any():
            raise ValueError(f"logprobs: found {self.logprobs}, expected finite values <= 0")
        if self.versions.min() < 0:
            raise ValueError(f"versions: found {self.versions.min()}, expected >= 0")

    @property
    def oldest_version(self) -> int:
        """The version staleness is measured from."""
        return int(self.versions.min())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """All samples of one prompt; admitted, dropped, refilled and trained whole."""

    prompt_index: int
    rollouts: tuple[Rollout, ...]

    def __post_init__(self) -> None:
        found = [(r.prompt_index, r.sample) for r in self.rollouts]
        expected = [(self.prompt_index, sample) for sample in range(len(self.rollouts))]
        if not found or found != expected:
            raise ValueError(f"group: found (prompt, sample) {found}, expected {expected or 'at least one rollout'}")

    @property
    def oldest_version(self) -> int:
        """Oldest version of any token of the group."""
        return min(rollout.oldest_version for rollout in self.rollouts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Experience:
    """A rollout with all that training needs of it; T completion tokens, log-probs in nats, the rest in reward units.

    reward              what the reward functions gave, weighted; without any penalty
    advantages          [T] float32, raw: whitening is over a whole episode, at the trainers
    returns, values     [T] float32, the critic's targets and its values when the tokens were drawn (PPO)
    reference_logprobs  [T] float32, of the completion under the reference policy, where a KL is wanted
    teacher_logprobs    [T] float32, under the teacher, where there is one
    """

    rollout: Rollout
    reward: float
    advantages: Float32Array
    returns: Float32Array | None = None
    values: Float32Array | None = None
    reference_logprobs: Float32Array | None = None
    teacher_logprobs: Float32Array | None = None

    def __post_init__(self) -> None:
        if not np.isfinite(self.reward):
            raise ValueError(f"experience: found reward {self.reward}, expected a finite number")
        for name in TOKEN_FIELDS:
            array = getattr(self, name)
            if array is not None:
                _check_array(name, array, np.float32, len(self.rollout.completion_ids))
                if not np.isfinite(array).all():
                    raise ValueError(f"{name}: found {array}, expected finite numbers")


#: Fields of an experience that have a value a token; a batch has them under the same names.
TOKEN_FIELDS = ("advantages", "returns", "values", "reference_logprobs", "teacher_logprobs")


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
    import torch

    from rlhf_runtime.maths.masks import position_ids

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
    import torch

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


def _check_array(name: str, array: npt.NDArray[np.generic], dtype: type[np.generic], length: int | None) -> None:
    """One-dimensional, of this dtype, of this length (None: at least 1)."""
    right_length = array.size >= 1 if length is None else array.size == length
    if array.ndim != 1 or array.dtype != dtype or not right_length:
        expected = "1 or more" if length is None else str(length)
        raise ValueError(
            f"{name}: found {array.dtype}{list(array.shape)}, expected {np.dtype(dtype)} of length {expected}"
        )
