"""Names derived from a job's UID, incarnation and attempt: so "already exists" is success."""

import hashlib

from rlhf_api.job import RLHFJob

#: Labels on everything that belongs to a job.
JOB_NAME_LABEL = "rlhf.dev/job"
JOB_UID_LABEL = "rlhf.dev/job-uid"
ROLE_LABEL = "rlhf.dev/role"
MANAGED_BY = {"app.kubernetes.io/managed-by": "rlhf-operator"}

#: Name of the Ray container in every pod of a job: a template's container of this name is laid under ours.
RAY_CONTAINER = "ray"

#: Worker groups of the RayCluster, and the Ray custom resources that bind actors to them: one unit for each actor.
MAKER_GROUP = "maker"
TRAINER_GROUP = "trainer"
MAKER_RESOURCE = "rlhf_maker"
TRAINER_RESOURCE = "rlhf_trainer"

#: Where the operator mounts the storage claim, and the copy of the user's code.
STORAGE_MOUNT = "/mnt/rlhf"
CODE_MOUNT = "/etc/rlhf/code"

#: Environment variable with the pod's own name, by the downward API.
POD_NAME_ENV = "RLHF_POD_NAME"


def _suffix(*parts: object) -> str:
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:5]


def ray_cluster_name(job: RLHFJob, incarnation: int) -> str:
    return f"{job.name}-{_suffix(job.uid, incarnation)}"


def token_secret_name(job: RLHFJob) -> str:
    return f"{job.name}-{_suffix(job.uid)}-token"


def code_config_map_name(job: RLHFJob) -> str:
    return f"{job.name}-{_suffix(job.uid)}-code"


def submission_id(job: RLHFJob, incarnation: int, attempt: int) -> str:
    return f"{job.name}-{job.uid[:8]}-{incarnation}-{attempt}"


def storage_root(job: RLHFJob) -> str:
    """Where the job's pods see the checkpoint storage."""
    return job.spec.checkpoint.storage.path or STORAGE_MOUNT
