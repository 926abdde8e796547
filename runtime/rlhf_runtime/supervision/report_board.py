"""The report of the running attempt, and who waits for it to change."""

import asyncio
from datetime import datetime
from typing import Literal

from rlhf_api.run import Failure, Report, RoleReport, RunConfig
from rlhf_api.status import LedgerStatus, RepairsStatus

from rlhf_runtime.channel.messages import CoordinatorState


class ReportBoard:
    """Holds the newest report, without episodes; its revision grows whenever anything in it changes."""

    def __init__(self, config: RunConfig, now: datetime) -> None:
        self._last_seq = 0
        self._changed = asyncio.Event()
        # Milliseconds since 1970, so that a revision of another supervisor is never current here by chance.
        self.report = starting_report(config, revision=int(now.timestamp() * 1000), now=now)

    @property
    def last_seq(self) -> int:
        """Seq of this attempt's last durable episode, 0 before the first."""
        return self._last_seq

    def observe(self, state: CoordinatorState) -> None:
        """The coordinator told its state."""
        self._post(with_state(self.report, state))

    def journaled(self, seq: int) -> None:
        """An episode became durable."""
        self._last_seq = seq
        self._post(self.report, force=True)

    def end(self, failure: Failure | None) -> None:
        """The attempt ended. What it waited for is over."""
        state: Literal["Succeeded", "Failed"] = "Succeeded" if failure is None else "Failed"
        self._post(self.report.model_copy(update={"state": state, "failure": failure, "waits": []}))

    def end_as(self, earlier: Report) -> None:
        """An earlier attempt has finished the job: its report is this one's."""
        own = self.report
        self._post(earlier.model_copy(update={"attempt": own.attempt, "incarnation": own.incarnation}))

    async def change(self, revision: int, seconds: float) -> None:
        """Wait until the revision is another than ``revision``, at most ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                while self.report.revision == revision:
                    await self._changed.wait()
        except TimeoutError:
            return

    def _post(self, report: Report, *, force: bool = False) -> None:
        current = self.report.revision
        if not force and report.model_copy(update={"revision": current}) == self.report:
            return
        self.report = report.model_copy(update={"revision": current + 1})
        self._changed.set()
        self._changed = asyncio.Event()


def starting_report(config: RunConfig, *, revision: int, now: datetime) -> Report:
    """What can be said before the coordinator has said anything."""
    return Report(
        attempt=config.attempt,
        incarnation=config.incarnation,
        revision=revision,
        applied_generation=config.generation,
        state="Starting",
        makers=RoleReport(desired=config.makers.replicas, ready=0),
        trainers=RoleReport(desired=config.trainers.replicas, ready=0),
        ledger=LedgerStatus(),
        policy_version=0,
        repairs=RepairsStatus(),
        resumed_from=0,
        last_progress=now,
    )


def with_state(report: Report, state: CoordinatorState) -> Report:
    """The report with all that the coordinator knows replaced."""
    told = {name: getattr(state, name) for name in type(state).model_fields if name not in ("kind", "running")}
    return report.model_copy(update={**told, "state": "Running" if state.running else "Starting"})
