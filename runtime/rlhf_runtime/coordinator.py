"""The coordinator: runs one attempt's dataflow, as a child of the supervisor. ``python -m rlhf_runtime.coordinator``.

1. check files, prompts and reward functions, before any weight is loaded
2. find the checkpoint to resume from, or the finished model
3. connect to Ray, or start it; place trainers and makers
4. run the loops (see flow.py) until the model is in storage, or something ends the attempt
5. say the last word
"""

import asyncio
import logging
import os
import sys
import traceback

from rlhf_api.conditions import COORDINATOR_CRASHED
from rlhf_api.run import RUN_CONFIG_ENV, Failure, RunConfig

from rlhf_runtime import actors, socket_channel
from rlhf_runtime.channel import SupervisorChannel
from rlhf_runtime.checkpoint import Checkpoints
from rlhf_runtime.episode_desk import EpisodeDesk, Standing, standing_of, stored
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.flow import Flow, MakerSlot
from rlhf_runtime.ledger import Ledger
from rlhf_runtime.maker_loop import PING_EVERY_SECONDS, PING_SECONDS, MakerLoop
from rlhf_runtime.preflight import Preflight, preflight
from rlhf_runtime.processors import available_processors
from rlhf_runtime.run_directory import RunDirectory
from rlhf_runtime.socket_channel import SupervisorGone
from rlhf_runtime.training_loop import TrainingLoop
from rlhf_runtime.watch import Watch
from rlhf_runtime.workers import MakerHandle, TrainersHandle

log = logging.getLogger("rlhf.coordinator")


class Run:
    """One attempt, from its RunConfig to the trained model in storage."""

    def __init__(self, config: RunConfig, channel: SupervisorChannel) -> None:
        self._config = config
        self._channel = channel
        self._directory = RunDirectory(config.run_directory)
        self._checkpoints = Checkpoints(self._directory, config.attempt, config.checkpoint_keep)

    async def run(self) -> None:
        """Raises RunFailure, or a group that holds one."""
        checked = await asyncio.to_thread(preflight, self._config, self._directory)
        found = await stored(self._checkpoints.newest)
        standing = standing_of(found)
        if found is not None:
            log.info("resuming after episode %d from %s", standing.latest_episode, found[0])
        flow = Flow(
            config=self._config,
            channel=self._channel,
            ledger=Ledger(
                prompts_per_episode=self._config.rollout.prompts_per_episode, first_episode=standing.latest_episode
            ),
            version=standing.latest_episode,
            slots=[MakerSlot(index) for index in range(self._config.makers)],
        )
        watch = Watch(flow, standing)
        if await stored(self._checkpoints.finished, flow.episodes):
            log.info("the trained model is in %s already", self._checkpoints.model)
            standing.final_model = str(self._checkpoints.model)
            flow.begun()
        else:
            await self._work(checked, flow, standing, watch)
        await watch.tell()

    async def _work(self, checked: Preflight, flow: Flow, standing: Standing, watch: Watch) -> None:
        probe = await stored(self._directory.write_probe)
        started = await asyncio.to_thread(actors.connect, self._config)
        # On one machine all actors share its processors; in a cluster each has those of its pod.
        share = available_processors() // (self._config.makers + self._config.trainers)
        workers = actors.Workers(self._config, probe, max(1, share) if started else None)
        try:
            await self._loops(workers, checked, flow, standing, watch)
        finally:
            await asyncio.to_thread(actors.disconnect)
            await stored(self._directory.remove_probe, probe)

    async def _loops(
        self, workers: actors.Workers, checked: Preflight, flow: Flow, standing: Standing, watch: Watch
    ) -> None:
        """All the loops at once, until the training loop ends, or the first of them fails."""

        async def place(name: str) -> MakerHandle:
            return await workers.maker(name, checked.training.columns)

        desk = EpisodeDesk(flow, self._directory, self._checkpoints, standing)
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(watch.run()), tasks.create_task(desk.run())]
            beside += [tasks.create_task(MakerLoop(flow, slot, place, checked.training).run()) for slot in flow.slots]
            trainers = await workers.trainers(standing.latest_folder)
            flow.trainers = trainers
            beside.append(tasks.create_task(_watch_trainers(trainers)))
            await TrainingLoop(flow, trainers, desk, self._checkpoints, standing, checked.held_out).run()
            for task in beside:
                task.cancel()


async def _watch_trainers(trainers: TrainersHandle) -> None:
    while True:
        await trainers.ping(PING_SECONDS)
        await asyncio.sleep(PING_EVERY_SECONDS)


def failure_of(error: BaseException) -> Failure:
    """What the supervisor is told of an error: a RunFailure's own words, of a group the first one's."""
    causes = _leaves(error)
    for cause in causes:
        if isinstance(cause, RunFailure):
            return cause.report("".join(traceback.format_exception(cause))[-4000:])
    return Failure(
        reason=COORDINATOR_CRASHED,
        message=f"the coordinator failed: {type(causes[0]).__name__}: {causes[0]}",
        permanent=False,
        tail="".join(traceback.format_exception(causes[0]))[-4000:],
    )


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


async def _main() -> int:
    config = RunConfig.model_validate_json(os.environ[RUN_CONFIG_ENV])
    channel = await socket_channel.connect()
    failure: Failure | None = None
    try:
        await Run(config, channel).run()
    except Exception as error:
        if any(isinstance(leaf, SupervisorGone) for leaf in _leaves(error)):
            raise
        log.exception("attempt %d ends", config.attempt)
        failure = failure_of(error)
    await channel.finished(failure)
    await channel.close()
    return 0


def main() -> None:
    """The coordinator's process; its exit code says nothing that it hasn't told its supervisor."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    sys.exit(asyncio.run(_main()))


if __name__ == "__main__":
    main()
