"""What travels from makers to trainers.

A rollout is what the engine did and nothing else; an experience is a rollout that has been scored. Both hold
numpy arrays: the object store hands those to another process without a copy, and a process that only routes
them needs no torch.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
        check_array("prompt_ids", self.prompt_ids, np.int32, None)
        check_array("completion_ids", self.completion_ids, np.int32, None)
        tokens = len(self.completion_ids)
        check_array("logprobs", self.logprobs, np.float32, tokens)
        check_array("versions", self.versions, np.int32, tokens)
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
                check_array(name, array, np.float32, len(self.rollout.completion_ids))
                if not np.isfinite(array).all():
                    raise ValueError(f"{name}: found {array}, expected finite numbers")


#: Fields of an experience that have a value a token; a batch has them under the same names.
TOKEN_FIELDS = ("advantages", "returns", "values", "reference_logprobs", "teacher_logprobs")


def check_array(name: str, array: npt.NDArray[np.generic], dtype: type[np.generic], length: int | None) -> None:
    """One-dimensional, of this dtype, of this length (None: at least 1)."""
    right_length = array.size >= 1 if length is None else array.size == length
    if array.ndim != 1 or array.dtype != dtype or not right_length:
        expected = "1 or more" if length is None else str(length)
        raise ValueError(
            f"{name}: found {array.dtype}{list(array.shape)}, expected {np.dtype(dtype)} of length {expected}"
        )
