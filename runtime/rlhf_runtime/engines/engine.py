"""What a maker needs of a rollout engine: prompts and a policy in, groups of rollouts out.

An engine is used from one thread, and `load` is only called when `generate` is not between two forwards: before
it, after it, or from its `between_steps` hook.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from rlhf_runtime.experience.rollout import Float32Array, Group, Int32Array, Rollout
from rlhf_runtime.maths.truncation import Truncation

Hook = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """One group to generate: `prompt_ids` [P] int32 without padding, `samples` completions of it."""

    prompt_index: int
    prompt_ids: Int32Array
    samples: int

    def __post_init__(self) -> None:
        if self.samples < 1 or len(self.prompt_ids) < 1:
            raise ValueError(
                f"request of prompt {self.prompt_index}: found {self.samples} samples and "
                f"{len(self.prompt_ids)} prompt tokens, expected at least one of each"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn; `seed` with a token's prompt, sample and position fixes its draw.

    With a `truncation` only what it keeps is drawn, and log-probs are of that distribution. A completion also ends
    with the token that completes one of the strings of `stop` in its text.
    """

    temperature: float
    max_new_tokens: int
    seed: int
    truncation: Truncation | None = None
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.temperature > 0 or self.max_new_tokens < 1:
            raise ValueError(
                f"sampling: found temperature {self.temperature} and max_new_tokens {self.max_new_tokens}, "
                "expected a temperature above 0 and at least one token"
            )


class EngineLost(Exception):
    """A process or device of the engine is gone, or hangs: it cannot be used again. Says which, and why."""


class Engine(Protocol):
    """A policy at a known version that generates groups."""

    @property
    def version(self) -> int:
        """Policy version of the weights in use."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end a completion."""
        ...

    def load(self, state: Mapping[str, Tensor], version: int) -> None:
        """Replace all weights, or raise ValueError and keep them all."""
        ...

    def logprobs(self, rollouts: Sequence[Rollout], sampling: Sampling) -> list[Float32Array]:
        """What the weights in use say of completions that are there already, had `sampling` drawn them: [T] float32,
        nats, of each."""
        ...

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, between_steps: Hook | None = None
    ) -> list[Group]:
        """One group per request, in the order of the requests.

        `between_steps` is called between decode steps: it may raise to cancel, and may call `load`.
        """
        ...

    def check(self) -> None:
        """Raise EngineLost if it cannot be used again; from any thread, also while it is used."""
        ...

    def close(self) -> None:
        """End what it has started."""
        ...
