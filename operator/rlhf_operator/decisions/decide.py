"""The one decision: ``(job, observed, report, now) -> Plan``. Pure; a chain of checks, the first that knows wins.

The status is the only memory, and every action may be repeated: killed after any of them, the next pass sees what
was done and goes on to the same end. An attempt is submitted in two passes: the first records id and head in the
status, the next hands it to Ray; so a head that does not know a recorded id either was never told (same pod, no
restart since, never seen running) or has lost it, and then the attempt is never handed out again.
"""

from collections.abc import Callable
from datetime import datetime

from rlhf_api.job import RLHFJob

from rlhf_operator.decisions import endings, running, starting
from rlhf_operator.decisions.acknowledging import acknowledgements
from rlhf_operator.decisions.plan import DeleteRayCluster, DeleteSecretAndCode, Plan
from rlhf_operator.decisions.situation import Situation
from rlhf_operator.observed.picture import Observed
from rlhf_operator.observed.report_view import ReportView
from rlhf_operator.status.release import released, with_release

Check = Callable[[Situation], Plan | None]


def decide(job: RLHFJob, observed: Observed, view: ReportView, now: datetime) -> Plan:
    """What to do now. ``now`` has whole seconds; it is the only clock."""
    situation = Situation(job, observed, view, now)
    return next(plan for check in _CHAIN if (plan := check(situation)) is not None)


def clean_up(s: Situation) -> Plan | None:
    """The job is over and that is written: delete the RayCluster, and say so once it and its pods are gone.

    That is the last write: a finished job costs nothing more.
    """
    if s.status.completion_time is None:
        return None
    actions = acknowledgements(s)
    if released(s.status):
        return Plan(status=s.status, actions=tuple(actions))
    if s.cluster_stands:
        actions.append(DeleteRayCluster(s.status.ray_cluster_name))
    if s.cluster_is_ours or s.observed.pods:
        return Plan(status=s.status, actions=tuple(actions), requeue_after=starting.LOOK_AGAIN_SECONDS)
    actions.append(DeleteSecretAndCode())
    return Plan(status=with_release(s.job, s.now), actions=tuple(actions))


_CHAIN: tuple[Check, ...] = (
    clean_up,  # it is over and written: give the cluster back
    starting.begin,  # never seen before
    endings.reported_end,  # the supervisor said its last word
    endings.cluster_lost,  # the RayCluster was deleted under the attempt
    endings.head_lost,  # the head pod was replaced or restarted under the attempt
    endings.submission_over,  # Ray says that the driver is gone
    endings.cannot_heal,  # waiting would not help
    endings.deadline,  # waited too long
    starting.provide_cluster,  # there is no RayCluster yet
    starting.provisioning,  # the head is not ready
    starting.previous_ends,  # the attempt before is not gone
    starting.record_submission,  # ready: say what will be submitted
    starting.submit,  # said: submit it
    running.reconnecting,  # the operator has just started
    running.observe,  # follow its reports
)
