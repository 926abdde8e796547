"""The trainers' side of the run: collect, train, publish, save; one episode after the other."""

import logging

from rlhf_api.conditions import STOPPED

from rlhf_runtime.data.prompts import Prompt
from rlhf_runtime.dataflow.episode_finisher import EpisodeDesk, Staged, Standing, TrainedEpisode
from rlhf_runtime.dataflow.episode_report import Timing
from rlhf_runtime.dataflow.evaluation import EvaluationRound, is_due
from rlhf_runtime.dataflow.flow import Flow
from rlhf_runtime.dataflow.storage import Storage
from rlhf_runtime.dataflow.workers import TrainersHandle
from rlhf_runtime.experience.messages import GroupSummary, Trained
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.scheduling.next_batch import drop_stale
from rlhf_runtime.weight_sync.manifest import Order, Publication

log = logging.getLogger(__name__)


class TrainingLoop:
    """`run` ends when all episodes are trained and the model is in storage, or with a RunFailure."""

    def __init__(
        self,
        flow: Flow,
        trainers: TrainersHandle,
        desk: EpisodeDesk,
        storage: Storage,
        standing: Standing,
        held_out: list[Prompt],
    ) -> None:
        self._flow = flow
        self._trainers = trainers
        self._desk = desk
        self._storage, self._checkpoints = storage.calls, storage.checkpoints
        self._standing = standing
        self._held_out = held_out
        self._episode_began = flow.clock.monotonic()
        self._dropped = 0

    async def run(self) -> None:
        flow = self._flow
        # The starting version, or the resumed one: no maker samples before it has it.
        await self._publish(must_differ=False)
        if flow.version == 0 and self._begin_evaluation():
            await self._initial_score()
        self._episode_began = flow.clock.monotonic()
        while flow.version < flow.episodes and not flow.stopping:
            await self._episode()
        await self._desk.until_done()
        await self._save_what_is_trained()
        if flow.version < flow.episodes:
            raise RunFailure(
                STOPPED,
                f"asked to stop: {flow.version} of {flow.episodes} episodes are trained; "
                f"the next attempt resumes after episode {self._standing.latest_episode}",
                permanent=False,
            )
        await self._export()

    async def _initial_score(self) -> None:
        flow, evaluation = self._flow, self._flow.evaluation
        assert evaluation is not None
        await flow.pulse.until(lambda: evaluation.score is not None or flow.stopping)
        self._standing.initial_score = evaluation.score

    async def _episode(self) -> None:
        flow, began, version = self._flow, self._episode_began, self._flow.version
        if not await self._collect():
            return
        collected = flow.clock.monotonic()
        trained, groups = await self._train()
        trained_at = flow.clock.monotonic()
        # Makers stay at the version that is being evaluated until its score is there.
        await flow.pulse.until(lambda: not flow.evaluating or flow.stopping)
        publish_began = flow.clock.monotonic()
        publication = await self._publish(must_differ=trained.moved)
        evaluation = self._begin_evaluation()
        published = flow.clock.monotonic()
        staged = await self._stage(scored=evaluation)
        dropped, self._dropped = self._dropped, _dropped(flow)
        self._episode_began = flow.clock.monotonic()
        await self._desk.hand_in(
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
                evaluation=flow.evaluation if evaluation else None,
                staged=staged,
            )
        )

    async def _collect(self) -> bool:
        """Wait until all groups of the episode are buffered and none is too stale. False if it is not to be trained.

        That is so after a stop, and when `episodes` was lowered to what is trained already.
        """
        flow = self._flow
        flow.collecting = True
        while not flow.stopping and flow.version < flow.episodes:
            dropped = drop_stale(flow.ledger, trainer_version=flow.version, max_staleness=flow.max_staleness)
            if dropped:
                log.info("%d groups are too stale for episode %d: sampled again", len(dropped), flow.version + 1)
                flow.pulse.beat()
                await self._trainers.forget(dropped)
                continue
            if flow.ledger.is_ready(flow.version):
                flow.collecting = False
                return True
            await flow.pulse.next()
        flow.collecting = False
        return False

    async def _train(self) -> tuple[Trained, list[GroupSummary]]:
        flow, version = self._flow, self._flow.version
        dispatches = [dispatch for dispatch, _ in flow.ledger.ready(version)]
        trained = await self._trainers.train(dispatches, version + 1)
        flow.ledger.train(version)
        flow.version += 1
        flow.progressed()
        flow.pulse.beat()
        return trained, [flow.summaries.pop(cursor) for cursor in flow.ledger.cursors_of(version)]

    async def _publish(self, *, must_differ: bool) -> Publication:
        flow, config = self._flow, self._flow.config
        order = Order(config.attempt, flow.repairs, flow.version)
        publication = await self._trainers.publish(
            order,
            # Makers that round to bfloat16 may see a small step as none.
            must_differ=must_differ and config.models.actor.dtype == "float32",
            seconds=config.weight_sync_deadline_seconds,
        )
        flow.publication = publication
        flow.pulse.beat()
        return publication

    def _begin_evaluation(self) -> bool:
        """Begin the evaluation of the version just published, if it is due."""
        flow, config = self._flow, self._flow.config
        if config.evaluation is None or flow.stopping:
            return False
        if not is_due(flow.version, every_episodes=config.evaluation.every_episodes, last=flow.episodes):
            return False
        share = -(-len(self._held_out) // len(flow.slots))
        flow.evaluation = EvaluationRound(flow.version, self._held_out, min(share, config.max_batch_samples))
        flow.pulse.beat()
        return True

    async def _stage(self, *, scored: bool) -> Staged | None:
        """Let the trainers write a checkpoint, if it is due or if its score may turn out the best."""
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
        if self._standing.latest_episode == flow.version:
            return
        folder = await self._storage.do(self._checkpoints.unfinished, flow.version)
        files = await self._trainers.save(folder, resumable=True)
        await self._desk.keep(Staged(folder, files, due=True), flow.version, None)

    async def _export(self) -> None:
        folder = await self._storage.do(self._checkpoints.unfinished_model)
        files = await self._trainers.save(folder, resumable=False)
        model = await self._storage.do(self._checkpoints.complete_model, folder, files, self._flow.version)
        self._standing.final_model = str(model)


def _dropped(flow: Flow) -> int:
    totals = flow.ledger.totals
    return totals.dropped_stale + totals.dropped_lost
