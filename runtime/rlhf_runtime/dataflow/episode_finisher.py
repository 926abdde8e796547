"""What is left to do for an episode after its training, while the next one is collected.

In order: wait for its score, bring its report into the journal, and only then let its checkpoint count. So no
checkpoint is ever ahead of the journal.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from rlhf_runtime.dataflow.episode_report import Timing, episode_report
from rlhf_runtime.dataflow.evaluation import EvaluationRound
from rlhf_runtime.dataflow.flow import Flow
from rlhf_runtime.dataflow.storage import Storage
from rlhf_runtime.experience.messages import GroupSummary, Trained
from rlhf_runtime.storage.checkpoints import StagedFile
from rlhf_runtime.storage.samples import write_samples
from rlhf_runtime.storage.trained_groups import write_trained_groups

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Staged:
    """A checkpoint that the trainers have written and that does not count yet."""

    folder: Path
    files: list[StagedFile]
    due: bool
    """It is kept, whatever its score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedEpisode:
    """An episode as the trainers leave it: the policy of `version` was trained, version + 1 was published.

    published_at   when that publish was complete, on the monotonic clock
    dropped        tries dropped since the episode before was handed in
    """

    version: int
    groups: list[GroupSummary]
    trained: Trained
    timing: Timing
    changed_weights: float | None
    dropped: int
    published_at: float
    evaluation: EvaluationRound | None
    staged: Staged | None


class EpisodeFinisher:
    """Finishes trained episodes, one at a time and in order."""

    def __init__(self, flow: Flow, storage: Storage, tell_state: Callable[[], Awaitable[None]]) -> None:
        self._flow = flow
        self._tell_state = tell_state
        self._storage = storage
        self._attempt = storage.directory.attempt(flow.config.attempt)
        self._waiting: asyncio.Queue[TrainedEpisode] = asyncio.Queue(flow.pace.open_episodes - 1)
        self._open = 0

    async def hand_in(self, episode: TrainedEpisode) -> None:
        """Take a trained episode; waits while too many are open."""
        self._open += 1
        await self._waiting.put(episode)

    async def until_done(self) -> None:
        """Wait until every episode that was handed in is finished."""
        await self._flow.pulse.until(lambda: self._open == 0)

    async def run(self) -> None:
        """Finish episodes until cancelled. Raises RunFailure."""
        while True:
            await self._finish(await self._waiting.get())
            self._open -= 1
            self._flow.pulse.beat()

    async def _finish(self, episode: TrainedEpisode) -> None:
        flow, storage = self._flow, self._storage
        sync_seconds = await self._synced(episode)
        score = await self._score(episode.evaluation)
        report = episode_report(
            attempt=flow.config.attempt,
            version=episode.version,
            groups=episode.groups,
            trained=episode.trained,
            timing=episode.timing,
            sync_seconds=sync_seconds,
            changed_weights=episode.changed_weights,
            dropped=episode.dropped,
            score=score,
            time=flow.clock.wall(),
        )
        await storage.calls.do(write_samples, storage.directory, self._attempt, report.episode, episode.groups)
        await storage.calls.do(
            write_trained_groups, storage.directory, self._attempt, report.episode, episode.trained.groups
        )
        # The state goes first: the journal begins with what the attempt resumed from.
        await self._tell_state()
        await flow.channel.episode(report)
        flow.progress.episode_reported(episode.trained.optimizer_steps)
        if episode.staged is not None:
            await self._keep_or_discard(episode.staged, report.policy_version, score)

    async def _synced(self, episode: TrainedEpisode) -> float:
        """Wait a little until every maker that has any version has this one; seconds since its publish began."""
        flow = self._flow

        def everywhere() -> bool:
            return flow.stopping or all(
                slot.version > episode.version for slot in flow.slots if slot.version is not None
            )

        try:
            async with asyncio.timeout(flow.pace.report_waits):
                await flow.pulse.until(everywhere)
        except TimeoutError:
            log.info("not every maker has version %d yet; its report does not wait longer", episode.version + 1)
        return episode.timing.publish + max(0.0, flow.clock.monotonic() - episode.published_at)

    async def _score(self, evaluation: EvaluationRound | None) -> float | None:
        """Wait for the score. None without an evaluation, and if the run is stopped before the score is there."""
        if evaluation is None:
            return None
        await self._flow.pulse.until(lambda: evaluation.score is not None or self._flow.stopping)
        return evaluation.score

    async def _keep_or_discard(self, staged: Staged, version: int, score: float | None) -> None:
        if staged.due or self._flow.progress.is_best(score):
            await self.keep(staged, version, score)
        else:
            await self._storage.calls.tidy(self._storage.checkpoints.discard, staged.folder)

    async def keep(self, staged: Staged, version: int, score: float | None) -> None:
        """Make a checkpoint count; its episode is in the journal."""
        progress, storage = self._flow.progress, self._storage
        folder = storage.checkpoints.folder(version)
        state = progress.state_at(self._flow.config, version, score, folder)
        await storage.calls.do(storage.checkpoints.complete, staged.folder, staged.files, state)
        progress.checkpointed(folder, state)
        await storage.calls.tidy(storage.checkpoints.prune, progress.best_checkpoint)
