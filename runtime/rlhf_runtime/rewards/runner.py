"""Scores completions with a job's rewards: functions in processes of their own, endpoints, and the reward model.

All of them work at the same time: functions and endpoints while the model computes.
"""

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from rlhf_api.rewards import MAX_REWARDS, Reward

from rlhf_runtime.data.prompt_rows import PromptValue
from rlhf_runtime.rewards.batch import Batch, RewardScores, Tokens, summed
from rlhf_runtime.rewards.by_endpoint import EndpointReward
from rlhf_runtime.rewards.by_function import FunctionReward
from rlhf_runtime.rewards.by_model import ModelReward, Scorer
from rlhf_runtime.rewards.together import together

T = TypeVar("T")

#: Longest that a function's module may take to be imported, seconds; `timeoutSeconds` is for calls.
IMPORT_SECONDS = 60.0


class _Source(Protocol):
    """Where one reward comes from. Methods raise RunFailure with the reward's place in the spec."""

    def start(self) -> None:
        """Begin to get ready, and return at once."""
        ...

    def until_ready(self) -> None: ...

    def check(self, columns: Sequence[str]) -> None:
        """Check that it can be asked about prompts with these columns."""
        ...

    async def score(self, batch: Batch) -> list[float | None]:
        """One reward a completion, None where it does not apply."""
        ...

    def end(self) -> None:
        """Free what it holds. The next use starts it again."""
        ...


class RewardRunner:
    """A job's rewards. A context manager: leaving it ends their processes. Used from one thread.

    All methods raise RunFailure: RewardFunction- and RewardEndpointInvalid, RewardInvalid and ModelInvalid
    (permanent), RewardFunction- and RewardEndpointFailed, RewardFunctionTimeout.
    """

    def __init__(
        self,
        rewards: Sequence[Reward],
        *,
        field: str = "rewards",
        scorer: Scorer | None = None,
        import_seconds: float = IMPORT_SECONDS,
    ) -> None:
        """``field`` is where the spec has them; without ``scorer`` a reward model can be checked, and not asked."""
        self._rewards = list(rewards)
        self._field = field
        self._sources: list[_Source] = [
            _source(reward, f"{field}[{i}]", scorer, import_seconds) for i, reward in enumerate(rewards)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all processes. The next use starts them again."""
        for source in self._sources:
            source.end()

    def check_importable(self, columns: Sequence[str] = ()) -> None:
        """Import every function in its process, check that it takes prompts, completions and the columns."""
        with self._all_or_none():
            self._start()
            for source in self._sources:
                source.check(columns)

    def check_endpoints(
        self, prompts: Sequence[PromptValue], completions: Sequence[PromptValue], columns: dict[str, list[Any]]
    ) -> None:
        """Ask every endpoint about a few completions, to see that it is there and answers what it should."""
        batch = Batch(prompts, completions, columns)
        _run(together([source.score(batch) for source in self._sources if isinstance(source, EndpointReward)]))

    def score(
        self,
        prompts: Sequence[PromptValue],
        completions: Sequence[PromptValue],
        columns: dict[str, list[Any]],
        tokens: Tokens | None = None,
        rows: Sequence[int] | None = None,
    ) -> RewardScores:
        """Rewards of B completions; ``prompts``, ``rows`` and every column have one entry a completion.

        The reward model, and functions with a parameter `completion_ids`, need ``tokens``. ``rows`` are for messages.
        """
        batch = Batch(prompts, completions, columns, tokens, rows)
        with self._all_or_none():
            self._start()
            found = _run(together([source.score(batch) for source in self._sources]))
        each = {reward.title: values for reward, values in zip(self._rewards, found, strict=True)}
        return summed(batch, each, [reward.weight for reward in self._rewards], self._field)

    def _start(self) -> None:
        # All imports run at the same time.
        for source in self._sources:
            source.start()
        for source in self._sources:
            source.until_ready()

    def _all_or_none(self) -> contextlib.ExitStack:
        # An answer that nobody fetches would be taken for the next one's: after any error all start anew.
        stack = contextlib.ExitStack()
        stack.push(lambda kind, *_: self.close() if kind else None)
        return stack


def _source(reward: Reward, place: str, scorer: Scorer | None, import_seconds: float) -> _Source:
    label = f"{place} ({reward.subject})"
    if reward.function is not None:
        return FunctionReward(label, reward.function, reward.seconds, import_seconds)
    if reward.http is not None:
        return EndpointReward(label, reward.http, reward.seconds)
    return ModelReward(scorer)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """A result that is awaited from a thread without a loop; each reward may wait in a thread of its own."""

    async def with_threads() -> T:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(MAX_REWARDS, "reward"))
        return await work

    return asyncio.run(with_threads())
