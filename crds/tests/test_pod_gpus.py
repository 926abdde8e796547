"""How many GPUs a pod of a role is asked to have, by the resources of the container that Ray runs in."""

from typing import Any

import pytest
from rlhf_api.gpus import PodGpus, pod_gpus
from rlhf_api.roles import Makers

IN_TEMPLATE = "makers.template.spec.containers[ray].resources"


def resources(**kinds: Any) -> dict[str, Any]:
    return {"resources": kinds}


def template(*containers: dict[str, Any]) -> dict[str, Any]:
    return {"template": {"spec": {"containers": list(containers)}}}


@pytest.mark.parametrize(
    ("makers", "expected"),
    [
        pytest.param({}, None, id="nothing asked for"),
        pytest.param(resources(limits={"cpu": 8, "memory": "64Gi", "nvidia.com/gpumem": 3000}), None, id="no GPU"),
        pytest.param(resources(limits={"nvidia.com/gpu": 1}), (1, "nvidia.com/gpu"), id="one of NVIDIA's"),
        pytest.param(resources(limits={"amd.com/gpu": "8"}), (8, "amd.com/gpu"), id="eight of AMD's, in quotes"),
        pytest.param(
            resources(limits={"nvidia.com/mig-1g.10gb": 1}), (1, "nvidia.com/mig-1g.10gb"), id="a part of one"
        ),
        pytest.param(resources(requests={"nvidia.com/gpu": 2}), (2, "nvidia.com/gpu"), id="a request"),
        pytest.param(
            resources(requests={"a.b/gpu": 2}, limits={"a.b/gpu": 2}), (2, "a.b/gpu"), id="both, counted once"
        ),
        pytest.param(resources(limits={"nvidia.com/gpu": 0}), None, id="none of them"),
        pytest.param(resources(limits={"nvidia.com/gpu": "2e0"}), (1, "nvidia.com/gpu"), id="in a form not read: some"),
        pytest.param(
            template({"name": "ray", "resources": {"limits": {"nvidia.com/gpu": 4}}}),
            (4, "nvidia.com/gpu", IN_TEMPLATE),
            id="in the template of Ray's container",
        ),
        pytest.param(
            template({"name": "judge", "resources": {"limits": {"nvidia.com/gpu": 4}}}), None, id="in another container"
        ),
        pytest.param(
            {
                **template({"name": "ray", "resources": {"limits": {"nvidia.com/gpu": 4}, "requests": None}}),
                **resources(limits={"nvidia.com/gpu": 2}),
            },
            (2, "nvidia.com/gpu"),
            id="in both: the template is laid under",
        ),
    ],
)
def test_gpus_of_a_maker(makers: dict[str, Any], expected: tuple[Any, ...] | None) -> None:
    found = pod_gpus("makers", Makers.model_validate(makers))
    if expected is None:
        assert found is None
    else:
        count, resource, field = (*expected, "makers.resources")[:3]
        assert found == PodGpus(count=count, resource=resource, field=field)
