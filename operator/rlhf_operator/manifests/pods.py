"""The pod template of each role: the user's, laid under what the operator sets. Pure."""

from typing import Any

from rlhf_api import names
from rlhf_api.job import RLHFJob
from rlhf_api.roles import Head, Makers, Trainers
from rlhf_api.run import REPORT_PORT, TOKEN_ENV

from rlhf_operator.manifests.templates import TemplateError, lay_under
from rlhf_operator.observed.picture import HEAD_ROLE

#: Whom the pods run as unless the template says otherwise: an image may need its own user, though never root.
_IDENTITY = {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000, "fsGroupChangePolicy": "OnRootMismatch"}
#: The key that KubeRay reads in ``authOptions.secretName``.
TOKEN_KEY = "auth_token"
_STORAGE_VOLUME = "rlhf-storage"
_SHARED_MEMORY_VOLUME = "rlhf-shared-memory"
_CODE_VOLUME = "rlhf-code"
_RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True}

Role = Head | Makers | Trainers


def pod_template(job: RLHFJob, role: str) -> dict[str, Any]:
    """A role's PodTemplateSpec: the user's, under ours. Raises TemplateError."""
    where, parameters = role_of(job, role)
    pod = lay_under(parameters.template, _pod(job, role, parameters), f"{where}.template")
    pod["spec"]["securityContext"] = {**_IDENTITY, **pod["spec"]["securityContext"]}
    if (code := _code_path(job)) is not None:
        _put_first_on_path(pod["spec"]["containers"][0], code, where)
    return pod


def role_of(job: RLHFJob, role: str) -> tuple[str, Role]:
    """Where in the object a role's parameters are, and the parameters."""
    roles: dict[str, tuple[str, Role]] = {
        HEAD_ROLE: ("spec.head", job.spec.head),
        names.MAKER_GROUP: ("spec.makers", job.spec.makers),
        names.TRAINER_GROUP: ("spec.trainers", job.spec.trainers),
    }
    return roles[role]


def job_labels(job: RLHFJob) -> dict[str, str]:
    """On everything that belongs to a job, and nothing copied from it: GitOps tools track objects by labels."""
    return {names.JOB_NAME_LABEL: job.name, names.JOB_UID_LABEL: job.uid, **names.MANAGED_BY}


def _pod(job: RLHFJob, role: str, parameters: Role) -> dict[str, Any]:
    runtime = job.spec.runtime
    spec: dict[str, Any] = {
        "containers": [_ray_container(job, role, parameters)],
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if runtime.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": reference.name} for reference in runtime.image_pull_secrets]
    if volumes := _volumes(job, role):
        spec["volumes"] = volumes
    return {"metadata": {"labels": {**job_labels(job), names.ROLE_LABEL: role}}, "spec": spec}


def _ray_container(job: RLHFJob, role: str, parameters: Role) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": names.RAY_CONTAINER,
        "image": job.spec.runtime.image,
        "env": _env(job),
        "securityContext": _RESTRICTED,
        # What a crashing container said last is then in the pod's status, and so in the job's.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    resources = parameters.resources.to_dict()
    if any(resources.values()):
        container["resources"] = {key: value for key, value in resources.items() if value}
    if job.spec.runtime.env_from:
        container["envFrom"] = [source.to_dict() for source in job.spec.runtime.env_from]
    if role == HEAD_ROLE:
        container["ports"] = [
            {"name": "gcs-server", "containerPort": 6379},
            {"name": "dashboard", "containerPort": 8265},
            {"name": "client", "containerPort": 10001},
            {"name": "report", "containerPort": REPORT_PORT},
        ]
    if mounts := _mounts(job, role):
        container["volumeMounts"] = mounts
    return container


def _env(job: RLHFJob) -> list[dict[str, Any]]:
    """The runtime's variables, the job's token, and the name of the pod for the actor in it."""
    variables = {variable.name: variable.to_dict() for variable in job.spec.runtime.env}
    pod_name = {"fieldRef": {"fieldPath": "metadata.name"}}
    variables[names.POD_NAME_ENV] = {"name": names.POD_NAME_ENV, "valueFrom": pod_name}
    # KubeRay would set these two, but leaves them where they are set: nobody's may open Ray to all or lock us out.
    token = {"secretKeyRef": {"name": names.token_secret_name(job), "key": TOKEN_KEY}}
    variables["RAY_AUTH_MODE"] = {"name": "RAY_AUTH_MODE", "value": "token"}
    variables[TOKEN_ENV] = {"name": TOKEN_ENV, "valueFrom": token}
    variables.setdefault("RAY_USAGE_STATS_ENABLED", {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"})
    return list(variables.values())


def _put_first_on_path(container: dict[str, Any], code: str, where: str) -> None:
    """The user's code before what PYTHONPATH holds already. Raises TemplateError when that is not plain text."""
    paths = [code]
    others: list[dict[str, Any]] = []
    for variable in container["env"]:
        value = variable.get("value") or ""
        if variable.get("name") != "PYTHONPATH":
            others.append(variable)
        elif variable.get("valueFrom") or not isinstance(value, str):
            raise TemplateError(f"{where}: PYTHONPATH: expected a plain text value: runtime.code goes before it")
        elif value:
            paths.append(value)
    container["env"] = [*others, {"name": "PYTHONPATH", "value": ":".join(paths)}]


def _code_path(job: RLHFJob) -> str | None:
    code = job.spec.runtime.code
    if code is None:
        return None
    return names.CODE_MOUNT if code.config_map is not None else code.path


def _volumes(job: RLHFJob, role: str) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = []
    if (claim := job.spec.checkpoint.storage.persistent_volume_claim) is not None:
        volumes.append({"name": _STORAGE_VOLUME, "persistentVolumeClaim": {"claimName": claim.claim_name}})
    if job.spec.runtime.code is not None and job.spec.runtime.code.config_map is not None:
        volumes.append({"name": _CODE_VOLUME, "configMap": {"name": names.code_config_map_name(job)}})
    ranks = {names.MAKER_GROUP: job.spec.makers.tensor_parallel, names.TRAINER_GROUP: job.spec.trainers.per_pod}
    if ranks.get(role, 1) > 1:
        # Through it NCCL's ranks of one pod talk, beside Ray's objects. Not bounded here: what is in it counts
        # against the container's memory, which is.
        volumes.append({"name": _SHARED_MEMORY_VOLUME, "emptyDir": {"medium": "Memory"}})
    return volumes


def _mounts(job: RLHFJob, role: str) -> list[dict[str, Any]]:
    mounts: dict[str, dict[str, Any]] = {
        _STORAGE_VOLUME: {"name": _STORAGE_VOLUME, "mountPath": names.STORAGE_MOUNT},
        _CODE_VOLUME: {"name": _CODE_VOLUME, "mountPath": names.CODE_MOUNT, "readOnly": True},
        _SHARED_MEMORY_VOLUME: {"name": _SHARED_MEMORY_VOLUME, "mountPath": "/dev/shm"},
    }
    return [mounts[volume["name"]] for volume in _volumes(job, role)]
