"""All trainer ranks as the dataflow sees them, over their Ray actors."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from rlhf_api.conditions import Reason

from rlhf_runtime.actors.answers import awaited, best_reason
from rlhf_runtime.dataflow.workers import Made
from rlhf_runtime.experience.messages import Trained
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.scheduling.ledger import Dispatch
from rlhf_runtime.scheduling.topology import rank_of
from rlhf_runtime.storage.checkpoints import StagedFile
from rlhf_runtime.weight_sync.manifest import Order, Publication

#: When one rank fails, the others get so long to say their own, better reason, seconds.
_OTHER_RANKS_SECONDS = 3.0


class RayTrainers:
    """A `workers.TrainersHandle`: all ranks; rank 0 publishes and saves."""

    def __init__(self, actors: Sequence[Any], pods: list[str], pids: list[int]) -> None:
        self._actors = actors
        self.pods = pods
        self.pids = pids

    async def receive(self, made: Made, admitted: Sequence[Dispatch]) -> None:
        # Tensor-parallel peers are neighbours, and get the same.
        peers, data_ranks = len(self._actors) // len(made.payloads), len(made.payloads)
        calls = [
            actor.receive.remote(made.payloads[rank // peers], mine)
            for rank, actor in enumerate(self._actors)
            if (mine := [d for d in admitted if rank_of(d.cursor, data_ranks) == rank // peers])
        ]
        await self._all(calls)

    async def forget(self, dispatches: Sequence[Dispatch]) -> None:
        await self._all([actor.forget.remote(dispatches) for actor in self._actors])

    async def train(self, dispatches: Sequence[Dispatch], version: int) -> Trained:
        answers: list[Trained] = await self._all([actor.train.remote(dispatches, version) for actor in self._actors])
        return replace(answers[0], groups=tuple(group for answer in answers for group in answer.groups))

    async def publish(self, order: Order, *, must_differ: bool, seconds: float) -> Publication:
        try:
            async with asyncio.timeout(seconds):
                return await self._publish(order, must_differ)
        except TimeoutError as error:
            raise RunFailure(
                Reason.WEIGHT_SYNC_FAILED,
                f"{self.pods[0]} did not publish version {order.version} within {seconds:g} s "
                "(weightSync.deadlineSeconds)",
                permanent=False,
            ) from error

    async def save(self, folder: Path, *, resumable: bool) -> list[StagedFile]:
        # Weights that are divided over ranks come together by all ranks' work.
        files, *_ = await self._all([actor.save.remote(folder, resumable) for actor in self._actors])
        return list(files)

    async def ping(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._all([actor.ping.remote() for actor in self._actors])
        except TimeoutError as error:
            raise RunFailure(
                Reason.TRAINER_LOST, f"one of {self.pods} has not answered for {seconds:g} s", permanent=False
            ) from error

    def kill(self) -> None:
        for actor in self._actors:
            ray.kill(actor)

    async def _publish(self, order: Order, must_differ: bool) -> Publication:
        first = self._actors[0]
        # Weights that are divided over ranks come together by all ranks' work.
        manifest, *_ = await self._all([actor.prepare.remote(order, must_differ) for actor in self._actors])
        buckets = []
        for index in range(len(manifest.buckets)):
            digest, payload = first.shard.options(num_returns=2).remote(order, index)
            [found] = await self._all([digest])
            buckets.append((found, payload))
        [digest] = await self._all([first.commit.remote(order)])
        probe, *_ = await self._all([actor.probe.remote() for actor in self._actors])
        return Publication(manifest, tuple(buckets), digest, probe)

    async def _all(self, calls: Sequence[Any]) -> list[Any]:
        """The answers of all ranks, or the best reason for which one has none."""
        if not calls:
            return []
        tasks = [asyncio.ensure_future(awaited(call)) for call in calls]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            if any(task.done() and task.exception() for task in tasks):
                # A collective breaks in all ranks when one dies: the dead one's reason is the better one.
                await asyncio.wait(tasks, timeout=_OTHER_RANKS_SECONDS)
                raise best_reason([error for task in tasks if task.done() and (error := task.exception())], self.pods)
            return [task.result() for task in tasks]
        finally:
            for task in tasks:
                task.cancel()
