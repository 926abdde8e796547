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

from rlhf_api.conditions import Reason
from rlhf_api.run import RUN_CONFIG_ENV, Failure, RunConfig
from rlhf_api.tails import last_lines

from rlhf_runtime.actors import cluster
from rlhf_runtime.channel import coordinator_end
from rlhf_runtime.channel.coordinator_end import SupervisorGone
from rlhf_runtime.channel.messages import SupervisorChannel
from rlhf_runtime.clock import Clock
from rlhf_runtime.dataflow.flow import start_flow
from rlhf_runtime.dataflow.progress import RunProgress
from rlhf_runtime.dataflow.storage import Storage
from rlhf_runtime.dataflow.watch import Watch
from rlhf_runtime.dataflow.wiring import run_dataflow
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.preflight.checks import preflight
from rlhf_runtime.processors import available_processors
from rlhf_runtime.storage.checkpoints import Checkpoints
from rlhf_runtime.storage.run_directory import RunDirectory

log = logging.getLogger("rlhf.coordinator")


class Run:
    """One attempt, from its RunConfig to the trained model in storage."""

    def __init__(self, config: RunConfig, channel: SupervisorChannel, clock: Clock | None = None) -> None:
        self._config = config
        self._channel = channel
        self._clock = clock or Clock()
        directory = RunDirectory(config.run_directory)
        checkpoints = Checkpoints(directory, config.attempt, config.checkpoint_keep)
        self._storage = Storage(directory=directory, checkpoints=checkpoints)

    async def run(self) -> None:
        """Raises RunFailure, or a group that holds one."""
        checkpoints, calls = self._storage.checkpoints, self._storage.calls
        progress = RunProgress(self._clock, await calls.do(checkpoints.newest))
        if await calls.do(checkpoints.finished, self._channel.settings.episodes):
            log.info("the trained model is in %s already", checkpoints.model)
            progress.exported(checkpoints.model)
            progress.rollout_started()
            await Watch(start_flow(self._config, self._channel, progress, clock=self._clock)).tell()
        else:
            await self._work(progress)

    async def _work(self, progress: RunProgress) -> None:
        config, calls, directory = self._config, self._storage.calls, self._storage.directory
        if progress.latest_folder is not None:
            log.info("resuming after episode %d from %s", progress.latest_episode, progress.latest_folder)
        # Ray starts while the files are checked; actors are placed when both are done. In a thread of the event
        # loop's pool, which lives as long as the process: a local Ray ends with the thread that started it.
        connecting = asyncio.ensure_future(asyncio.to_thread(cluster.connect, config))
        try:
            checked = await asyncio.to_thread(preflight, config, directory)
            for note in (*checked.notes, *checked.needs):
                log.info("%s", note)
            for field, rows in checked.sources.items():
                log.info("%s: %s", field, rows.to_dict())
            flow = start_flow(
                config,
                self._channel,
                progress,
                held_out=checked.held_out,
                sources=checked.sources,
                clock=self._clock,
            )
            probe = await calls.do(directory.write_probe)
            started = await connecting
            workers = cluster.RayWorkers(config, probe, self._threads(started), checked.training.columns)
            try:
                await run_dataflow(workers, flow, self._storage, checked.training)
            finally:
                await calls.tidy(directory.remove_probe, probe)
        finally:
            await asyncio.wait([connecting])
            await asyncio.to_thread(cluster.disconnect)

    def _threads(self, one_machine: bool) -> int | None:
        """Threads of each actor: on one machine all share its processors, in a cluster each has those of its pod."""
        if not one_machine:
            return None
        actors = self._config.makers.replicas * self._config.makers.tensor_parallel + self._config.trainers.replicas
        return max(1, available_processors() // actors)


def failure_of(error: BaseException) -> Failure:
    """What the supervisor is told of an error: a RunFailure's own words, of a group the first one's.

    The traceback of any other error goes with it: that one is ours to mend.
    """
    causes = _leaves(error)
    for cause in causes:
        if isinstance(cause, RunFailure):
            return cause.report()
    return Failure(
        reason=Reason.COORDINATOR_CRASHED,
        message=f"the coordinator failed: {type(causes[0]).__name__}: {causes[0]}",
        permanent=False,
        tail=last_lines("".join(traceback.format_exception(causes[0]))),
    )


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


async def _main() -> int:
    config = RunConfig.read_json(os.environ[RUN_CONFIG_ENV])
    channel = await coordinator_end.connect()
    failure: Failure | None = None
    try:
        await Run(config, channel).run()
    except Exception as error:
        if any(isinstance(leaf, SupervisorGone) for leaf in _leaves(error)):
            raise
        failure = failure_of(error)
        # A failure that has no tail, and may pass, gets this log's end for one: no place for frames of ours.
        shown = failure.permanent or bool(failure.tail)
        log.error("attempt %d ends: %s", config.attempt, failure.message, exc_info=shown)
    await channel.finished(failure)
    await channel.close()
    return 0


def main() -> None:
    """The coordinator's process; its exit code says nothing that it hasn't told its supervisor."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    sys.exit(asyncio.run(_main()))


if __name__ == "__main__":
    main()
