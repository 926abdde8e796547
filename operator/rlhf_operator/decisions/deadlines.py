"""When an attempt has taken too long, and what it was waiting for. Pure."""

from dataclasses import dataclass

from rlhf_api.conditions import Reason
from rlhf_api.run import Report

from rlhf_operator.decisions.situation import Situation
from rlhf_operator.observed.picture import Submission, Unreachable
from rlhf_operator.status.build import pods_message

#: An operator that was away, or a link that was cut, has so long to hear before silence counts as no progress; and
#: a runtime that answers has so long to end a late attempt itself: it knows better why it is late.
GRACE_SECONDS = 60.0


@dataclass(frozen=True)
class Late:
    """A deadline that has passed. ``final``: the job fails, since a new attempt would wait for the same thing."""

    reason: Reason
    message: str
    final: bool


def too_late(s: Situation) -> Late | None:
    """The deadline that the current attempt has passed, if any."""
    if s.status.running_time is None and (s.report is None or s.report.state == "Starting"):
        return _never_ran(s)
    return _no_progress(s)


def _never_ran(s: Situation) -> Late | None:
    limit, found = s.job.spec.pre_running_deadline_seconds, s.obstacle
    if s.seconds_since(s.status.attempt_start_time) < limit:
        return None
    if found is None and not _waited_in_vain(s):
        return None
    prefix = f"no rollout within {limit} s; {s.attempts} was waiting: "
    reason = Reason.PRE_RUNNING_DEADLINE_EXCEEDED
    if found is not None:
        return Late(reason, f"{prefix}{found.reason}: {found.message}", final=True)
    if s.submitted and s.head_ready:
        return Late(reason, prefix + _what_the_runtime_waits_for(s), final=False)
    waiting = f"attempt {s.status.attempt - 1} did not end" if s.head_ready else pods_message(s.job, s.observed)
    return Late(reason, prefix + waiting, final=True)


def _waited_in_vain(s: Situation) -> bool:
    """With nothing in the way, only an operator that was there all the time knows that it is late.

    One that was away creates and submits first, or hears first what the runtime has reached meanwhile.
    """
    if not s.cluster_stands:
        return False
    if not s.head_ready:
        return True
    if not s.submitted:
        return s.status.attempt > 1 and not _previous_over(s)
    return s.report is not None or s.silent_for(GRACE_SECONDS)


def _previous_over(s: Situation) -> bool:
    return isinstance(s.observed.previous, Submission) and s.observed.previous.over


def _what_the_runtime_waits_for(s: Situation) -> str:
    if s.report is not None and s.report.waits:
        wait = s.report.waits[0]
        return f"{wait.reason}: {wait.owner}: {wait.message}"
    if isinstance(s.observed.submission, Unreachable):
        return f"Ray on the head does not answer: {s.observed.submission.error}"
    if isinstance(s.observed.submission, Submission) and s.observed.submission.state == "Unknown":
        return f"Ray on the head has not taken the submission; {pods_message(s.job, s.observed)}"
    if s.report is None:
        return f"the supervisor has not answered ({s.view.error or 'no poll yet'}); {pods_message(s.job, s.observed)}"
    return f"the runtime was starting; {pods_message(s.job, s.observed)}"


def _no_progress(s: Situation) -> Late | None:
    limit = s.job.spec.progress_deadline_seconds
    grace = 0.0
    if s.report is not None and s.view.silent_since is None:
        since, waiting, grace = s.report.last_progress, _waits(s.report), GRACE_SECONDS
    elif s.silent_for(GRACE_SECONDS) or not s.head_ready:
        since = s.status.last_progress_time or s.now
        waiting = f"its supervisor does not answer: {s.view.error or pods_message(s.job, s.observed)}"
    else:
        return None
    if s.seconds_since(since) < limit + grace:
        return None
    message = f"no episode within {limit} s since {since:%Y-%m-%d %H:%M:%S} UTC in {s.attempts}; {waiting}"
    return Late(Reason.PROGRESS_DEADLINE_EXCEEDED, message, final=False)


def _waits(report: Report) -> str:
    waits = "; ".join(f"{wait.reason}: {wait.owner}: {wait.message}" for wait in report.waits)
    return f"it waits for {waits}" if waits else "it reports no wait"
