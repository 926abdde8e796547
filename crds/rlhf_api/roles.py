"""``spec.head``, ``makers``, ``trainers``, and what is between them: pods, and what a role does in them."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from rlhf_api.schema import PRESERVE_UNKNOWN, ApiModel, Quantity


class Resources(ApiModel):
    """Kubernetes resource requests and limits of the role's Ray container."""

    requests: Annotated[dict[str, Quantity], Field(max_length=32)] = {}
    """What the scheduler reserves. Default none; Kubernetes takes a limit as request too. At most 32."""
    limits: Annotated[dict[str, Quantity], Field(max_length=32)] = {}
    """What the container may use; GPUs go here (nvidia.com/gpu). Default none, at most 32."""


def _only_metadata_and_spec(template: dict[str, Any]) -> dict[str, Any]:
    unknown = template.keys() - {"metadata", "spec"}
    if unknown:
        raise ValueError(f"found {sorted(unknown)}, expected a PodTemplateSpec: metadata and spec")
    return template


_FREE_MAP = {"type": "object", "maxProperties": 64, "additionalProperties": PRESERVE_UNKNOWN}
# The server knows the two keys of a template and takes each for a map of free values: see ReasoningGym.parameters.
PodTemplate = Annotated[
    dict[str, Annotated[dict[str, Any], Field(max_length=64)]],
    AfterValidator(_only_metadata_and_spec),
    Field(
        json_schema_extra={
            "properties": {
                "metadata": {"description": "Labels and annotations of the pod. Default none.", **_FREE_MAP},
                "spec": {"description": "A PodSpec, at most 64 fields. Default none.", **_FREE_MAP},
            }
        }
    ),
]


class Head(ApiModel):
    """The Ray head pod; supervisor and coordinator run in it."""

    resources: Resources = Resources()
    """Resources of the head. Default none."""
    template: PodTemplate = {}
    """A PodTemplateSpec (metadata, spec) laid under what the operator sets; proved by a dry run. Default none."""


class MakerSettings(ApiModel):
    """What a maker does, with nothing about pods: the runtime gets this."""

    replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    """How many makers. Default 1, range 1 to 1000."""
    max_batch_samples: Annotated[int | None, Field(ge=1, le=1_000_000)] = None
    """Samples that one maker generates together, rounded down to whole groups: bounds its memory. Default: an
    episode's samples divided over the makers. Range 1 to 1,000,000."""


class Makers(MakerSettings):
    """The makers: rollout engines, one in each pod."""

    resources: Resources = Resources()
    """Resources of each maker. Default none."""
    template: PodTemplate = {}
    """A PodTemplateSpec laid under what the operator sets; proved by a dry run. Default none."""


class TrainerSettings(ApiModel):
    """What a trainer does, with nothing about pods: the runtime gets this."""

    replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    """How many ranks. Default 1, range 1 to 1000."""
    micro_batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 64
    """Samples in one forward and backward pass of a rank; changes memory, not results. Default 64, range 1
    to 1,000,000."""


class Trainers(TrainerSettings):
    """The trainers: ranks of one torch.distributed group (DDP), one in each pod."""

    resources: Resources = Resources()
    """Resources of each trainer. Default none."""
    template: PodTemplate = {}
    """A PodTemplateSpec laid under what the operator sets; proved by a dry run. Default none."""


class Buffer(ApiModel):
    """The bounded buffer between makers and trainers."""

    capacity: Annotated[int | None, Field(ge=1, le=100_000_000)] = None
    """Samples in flight or waiting, at most. Default: (maxStaleness + 1) episodes. Range 1 to 100,000,000."""


class WeightSync(ApiModel):
    """Moving a new policy version from the trainers to the makers."""

    deadline_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    """A publish not complete after so many seconds is given up; makers go on with the old
    version. Default 300, range 1 to 86,400."""
