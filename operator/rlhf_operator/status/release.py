"""What a finished job's status says of its RayCluster, until that is gone. Pure."""

from datetime import datetime

from rlhf_api.conditions import AnyReason, ConditionType, ReadReason, Reason
from rlhf_api.job import RLHFJob
from rlhf_api.status import RLHFJobStatus

from rlhf_operator.status.build import bounded
from rlhf_operator.status.stages import Fact, merged


def released(status: RLHFJobStatus) -> bool:
    """Whether the cluster of a finished job has been seen gone, and that is recorded."""
    reasons = {condition.type: condition.reason for condition in status.conditions}
    return status.completion_time is not None and reasons.get(ConditionType.CLUSTER_READY) == Reason.RELEASED


def with_release(job: RLHFJob, now: datetime) -> RLHFJobStatus:
    """The status of a job whose cluster has been seen gone."""
    return _with(job, Reason.RELEASED, f"RayCluster {job.status.ray_cluster_name} and its pods are gone", now)


def with_obstacle(job: RLHFJob, error: str, now: datetime) -> RLHFJobStatus:
    """The status of a finished job whose cluster cannot be deleted: its GPUs are still held."""
    reason = {condition.type: condition.reason for condition in job.status.conditions}.get(ConditionType.CLUSTER_READY)
    message = f"the job is over, but RayCluster {job.status.ray_cluster_name} could not be deleted: {error}"
    return _with(job, ReadReason(reason) if reason else Reason.COMPLETED, bounded(message, job.name), now)


def _with(job: RLHFJob, reason: AnyReason, message: str, now: datetime) -> RLHFJobStatus:
    fact = Fact(ConditionType.CLUSTER_READY, "False", reason, message)
    return job.status.model_copy(update={"conditions": merged(job.status.conditions, [fact], job.generation, now)})
