"""Several things awaited at once."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def together(parts: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Their results in order. The first error ends the others, waits for their end, and is raised as it is."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
