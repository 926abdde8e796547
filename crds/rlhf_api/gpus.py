"""GPUs that a role's pods are asked to have: extended resources of the container that Ray runs in. Pure."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from rlhf_api.names import RAY_CONTAINER
from rlhf_api.roles import Makers, Trainers
from rlhf_api.schema import ApiModel

#: Of any maker; nvidia.com/gpu.shared and nvidia.com/mig-1g.10gb are what NVIDIA's device plugin calls parts of one.
_GPU = re.compile(r"[^/]+/(gpu|gpu\.shared|mig-.+)")
_COUNT = re.compile(r"[0-9]{1,9}")


class PodGpus(ApiModel):
    """GPUs that each pod of a role is asked to have, for all its processes together."""

    count: Annotated[int, Field(ge=1)]
    resource: str
    """By what name they are asked for: nvidia.com/gpu, amd.com/gpu."""
    field: str
    """Where in the spec: makers.resources."""

    def __str__(self) -> str:
        return f"{self.field} asks for {self.count} {self.resource}"


def pod_gpus(name: str, role: Makers | Trainers) -> PodGpus | None:
    """What the resources of ``spec.NAME`` ask for, laid over its template's as in the pod; None for no GPU."""
    below, own = template_resources(role.template), role.resources
    asked = {**below.get("requests", {}), **own.requests, **below.get("limits", {}), **own.limits}
    counts = {key: _count(amount) for key, amount in asked.items() if _GPU.fullmatch(str(key)) and _count(amount) > 0}
    if not counts:
        return None
    written = counts.keys() & {*own.requests, *own.limits}
    field = f"{name}.resources" if written else f"{name}.template.spec.containers[{RAY_CONTAINER}].resources"
    return PodGpus(count=sum(counts.values()), resource=", ".join(counts), field=field)


def template_resources(template: Mapping[str, Any]) -> dict[str, Any]:
    """Resources of a template's Ray container; only a cluster can say whether a template is right."""
    containers = template.get("spec", {}).get("containers", [])
    for container in containers if isinstance(containers, list) else []:
        if isinstance(container, dict) and container.get("name") == RAY_CONTAINER:
            resources = container.get("resources")
            parts = resources.items() if isinstance(resources, dict) else ()
            return {name: part for name, part in parts if isinstance(part, dict)}
    return {}


def _count(amount: Any) -> int:
    """GPUs are whole, and nearly all write them so. What "1e0" is the server knows; here it is at least one."""
    if amount is None:
        return 0
    return int(amount) if _COUNT.fullmatch(str(amount)) else 1
