"""The one decision: ``(job, observed, report, now) -> Plan``. Pure; a chain of checks, the first that knows wins.

The status is the only memory, and every action may be repeated: killed after any of them, the next pass sees what
was done and goes on to the same end. An attempt is submitted in two passes: the first records id and head in the
status, the next hands it to Ray; so a head that does not know a recorded id either was never told (same pod, no
restart since, never seen running) or has lost it, and then the attempt is never handed out again.
"""

from collections.abc import Callable
from datetime import datetime

from rlhf_api import conditions, names
from rlhf_api.job import RLHFJob
from rlhf_api.run import Report

from rlhf_operator import episodes
from rlhf_operator.conditions import PENDING, PROVISIONING, RUNNING, STARTING, SUCCEEDED, Stage
from rlhf_operator.deadlines import too_late
from rlhf_operator.observed import Observed, Submission, Unreachable
from rlhf_operator.plan import (
    Acknowledge,
    Action,
    CreateConfigMap,
    CreateRayCluster,
    CreateSecret,
    DeleteChildren,
    Plan,
    StopSubmission,
    Submit,
)
from rlhf_operator.report_view import Follow, ReportView
from rlhf_operator.situation import SILENCE_SECONDS, Situation

#: Unfinished jobs are looked at again after so many seconds even without an event.
RESYNC_SECONDS = 60.0
#: How often Ray is asked about a submission whose supervisor does not answer.
ASK_RAY_SECONDS = 5.0
#: How often a named object (ConfigMap, claim) or a refused creation is looked at again: no event tells.
LOOK_AGAIN_SECONDS = 10.0
#: An ended attempt's processes have so long to end by themselves before they are stopped.
LINGER_SECONDS = 10.0
SHORTEST_WAIT_SECONDS = 2.0
#: The supervisor's exit code for "no attempt can help"; it says so even when its last report was not heard.
EXIT_PERMANENT = 78

Check = Callable[[Situation], Plan | None]


def decide(job: RLHFJob, observed: Observed, view: ReportView, now: datetime) -> Plan:
    """What to do now. ``now`` has whole seconds; it is the only clock."""
    situation = Situation(job, observed, view, now)
    return next(plan for check in _CHAIN if (plan := check(situation)) is not None)


def _clean_up(s: Situation) -> Plan | None:
    """The job is over and that is written: give the cluster back. A finished job costs nothing more."""
    if s.status.completion_time is None:
        return None
    children: list[Action] = [DeleteChildren(s.status.ray_cluster_name)] if s.cluster_stands else []
    return Plan(status=s.status, actions=tuple(_acknowledgements(s) + children))


def _begin(s: Situation) -> Plan | None:
    """Seen for the first time."""
    if s.status.start_time is not None:
        return None
    return s.plan(
        Stage(PENDING, conditions.PENDING, "the job is seen; its pods are checked next"),
        requeue_after=0,
        start_time=s.now,
        attempt=1,
        incarnation=1,
        attempt_start_time=s.now,
        ray_cluster_name=names.ray_cluster_name(s.job, 1),
    )


def _reported_end(s: Situation) -> Plan | None:
    """The supervisor has said its last word, and every episode before it is here."""
    report = s.report
    if report is None or not s.view.drained:
        return None
    if report.state == "Succeeded":
        message = f"{s.job.spec.episodes} episodes trained"
        if report.final_model:
            message += f"; the model is in {report.final_model}"
        return s.end(Stage(SUCCEEDED, conditions.COMPLETED, message))
    if report.state == "Failed":
        reason, message, tail, permanent = _reported_failure(report)
        why = s.failure(reason, message, tail)
        return s.fail(why) if permanent else s.fail_attempt(why)
    return None


def _reported_failure(report: Report) -> tuple[str, str, str, bool]:
    failure = report.failure
    if failure is None:
        return conditions.RAY_JOB_FAILED, "the supervisor reported a failure without a reason", "", False
    return failure.reason, failure.message, failure.tail, failure.permanent


def _cluster_lost(s: Situation) -> Plan | None:
    """Somebody deleted the RayCluster under a submitted attempt: a new incarnation."""
    if not s.submitted or s.cluster_stands:
        return None
    message = f"RayCluster {s.status.ray_cluster_name} was deleted while {s.attempts} was in it"
    return s.fail_attempt(s.failure(conditions.HEAD_LOST, message), new_cluster=True)


def _head_lost(s: Situation) -> Plan | None:
    """Another head pod, or the same one restarted: the job table and the attempt in it are gone."""
    head = s.observed.head
    if not s.submitted or head is None or s.head_is_ours:
        return None
    if head.uid == s.status.head_pod_uid:
        ending = f" {head.ray.ending}" if head.ray else ""
        message = f"head pod {head.name} restarted while {s.attempts} was in it{ending}"
    else:
        message = f"the head pod was replaced by {head.name} while {s.attempts} was in it"
    return s.fail_attempt(s.failure(conditions.HEAD_LOST, message))


def _submission_over(s: Situation) -> Plan | None:
    """Ray says that the attempt's driver is gone, though no last report was heard."""
    answer = s.observed.submission
    if not s.submitted or not isinstance(answer, Submission) or not answer.over:
        return None
    if answer.state == "Unknown":
        if s.status.running_time is None and s.report is None:
            return None  # recorded, and not handed to Ray yet
        message = f"Ray on the head at {_head_ip(s)} no longer knows submission {s.status.submission_id}"
        return s.fail_attempt(s.failure(conditions.HEAD_LOST, message))
    if answer.state == "Succeeded":
        return _report_missed(s)
    message = f"submission {s.status.submission_id} is {answer.state.upper()} in Ray: {answer.message.strip()}"
    why = s.failure(conditions.RAY_JOB_FAILED, message, tail=answer.message)
    return s.fail(why) if answer.exit_code == EXIT_PERMANENT else s.fail_attempt(why)


def _report_missed(s: Situation) -> Plan:
    """The driver ended well and unheard. A new attempt finds the complete checkpoint and tells all; none left, Ray's
    word has to do."""
    message = f"submission {s.status.submission_id} ended before its last report was heard"
    if s.status.attempt <= s.job.spec.backoff_limit:
        return s.fail_attempt(s.failure(conditions.REPORT_MISSED, message))
    message = f"Ray says that it succeeded; {message}, so the last episodes are in the journal only"
    return s.end(Stage(SUCCEEDED, conditions.COMPLETED, message))


def _cannot_heal(s: Situation) -> Plan | None:
    """Something that waiting does not cure: the job fails at once. Running attempts repair their own pods."""
    if s.status.running_time is not None:
        return None
    for obstacle in s.obstacles:
        if not obstacle.heals:
            return s.fail(s.failure(obstacle.reason, obstacle.message), actions=_stop(s))
    return None


def _deadline(s: Situation) -> Plan | None:
    """An attempt that took too long is stopped and fails with what it was waiting for."""
    late = too_late(s)
    if late is None:
        return None
    why = s.failure(late.reason, late.message)
    return s.fail(why, actions=_stop(s)) if late.final else s.fail_attempt(why, actions=_stop(s))


def _provide_cluster(s: Situation) -> Plan | None:
    """No RayCluster yet: prove the pods, then create what belongs to the job, the cluster last."""
    if s.cluster_stands:
        return None
    if s.obstacles:
        first = s.obstacles[0]
        return s.plan(s.stage(PENDING, first.reason, first.message), requeue_after=_soon(s, LOOK_AGAIN_SECONDS))
    actions: list[Action] = [CreateSecret()]
    if s.observed.code is not None:
        actions.append(CreateConfigMap(s.observed.code))
    actions.append(CreateRayCluster(s.status.incarnation))
    stage = s.stage(PROVISIONING, conditions.PROVISIONING, f"RayCluster {s.status.ray_cluster_name} is asked for")
    return s.plan(stage, actions=actions, requeue_after=_soon(s, RESYNC_SECONDS), attempt_start_time=s.now)


def _provisioning(s: Situation) -> Plan | None:
    """The head is not ready: say why. A submitted attempt keeps its stage until something is known about it."""
    if s.head_ready:
        return None
    reason, message = conditions.PROVISIONING, f"waiting for the head pod of {s.status.ray_cluster_name}"
    if s.obstacles:
        reason, message = s.obstacles[0].reason, s.obstacles[0].message
    if s.status.running_time is not None:
        unreachable = f"the head pod is not ready: {message}"
        return _waiting(s, Stage(RUNNING, conditions.UNREACHABLE, unreachable))
    return _waiting(s, s.stage(STARTING if s.submitted else PROVISIONING, reason, message))


def _previous_ends(s: Situation) -> Plan | None:
    """Before an attempt is submitted the one before must be gone: it holds the actors and the report port."""
    if s.submitted or s.status.attempt == 1:
        return None
    previous = s.observed.previous
    if isinstance(previous, Submission) and previous.over:
        return None
    actions = _acknowledgements(s)
    if s.seconds_since(s.status.attempt_start_time) >= LINGER_SECONDS:
        ended = names.submission_id(s.job, s.status.incarnation, s.status.attempt - 1)
        actions.append(StopSubmission(_head_ip(s), ended))
    why = f" ({previous.error})" if isinstance(previous, Unreachable) else ""
    stage = s.stage(PROVISIONING, conditions.RECOVERING, f"waiting for attempt {s.status.attempt - 1} to end{why}")
    return s.plan(stage, actions=actions, requeue_after=2)


def _record_submission(s: Situation) -> Plan | None:
    """The head is ready: record what will be submitted, and to which head, before doing it."""
    head = s.observed.head
    if s.submitted or head is None:
        return None
    stage = s.stage(STARTING, conditions.STARTING, "the runtime is submitted to the head")
    # An operator that was away for all of the deadline is not held against the runtime.
    late = s.seconds_since(s.status.attempt_start_time) >= s.job.spec.pre_running_deadline_seconds
    return s.plan(
        stage,
        requeue_after=0,
        attempt_start_time=s.now if late else s.status.attempt_start_time,
        submission_id=s.submission_id,
        head_pod_uid=head.uid,
        head_restarts=head.ray_restarts,
    )


def _submit(s: Situation) -> Plan | None:
    """Recorded, and this head has not heard of it: hand it over."""
    answer = s.observed.submission
    if not isinstance(answer, Submission) or answer.state != "Unknown":
        return None
    submit = Submit(_head_ip(s), s.status.submission_id, s.status.incarnation, s.status.attempt)
    stage = s.stage(STARTING, conditions.STARTING, "the runtime is submitted to the head")
    return s.plan(stage, actions=[submit], follow=_follow(s), requeue_after=1)


def _reconnecting(s: Situation) -> Plan | None:
    """The operator has just started: until the first answer the stored status is as good as ever."""
    if s.status.running_time is None or s.report is not None or s.view.silent_since is not None:
        return None
    if isinstance(s.observed.submission, Unreachable):
        return None
    return Plan(status=s.status, follow=_follow(s), requeue_after=ASK_RAY_SECONDS)


def _observe(s: Situation) -> Plan:
    """Submitted: follow its reports."""
    if s.status.running_time is None and (s.report is None or s.report.state == "Starting"):
        return _waiting(s, _starting_stage(s))
    if s.report is not None and not s.silent_for(SILENCE_SECONDS):
        return _waiting(s, Stage(RUNNING, conditions.RUNNING, _running_message(s, s.report)))
    ray = s.observed.submission
    error = s.view.error or (ray.error if isinstance(ray, Unreachable) else "no poll yet")
    return _waiting(s, Stage(RUNNING, conditions.UNREACHABLE, f"the supervisor does not answer: {error}"))


def _starting_stage(s: Situation) -> Stage:
    if s.obstacles:
        return s.stage(STARTING, s.obstacles[0].reason, s.obstacles[0].message)
    waits = [wait.message for wait in s.report.waits] if s.report else []
    message = waits[0] if waits else "the runtime checks its files and loads models"
    return s.stage(STARTING, conditions.STARTING, message)


def _running_message(s: Situation, report: Report) -> str:
    done = episodes.fold(s.status, report, s.view.episodes).episode
    message = f"{done} of {s.job.spec.episodes} episodes trained"
    long = [wait.message for wait in report.waits if s.seconds_since(wait.since) >= RESYNC_SECONDS]
    return f"{message}; {long[0]}" if long else message


def _waiting(s: Situation, stage: Stage) -> Plan:
    """Follow the reports, if the head is there; look again when something may be due."""
    asking = s.submitted and not s.view.answers_for(s.status.attempt)
    return s.plan(stage, follow=_follow(s), requeue_after=_soon(s, ASK_RAY_SECONDS if asking else RESYNC_SECONDS))


def _soon(s: Situation, seconds: float) -> float:
    """``seconds``, or less when the attempt's deadline comes before; never so little that it spins."""
    spec, status = s.job.spec, s.status
    if status.running_time is None:
        left = s.until(status.attempt_start_time, spec.pre_running_deadline_seconds)
    else:
        left = s.until(status.last_progress_time, spec.progress_deadline_seconds)
    return max(SHORTEST_WAIT_SECONDS, min(seconds, left))


def _follow(s: Situation) -> Follow | None:
    head = s.observed.head
    if not s.submitted or head is None or not head.ip:
        return None
    return Follow(ip=head.ip, attempt=s.status.attempt, cursor=s.status.reports)


def _stop(s: Situation) -> list[Action]:
    return [StopSubmission(_head_ip(s), s.status.submission_id)] if s.submitted and s.head_ready else []


def _acknowledgements(s: Situation) -> list[Action]:
    """A last report whose content the status has taken over: its supervisor may go."""
    report = s.view.report
    if report is None or report.state not in ("Succeeded", "Failed"):
        return []
    if s.status.completion_time is None and report.attempt >= s.status.attempt:
        return []
    return [Acknowledge(report.attempt, s.status.reports, report.revision)]


def _head_ip(s: Situation) -> str:
    return s.observed.head.ip if s.observed.head else ""


_CHAIN: tuple[Check, ...] = (
    _clean_up,
    _begin,
    _reported_end,
    _cluster_lost,
    _head_lost,
    _submission_over,
    _cannot_heal,
    _deadline,
    _provide_cluster,
    _provisioning,
    _previous_ends,
    _record_submission,
    _submit,
    _reconnecting,
    _observe,
)
