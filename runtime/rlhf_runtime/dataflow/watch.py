"""Looks at the run in short intervals, sends its state to the supervisor, and ends what takes too long."""

import asyncio

from rlhf_api.conditions import Reason
from rlhf_api.run import RoleReport, Wait
from rlhf_api.status import LedgerStatus, RepairsStatus

from rlhf_runtime.channel.messages import CoordinatorState
from rlhf_runtime.clock import Moment
from rlhf_runtime.dataflow.flow import Flow
from rlhf_runtime.dataflow.waits import WaitLog, waiting_now
from rlhf_runtime.failures import RunFailure


class Watch:
    """Owner of the run's two deadlines, and of the states that the supervisor gets between episodes."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._waits = WaitLog(flow.pace.silent)
        self._told: CoordinatorState | None = None

    async def run(self) -> None:
        """Look until cancelled. Raises RunFailure when a deadline has passed."""
        next_tell = self._flow.clock.monotonic()
        while True:
            now = self._flow.clock.now()
            waits = self._look(now)
            # Live settings and a request to stop do not announce themselves: whoever waits looks again.
            self._flow.pulse.beat()
            if now.monotonic >= next_tell or self._is_first_running():
                await self._tell(waits)
                next_tell = now.monotonic + self._flow.pace.tell_every
            await asyncio.sleep(self._flow.pace.look_every)

    async def tell(self) -> None:
        """Send the state as it is now, if it has changed."""
        await self._tell(self._look(self._flow.clock.now()))

    def _is_first_running(self) -> bool:
        return self._flow.progress.running and (self._told is None or not self._told.running)

    async def _tell(self, waits: list[Wait]) -> None:
        state = coordinator_state(self._flow, waits)
        if state != self._told:
            self._told = state
            await self._flow.channel.state(state)

    def _look(self, now: Moment) -> list[Wait]:
        flow, config, progress = self._flow, self._flow.config, self._flow.progress
        waits = self._waits.look(waiting_now(flow), now, progress.last, config.progress_deadline_seconds)
        since_start = now.monotonic - progress.started.monotonic
        since_progress = now.monotonic - progress.last.monotonic
        if not progress.running and since_start > config.pre_running_deadline_seconds:
            raise RunFailure(
                Reason.PRE_RUNNING_DEADLINE_EXCEEDED,
                f"no rollout was started within {config.pre_running_deadline_seconds} s: {_listed(waits)}",
                permanent=False,
            )
        if progress.running and since_progress > config.progress_deadline_seconds:
            losses = sum(slot.losses for slot in flow.slots)
            raise RunFailure(
                Reason.MAKER_LOST if losses else Reason.PROGRESS_DEADLINE_EXCEEDED,
                f"no episode was trained for {config.progress_deadline_seconds} s"
                + (f", and makers were lost {losses} times" if losses else "")
                + f": {_listed(waits)}",
                permanent=False,
            )
        return waits


def coordinator_state(flow: Flow, waits: list[Wait]) -> CoordinatorState:
    """All that the coordinator knows of the run, as the supervisor takes it."""
    progress, totals = flow.progress, flow.groups.ledger.totals
    ready = sum(slot.version is not None for slot in flow.slots)
    trainer_pods = flow.trainers.handle.pods if flow.trainers.handle else []
    pods = [slot.pod for slot in flow.slots if slot.pod]
    return CoordinatorState(
        running=progress.running,
        applied_generation=flow.channel.settings.generation,
        waits=waits,
        makers=RoleReport(desired=flow.slots.desired, ready=ready, pods=pods),
        trainers=RoleReport(
            desired=flow.config.trainers.replicas, ready=len(trainer_pods), pods=list(dict.fromkeys(trainer_pods))
        ),
        ledger=LedgerStatus(
            dispatched=totals.dispatched,
            trained=totals.trained,
            buffered=totals.buffered,
            in_flight=totals.in_flight,
            dropped_stale=totals.dropped_stale,
            dropped_lost=totals.dropped_lost,
        ),
        policy_version=flow.version,
        repairs=RepairsStatus(makers=flow.slots.repairs),
        resumed_from=progress.resumed_from,
        latest_checkpoint=str(progress.latest_folder) if progress.latest_folder else None,
        best_checkpoint=progress.best_checkpoint,
        final_model=progress.final_model,
        initial_score=progress.initial_score,
        prompts=flow.sources.get("prompts"),
        evaluation=flow.sources.get("evaluation"),
        last_progress=progress.last.wall,
    )


def _listed(waits: list[Wait]) -> str:
    if not waits:
        return "no component reports that it is waiting"
    return "; ".join(f"{wait.owner} {wait.message} ({wait.reason})" for wait in waits)
