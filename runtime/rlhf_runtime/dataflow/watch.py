"""The coordinator's clock: looks at the run twice a second, tells the supervisor, and ends what takes too long."""

import asyncio

from rlhf_api.conditions import MAKER_LOST, PRE_RUNNING_DEADLINE_EXCEEDED, PROGRESS_DEADLINE_EXCEEDED
from rlhf_api.run import RoleReport, Wait
from rlhf_api.status import LedgerStatus, RepairsStatus

from rlhf_runtime.channel.messages import CoordinatorState
from rlhf_runtime.clock import Moment
from rlhf_runtime.dataflow.episode_finisher import Standing
from rlhf_runtime.dataflow.flow import Flow
from rlhf_runtime.dataflow.waits import WaitLog, waiting_now
from rlhf_runtime.failures import RunFailure


class Watch:
    """Owner of the run's two deadlines and of what the supervisor is told between episodes."""

    def __init__(self, flow: Flow, standing: Standing) -> None:
        self._flow = flow
        self._standing = standing
        self._resumed_from = standing.latest_episode
        self._started = flow.clock.now()
        self._waits = WaitLog(flow.pace.silent)
        self._told: CoordinatorState | None = None

    async def run(self) -> None:
        """Look until cancelled. Raises RunFailure when a deadline has passed."""
        next_tell = self._started.monotonic
        while True:
            now = self._flow.clock.now()
            waits = self._look(now)
            # Settings and the wish to stop are looked at, not announced.
            self._flow.pulse.beat()
            if now.monotonic >= next_tell or self._is_first_running():
                await self._tell(waits)
                next_tell = now.monotonic + self._flow.pace.tell_every
            await asyncio.sleep(self._flow.pace.look_every)

    async def tell(self) -> None:
        """Tell the state as it is now."""
        await self._tell(self._look(self._flow.clock.now()))

    def _is_first_running(self) -> bool:
        return self._flow.running and (self._told is None or not self._told.running)

    async def _tell(self, waits: list[Wait]) -> None:
        state = coordinator_state(self._flow, self._standing, self._resumed_from, waits)
        if state != self._told:
            self._told = state
            await self._flow.channel.state(state)

    def _look(self, now: Moment) -> list[Wait]:
        flow, config = self._flow, self._flow.config
        waits = self._waits.look(waiting_now(flow), now, flow.last_progress, config.progress_deadline_seconds)
        since_start = now.monotonic - self._started.monotonic
        since_progress = now.monotonic - flow.last_progress.monotonic
        if not flow.running and since_start > config.pre_running_deadline_seconds:
            raise RunFailure(
                PRE_RUNNING_DEADLINE_EXCEEDED,
                f"no rollout within {config.pre_running_deadline_seconds} s: {_listed(waits)}",
                permanent=False,
            )
        if flow.running and since_progress > config.progress_deadline_seconds:
            losses = sum(slot.losses for slot in flow.slots)
            raise RunFailure(
                MAKER_LOST if losses else PROGRESS_DEADLINE_EXCEEDED,
                f"no episode was trained for {config.progress_deadline_seconds} s"
                + (f", and makers were lost {losses} times" if losses else "")
                + f": {_listed(waits)}",
                permanent=False,
            )
        return waits


def coordinator_state(flow: Flow, standing: Standing, resumed_from: int, waits: list[Wait]) -> CoordinatorState:
    """All that the coordinator knows of the run, as the supervisor takes it."""
    totals = flow.ledger.totals
    ready = sum(slot.version is not None for slot in flow.slots)
    trainer_pods = flow.trainers.pods if flow.trainers else []
    pods = [slot.pod for slot in flow.slots if slot.pod]
    return CoordinatorState(
        running=flow.running,
        applied_generation=flow.channel.settings.generation,
        waits=waits,
        makers=RoleReport(desired=len(flow.slots), ready=ready, pods=pods),
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
        repairs=RepairsStatus(makers=flow.repairs),
        resumed_from=resumed_from,
        latest_checkpoint=str(standing.latest_folder) if standing.latest_folder else None,
        best_checkpoint=standing.best_checkpoint,
        final_model=standing.final_model,
        initial_score=standing.initial_score,
        prompts=flow.sources.get("prompts"),
        evaluation=flow.sources.get("evaluation"),
        last_progress=flow.last_progress.wall,
    )


def _listed(waits: list[Wait]) -> str:
    return "; ".join(f"{wait.owner} {wait.message} ({wait.reason})" for wait in waits) or "nothing says that it waits"
