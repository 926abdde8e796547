"""When the supervisor ends a coordinator that does not end itself."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_api.conditions import Reason
from rlhf_api.run import Failure, RunConfig, Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long the supervisor waits for its coordinator, seconds."""

    grace: float = 30.0
    """Over the spec's deadlines: the coordinator knows better why it is late, and speaks first."""
    stop: float = 120.0
    """From being asked to stop to the end: the episode in training and a checkpoint."""
    exit: float = 30.0
    """From its last word, or from SIGTERM, to SIGKILL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """What has happened so far, as readings of one monotonic clock, seconds; None: it has not."""

    started: float
    running: float | None = None
    last_episode: float | None = None
    stop_requested: float | None = None


@dataclass(frozen=True, slots=True)
class Deadline:
    """The coordinator is ended at ``at``, and this is why."""

    at: float
    failure: Failure


def next_deadline(config: RunConfig, times: Times, patience: Patience, waits: Sequence[Wait]) -> Deadline:
    """The first deadline that will pass if nothing more happens; ``waits`` say what it is waiting for."""
    if times.running is None:
        deadline = Deadline(
            times.started + config.pre_running_deadline_seconds + patience.grace,
            Failure(
                reason=Reason.PRE_RUNNING_DEADLINE_EXCEEDED,
                message=f"no rollout {config.pre_running_deadline_seconds} s (preRunningDeadlineSeconds) after "
                f"the attempt started{_waiting(waits)}",
                permanent=False,
            ),
        )
    else:
        since = times.running if times.last_episode is None else times.last_episode
        deadline = Deadline(
            since + config.progress_deadline_seconds + patience.grace,
            Failure(
                reason=Reason.PROGRESS_DEADLINE_EXCEEDED,
                message=f"no episode was trained for {config.progress_deadline_seconds} s "
                f"(progressDeadlineSeconds){_waiting(waits)}",
                permanent=False,
            ),
        )
    if times.stop_requested is None:
        return deadline
    stop = Deadline(
        times.stop_requested + patience.stop,
        Failure(
            reason=Reason.STOPPED,
            message=f"asked to stop, and ended {patience.stop:g} s later without a last checkpoint; "
            "the next attempt resumes from an earlier one",
            permanent=False,
        ),
    )
    return min(deadline, stop, key=lambda each: each.at)


def stopped_at_once() -> Failure:
    """The failure of an attempt that was asked to stop twice."""
    return Failure(
        reason=Reason.STOPPED,
        message="asked to stop at once; the next attempt resumes from the newest checkpoint",
        permanent=False,
    )


def _waiting(waits: Sequence[Wait]) -> str:
    if not waits:
        return ""
    return "; waiting: " + "; ".join(f"{wait.owner}: {wait.reason}: {wait.message}" for wait in waits)
