"""A maker as the dataflow sees it, over its Ray actor."""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import Any

import ray

from rlhf_runtime.actors.answers import T, of_maker
from rlhf_runtime.data.prompts import Prompt
from rlhf_runtime.dataflow.workers import Made, MakerLost
from rlhf_runtime.experience.messages import GroupSummary, Task
from rlhf_runtime.weight_sync.manifest import NotInPreparation, Publication


class RayMaker:
    """A `workers.MakerHandle`; `ranks` of trainers that see different samples."""

    def __init__(self, actor: Any, name: str, pod: str, pid: int, ranks: int) -> None:
        self._actor = actor
        self._ranks = ranks
        self.name = name
        self.pod = pod
        self.pid = pid

    async def make(self, tasks: Sequence[Task]) -> Made:
        """As long as it takes: a maker that hangs misses its pings, or the progress deadline."""
        summaries, *payloads = self._actor.make.options(num_returns=1 + self._ranks).remote(tasks, self._ranks)
        groups: tuple[GroupSummary, ...] = await of_maker(self.name, summaries)
        return Made(groups, tuple(payloads))

    async def evaluate(self, prompts: Sequence[Prompt], version: int) -> list[float]:
        return await of_maker(self.name, self._actor.evaluate.remote(prompts, version))

    async def receive(self, publication: Publication, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        order = publication.manifest.order
        async with asyncio.timeout(seconds):
            if not await self._sync(self._actor.prepare.remote(publication.manifest, seconds)):
                # It was accepted in an earlier try, and put into use when the batch of that time ended.
                return
            for index, (digest, payload) in enumerate(publication.buckets):
                await self._sync(self._actor.stage.remote(order, index, digest, payload))
            left = deadline - time.monotonic()
            if not await self._sync(self._actor.commit.remote(order, publication.digest, left, publication.probe)):
                raise TimeoutError(f"{self.name} is in one batch for more than {seconds} s")

    async def ping(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await of_maker(self.name, self._actor.tend.remote())
        except TimeoutError as error:
            raise MakerLost(f"{self.name} in {self.pod} has not answered for {seconds:g} s") from error

    def kill(self) -> None:
        ray.kill(self._actor)

    async def _sync(self, answer: Awaitable[T]) -> T:
        try:
            return await of_maker(self.name, answer)
        except NotInPreparation as error:
            raise TimeoutError(str(error)) from error
