"""All loops of a run at once, over whatever workers there are: the wiring, without Ray."""

import asyncio
from pathlib import Path
from typing import Protocol

from rlhf_runtime.data.prompts import TrainingPrompts
from rlhf_runtime.dataflow.episode_finisher import EpisodeFinisher
from rlhf_runtime.dataflow.flow import Flow
from rlhf_runtime.dataflow.maker_loop import lead_makers
from rlhf_runtime.dataflow.storage import Storage
from rlhf_runtime.dataflow.trainers_loop import TrainersLoop
from rlhf_runtime.dataflow.watch import Watch
from rlhf_runtime.dataflow.workers import MakerHandle, TrainersHandle


class Workers(Protocol):
    """Places makers and trainers."""

    async def trainers(self, resume: Path | None) -> TrainersHandle:
        """All ranks, with the starting model, or with what a checkpoint holds. Raises RunFailure."""
        ...

    async def maker(self, name: str) -> MakerHandle:
        """A maker that has loaded its model and waits for its first version. Raises MakerLost, RunFailure."""
        ...


async def run_dataflow(workers: Workers, flow: Flow, storage: Storage, training: TrainingPrompts) -> None:
    """Run until the trained model is in storage and the supervisor knows. Raises what ends the run, in a group."""
    watch = Watch(flow)
    finisher = EpisodeFinisher(flow, storage, watch.tell)
    async with asyncio.TaskGroup() as tasks:
        beside = [
            tasks.create_task(watch.run()),
            tasks.create_task(finisher.run()),
            tasks.create_task(lead_makers(flow, workers.maker, training)),
        ]
        await TrainersLoop(flow, workers.trainers, finisher, storage).run()
        for task in beside:
            task.cancel()
    await watch.tell()
