"""All loops of a run at once, over whatever workers there are: the wiring, without Ray."""

import asyncio
from pathlib import Path
from typing import Protocol

from rlhf_runtime.data.prompts import Prompt, TrainingPrompts
from rlhf_runtime.dataflow.episode_finisher import EpisodeDesk, Standing
from rlhf_runtime.dataflow.flow import Flow
from rlhf_runtime.dataflow.maker_loop import MakerLoop
from rlhf_runtime.dataflow.pace import Pace
from rlhf_runtime.dataflow.storage import Storage
from rlhf_runtime.dataflow.training_loop import TrainingLoop
from rlhf_runtime.dataflow.watch import Watch
from rlhf_runtime.dataflow.workers import MakerHandle, TrainersHandle


class Workers(Protocol):
    """Places makers and trainers."""

    async def trainers(self, resume: Path | None) -> TrainersHandle:
        """All ranks, with the starting model, or with what a checkpoint holds. Raises RunFailure."""
        ...

    async def maker(self, name: str) -> MakerHandle:
        """A maker that is loaded and waits for its first version. Raises MakerLost, RunFailure."""
        ...


async def run_dataflow(
    workers: Workers,
    flow: Flow,
    watch: Watch,
    *,
    storage: Storage,
    standing: Standing,
    training: TrainingPrompts,
    held_out: list[Prompt],
) -> None:
    """Run until the trained model is in storage. Raises what ended the run instead, in a group."""
    desk = EpisodeDesk(flow, storage, standing, watch.tell)
    async with asyncio.TaskGroup() as tasks:
        beside = [tasks.create_task(watch.run()), tasks.create_task(desk.run())]
        beside += [tasks.create_task(MakerLoop(flow, slot, workers.maker, training).run()) for slot in flow.slots]
        trainers = await workers.trainers(standing.latest_folder)
        flow.trainers = trainers
        beside.append(tasks.create_task(_watch_trainers(trainers, flow.pace)))
        await TrainingLoop(flow, trainers, desk, storage, standing, held_out).run()
        for task in beside:
            task.cancel()


async def _watch_trainers(trainers: TrainersHandle, pace: Pace) -> None:
    while True:
        await trainers.ping(pace.ping)
        await asyncio.sleep(pace.ping_every)
