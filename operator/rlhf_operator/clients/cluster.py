"""The operator's effects on Kubernetes, each one idempotent."""

import asyncio
import base64
import os
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlhf_api import names
from rlhf_api.conditions import Reason
from rlhf_api.job import API_VERSION, PLURAL, RLHFJob

from rlhf_operator.clients.kube import ApiError, Conflict, Kube, NotFound, Raw
from rlhf_operator.manifests import children
from rlhf_operator.manifests.templates import TemplateError
from rlhf_operator.observed.picture import Code, Obstacle

OPERATOR_KEY_SECRET = "rlhf-operator-key"
_DRY_RUN = {"dryRun": "All", "fieldValidation": "Strict"}
_BACKGROUND: Raw = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}


class NotOurs(Exception):
    """An object has the name that this job's would have, and another owner."""


@dataclass(frozen=True)
class Proof:
    """What the API server says of everything that a job needs, asked in dry runs."""

    ray_cluster: Raw | None = field(default=None, repr=False)
    """What was proven, ready to be created; None when a template cannot even be merged."""
    obstacles: tuple[Obstacle, ...] = ()


class Cluster:
    """Kubernetes as the operator uses it. ``key`` is the operator's own, from which tokens derive."""

    def __init__(self, kube: Kube, key: bytes) -> None:
        self._kube = kube
        self._key = key

    def token(self, job: RLHFJob) -> str:
        return children.token(self._key, job)

    async def read_job(self, namespace: str, name: str) -> Raw | None:
        return await _or_none(self._kube.call("get", PLURAL, _job_path(namespace, name)))

    async def read_cluster(self, namespace: str, name: str) -> Raw | None:
        return await _or_none(self._kube.call("get", children.RAY_PLURAL, _ray_path(namespace, name)))

    async def read_pods(self, job: RLHFJob) -> list[Raw]:
        query = {"labelSelector": f"{names.JOB_UID_LABEL}={job.uid}"}
        answer = await self._kube.call("list", "pods", _core_path(job.namespace, "pods"), query=query)
        return list(answer["items"])

    async def read_code(self, job: RLHFJob) -> Code | None:
        """The job's copy of its code, else the user's ConfigMap that it will be made from; None when there is none."""
        code = job.spec.runtime.code
        if code is None or code.config_map is None:
            return None
        for name, copied in ((names.code_config_map_name(job), True), (code.config_map.name, False)):
            path = _core_path(job.namespace, "configmaps", name)
            if (raw := await _or_none(self._kube.call("get", "configmaps", path))) is not None:
                return Code(raw.get("data") or {}, raw.get("binaryData") or {}, copied)
        return None

    async def claim_exists(self, job: RLHFJob) -> bool:
        """Whether the storage claim is there; a job without one needs none."""
        claim = job.spec.checkpoint.storage.persistent_volume_claim
        if claim is None:
            return True
        path = _core_path(job.namespace, "persistentvolumeclaims", claim.claim_name)
        return await _or_none(self._kube.call("get", "persistentvolumeclaims", path)) is not None

    async def prove(self, job: RLHFJob, code: Code | None) -> Proof:
        """What the API server says to a pod of each role and to the job's children, without creating anything."""
        found: list[Obstacle | None] = []
        memory: dict[str, int | None] = {}
        try:
            templates = children.pod_templates(job)
            for role, template in templates.items():
                memory[role] = children.ray_memory(job, role, template)
        except TemplateError as error:
            return Proof(obstacles=(Obstacle(Reason.TEMPLATE_INVALID, str(error), heals=False),))
        for role, template in templates.items():
            admitted = await self._prove_pod(role, children.trial_pod(job, role, template))
            if isinstance(admitted, Obstacle):
                found.append(admitted)
            else:
                memory[role] = children.ray_memory(job, role, admitted)
        manifest = children.ray_cluster(job, job.status.incarnation, templates, memory)
        found.append(await self._prove_cluster(manifest))
        found.append(await self._prove_child("secrets", children.secret(job, self._key)))
        if code is not None:
            found.append(await self._prove_child("configmaps", children.config_map(job, code)))
        return Proof(manifest, tuple(obstacle for obstacle in found if obstacle is not None))

    async def _prove_pod(self, role: str, pod: Raw) -> Raw | Obstacle:
        """The pod as the API server would store it, with what the namespace sets, or why it refuses it."""
        admitted = await self._dry_run("pods", _core_path(pod["metadata"]["namespace"], "pods"), pod)
        if not isinstance(admitted, ApiError):
            return admitted
        reason = Reason.PROVISIONING if _heals(admitted) else Reason.TEMPLATE_INVALID
        return Obstacle(reason, f"the API server refuses the {role} pod: {admitted.message}", _heals(admitted))

    async def _prove_cluster(self, manifest: Raw) -> Obstacle | None:
        refusal = await self._dry_run(children.RAY_PLURAL, _ray_path(manifest["metadata"]["namespace"]), manifest)
        if not isinstance(refusal, ApiError):
            return None
        if isinstance(refusal, NotFound):
            message = f"the cluster has no RayCluster (ray.io/v1): install KubeRay 1.6 or later ({refusal.message})"
            return Obstacle(Reason.KUBERAY_MISSING, message, heals=True)
        reason = Reason.PROVISIONING if _heals(refusal) else Reason.RAY_CLUSTER_INVALID
        return Obstacle(reason, f"the API server refuses the RayCluster: {refusal.message}", _heals(refusal))

    async def _prove_child(self, resource: str, manifest: Raw) -> Obstacle | None:
        """A quota, a policy or a missing permission may be what refuses it, and may be changed."""
        refusal = await self._dry_run(resource, _core_path(manifest["metadata"]["namespace"], resource), manifest)
        if not isinstance(refusal, ApiError):
            return None
        message = f"the API server refuses the job's {manifest['kind']}: {refusal.message}"
        return Obstacle(Reason.PROVISIONING, message, heals=True)

    async def _dry_run(self, resource: str, path: str, manifest: Raw) -> Raw | ApiError:
        """What would be created, or why it would not be.

        Names are checked last: a manifest whose name is taken has passed all other checks.
        """
        try:
            return await self._kube.call("create", resource, path, manifest, _DRY_RUN)
        except Conflict:
            return manifest
        except ApiError as error:
            return error

    async def kuberay_refusal(self, namespace: str, uid: str) -> Obstacle | None:
        """KubeRay says only by an event that it will not have a RayCluster."""
        query = {"fieldSelector": f"involvedObject.uid={uid},type=Warning"}
        answer = await self._kube.call("list", "events", _core_path(namespace, "events"), query=query)
        for event in answer["items"]:
            if event.get("reason") in ("InvalidRayClusterSpec", "InvalidRayClusterMetadata"):
                message = f"KubeRay refuses the RayCluster: {event.get('message', '')}"
                return Obstacle(Reason.RAY_CLUSTER_INVALID, message, heals=False)
        return None

    async def create_secret(self, job: RLHFJob) -> None:
        """The operator may not read Secrets, so one of that name is taken for ours: the name holds the UID's hash."""
        try:
            path = _core_path(job.namespace, "secrets")
            await self._kube.call("create", "secrets", path, children.secret(job, self._key))
        except Conflict:
            return

    async def create_config_map(self, job: RLHFJob, code: Code) -> None:
        manifest = children.config_map(job, code)
        await self._create(job, "configmaps", _core_path(job.namespace, "configmaps"), manifest)

    async def create_ray_cluster(self, job: RLHFJob, manifest: Mapping[str, Any]) -> None:
        await self._create(job, children.RAY_PLURAL, _ray_path(job.namespace), dict(manifest))

    async def _create(self, job: RLHFJob, resource: str, path: str, manifest: Raw) -> None:
        """Raises NotOurs when the name is taken by an object of another owner."""
        try:
            await self._kube.call("create", resource, path, manifest)
        except Conflict:
            name = manifest["metadata"]["name"]
            existing = await self._kube.call("get", resource, f"{path}/{name}")
            owners = [owner["uid"] for owner in existing["metadata"].get("ownerReferences", ())]
            if job.uid not in owners:
                raise NotOurs(f"{resource} {name} exists and does not belong to this job; delete it") from None

    async def delete_ray_cluster(self, job: RLHFJob, name: str) -> None:
        """Its pods go with it. One that is gone already is success."""
        await _or_none(self._kube.call("delete", children.RAY_PLURAL, _ray_path(job.namespace, name), _BACKGROUND))

    async def delete_secret_and_code(self, job: RLHFJob) -> None:
        """Each is tried, whatever becomes of the other. Raises the first ApiError."""
        named = [("secrets", names.token_secret_name(job))]
        if job.spec.runtime.code is not None and job.spec.runtime.code.config_map is not None:
            named.append(("configmaps", names.code_config_map_name(job)))
        errors: list[ApiError] = []
        for resource, name in named:
            try:
                path = _core_path(job.namespace, resource, name)
                await _or_none(self._kube.call("delete", resource, path, _BACKGROUND))
            except ApiError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    async def write_status(self, raw: Raw, status: Raw) -> Raw:
        """Replaces the status; Conflict when the object has changed since ``raw`` was read: a stale writer loses."""
        metadata = raw["metadata"]
        body = {**raw, "apiVersion": API_VERSION, "status": status}
        path = f"{_job_path(metadata['namespace'], metadata['name'])}/status"
        return await self._kube.call("update", f"{PLURAL}/status", path, body)


async def operator_key(kube: Kube, namespace: str) -> bytes:
    """The operator's own key, made when it is absent: the only Secret that it reads."""
    path = _core_path(namespace, "secrets")
    for _ in range(3):
        raw = await _or_none(kube.call("get", "secrets", f"{path}/{OPERATOR_KEY_SECRET}"))
        if raw is not None:
            return base64.b64decode(raw["data"]["key"])
        manifest = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": OPERATOR_KEY_SECRET, "namespace": namespace, "labels": dict(names.MANAGED_BY)},
            "data": {"key": base64.b64encode(os.urandom(32)).decode()},
        }
        try:
            await kube.call("create", "secrets", path, manifest)
        except Conflict:
            await asyncio.sleep(0.2)  # another replica was first; its key counts
    raise ApiError(409, "Conflict", f"Secret {OPERATOR_KEY_SECRET} can be neither read nor made", path)


def _heals(refusal: ApiError) -> bool:
    """Quotas, limits, policies and broken webhooks change, a service account may come; a bad object stays bad."""
    return refusal.code not in (400, 422) and "violates PodSecurity" not in refusal.message


async def _or_none(call: Awaitable[Raw]) -> Raw | None:
    try:
        return await call
    except NotFound:
        return None


def _core_path(namespace: str, resource: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/{resource}" + (f"/{name}" if name else "")


def _ray_path(namespace: str, name: str = "") -> str:
    path = f"/apis/{children.RAY_API_VERSION}/namespaces/{namespace}/{children.RAY_PLURAL}"
    return f"{path}/{name}" if name else path


def _job_path(namespace: str, name: str) -> str:
    return f"/apis/{API_VERSION}/namespaces/{namespace}/{PLURAL}/{name}"
