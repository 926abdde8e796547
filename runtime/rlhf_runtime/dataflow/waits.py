"""No silent wait: who waits for what, since when and until when. Each is logged once and reported to the supervisor."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from rlhf_api.conditions import Reason
from rlhf_api.run import Wait

from rlhf_runtime.clock import Moment
from rlhf_runtime.dataflow.flow import Flow
from rlhf_runtime.scheduling.next_batch import waits_for_weights

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A wait at this moment. `deadline_seconds` count from its beginning; None: the progress deadline ends it."""

    reason: Reason
    owner: str
    message: str
    deadline_seconds: float | None


def waiting_now(flow: Flow) -> list[Waiting]:
    """Everything that waits, however short its wait has been so far."""
    config, ledger = flow.config, flow.groups.ledger
    found = []
    for slot in flow.slots:
        owner = slot.name or f"maker-{slot.index}"
        if not slot.placed:
            found.append(
                Waiting(
                    Reason.PLACEMENT_PENDING,
                    owner,
                    "waits for a pod and its model",
                    config.pre_running_deadline_seconds,
                )
            )
        elif slot.syncing:
            newest = flow.published.newest.version if flow.published.newest else 0
            message = f"is at version {slot.version}, receives version {newest}"
            found.append(Waiting(Reason.WEIGHT_SYNC_PENDING, owner, message, config.weight_sync_deadline_seconds))
        elif (
            slot.version is not None
            and not slot.busy
            and waits_for_weights(ledger, flow.limits, maker_version=slot.version, trainer_version=flow.version)
        ):
            message = f"may not start a group at version {slot.version}: maxStaleness is {flow.max_staleness}"
            found.append(Waiting(Reason.STALENESS_BUDGET_EXHAUSTED, owner, message, None))
    if flow.trainers.handle is None:
        message = "wait for their pods and the model"
        found.append(Waiting(Reason.PLACEMENT_PENDING, "trainers", message, config.pre_running_deadline_seconds))
    if flow.trainers.collecting and flow.progress.running:
        there = len(ledger.ready(flow.version))
        message = f"episode {flow.version + 1} has {there} of {config.rollout.prompts_per_episode} groups"
        found.append(Waiting(Reason.PARTITION_UNDERFILLED, "trainers", message, None))
    return found


class WaitLog:
    """Remembers when each wait began; one of less than `silent` seconds is not reported."""

    def __init__(self, silent: float) -> None:
        self._silent = silent
        self._since: dict[tuple[str, str], Moment] = {}
        self._told: set[tuple[str, str]] = set()

    def look(self, waiting: Sequence[Waiting], now: Moment, progress: Moment, progress_seconds: float) -> list[Wait]:
        """The waits that are long enough to be reported; each is logged once.

        One without a deadline of its own ends `progress_seconds` after `progress`.
        """
        keys = {(wait.reason, wait.owner) for wait in waiting}
        self._since = {key: since for key, since in self._since.items() if key in keys}
        self._told &= keys
        deadline = progress.wall + timedelta(seconds=progress_seconds)
        return [wait for each in waiting if (wait := self._long_enough(each, now, deadline)) is not None]

    def _long_enough(self, wait: Waiting, now: Moment, progress_deadline: datetime) -> Wait | None:
        key = (wait.reason, wait.owner)
        since = self._since.setdefault(key, now)
        if now.monotonic - since.monotonic < self._silent:
            return None
        if key not in self._told:
            self._told.add(key)
            log.info("%s %s (%s)", wait.owner, wait.message, wait.reason)
        seconds = wait.deadline_seconds
        return Wait(
            reason=wait.reason,
            owner=wait.owner,
            message=wait.message,
            since=since.wall,
            deadline=progress_deadline if seconds is None else since.wall + timedelta(seconds=seconds),
        )
