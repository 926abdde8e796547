"""A maker's life as the coordinator leads it: placed, brought to the current version, given batches, replaced."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rlhf_api.conditions import MAKER_LOST

from rlhf_runtime.data.prompts import TrainingPrompts
from rlhf_runtime.dataflow.evaluation import EvaluationBatch
from rlhf_runtime.dataflow.flow import Flow, MakerSlot
from rlhf_runtime.dataflow.workers import MakerHandle, MakerLost, PayloadLost
from rlhf_runtime.experience.messages import Task
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.scheduling.next_batch import next_batch
from rlhf_runtime.scheduling.staleness import may_admit
from rlhf_runtime.storage.samples import is_shown
from rlhf_runtime.weight_sync.manifest import Publication

log = logging.getLogger(__name__)

Place = Callable[[str], Awaitable[MakerHandle]]
"""Place a maker of this name on a pod and load its model. Raises MakerLost, RunFailure."""


class MakerLoop:
    """Fills one slot for as long as the run lasts: `run` ends by cancellation, or with a RunFailure."""

    def __init__(self, flow: Flow, slot: MakerSlot, place: Place, prompts: TrainingPrompts) -> None:
        self._flow = flow
        self._slot = slot
        self._place = place
        self._prompts = prompts

    async def run(self) -> None:
        slot = self._slot
        tries = 0
        while True:
            slot.name = f"maker-{slot.index}" + (f"-{tries}" if tries else "")
            tries += 1
            lost: MakerLost | None = None
            try:
                await self._life()
            except* MakerLost as losses:
                lost = next(error for error in _leaves(losses) if isinstance(error, MakerLost))
            # Only a lost maker ends its life without an error that ends the run.
            assert lost is not None
            self._bury(lost)
            await asyncio.sleep(self._flow.pace.replace_after * 2 ** (slot.losses - 1))

    async def _life(self) -> None:
        """Of one maker; raises MakerLost, alone or in a group."""
        handle = await self._place(self._slot.name)
        self._slot.pod, self._slot.placed = handle.pod, True
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch(handle))
                tasks.create_task(self._keep_current(handle))
                tasks.create_task(self._work(handle))
        finally:
            handle.kill()

    def _bury(self, lost: MakerLost) -> None:
        """Open its groups again, and count the repair."""
        flow, slot = self._flow, self._slot
        in_flight = flow.ledger.in_flight_of(slot.name)
        for dispatch in in_flight:
            flow.ledger.drop(dispatch, "lost")
        log.warning("%s is lost, %d groups are sampled again: %s", slot.name, len(in_flight), lost)
        slot.version, slot.pod = None, ""
        slot.placed = slot.busy = slot.syncing = False
        slot.losses += 1
        if slot.losses > flow.pace.max_losses:
            raise RunFailure(
                MAKER_LOST,
                f"maker {slot.index} was lost {slot.losses} times in a row without completing a batch; last: {lost}",
                permanent=False,
            )
        flow.repairs += 1
        flow.pulse.beat()

    async def _watch(self, handle: MakerHandle) -> None:
        while True:
            await handle.ping(self._flow.pace.ping)
            await asyncio.sleep(self._flow.pace.ping_every)

    async def _keep_current(self, handle: MakerHandle) -> None:
        """Bring the maker to every newer version, while it goes on sampling."""
        slot, deadline = self._slot, self._flow.config.weight_sync_deadline_seconds
        while True:
            publication = await self._flow.pulse.until(self._newer_version)
            slot.syncing = True
            try:
                await handle.receive(publication, deadline)
            except TimeoutError:
                log.warning("%s did not get version %d in %d s; again", slot.name, publication.version, deadline)
                await asyncio.sleep(self._flow.pace.sync_again_after)
                continue
            slot.version, slot.syncing = publication.version, False
            self._flow.pulse.beat()

    def _newer_version(self) -> Publication | None:
        newest = self._flow.publication
        if newest is None or (self._slot.version is not None and self._slot.version >= newest.version):
            return None
        return newest

    async def _work(self, handle: MakerHandle) -> None:
        slot, flow = self._slot, self._flow
        while True:
            work: EvaluationBatch | list[int] = await flow.pulse.until(self._next_work)
            slot.busy = True
            flow.begun()
            if isinstance(work, EvaluationBatch):
                await self._evaluate(handle, work)
            else:
                await self._make(handle, work)
            slot.busy, slot.losses = False, 0
            flow.pulse.beat()

    def _next_work(self) -> EvaluationBatch | list[int] | None:
        """Evaluation first: the next publish waits for it."""
        flow, version = self._flow, self._slot.version
        if version is None or flow.stopping:
            return None
        if flow.evaluation is not None and flow.evaluation.version == version:
            batch = flow.evaluation.take()
            if batch is not None:
                return batch
        return next_batch(flow.ledger, flow.limits, maker_version=version, trainer_version=flow.version) or None

    async def _evaluate(self, handle: MakerHandle, batch: EvaluationBatch) -> None:
        round_ = self._flow.evaluation
        assert round_ is not None
        try:
            rewards = await handle.evaluate(batch.prompts, batch.version)
        except BaseException:
            # Also when this task is cancelled, because the ping found out first.
            round_.give_back(batch)
            raise
        round_.complete(batch, rewards)

    async def _make(self, handle: MakerHandle, cursors: list[int]) -> None:
        flow, ledger = self._flow, self._flow.ledger
        made = await handle.make([self._task(cursor, handle.name) for cursor in cursors])
        admitted = []
        for group in made.groups:
            if may_admit(
                trainer_version=flow.version,
                oldest_version=group.oldest_version,
                max_staleness=flow.max_staleness,
            ):
                admitted.append(group)
            else:
                ledger.drop(group.dispatch, "stale")
        # There was a publication, so there are trainers.
        assert flow.trainers is not None
        try:
            await flow.trainers.receive(made, [group.dispatch for group in admitted])
        except PayloadLost as lost:
            log.warning("%d groups of %s were lost on their way: %s", len(admitted), handle.name, lost)
            for group in admitted:
                ledger.drop(group.dispatch, "lost")
            return
        for group in admitted:
            ledger.complete(group.dispatch, group.oldest_version)
            flow.summaries[group.dispatch.cursor] = group

    def _task(self, cursor: int, maker: str) -> Task:
        shown = is_shown(cursor, self._flow.config.rollout.prompts_per_episode)
        return Task(self._flow.ledger.dispatch(cursor, maker), self._prompts.prompt_at(cursor), shown)


def _leaves(group: BaseExceptionGroup[MakerLost]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found
