"""A keyed work queue: one pass for each key at a time, passes asked for meanwhile become one, failures back off.

Own code: kopf runs a handler for each event and keeps its back-off in the object, and asyncio has no such queue.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

Key = tuple[str, str]
"""Namespace and name."""

log = logging.getLogger(__name__)


class Depth(Protocol):
    """Where the queue's length is shown."""

    def set(self, value: float) -> None: ...


class WorkQueue:
    """Life of a key: waiting -> in a pass -> (asked again meanwhile: waiting) -> at rest, or delayed.

    ``process`` returns after how many seconds it wants to be called again, or None. When it raises, the key comes
    back after ``backoff`` * 2 ** failures seconds, at most ``cap``, and a success forgets the failures. Whatever
    delay is pending, ``add`` makes the key due at once, but a back-off is waited out: events about a failing key must
    not make it spin. Of two delays the shorter one counts.
    """

    def __init__(
        self,
        process: Callable[[Key], Awaitable[float | None]],
        *,
        workers: int = 4,
        backoff: float = 1.0,
        cap: float = 60.0,
        depth: Depth | None = None,
    ) -> None:
        self._process = process
        self._workers = workers
        self._backoff = backoff
        self._cap = cap
        self._depth = depth
        self._waiting: deque[Key] = deque()
        self._queued: set[Key] = set()
        self._active: set[Key] = set()
        self._again: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._arrived = asyncio.Event()

    def add(self, key: Key) -> None:
        """Due now, or at the end of its back-off."""
        if key in self._failures and key in self._timers:
            return
        self._cancel(key)
        if key in self._active:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._waiting.append(key)
            self._arrived.set()
        self._show()

    def add_after(self, key: Key, seconds: float) -> None:
        """Due in so many seconds, unless it is due earlier already."""
        if seconds <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        known = self._timers.get(key)
        if key in self._queued or key in self._again or (known and known.when() <= loop.time() + seconds):
            return
        self._cancel(key)
        self._timers[key] = loop.call_later(seconds, self._due, key)

    async def run(self) -> None:
        """Works until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            key = self._waiting.popleft()
            self._queued.discard(key)
            self._active.add(key)
            self._show()
            try:
                delay = await self._one_pass(key)
            finally:
                self._active.discard(key)
            if key in self._again:
                self._again.discard(key)
                if key not in self._failures:
                    delay = 0.0
            if delay is not None:
                self.add_after(key, delay)

    async def _one_pass(self, key: Key) -> float | None:
        try:
            delay = await self._process(key)
        except Exception as error:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            pause = min(self._cap, self._backoff * 2.0 ** min(failures - 1, 16)) * random.uniform(0.8, 1.2)
            log.error("%s/%s: pass failed, number %d, again in %.1f s", *key, failures, pause, exc_info=error)
            return pause
        self._failures.pop(key, None)
        return delay

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _cancel(self, key: Key) -> None:
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()

    def _show(self) -> None:
        if self._depth is not None:
            self._depth.set(len(self._waiting))
