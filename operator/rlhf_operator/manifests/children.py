"""What should exist for a job: Secret, ConfigMap and RayCluster as complete manifests, built from nothing. Pure."""

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

from rlhf_api import names
from rlhf_api.job import API_VERSION, KIND, RLHFJob
from rlhf_api.quantities import in_bytes

from rlhf_operator.manifests.pods import TOKEN_KEY, job_labels, pod_template, role_of
from rlhf_operator.manifests.templates import TemplateError
from rlhf_operator.observed.picture import HEAD_ROLE, Code

RAY_API_VERSION = "ray.io/v1"
RAY_KIND = "RayCluster"
RAY_PLURAL = "rayclusters"

#: Ray's object store lives in /dev/shm, which counts against the container's memory. Ray refuses less than the
#: least; without any memory resource Ray would take a share of the whole node, so a fixed size is set.
_OBJECT_STORE_SHARE = 0.3
_OBJECT_STORE_LEAST = 80 * 1024**2
_OBJECT_STORE_UNKNOWN = 512 * 1024**2


def token(key: bytes, job: RLHFJob) -> str:
    """The job's bearer token: nothing is stored that the operator could not derive again."""
    return hmac.new(key, job.uid.encode(), hashlib.sha256).hexdigest()


def secret(job: RLHFJob, key: bytes) -> dict[str, Any]:
    """The Secret that KubeRay hands to every Ray container."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(job, names.token_secret_name(job)),
        "type": "Opaque",
        "immutable": True,
        "stringData": {TOKEN_KEY: token(key, job)},
    }


def config_map(job: RLHFJob, code: Code) -> dict[str, Any]:
    """The job's own copy of the user's code: later edits of the user's ConfigMap do not reach a running job."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(job, names.code_config_map_name(job)),
        "immutable": True,
        "data": dict(code.data),
        "binaryData": dict(code.binary_data),
    }


def pod_templates(job: RLHFJob) -> dict[str, dict[str, Any]]:
    """The pod template of each role. Raises TemplateError for one that cannot be merged."""
    return {role: pod_template(job, role) for role in (HEAD_ROLE, names.MAKER_GROUP, names.TRAINER_GROUP)}


def ray_cluster(
    job: RLHFJob, incarnation: int, templates: Mapping[str, Mapping[str, Any]], memory: Mapping[str, int | None]
) -> dict[str, Any]:
    """The RayCluster of an incarnation, from each role's pod template and the bytes that its Ray container may use."""
    spec = job.spec
    return {
        "apiVersion": RAY_API_VERSION,
        "kind": RAY_KIND,
        "metadata": _metadata(job, names.ray_cluster_name(job, incarnation)),
        "spec": {
            "rayVersion": spec.runtime.ray_version,
            "authOptions": {"mode": "token", "secretName": names.token_secret_name(job)},
            # A changed template would otherwise restart a running attempt.
            "upgradeStrategy": {"type": "None"},
            "headGroupSpec": {
                "serviceType": "ClusterIP",
                "rayStartParams": {
                    # No actor of ours runs on the head: it holds the supervisor and Ray's own services.
                    "num-cpus": "0",
                    "dashboard-host": "0.0.0.0",
                    "object-store-memory": _object_store(memory[HEAD_ROLE]),
                },
                "template": templates[HEAD_ROLE],
            },
            "workerGroupSpecs": [
                _worker_group(group, replicas, actors, templates[group], memory[group])
                for group, replicas, actors in (
                    (names.MAKER_GROUP, spec.makers.replicas, {names.MAKER_RESOURCE: 1}),
                    (names.TRAINER_GROUP, spec.trainers.pods, {names.TRAINER_RESOURCE: spec.trainers.per_pod}),
                )
            ],
        },
    }


def trial_pod(job: RLHFJob, role: str, template: Mapping[str, Any]) -> dict[str, Any]:
    """A Pod made from a role's template, for a dry run: what the API server says of it, it says of KubeRay's."""
    metadata = {key: value for key, value in template["metadata"].items() if key in ("labels", "annotations")}
    metadata |= {"name": f"{names.ray_cluster_name(job, 1)}-{role}", "namespace": job.namespace}
    return {**template, "apiVersion": "v1", "kind": "Pod", "metadata": metadata}


def ray_memory(job: RLHFJob, role: str, pod: Mapping[str, Any]) -> int | None:
    """Bytes that the Ray container of a role's pod, or pod template, may use; None when the pod does not say.

    Of a pod that the API server has admitted, this includes what the namespace sets for pods that set nothing.
    Raises TemplateError for an amount that is not a quantity.
    """
    where, _ = role_of(job, role)
    containers = pod["spec"]["containers"]
    resources = next((c.get("resources") for c in containers if c.get("name") == names.RAY_CONTAINER), None)
    for kind in ("limits", "requests"):
        # Of another shape, or absent: that is for the API server to judge.
        amounts = resources.get(kind) if isinstance(resources, Mapping) else None
        amount = amounts.get("memory") if isinstance(amounts, Mapping) else None
        if amount is not None:
            try:
                return in_bytes(amount)
            except ValueError as error:
                raise TemplateError(f"{where}: memory {kind}: {error}") from error
    return None


def _metadata(job: RLHFJob, name: str) -> dict[str, Any]:
    """No label or annotation of the job is copied: GitOps tools track objects by them."""
    owner = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {"name": name, "namespace": job.namespace, "labels": job_labels(job), "ownerReferences": [owner]}


def _worker_group(
    group: str, replicas: int, actors: dict[str, int], template: Mapping[str, Any], memory: int | None
) -> dict[str, Any]:
    """A group of `replicas` pods; `actors` is the Ray resource that each has, a unit for each actor in it."""
    return {
        "groupName": group,
        "replicas": replicas,
        "minReplicas": replicas,
        "maxReplicas": replicas,
        "rayStartParams": {
            # KubeRay pastes the value into a shell command: JSON in double quotes, its own quotes escaped.
            "resources": json.dumps(json.dumps(actors)),
            "object-store-memory": _object_store(memory),
        },
        "template": template,
    }


def _object_store(memory: int | None) -> str:
    """Bytes of an object store, by the bytes that its container may use."""
    if memory is None:
        return str(_OBJECT_STORE_UNKNOWN)
    return str(max(_OBJECT_STORE_LEAST, int(memory * _OBJECT_STORE_SHARE)))
