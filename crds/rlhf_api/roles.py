"""``spec.head``, ``makers``, ``trainers``, and what is between them: pods, and what a role does in them."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from rlhf_api.schema import PRESERVE_UNKNOWN, ApiModel, FunctionPath, Quantity, cel


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
    quantization: Literal["Int8"] | None = None
    """Int8 holds the weights of linear layers, the head's excepted, in 8 bits with a scale for each output: a maker
    needs less memory, and samples from a policy that is a little off the trained one; its log-probs are of what it
    samples from. Default none."""
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs of its pod that one maker divides each layer's matrices over; for models of type llama, qwen2, qwen3 and
    opt, whose heads it must divide. Without GPUs, processes. Default 1, range 1 to 64."""


#: The two names and not all that end so: to the server a quantity may be megabytes long, and 32 of them too costly.
_A_GPU_A_RANK = (
    "['nvidia.com/gpu', 'amd.com/gpu'].all(name, !(name in self.resources.limits) || "
    "self.resources.limits[name] == self.tensorParallel || "
    "self.resources.limits[name] == string(self.tensorParallel))",
    "must be makers.resources.limits' number of GPUs, where it has one: each takes a part of the model",
    ".tensorParallel",
)


class Makers(MakerSettings):
    """The makers: rollout engines, one in each pod."""

    model_config = ConfigDict(json_schema_extra=cel(_A_GPU_A_RANK))

    resources: Resources = Resources()
    """Resources of each maker. Default none."""
    template: PodTemplate = {}
    """A PodTemplateSpec laid under what the operator sets; proved by a dry run. Default none."""


class TrainerSettings(ApiModel):
    """What a trainer does, with nothing about pods: the runtime gets this."""

    replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    """How many ranks. Default 1, range 1 to 1000."""
    per_pod: Annotated[int, Field(ge=1, le=64)] = 1
    """How many ranks share a pod; resources are the pod's, and each rank takes one of its GPUs. Default 1, range 1
    to 64."""
    strategy: Literal["DDP", "ZeRO2", "ZeRO3"] = "DDP"
    """What ranks divide. DDP: samples only. ZeRO2: also gradients and optimiser state, and weights between steps.
    ZeRO3: also weights within a step, layer by layer. Changes memory and time, not results. Default DDP."""
    offload: Literal["None", "All"] = "None"
    """All: weights, gradients and optimiser state rest in the host's memory, where the optimiser steps; for ZeRO2 and
    ZeRO3. Default None."""
    gradient_checkpointing: bool = False
    """Keep only each layer's input for the backward, and compute the layer anew there. Default false."""
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """Ranks that divide each layer's matrices and see the same samples; for models of type llama, qwen2, qwen3 and
    opt, whose heads it must divide. Default 1, range 1 to 64."""
    strategy_factory: FunctionPath | None = None
    """A function of your own, `package.module:function`, called as f(rank, ranks), that gives the strategy; see
    docs/strategies.md. Default none, 3 to 512 characters."""
    micro_batch_size: Annotated[int | None, Field(ge=1, le=1_000_000)] = None
    """Samples in one forward and backward pass of a rank; changes memory, not results. Default none, which
    is 64 without maxTokensPerMicroBatch; range 1 to 1,000,000."""
    max_tokens_per_micro_batch: Annotated[int | None, Field(ge=2, le=1_000_000_000)] = None
    """Tokens in one forward and backward pass of a rank, padding counted: samples of like length share a pass. Instead
    of microBatchSize. Default none, range 2 to 1,000,000,000."""
    balance: Literal["Static", "Dynamic"] = "Static"
    """Which rank trains which group. Static: in turn. Dynamic: before each step the ranks exchange groups until all
    have about as many tokens. Default Static."""
    pin_memory: bool = False
    """Copy batches to the GPU through page-locked memory, beside the computation. Nothing changes without a GPU.
    Default false."""


_ONE_BOUND = (
    "!has(self.microBatchSize) || !has(self.maxTokensPerMicroBatch)",
    "at most one of microBatchSize and maxTokensPerMicroBatch may be set",
    ".maxTokensPerMicroBatch",
)
_WHOLE_PODS = (
    "self.replicas % self.perPod == 0",
    "must divide trainers.replicas: every pod holds as many ranks",
    ".perPod",
)
_TENSOR_PEERS_COMPLETE = (
    "self.replicas % self.tensorParallel == 0",
    "must divide trainers.replicas: every rank has its tensor-parallel peers",
    ".tensorParallel",
)
_OFFLOAD_DIVIDES = (
    "self.offload == 'None' || self.strategy != 'DDP'",
    "needs strategy ZeRO2 or ZeRO3: with DDP every rank computes with all weights where they are",
    ".offload",
)
_FACTORY_DECIDES = (
    "!has(self.strategyFactory) || self.strategy == 'DDP' && self.offload == 'None' && self.tensorParallel == 1 && "
    "!self.gradientCheckpointing",
    "decides on its own: strategy, offload, tensorParallel and gradientCheckpointing must keep their defaults",
    ".strategyFactory",
)


class Trainers(TrainerSettings):
    """The trainers: ranks of one torch.distributed group."""

    model_config = ConfigDict(
        json_schema_extra=cel(_ONE_BOUND, _WHOLE_PODS, _TENSOR_PEERS_COMPLETE, _OFFLOAD_DIVIDES, _FACTORY_DECIDES)
    )

    resources: Resources = Resources()
    """Resources of each pod of trainers. Default none."""
    template: PodTemplate = {}
    """A PodTemplateSpec laid under what the operator sets; proved by a dry run. Default none."""

    @property
    def pods(self) -> int:
        """How many pods the ranks fill."""
        return self.replicas // self.per_pod


class Buffer(ApiModel):
    """The bounded buffer between makers and trainers."""

    capacity: Annotated[int | None, Field(ge=1, le=100_000_000)] = None
    """Samples in flight or waiting, at most. Default: (maxStaleness + 1) episodes. Range 1 to 100,000,000."""


class WeightSync(ApiModel):
    """Moving a new policy version from the trainers to the makers."""

    deadline_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    """A publish not complete after so many seconds is given up; makers go on with the old
    version. Default 300, range 1 to 86,400."""
