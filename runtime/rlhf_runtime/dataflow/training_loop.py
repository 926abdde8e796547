"""The trainers' side of the run, one episode after the other: collect, train, publish, save."""

import logging

from rlhf_api.conditions import Reason

from rlhf_runtime.dataflow.episode_finisher import EpisodeFinisher, Staged, TrainedEpisode
from rlhf_runtime.dataflow.episode_report import Timing
from rlhf_runtime.dataflow.evaluation import EvaluationRound, is_due
from rlhf_runtime.dataflow.flow import Flow
from rlhf_runtime.dataflow.storage import Storage
from rlhf_runtime.dataflow.workers import TrainersHandle
from rlhf_runtime.experience.messages import GroupSummary, Trained
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.scheduling.ledger import Dispatch
from rlhf_runtime.weight_sync.manifest import Order, Publication

log = logging.getLogger(__name__)


class TrainingLoop:
    """`run` ends when all episodes are trained and the model is in storage, or with a RunFailure."""

    def __init__(
        self,
        flow: Flow,
        trainers: TrainersHandle,
        finisher: EpisodeFinisher,
        storage: Storage,
    ) -> None:
        self._flow = flow
        self._trainers = trainers
        self._finisher = finisher
        self._storage, self._checkpoints = storage.calls, storage.checkpoints
        self._episode_began = flow.clock.monotonic()
        self._dropped = 0

    async def run(self) -> None:
        flow = self._flow
        # The starting version, or the resumed one: no maker samples before it has received it.
        await self._publish(must_differ=False)
        if flow.version == 0 and (evaluation := self._begin_evaluation()) is not None:
            await flow.pulse.until(lambda: evaluation.score is not None or flow.stopping)
            flow.progress.scored_at_start(evaluation.score)
        self._episode_began = flow.clock.monotonic()
        while flow.version < flow.episodes and not flow.stopping:
            await self._episode()
        await self._finisher.until_done()
        await self._save_what_is_trained()
        if flow.version < flow.episodes:
            raise RunFailure(
                Reason.STOPPED,
                f"asked to stop: {flow.version} of {flow.episodes} episodes are trained; "
                f"the next attempt resumes after episode {flow.progress.latest_episode}",
                permanent=False,
            )
        await self._export()

    async def _episode(self) -> None:
        flow, began, version = self._flow, self._episode_began, self._flow.version
        dispatches = await self._collect()
        if dispatches is None:
            return
        collected = flow.clock.monotonic()
        trained, groups = await self._train(dispatches)
        trained_at = flow.clock.monotonic()
        # Makers stay at the version that is being evaluated until its score is there.
        await flow.pulse.until(lambda: not flow.evaluations.unfinished or flow.stopping)
        publish_began = flow.clock.monotonic()
        publication = await self._publish(must_differ=trained.moved)
        evaluation = self._begin_evaluation()
        published = flow.clock.monotonic()
        staged = await self._stage(scored=evaluation is not None)
        dropped, self._dropped = self._dropped, flow.groups.dropped
        self._episode_began = flow.clock.monotonic()
        await self._finisher.hand_in(
            TrainedEpisode(
                version=version,
                groups=groups,
                trained=trained,
                timing=Timing(
                    whole=self._episode_began - began,
                    wait=collected - began,
                    train=trained_at - collected,
                    publish=published - publish_began,
                ),
                changed_weights=publication.manifest.changed_weights,
                dropped=self._dropped - dropped,
                published_at=published,
                evaluation=evaluation,
                staged=staged,
            )
        )

    async def _collect(self) -> list[Dispatch] | None:
        """Wait until all groups of the episode are buffered and none is too stale. None if it is not to be trained.

        That is so after a stop, and when `episodes` was lowered to what is trained already.
        """
        flow = self._flow
        flow.trainers.collecting = True
        try:
            while not flow.stopping and flow.version < flow.episodes:
                dropped = flow.groups.drop_stale(flow.max_staleness)
                if dropped:
                    log.info("%d groups are too stale for episode %d: sampled again", len(dropped), flow.version + 1)
                    await self._trainers.forget(dropped)
                elif (ready := flow.groups.ready()) is not None:
                    return ready
                else:
                    await flow.pulse.next()
            return None
        finally:
            flow.trainers.collecting = False

    async def _train(self, dispatches: list[Dispatch]) -> tuple[Trained, list[GroupSummary]]:
        flow = self._flow
        trained = await self._trainers.train(dispatches, flow.version + 1)
        groups = flow.groups.trained()
        flow.progress.episode_trained()
        return trained, groups

    async def _publish(self, *, must_differ: bool) -> Publication:
        flow, config = self._flow, self._flow.config
        order = Order(config.attempt, flow.slots.repairs, flow.version)
        publication = await self._trainers.publish(
            order,
            # Makers that round to bfloat16 may not see a small step.
            must_differ=must_differ and config.models.actor.dtype == "float32",
            seconds=config.weight_sync_deadline_seconds,
        )
        flow.published.put(publication)
        return publication

    def _begin_evaluation(self) -> EvaluationRound | None:
        """Begin the evaluation of the version just published, if it is due."""
        flow, config = self._flow, self._flow.config
        if config.evaluation is None or flow.stopping:
            return None
        if not is_due(flow.version, every_episodes=config.evaluation.every_episodes, last=flow.episodes):
            return None
        return flow.evaluations.begin(flow.version, flow.slots.desired)

    async def _stage(self, *, scored: bool) -> Staged | None:
        """Let the trainers write a checkpoint, if it is due or if its score may turn out to be the best."""
        flow = self._flow
        every = flow.config.checkpoint_every_episodes
        due = flow.version % every == 0 or flow.version >= flow.episodes or flow.stopping
        if not due and not scored:
            return None
        folder = await self._storage.do(self._checkpoints.unfinished, flow.version)
        return Staged(folder, await self._trainers.save(folder, resumable=True), due)

    async def _save_what_is_trained(self) -> None:
        """Nothing is in training. The newest checkpoint lacks episodes after a stop, or if `episodes` was lowered."""
        flow = self._flow
        if flow.progress.latest_episode == flow.version:
            return
        folder = await self._storage.do(self._checkpoints.unfinished, flow.version)
        files = await self._trainers.save(folder, resumable=True)
        await self._finisher.keep(Staged(folder, files, due=True), flow.version, None)

    async def _export(self) -> None:
        folder = await self._storage.do(self._checkpoints.unfinished_model)
        files = await self._trainers.save(folder, resumable=False)
        model = await self._storage.do(self._checkpoints.complete_model, folder, files, self._flow.version)
        self._flow.progress.exported(model)
