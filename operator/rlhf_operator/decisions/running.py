"""A submitted attempt whose reports are followed: the last checks of the chain. Pure."""

from collections.abc import Iterable

from rlhf_api.conditions import Phase, Reason
from rlhf_api.run import Report

from rlhf_operator.decisions.plan import Action, Plan
from rlhf_operator.decisions.situation import RESYNC_SECONDS, SILENCE_SECONDS, Situation
from rlhf_operator.observed.picture import Unreachable
from rlhf_operator.status import episodes
from rlhf_operator.status.stages import Stage

#: How often Ray is asked about a submission whose supervisor does not answer.
ASK_RAY_SECONDS = 5.0


def reconnecting(s: Situation) -> Plan | None:
    """The operator has just started: until the first answer the stored status is as good as ever."""
    if s.status.running_time is None or s.report is not None or s.view.silent_since is not None:
        return None
    if isinstance(s.observed.submission, Unreachable):
        return None
    return Plan(status=s.status, follow=s.follow, requeue_after=ASK_RAY_SECONDS)


def observe(s: Situation) -> Plan:
    """Submitted: follow its reports."""
    if s.status.running_time is None and (s.report is None or s.report.state == "Starting"):
        return waiting(s, _starting_stage(s))
    if s.report is not None and not s.silent_for(SILENCE_SECONDS):
        return waiting(s, Stage(Phase.RUNNING, Reason.RUNNING, _running_message(s, s.report)))
    ray = s.observed.submission
    error = s.view.error or (ray.error if isinstance(ray, Unreachable) else "no poll yet")
    return waiting(s, Stage(Phase.RUNNING, Reason.UNREACHABLE, f"the supervisor does not answer: {error}"))


def _starting_stage(s: Situation) -> Stage:
    if (first := s.obstacle) is not None:
        return s.stage(Phase.STARTING, first.reason, first.message)
    waits = [wait.message for wait in s.report.waits] if s.report else []
    message = waits[0] if waits else "the runtime checks its files and loads models"
    return s.stage(Phase.STARTING, Reason.STARTING, message)


def _running_message(s: Situation, report: Report) -> str:
    done = episodes.fold(s.status, report, s.view.episodes).episode
    message = f"{done} of {s.job.spec.episodes} episodes trained"
    long = [wait.message for wait in report.waits if s.seconds_since(wait.since) >= RESYNC_SECONDS]
    return f"{message}; {long[0]}" if long else message


def waiting(s: Situation, stage: Stage, actions: Iterable[Action] = ()) -> Plan:
    """Follow the reports, if the head is there; look again when something may be due."""
    asking = s.submitted and not s.view.answers_for(s.status.attempt)
    seconds = s.soon(ASK_RAY_SECONDS if asking else RESYNC_SECONDS)
    return s.plan(stage, actions=actions, follow=s.follow, requeue_after=seconds)
