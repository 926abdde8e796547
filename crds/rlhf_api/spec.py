"""``RLHFJob.spec``: every field says its unit, default and range; cross-field rules are CEL beside the type.

A field is here only when changing it changes what the job does.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from rlhf_api.schema import PRESERVE_UNKNOWN, ApiModel, ObjectName, cel

Quantity = Annotated[
    int | Annotated[str, Field(pattern=r"^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$", max_length=64)],
    Field(json_schema_extra={"x-kubernetes-int-or-string": True}),
]
_ABSOLUTE_OR_PACKAGE = (
    "self.matches('^(/|package://[A-Za-z_][A-Za-z0-9_.]*/).+')",
    "must be an absolute path or package://PACKAGE/PATH",
)
Uri = Annotated[str, Field(min_length=1, max_length=2048, json_schema_extra=cel(_ABSOLUTE_OR_PACKAGE))]
EnvName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$")]
_IDENTIFIER = "[A-Za-z_][A-Za-z0-9_]*"
FunctionPath = Annotated[
    str, Field(min_length=3, max_length=512, pattern=rf"^{_IDENTIFIER}(\.{_IDENTIFIER})*:{_IDENTIFIER}$")
]


class Optimizer(ApiModel):
    """AdamW on fp32 master parameters, with a linear warm-up and then a constant learning rate."""

    learning_rate: Annotated[float, Field(ge=0, le=1)]
    """Step size after warm-up. Required. Range 0 to 1; 0 trains nothing, which makes a control run."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the first moment, no unit. Default 0.9, range 0 to below 1."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay of the second moment, no unit. Default 0.999, range 0 to below 1."""
    epsilon: Annotated[float, Field(gt=0, le=1)] = 1e-8
    """Added to the root of the second moment. Default 1e-8, range above 0 to 1."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Decoupled weight decay per step. Default 0, range 0 to 1."""
    max_gradient_norm: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """The global gradient norm is clipped to this. Default 1, range above 0 to 1e6."""
    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Optimiser steps over which the learning rate rises from 0. Default 0, range 0 to 1,000,000."""


class Algorithm(ApiModel):
    """GRPO: advantages from the rewards of one prompt's samples, a clipped policy-gradient loss, no critic."""

    type: Literal["GRPO"]
    """The algorithm. Required. One of: GRPO."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The probability ratio is clipped below at 1 - clipLow. Default 0.2, range above 0 to below 1."""
    clip_high: Annotated[float, Field(gt=0, le=10)] = 0.2
    """The probability ratio is clipped above at 1 + clipHigh. Default 0.2, range above 0 to 10."""
    group_normalization: Literal["Std", "None"] = "Std"
    """Std divides a group's centred rewards by their standard deviation; None only centres. Default Std."""
    loss_aggregation: Literal["Token", "Sequence", "Fixed"] = "Token"
    """What the loss is divided by. Token: mean over all tokens. Sequence: mean over sequences of token means. Fixed:
    sum over samples x maxNewTokens. Default Token."""
    epochs: Annotated[int, Field(ge=1, le=64)] = 1
    """Passes over an episode's samples. Default 1, range 1 to 64."""
    minibatches: Annotated[int, Field(ge=1, le=1024)] = 1
    """Optimiser steps per pass; each takes promptsPerEpisode / minibatches groups. Default 1, range 1 to 1024."""
    optimizer: Optimizer
    """The optimiser. Required."""


class Model(ApiModel):
    """Where a model and its tokenizer are read from."""

    uri: Uri
    """A folder as `save_pretrained` writes it: an absolute path in the image or on a mounted volume, or
    `package://PACKAGE/FOLDER` for a folder inside an installed Python package. Required. 1 to 2048 characters."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format that the makers compute in, float32 or bfloat16; trainers keep fp32 masters either way. Default
    float32."""


class Models(ApiModel):
    """The models of the job."""

    actor: Model
    """The policy that is trained. Required."""


class RewardFunction(ApiModel):
    """A Python function `f(prompts, completions, **columns) -> list[float]`, run in a process of its own."""

    function: FunctionPath
    """`package.module:function`, importable in the image or from `runtime.code`. Required. 3 to 512 characters."""
    weight: Annotated[float, Field(ge=-1e6, le=1e6)] = 1.0
    """Factor of this reward in the sum. Default 1, range -1e6 to 1e6."""
    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = 60
    """Seconds one call (one batch) may take; then its process is ended. Default 60, range 1 to 86,400."""


class ReasoningGym(ApiModel):
    """Problems made by a `reasoning_gym` task; the same task, seed and size give the same problems."""

    task: Annotated[str, Field(min_length=1, max_length=128)]
    """Name of the task, for instance `chain_sum`. Required. 1 to 128 characters."""
    size: Annotated[int, Field(ge=1, le=10_000_000)]
    """How many problems are made. Required. Range 1 to 10,000,000."""
    seed: Annotated[int, Field(ge=0, le=2_147_483_647)] = 0
    """Seed of the task's generator. Default 0, range 0 to 2,147,483,647."""
    parameters: Annotated[
        dict[str, Any],
        # A map of free values, not a free object: the server compares a free object's keys too loosely, so that
        # renaming one would slip past the rule that the spec is immutable.
        Field(max_length=64, json_schema_extra={"additionalProperties": PRESERVE_UNKNOWN}),
    ] = {}
    """The task's own parameters, checked against the task before any weight is loaded. Default none, at most 64."""


_ONE_SOURCE = (
    "has(self.uri) != has(self.reasoningGym)",
    "exactly one of uri and reasoningGym must be set",
)


class PromptSource(ApiModel):
    """Prompts from a JSONL file or from a reasoning_gym task: exactly one of `uri` and `reasoningGym`."""

    model_config = ConfigDict(json_schema_extra=cel(_ONE_SOURCE))

    uri: Uri | None = None
    """A UTF-8 JSONL file, one object a line: an absolute path, or `package://PACKAGE/FILE`.
    Default none, 1 to 2048 characters."""
    reasoning_gym: ReasoningGym | None = None
    """A reasoning_gym task. Default none."""
    prompt_key: Annotated[str, Field(min_length=1, max_length=128)] = "prompt"
    """The key of a JSONL row that holds the prompt text; the other keys go to the reward function. Default prompt,
    1 to 128 characters."""


class Prompts(PromptSource):
    """What the policy is trained on. Held-out prompts are left out of it, by text."""

    max_prompt_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 512
    """A longer prompt is an error that names its row. Tokens. Default 512, range 1 to 1,000,000."""
    seed: Annotated[int, Field(ge=0, le=2_147_483_647)] = 0
    """Seed of the order of prompts and of sampling. Default 0, range 0 to 2,147,483,647."""


class Evaluation(PromptSource):
    """Held-out prompts, sampled once each at the rollout's temperature; their mean reward is the score."""

    every_episodes: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Evaluate after every so many episodes (and before the first and after the last). Default 1, range 1 to
    1,000,000."""


class Rollout(ApiModel):
    """How much is sampled in an episode, and how."""

    prompts_per_episode: Annotated[int, Field(ge=1, le=1_000_000)]
    """Prompts (groups) trained in one episode. Required. Range 1 to 1,000,000."""
    samples_per_prompt: Annotated[int, Field(ge=2, le=4096)]
    """Completions of each prompt: the group. Required. Range 2 to 4096."""
    max_new_tokens: Annotated[int, Field(ge=1, le=1_000_000)]
    """A completion is cut after so many tokens. Required. Range 1 to 1,000,000."""
    temperature: Annotated[float, Field(gt=0, le=100)] = 1.0
    """Sampling temperature; log-probs are of the distribution really sampled from. Default 1, range above 0 to 100."""


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


class Makers(ApiModel):
    """The makers: rollout engines, one in each pod."""

    replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    """How many makers. Default 1, range 1 to 1000."""
    max_batch_samples: Annotated[int | None, Field(ge=2, le=1_000_000)] = None
    """Samples that one maker generates together, rounded down to whole groups: bounds its memory. Default: an
    episode's samples divided over the makers. Range 2 to 1,000,000."""
    resources: Resources = Resources()
    """Resources of each maker. Default none."""
    template: PodTemplate = {}
    """A PodTemplateSpec laid under what the operator sets; proved by a dry run. Default none."""


class Trainers(ApiModel):
    """The trainers: ranks of one torch.distributed group (DDP), one in each pod."""

    replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    """How many ranks. Default 1, range 1 to 1000."""
    micro_batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 64
    """Samples in one forward and backward pass of a rank; changes memory, not results. Default 64, range 1
    to 1,000,000."""
    resources: Resources = Resources()
    """Resources of each trainer. Default none."""
    template: PodTemplate = {}
    """A PodTemplateSpec laid under what the operator sets; proved by a dry run. Default none."""


class Buffer(ApiModel):
    """The bounded buffer between makers and trainers."""

    capacity: Annotated[int | None, Field(ge=2, le=100_000_000)] = None
    """Samples in flight or waiting, at most. Default: (maxStaleness + 1) episodes. Range 2 to 100,000,000."""


class WeightSync(ApiModel):
    """Moving a new policy version from the trainers to the makers."""

    deadline_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    """A publish not complete after so many seconds is given up; makers go on with the old
    version. Default 300, range 1 to 86,400."""


class PersistentVolumeClaim(ApiModel):
    """A claim in the job's namespace, shared by all pods of the job (ReadWriteMany on several nodes)."""

    claim_name: ObjectName
    """Name of the claim. Required. 1 to 253 characters."""


class Storage(ApiModel):
    """Where checkpoints and the journal are kept: exactly one of `persistentVolumeClaim` and `path`."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "has(self.persistentVolumeClaim) != has(self.path)",
                "exactly one of persistentVolumeClaim and path must be set",
            )
        )
    )

    persistent_volume_claim: PersistentVolumeClaim | None = None
    """A claim that the operator mounts into every pod of the job. Default none."""
    path: (
        Annotated[str, Field(min_length=2, max_length=1024, pattern=r"^(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+/?$")] | None
    ) = None
    """An absolute path that the roles' templates mount into every pod. Default none, 2 to 1024 characters."""


class Checkpoint(ApiModel):
    """Checkpoints: what a failed attempt resumes from, and the trained model."""

    storage: Storage
    """Where. Required."""
    every_episodes: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    """Save after every so many episodes, and after the last. Default 10, range 1 to 1,000,000."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 2
    """Newest checkpoints kept, beside the best one and the final model. Default 2, range 1 to 1000."""


class LocalObjectReference(ApiModel):
    """An object of the job's namespace, by name."""

    name: ObjectName
    """Name of the object. Required. 1 to 253 characters."""


class KeySelector(ApiModel):
    """One key of a Secret or ConfigMap of the job's namespace."""

    name: ObjectName
    """Name of the object. Required. 1 to 253 characters."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
    """The key. Required. 1 to 253 characters."""


class EnvVarSource(ApiModel):
    """Where a variable's value comes from: exactly one of `secretKeyRef` and `configMapKeyRef`."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "has(self.secretKeyRef) != has(self.configMapKeyRef)",
                "exactly one of secretKeyRef and configMapKeyRef must be set",
            )
        )
    )

    secret_key_ref: KeySelector | None = None
    """A key of a Secret. Default none."""
    config_map_key_ref: KeySelector | None = None
    """A key of a ConfigMap. Default none."""


class EnvVar(ApiModel):
    """An environment variable of every pod of the job: exactly one of `value` and `valueFrom`."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("has(self.value) != has(self.valueFrom)", "exactly one of value and valueFrom must be set")
        )
    )

    name: EnvName
    """Name of the variable. Required. 1 to 253 characters."""
    value: Annotated[str, Field(max_length=32_768)] | None = None
    """The value itself. Default none, at most 32,768 characters."""
    value_from: EnvVarSource | None = None
    """A reference to the value. Default none."""


class EnvFromSource(ApiModel):
    """All keys of a Secret or ConfigMap as variables: exactly one of `secretRef` and `configMapRef`."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "has(self.secretRef) != has(self.configMapRef)",
                "exactly one of secretRef and configMapRef must be set",
            )
        )
    )

    secret_ref: LocalObjectReference | None = None
    """A Secret. Default none."""
    config_map_ref: LocalObjectReference | None = None
    """A ConfigMap. Default none."""


class Code(ApiModel):
    """The user's own Python code, put on PYTHONPATH of every pod: exactly one of `configMap` and `path`."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("has(self.configMap) != has(self.path)", "exactly one of configMap and path must be set")
        )
    )

    config_map: LocalObjectReference | None = None
    """A ConfigMap whose keys are file names (`rewards.py`). It is copied when the job starts; its hash is in
    status. Default none."""
    path: Annotated[str, Field(min_length=2, max_length=1024, pattern=r"^/[^:\x00-\x1f]+$")] | None = None
    """An absolute path, without a colon, in the image or on a mounted volume. Default none, 2 to 1024 characters."""


_RAY_WITH_HTTP_PROBES = (
    "self.matches('^(2[.](5[3-9]|[6-9][0-9]|[1-9][0-9][0-9])|[3-9]|[1-9][0-9]+)[.]')",
    "must be 2.53.0 or later: earlier ones lack the health checks that KubeRay asks over HTTP",
)


class Runtime(ApiModel):
    """What the job's pods run."""

    image: Annotated[str, Field(min_length=1, max_length=1024)] = "rlhfjob/runtime:0.1.0"
    """Container image of head, makers and trainers. Default rlhfjob/runtime:0.1.0, 1 to 1024
    characters."""
    ray_version: Annotated[
        str,
        Field(max_length=32, pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$", json_schema_extra=cel(_RAY_WITH_HTTP_PROBES)),
    ] = "2.60.0"
    """The Ray version in the image. Default 2.60.0, range 2.53.0 or later."""
    image_pull_secrets: Annotated[list[LocalObjectReference], Field(max_length=16)] = []
    """Secrets to pull the image with. Default none, at most 16."""
    env: Annotated[list[EnvVar], Field(max_length=128)] = []
    """Environment variables of every pod. Default none, at most 128."""
    env_from: Annotated[list[EnvFromSource], Field(max_length=32)] = []
    """Secrets and ConfigMaps whose keys become variables. Default none, at most 32."""
    code: Code | None = None
    """Code beside the image's own, for reward functions. Default none."""
