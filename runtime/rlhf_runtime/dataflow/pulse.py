"""How tasks of one event loop wait for each other: for a state of affairs, not for a message."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Pulse:
    """Whoever changes something that others may wait for beats; whoever waits looks again.

    Nothing is ever missed, because what is waited for is looked at and not remembered.
    """

    def __init__(self) -> None:
        self._beat = asyncio.Event()

    def beat(self) -> None:
        """Something has changed."""
        self._beat.set()
        self._beat = asyncio.Event()

    async def next(self) -> None:
        """Wait for the next beat."""
        await self._beat.wait()

    async def until(self, look: Callable[[], T | None]) -> T:
        """Look, and again after every beat, until something is there (neither None nor False)."""
        while (found := look()) is None or found is False:
            await self.next()
        return found
