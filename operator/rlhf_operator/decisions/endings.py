"""How attempts and jobs end: checks of a chain, each with its one reason. Pure."""

from rlhf_api.conditions import AnyReason, Phase, ReadReason, Reason
from rlhf_api.run import ExitCode, Report

from rlhf_operator.decisions.deadlines import too_late
from rlhf_operator.decisions.plan import Plan
from rlhf_operator.decisions.situation import Situation
from rlhf_operator.observed.picture import Submission
from rlhf_operator.status.stages import Stage


def reported_end(s: Situation) -> Plan | None:
    """The supervisor has said its last word, and every episode before it is here."""
    report = s.report
    if report is None or not s.view.drained:
        return None
    if report.state == "Succeeded":
        message = f"{s.job.spec.episodes} episodes trained"
        if report.final_model:
            message += f"; the model is in {report.final_model}"
        return s.end(Stage(Phase.SUCCEEDED, Reason.COMPLETED, message))
    if report.state == "Failed":
        reason, message, tail, permanent = _reported_failure(report)
        why = s.failure(reason, message, tail)
        return s.fail(why) if permanent else s.fail_attempt(why)
    return None


def _reported_failure(report: Report) -> tuple[AnyReason, str, str, bool]:
    failure = report.failure
    if failure is None:
        return Reason.RAY_JOB_FAILED, "the supervisor reported a failure without a reason", "", False
    return ReadReason(failure.reason), failure.message, failure.tail, failure.permanent


def cluster_lost(s: Situation) -> Plan | None:
    """Somebody deleted the RayCluster under a submitted attempt: a new incarnation."""
    if not s.submitted or s.cluster_stands:
        return None
    message = f"RayCluster {s.status.ray_cluster_name} was deleted while {s.attempts} was in it"
    return s.fail_attempt(s.failure(Reason.HEAD_LOST, message), new_cluster=True)


def head_lost(s: Situation) -> Plan | None:
    """Another head pod, or the same one restarted: the job table and the attempt in it are gone."""
    head = s.observed.head
    if not s.submitted or head is None or s.head_is_ours:
        return None
    if head.uid == s.status.head_pod_uid:
        ending = f" {head.ray.ending}" if head.ray else ""
        message = f"head pod {head.name} restarted while {s.attempts} was in it{ending}"
    else:
        message = f"the head pod was replaced by {head.name} while {s.attempts} was in it"
    return s.fail_attempt(s.failure(Reason.HEAD_LOST, message))


def submission_over(s: Situation) -> Plan | None:
    """Ray says that the attempt's driver is gone, though no last report was heard."""
    answer = s.observed.submission
    if not s.submitted or not isinstance(answer, Submission) or not answer.over:
        return None
    if answer.state == "Unknown":
        if s.status.running_time is None and s.report is None:
            return None  # recorded, and not handed to Ray yet
        message = f"Ray on the head at {s.head_ip} no longer knows submission {s.status.submission_id}"
        return s.fail_attempt(s.failure(Reason.HEAD_LOST, message))
    if answer.state == "Succeeded":
        return _report_missed(s)
    message = f"submission {s.status.submission_id} is {answer.state.upper()} in Ray: {_in_a_sentence(answer.message)}"
    why = s.failure(Reason.RAY_JOB_FAILED, message, tail=answer.message)
    return s.fail(why) if answer.exit_code == ExitCode.PERMANENT else s.fail_attempt(why)


def _in_a_sentence(message: str) -> str:
    """Ray's message: one line, or a line that announces the log's last ones, of which the last says most."""
    first, *log = message.strip().splitlines() or ["it gives no reason"]
    return f"{first.partition(', last available logs')[0]}; its last line: {log[-1].strip()}" if log else first


def _report_missed(s: Situation) -> Plan:
    """The driver ended well and unheard. A new attempt finds the complete checkpoint and tells all; none left, Ray's
    word has to do."""
    message = f"submission {s.status.submission_id} ended before its last report was heard"
    if s.status.attempt <= s.job.spec.backoff_limit:
        return s.fail_attempt(s.failure(Reason.REPORT_MISSED, message))
    message = f"Ray says that it succeeded; {message}, so the last episodes are in the journal only"
    return s.end(Stage(Phase.SUCCEEDED, Reason.COMPLETED, message))


def cannot_heal(s: Situation) -> Plan | None:
    """Something that waiting does not cure: the job fails at once. Running attempts repair their own pods."""
    if s.status.running_time is not None:
        return None
    for obstacle in s.obstacles:
        if not obstacle.heals:
            return s.fail(s.failure(obstacle.reason, obstacle.message), actions=s.stop())
    return None


def deadline(s: Situation) -> Plan | None:
    """An attempt that took too long is stopped and fails with what it was waiting for."""
    late = too_late(s)
    if late is None:
        return None
    why = s.failure(late.reason, late.message)
    return s.fail(why, actions=s.stop()) if late.final else s.fail_attempt(why, actions=s.stop())
