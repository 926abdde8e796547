"""The one clock of a process: durations are differences of a monotonic reading, wall time is only ever reported."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Moment:
    """One instant, read from both sides of the clock."""

    monotonic: float
    """Seconds from an arbitrary beginning. Only these may be compared or subtracted."""
    wall: datetime
    """For people. It may jump: nothing is decided by it."""


def _wall() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Clock:
    """What time it is. Passed to whatever needs to know, so that a test can run it in simulated time.

    Sleeping and timeouts are the event loop's; its time must be this clock's monotonic one, as asyncio's own is.
    """

    monotonic: Callable[[], float] = time.monotonic
    """Seconds; never goes back."""
    wall: Callable[[], datetime] = _wall
    """The date and time, with a time zone."""

    def now(self) -> Moment:
        """Both readings."""
        return Moment(self.monotonic(), self.wall())
