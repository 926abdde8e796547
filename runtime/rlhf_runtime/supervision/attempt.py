"""One attempt as its supervisor runs it: claim the folder, run the coordinator, keep what it says, write the result."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlhf_api.conditions import Reason
from rlhf_api.run import Failure, LiveSettings, RunConfig
from rlhf_api.status import EpisodeReport

from rlhf_runtime.channel.messages import (
    CoordinatorState,
    EpisodeDone,
    Finished,
    FromCoordinator,
    Journaled,
    Settings,
    Stop,
)
from rlhf_runtime.clock import Clock
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.storage.attempt_result import AttemptResult, earlier_success, write_result
from rlhf_runtime.storage.calls import StorageCalls
from rlhf_runtime.storage.journal import Journal, episodes_after, episodes_trained
from rlhf_runtime.storage.run_directory import AttemptDirectory, RunDirectory
from rlhf_runtime.supervision.coordinator_process import COORDINATOR, CoordinatorProcess
from rlhf_runtime.supervision.deadlines import Patience, Times, next_deadline, stopped_at_once
from rlhf_runtime.supervision.endings import Ending, failure_of
from rlhf_runtime.supervision.report_board import ReportBoard

#: Seconds that one call of the storage may take.
STORAGE_SECONDS = 120

log = logging.getLogger("rlhf.supervisor")


class Supervisor:
    """One attempt: claims its folder, runs its coordinator, and ends with a result. ``run`` is called once.

    What the report endpoint needs of it works before, during and after ``run``.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        command: Sequence[str] = COORDINATOR,
        patience: Patience | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.config = config
        self._clock = clock or Clock()
        self._storage = StorageCalls(STORAGE_SECONDS)
        self.board = ReportBoard(config, self._clock.wall())
        self._acknowledged = asyncio.Event()
        self._settings = LiveSettings(
            generation=config.generation, max_staleness=config.max_staleness, episodes=config.episodes
        )
        self._directory = RunDirectory(config.run_directory)
        self._journal = Journal(self._directory, config.attempt)
        self._command = command
        self._patience = patience or Patience()
        self._coordinator: CoordinatorProcess | None = None
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._finished: Finished | None = None
        self._times = Times(started=self._clock.monotonic())

    async def run(self) -> Failure | None:
        """Run the attempt to its end; why it failed, or None."""
        try:
            done = await self._storage.do(earlier_success, self._directory, self.config.episodes)
            if done is not None:
                log.info("attempt %d has finished this job already: nothing to do", done.report.attempt)
                self.board.end_as(done.report)
                return None
            await self._claim()
            failure = await self._supervise()
        except RunFailure as error:
            failure = error.report()
        await self._conclude(failure)
        return failure

    def request_stop(self) -> None:
        """Ask the coordinator to stop; asked again, it is ended at once."""
        (self._hurry if self._stop.is_set() else self._stop).set()

    async def until_acknowledged(self, seconds: float) -> None:
        """Wait until the last report was seen, at most ``seconds``, and no longer than until asked to stop."""
        waiting = [asyncio.ensure_future(event.wait()) for event in (self._acknowledged, self._stop)]
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        await _cancelled(*waiting)

    def acknowledge(self) -> None:
        """The last report was seen."""
        self._acknowledged.set()

    async def put_settings(self, settings: LiveSettings) -> LiveSettings:
        """Take settings of a higher generation and tell the coordinator; gives those in force."""
        if settings.generation > self._settings.generation:
            self._settings = settings
            if self._coordinator is not None:
                await self._coordinator.send(Settings(settings=settings))
        return self._settings

    async def episodes_after(self, attempt: int, seq: int, limit: int) -> list[EpisodeReport]:
        """The series after the cursor (attempt, seq), at most ``limit``."""
        # Most polls are at the end of the journal; they do not touch the storage.
        if (attempt, seq) >= (self.config.attempt, self.board.last_seq):
            return []
        return await self._storage.do(episodes_after, self._directory, attempt, seq, limit)

    async def _claim(self) -> None:
        attempt = self.config.attempt
        folder = await self._storage.do(_claimed, self._directory, attempt)
        if folder is None:
            raise RunFailure(
                Reason.ATTEMPT_TAKEN,
                f"attempt {attempt} has a folder in {self._directory.path} already: another supervisor runs it or "
                "ran it; the next attempt resumes from its newest checkpoint",
                permanent=False,
            )
        content = self.config.to_json(indent=1).encode()
        await self._storage.do(self._directory.write, folder.config, content)

    async def _supervise(self) -> Failure | None:
        try:
            coordinator = await CoordinatorProcess.start(self.config, self._command)
        except OSError as error:
            raise RunFailure(
                Reason.COORDINATOR_CRASHED, f"the coordinator cannot be started: {error}", permanent=False
            ) from error
        self._coordinator = coordinator
        try:
            await coordinator.send(Settings(settings=self._settings))
            given_up = await self._follow(coordinator)
            returncode = await coordinator.exited(self._patience.exit) if given_up is None else None
        finally:
            await coordinator.end(self._patience.exit)
            self._coordinator = None
        tail = await coordinator.tail()
        return failure_of(Ending(finished=self._finished, returncode=returncode, given_up=given_up, tail=tail))

    async def _follow(self, coordinator: CoordinatorProcess) -> Failure | None:
        """Take what the coordinator says until it has said all; why it was given up before, or None."""
        receiving = asyncio.ensure_future(coordinator.receive())
        asked = asyncio.ensure_future(self._stop.wait())
        try:
            while self._finished is None:
                deadline = next_deadline(self.config, self._times, self._patience, self.board.report.waits)
                await asyncio.wait(
                    {receiving, asked},
                    timeout=max(0.0, deadline.at - self._clock.monotonic()),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if receiving.done():
                    message = receiving.result()
                    if message is None:
                        return None
                    await self._take(coordinator, message)
                    receiving = asyncio.ensure_future(coordinator.receive())
                elif asked.done() and self._times.stop_requested is not None:
                    return stopped_at_once()
                elif asked.done():
                    log.info("asked to stop: the episode in training is finished and saved; ask again to stop at once")
                    self._times = replace(self._times, stop_requested=self._clock.monotonic())
                    await coordinator.send(Stop())
                    asked = asyncio.ensure_future(self._hurry.wait())
                elif self._clock.monotonic() >= deadline.at:
                    return deadline.failure
        except ValueError as error:
            message_text = f"the coordinator said what it may not: {error}"
            return Failure(reason=Reason.COORDINATOR_CRASHED, message=message_text, permanent=False)
        finally:
            await _cancelled(receiving, asked)
        return None

    async def _take(self, coordinator: CoordinatorProcess, message: FromCoordinator) -> None:
        if isinstance(message, CoordinatorState):
            await self._take_state(message)
        elif isinstance(message, EpisodeDone):
            report = await self._storage.do(self._journal.append, message.report)
            self._times = replace(self._times, last_episode=self._clock.monotonic())
            self.board.journaled(report.seq)
            await coordinator.send(Journaled(episode=report.episode))
            score = "" if report.score is None else f", score {report.score:.4g}"
            log.info("episode %d of %d: reward %.4g%s", report.episode, self._settings.episodes, report.reward, score)
        else:
            self._finished = message

    async def _take_state(self, state: CoordinatorState) -> None:
        if state.running and self._times.running is None:
            await self._storage.do(self._journal.begin, state.resumed_from)
            self._times = replace(self._times, running=self._clock.monotonic())
            log.info("running, from episode %d on", state.resumed_from + 1)
        self.board.observe(state)

    async def _conclude(self, failure: Failure | None) -> None:
        self.board.end(failure)
        if failure is None:
            log.info("attempt %d succeeded", self.config.attempt)
        else:
            log.error("attempt %d failed: %s: %s", self.config.attempt, failure.reason, failure.message)
        if failure is not None and failure.reason == Reason.ATTEMPT_TAKEN:
            return
        try:
            trained = await self._storage.do(episodes_trained, self._directory)
            result = AttemptResult(report=self.board.report, episodes=trained, ended=self._clock.wall())
            await self._storage.do(write_result, self._directory, self.config.attempt, result)
        except RunFailure as error:
            # The report says how it ended all the same; only a later attempt will not know.
            log.error("the result of attempt %d is not kept: %s", self.config.attempt, error)


def _claimed(directory: RunDirectory, attempt: int) -> AttemptDirectory | None:
    try:
        return directory.claim(attempt)
    except FileExistsError:
        return None


async def _cancelled(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
