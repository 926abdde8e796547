"""Simulated time: an event loop whose clock jumps to the next timer, so that hours of waiting take milliseconds.

Everything that waits by the loop (`sleep`, `timeout`, timers) runs as it is. Threads and sockets are not simulated:
what the code under test would run beside the loop is passed `at_once`.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec, TypeVar

from rlhf_runtime.clock import Clock

P = ParamSpec("P")
T = TypeVar("T")

#: Rounds of the loop at one instant after which it is said to turn without end.
_MOST_ROUNDS = 100_000
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Deadlock(AssertionError):
    """Every task waits, and nothing will ever wake one of them."""


class EndlessLoop(AssertionError):
    """Tasks wake each other again and again, and time does not pass."""


class _Selector(selectors.SelectSelector):
    """Instead of waiting for `timeout`, moves the time on."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0
        self.each_round: Callable[[float], None] | None = None
        self._rounds = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Other threads of the loop's pool are not waited for; there are none.
        if self.each_round is not None:
            self.each_round(timeout or 0.0)
        if timeout is None:
            raise Deadlock(f"at {self.time:g} s no timer is set, and no task can go on")
        self._rounds = 0 if timeout > 0 else self._rounds + 1
        if self._rounds > _MOST_ROUNDS:
            raise EndlessLoop(f"{_MOST_ROUNDS} rounds at {self.time:g} s")
        self.time += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in simulated time, which begins at 0."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.time

    def each_round(self, look: Callable[[float], None]) -> None:
        """Call `look` after each round of callbacks, with the seconds until the next one."""
        self._virtual.each_round = look


@dataclass(slots=True)
class VirtualTime:
    """A simulated world's time. Its wall clock may be put forward or back, by `jump`."""

    loop: VirtualLoop = field(default_factory=VirtualLoop)
    jump: timedelta = timedelta()

    @property
    def clock(self) -> Clock:
        return Clock(self.loop.time, lambda: _EPOCH + timedelta(seconds=self.loop.time()) + self.jump)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run to the end, and cancel what is left. Raises Deadlock, EndlessLoop, and what `main` raises."""
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            return runner.run(main)


async def at_once(call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """A blocking call on the event loop itself, in place of a thread: in simulated time it takes none."""
    await asyncio.sleep(0)
    return call(*args, **kwargs)
