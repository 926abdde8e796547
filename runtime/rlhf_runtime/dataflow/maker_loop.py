"""A maker's life as the coordinator leads it: placed, brought to the current version, given batches, replaced."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rlhf_api.conditions import Reason

from rlhf_runtime.data.prompts import TrainingPrompts
from rlhf_runtime.dataflow.evaluation import EvaluationBatch
from rlhf_runtime.dataflow.flow import Flow
from rlhf_runtime.dataflow.slots import MakerSlot
from rlhf_runtime.dataflow.workers import MakerHandle, MakerLost, PayloadLost
from rlhf_runtime.experience.messages import GroupSummary, Task
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.scheduling.next_batch import next_batch
from rlhf_runtime.scheduling.staleness import may_admit
from rlhf_runtime.storage.samples import is_shown
from rlhf_runtime.weight_sync.manifest import Publication

log = logging.getLogger(__name__)

Place = Callable[[str], Awaitable[MakerHandle]]
"""Place a maker of this name on a pod and load its model. Raises MakerLost, RunFailure."""


async def lead_makers(flow: Flow, place: Place, prompts: TrainingPrompts) -> None:
    """Run a MakerLoop for every slot, also for those that are added while the run goes on. Ends by cancellation."""
    led: set[int] = set()

    def not_led() -> MakerSlot | None:
        return next((slot for slot in flow.slots if slot.index not in led), None)

    async with asyncio.TaskGroup() as tasks:
        while True:
            slot = await flow.pulse.until(not_led)
            led.add(slot.index)
            tasks.create_task(MakerLoop(flow, slot, place, prompts).run())


class MakerLoop:
    """Fills one slot until it is to be left: the only writer of the slot, but for its `leaving`."""

    def __init__(self, flow: Flow, slot: MakerSlot, place: Place, prompts: TrainingPrompts) -> None:
        self._flow = flow
        self._slot = slot
        self._place = place
        self._prompts = prompts

    async def run(self) -> None:
        """Lead one maker after the other. Raises RunFailure, alone or in a group, when the run cannot go on."""
        slot = self._slot
        tries = 0
        while not slot.leaving:
            slot.name = f"maker-{slot.index}" + (f"-{tries}" if tries else "")
            tries += 1
            lost: MakerLost | None = None
            try:
                await self._life()
            except* MakerLost as losses:
                lost = next(error for error in _leaves(losses) if isinstance(error, MakerLost))
            if lost is not None:
                self._bury(lost)
                await asyncio.sleep(self._flow.pace.replace_after * 2 ** (slot.losses - 1))
        log.info("%s has left", slot.name)
        self._flow.slots.left(slot)

    async def _life(self) -> None:
        """Lead one maker until its slot is to be left. Raises MakerLost, alone or in a group."""
        handle = await self._place(self._slot.name)
        self._slot.pod, self._slot.placed = handle.pod, True
        try:
            async with asyncio.TaskGroup() as tasks:
                beside = [tasks.create_task(self._watch(handle)), tasks.create_task(self._keep_current(handle))]
                await self._work(handle)
                for task in beside:
                    task.cancel()
        finally:
            handle.kill()

    def _bury(self, lost: MakerLost) -> None:
        """Open the lost maker's groups again, and count the repair."""
        flow, slot = self._flow, self._slot
        in_flight = flow.groups.ledger.in_flight_of(slot.name)
        flow.groups.drop(in_flight, "lost")
        log.warning("%s is lost, its %d groups will be sampled again: %s", slot.name, len(in_flight), lost)
        slot.held, slot.pod = None, ""
        slot.placed = slot.busy = slot.syncing = False
        slot.losses += 1
        if slot.losses > flow.pace.max_losses:
            raise RunFailure(
                Reason.MAKER_LOST,
                f"maker {slot.index} was lost {slot.losses} times in a row without completing a batch; last: {lost}",
                permanent=False,
            )
        flow.slots.repaired()

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
                log.warning(
                    "%s did not receive version %d within %d s and tries again",
                    slot.name,
                    publication.version,
                    deadline,
                )
                await asyncio.sleep(self._flow.pace.sync_again_after)
                continue
            slot.held, slot.syncing = publication.manifest.order, False
            self._flow.pulse.beat()

    def _newer_version(self) -> Publication | None:
        return self._flow.published.newer_than(self._slot.held)

    async def _work(self, handle: MakerHandle) -> None:
        """Give the maker batches until its slot is to be left."""
        slot, flow = self._slot, self._flow
        while True:
            work: EvaluationBatch | list[int] = await flow.pulse.until(self._next_work)
            if work == []:
                return
            slot.busy = True
            flow.progress.rollout_started()
            if isinstance(work, EvaluationBatch):
                await self._evaluate(handle, work)
            else:
                await self._make(handle, work)
            slot.busy, slot.losses = False, 0
            flow.pulse.beat()

    def _next_work(self) -> EvaluationBatch | list[int] | None:
        """Evaluation first: the next publish waits for it. Empty when the maker is to leave, None while it waits."""
        flow, version = self._flow, self._slot.version
        if self._slot.leaving:
            return []
        if version is None or flow.stopping:
            return None
        batch = flow.evaluations.take(version)
        if batch is not None:
            return batch
        ledger = flow.groups.ledger
        return next_batch(ledger, flow.limits, maker_version=version, trainer_version=flow.version) or None

    async def _evaluate(self, handle: MakerHandle, batch: EvaluationBatch) -> None:
        evaluations = self._flow.evaluations
        try:
            rewards = await handle.evaluate(batch.prompts, batch.version)
        except BaseException:
            # Also when this task is cancelled, because the ping found out first.
            evaluations.give_back(batch)
            raise
        evaluations.complete(batch, rewards)

    async def _make(self, handle: MakerHandle, cursors: list[int]) -> None:
        flow = self._flow
        made = await handle.make([self._task(cursor, handle.name) for cursor in cursors])
        admitted: list[GroupSummary] = []
        too_stale: list[GroupSummary] = []
        for group in made.groups:
            fresh = may_admit(
                trainer_version=flow.version,
                oldest_version=group.oldest_version,
                max_staleness=flow.max_staleness,
            )
            (admitted if fresh else too_stale).append(group)
        flow.groups.drop([group.dispatch for group in too_stale], "stale")
        dispatches = [group.dispatch for group in admitted]
        # There was a publication, so there are trainers.
        assert flow.trainers.handle is not None
        try:
            await flow.trainers.handle.receive(made, dispatches)
        except PayloadLost as lost:
            log.warning("%d groups of %s were lost on their way: %s", len(admitted), handle.name, lost)
            flow.groups.drop(dispatches, "lost")
            return
        flow.groups.arrived(admitted)

    def _task(self, cursor: int, maker: str) -> Task:
        shown = is_shown(cursor, self._flow.config.rollout.prompts_per_episode)
        return Task(self._flow.groups.dispatch(cursor, maker), self._prompts.prompt_at(cursor), shown)


def _leaves(group: BaseExceptionGroup[MakerLost]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found
