"""The way of an attempt from nothing to its submission: checks of a chain, each one step. Pure."""

from rlhf_api import names
from rlhf_api.conditions import Phase, Reason

from rlhf_operator.decisions.acknowledging import acknowledgements
from rlhf_operator.decisions.plan import (
    Action,
    CreateConfigMap,
    CreateRayCluster,
    CreateSecret,
    Plan,
    StopSubmission,
    Submit,
)
from rlhf_operator.decisions.running import waiting
from rlhf_operator.decisions.situation import RESYNC_SECONDS, Situation
from rlhf_operator.observed.picture import Submission, Unreachable
from rlhf_operator.status.stages import Stage

#: How often a named object (ConfigMap, claim) or a refused creation is looked at again: no event tells.
LOOK_AGAIN_SECONDS = 10.0
#: An ended attempt's processes have so long to end by themselves before they are stopped.
LINGER_SECONDS = 10.0


def begin(s: Situation) -> Plan | None:
    """Seen for the first time."""
    if s.status.start_time is not None:
        return None
    return s.plan(
        Stage(Phase.PENDING, Reason.PENDING, "the operator has seen the job and will check its pods next"),
        requeue_after=0,
        start_time=s.now,
        attempt=1,
        incarnation=1,
        attempt_start_time=s.now,
        ray_cluster_name=names.ray_cluster_name(s.job, 1),
    )


def provide_cluster(s: Situation) -> Plan | None:
    """No RayCluster yet: prove the pods, then create what belongs to the job, the cluster last."""
    if s.cluster_stands:
        return None
    if (first := s.obstacle) is not None:
        return s.plan(s.stage(Phase.PENDING, first.reason, first.message), requeue_after=s.soon(LOOK_AGAIN_SECONDS))
    if s.observed.ray_cluster is None:
        stage = s.stage(Phase.PENDING, Reason.PENDING, "the operator will check the job's pods next")
        return s.plan(stage, requeue_after=s.soon(LOOK_AGAIN_SECONDS))
    actions: list[Action] = [CreateSecret(), *_copy_of_the_code(s), CreateRayCluster(s.observed.ray_cluster)]
    stage = s.stage(Phase.PROVISIONING, Reason.PROVISIONING, f"creating RayCluster {s.status.ray_cluster_name}")
    # The attempt's clock goes on: a cluster that is deleted again and again before submission must not reset it.
    return s.plan(stage, actions=actions, requeue_after=s.soon(RESYNC_SECONDS))


def provisioning(s: Situation) -> Plan | None:
    """The head is not ready: say why. A submitted attempt keeps its stage until something is known about it.

    The copy of the code is made again if it is missing: pods that mount it would wait for it for ever.
    """
    if s.head_ready:
        return None
    actions = _copy_of_the_code(s)
    reason, message = Reason.PROVISIONING, f"waiting for the head pod of {s.status.ray_cluster_name}"
    if (first := s.obstacle) is not None:
        reason, message = first.reason, first.message
    if s.status.running_time is not None:
        unreachable = f"the head pod is not ready: {message}"
        return waiting(s, Stage(Phase.RUNNING, Reason.UNREACHABLE, unreachable), actions)
    return waiting(s, s.stage(Phase.STARTING if s.submitted else Phase.PROVISIONING, reason, message), actions)


def _copy_of_the_code(s: Situation) -> list[Action]:
    return [CreateConfigMap(code)] if (code := s.copy_missing) is not None else []


def previous_ends(s: Situation) -> Plan | None:
    """Before an attempt is submitted the one before must be gone: it holds the actors and the report port."""
    if s.submitted or s.status.attempt == 1:
        return None
    previous = s.observed.previous
    if isinstance(previous, Submission) and previous.over:
        return None
    actions = acknowledgements(s)
    if s.seconds_since(s.status.attempt_start_time) >= LINGER_SECONDS:
        ended = names.submission_id(s.job, s.status.incarnation, s.status.attempt - 1)
        actions.append(StopSubmission(s.head_ip, ended))
    why = f" ({previous.error})" if isinstance(previous, Unreachable) else ""
    stage = s.stage(Phase.PROVISIONING, Reason.RECOVERING, f"waiting for attempt {s.status.attempt - 1} to end{why}")
    return s.plan(stage, actions=actions, requeue_after=2)


def record_submission(s: Situation) -> Plan | None:
    """The head is ready: record what will be submitted, and to which head, before doing it."""
    head = s.observed.head
    if s.submitted or head is None:
        return None
    stage = s.stage(Phase.STARTING, Reason.STARTING, "the runtime is submitted to the head")
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


def submit(s: Situation) -> Plan | None:
    """Recorded, and this head has not heard of it: hand it over."""
    answer = s.observed.submission
    if not isinstance(answer, Submission) or answer.state != "Unknown":
        return None
    submit = Submit(s.head_ip, s.status.submission_id, s.status.incarnation, s.status.attempt)
    stage = s.stage(Phase.STARTING, Reason.STARTING, "the runtime is submitted to the head")
    return s.plan(stage, actions=[submit], follow=s.follow, requeue_after=1)
