"""``spec.head``, ``makers`` and ``trainers``: their pods and what each role does in them; and ``buffer`` and
``weightSync``, which connect makers and trainers."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from rlhf_api.schema import PRESERVE_UNKNOWN, ApiModel, FunctionPath, Quantity, cel


class Resources(ApiModel):
    """Kubernetes resource requests and limits of the role's Ray container."""

    requests: Annotated[dict[str, Quantity], Field(max_length=32)] = {}
    """Resources that the scheduler reserves. A resource that has only a limit is requested to that limit. Default none,
    at most 32 entries."""
    limits: Annotated[dict[str, Quantity], Field(max_length=32)] = {}
    """Resources that the container may use. GPUs (nvidia.com/gpu) go here. Default none, at most 32 entries."""


def _only_metadata_and_spec(template: dict[str, Any]) -> dict[str, Any]:
    unknown = template.keys() - {"metadata", "spec"}
    if unknown:
        raise ValueError(f"found {sorted(unknown)}, expected the fields of a PodTemplateSpec: metadata and spec")
    return template


_FREE_MAP = {"type": "object", "maxProperties": 64, "additionalProperties": PRESERVE_UNKNOWN}
# The schema names the two keys of a template and declares each as a map of free values; ReasoningGym.parameters says
# why it is not a free object.
PodTemplate = Annotated[
    dict[str, Annotated[dict[str, Any], Field(max_length=64)]],
    AfterValidator(_only_metadata_and_spec),
    Field(
        json_schema_extra={
            "properties": {
                "metadata": {"description": "Labels and annotations of the pod. Default none.", **_FREE_MAP},
                "spec": {"description": "A PodSpec with at most 64 fields. Default none.", **_FREE_MAP},
            }
        }
    ),
]


class Head(ApiModel):
    """The Ray head pod, in which supervisor and coordinator run."""

    resources: Resources = Resources()
    """Resources of the head's Ray container. Default none."""
    template: PodTemplate = {}
    """A PodTemplateSpec (metadata, spec). What the operator sets takes precedence over it; a dry run checks the result
    before anything is created. Default none."""


class MakerSettings(ApiModel):
    """What a maker does, without its pods; the runtime receives this."""

    replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    """Number of makers. Default 1, range 1 to 1000."""
    max_batch_samples: Annotated[int | None, Field(ge=1, le=1_000_000)] = None
    """Number of samples that a maker generates at the same time, rounded down to whole groups. A smaller number needs
    less memory. Default: an episode's samples divided by the number of makers. Range 1 to 1,000,000."""
    quantization: Literal["Int8"] | None = None
    """Int8 keeps the weights of all linear layers except the output head in 8 bits, with one scale for each output. A
    maker then needs less memory and samples from a policy that differs slightly from the trained one; its log-probs are
    those of the policy that it samples from. Default none: weights are kept in models.actor.dtype."""
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of GPUs in its pod over which a maker divides the matrices of each layer; without GPUs, the number of
    processes. Only for model types llama, qwen2, qwen3 and opt, whose numbers of heads it must divide. Default 1, range
    1 to 64."""


#: Only these two names: to the server a key may be megabytes long, and a test of 32 such keys is too costly a rule.
_A_GPU_A_RANK = (
    "['nvidia.com/gpu', 'amd.com/gpu'].all(name, !(name in self.resources.limits) || "
    "self.resources.limits[name] == self.tensorParallel || "
    "self.resources.limits[name] == string(self.tensorParallel))",
    "must equal the number of GPUs in makers.resources.limits, where one is set: every GPU holds a part of the model",
    ".tensorParallel",
)


class Makers(MakerSettings):
    """The makers: inference engines that sample and score completions, one in each pod."""

    model_config = ConfigDict(json_schema_extra=cel(_A_GPU_A_RANK))

    resources: Resources = Resources()
    """Resources of the Ray container of each maker. Default none."""
    template: PodTemplate = {}
    """A PodTemplateSpec (metadata, spec). What the operator sets takes precedence over it; a dry run checks the result
    before anything is created. Default none."""


class TrainerSettings(ApiModel):
    """What a trainer does, without its pods; the runtime receives this."""

    replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    """Number of trainer ranks. Default 1, range 1 to 1000."""
    per_pod: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of ranks in a pod. `resources` are those of the whole pod, and each rank takes one of its GPUs. Must
    divide replicas. Default 1, range 1 to 64."""
    strategy: Literal["DDP", "ZeRO2", "ZeRO3"] = "DDP"
    """What is divided over the ranks. DDP: only the samples. ZeRO2: also gradients and optimiser state, and the weights
    between steps. ZeRO3: also the weights during a step, layer by layer. The strategy changes memory and time, not
    results. Default DDP."""
    offload: Literal["None", "All"] = "None"
    """What is kept in host memory. All: weights, gradients and optimiser state, and the optimiser runs on the CPU; only
    for ZeRO2 and ZeRO3. None: nothing. Default None."""
    gradient_checkpointing: bool = False
    """Whether the backward pass recomputes each layer from its input, so that only the inputs of the layers are kept.
    This needs less memory and more time. Default false."""
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of ranks over which the matrices of each layer are divided; these ranks train the same samples. Only for
    model types llama, qwen2, qwen3 and opt, whose numbers of heads it must divide. Must divide replicas. Default 1,
    range 1 to 64."""
    strategy_factory: FunctionPath | None = None
    """A function of your own that returns the strategy, as `package.module:function`; it is called as f(rank, ranks).
    docs/strategies.md describes it. Default none, 3 to 512 characters."""
    micro_batch_size: Annotated[int | None, Field(ge=1, le=1_000_000)] = None
    """Number of samples in one forward and backward pass of a rank. It changes memory and time, not results. Must not
    be set together with maxTokensPerMicroBatch. Default none, which means 64 where maxTokensPerMicroBatch is not set;
    range 1 to 1,000,000."""
    max_tokens_per_micro_batch: Annotated[int | None, Field(ge=2, le=1_000_000_000)] = None
    """Largest number of tokens, padding included, in one forward and backward pass of a rank; samples of similar length
    share a pass. Must not be set together with microBatchSize. Default none, range 2 to 1,000,000,000."""
    balance: Literal["Static", "Dynamic"] = "Static"
    """Which rank trains which group. Static: ranks take groups in turn. Dynamic: before each step the ranks exchange
    groups until all of them have about the same number of tokens. Default Static."""
    pin_memory: bool = False
    """Whether batches are copied to the GPU through page-locked memory, while the GPU computes. Without a GPU it has no
    effect. Default false."""


_ONE_BOUND = (
    "!has(self.microBatchSize) || !has(self.maxTokensPerMicroBatch)",
    "at most one of microBatchSize and maxTokensPerMicroBatch may be set",
    ".maxTokensPerMicroBatch",
)
_WHOLE_PODS = (
    "self.replicas % self.perPod == 0",
    "must divide trainers.replicas, so that every pod has the same number of ranks",
    ".perPod",
)
_TENSOR_PEERS_COMPLETE = (
    "self.replicas % self.tensorParallel == 0",
    "must divide trainers.replicas, so that every rank has all its tensor-parallel peers",
    ".tensorParallel",
)
_OFFLOAD_DIVIDES = (
    "self.offload == 'None' || self.strategy != 'DDP'",
    "must be None where strategy is DDP: only ZeRO2 and ZeRO3 can move weights to host memory",
    ".offload",
)
_FACTORY_DECIDES = (
    "!has(self.strategyFactory) || self.strategy == 'DDP' && self.offload == 'None' && self.tensorParallel == 1 && "
    "!self.gradientCheckpointing",
    "must not be set where strategy, offload, tensorParallel or gradientCheckpointing differ from their defaults: the "
    "function decides all of these",
    ".strategyFactory",
)


class Trainers(TrainerSettings):
    """The trainers: ranks of one torch.distributed group."""

    model_config = ConfigDict(
        json_schema_extra=cel(_ONE_BOUND, _WHOLE_PODS, _TENSOR_PEERS_COMPLETE, _OFFLOAD_DIVIDES, _FACTORY_DECIDES)
    )

    resources: Resources = Resources()
    """Resources of the Ray container of each trainer pod. Default none."""
    template: PodTemplate = {}
    """A PodTemplateSpec (metadata, spec). What the operator sets takes precedence over it; a dry run checks the result
    before anything is created. Default none."""

    @property
    def pods(self) -> int:
        """How many pods the ranks fill."""
        return self.replicas // self.per_pod


class Buffer(ApiModel):
    """The bounded buffer between makers and trainers."""

    capacity: Annotated[int | None, Field(ge=1, le=100_000_000)] = None
    """Largest number of samples that are being generated or are waiting to be trained. Default: (maxStaleness + 1)
    episodes. Range 1 to 100,000,000."""


class WeightSync(ApiModel):
    """How a new policy version moves from the trainers to the makers."""

    deadline_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    """Seconds after which an incomplete publish is abandoned; the makers keep the old version. Default 300, range 1
    to 86,400."""
