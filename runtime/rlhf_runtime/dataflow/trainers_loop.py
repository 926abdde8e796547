"""The trainers' life as the coordinator leads it: placed, watched, and led through the episodes."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from rlhf_runtime.dataflow.episode_finisher import EpisodeFinisher
from rlhf_runtime.dataflow.flow import Flow
from rlhf_runtime.dataflow.storage import Storage
from rlhf_runtime.dataflow.training_loop import TrainingLoop
from rlhf_runtime.dataflow.workers import TrainersHandle

PlaceTrainers = Callable[[Path | None], Awaitable[TrainersHandle]]
"""Place all ranks with the starting model, or with what a checkpoint holds. Raises RunFailure."""


class TrainersLoop:
    """The only writer of the trainers' handle. All ranks have one life: when one is lost, the attempt ends."""

    def __init__(self, flow: Flow, place: PlaceTrainers, finisher: EpisodeFinisher, storage: Storage) -> None:
        self._flow = flow
        self._place = place
        self._finisher = finisher
        self._storage = storage

    async def run(self) -> None:
        """Until the trained model is in storage. Raises RunFailure, alone or in a group."""
        flow = self._flow
        handle = await self._place(flow.progress.latest_folder)
        flow.trainers.handle = handle
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._watch(handle))
            await TrainingLoop(flow, handle, self._finisher, self._storage).run()
            watching.cancel()

    async def _watch(self, handle: TrainersHandle) -> None:
        while True:
            await handle.ping(self._flow.pace.ping)
            await asyncio.sleep(self._flow.pace.ping_every)
