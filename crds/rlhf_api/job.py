"""The RLHFJob itself: its spec's fields together, the rules across them, and the object around them."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from rlhf_api.algorithm import Algorithm
from rlhf_api.checkpoints import Checkpoint
from rlhf_api.models import Models
from rlhf_api.prompts import Evaluation, Prompts
from rlhf_api.rewards import Rewards
from rlhf_api.roles import Buffer, Head, Makers, Trainers, WeightSync
from rlhf_api.rollout import Rollout
from rlhf_api.runtime import Runtime
from rlhf_api.schema import ApiModel, cel
from rlhf_api.status import RLHFJobStatus

GROUP = "rlhf.dev"
VERSION = "v1alpha1"
KIND = "RLHFJob"
PLURAL = "rlhfjobs"
API_VERSION = f"{GROUP}/{VERSION}"

#: Longest name of a job: KubeRay allows 53 characters for a RayCluster, whose name adds "-" and 5 characters.
MAX_NAME_LENGTH = 47

_GROUPS_DIVIDE = (
    "self.rollout.promptsPerEpisode * self.trainers.tensorParallel % "
    "(self.trainers.replicas * self.algorithm.minibatches) == 0",
    "must be a multiple of trainers.replicas / trainers.tensorParallel * algorithm.minibatches: "
    "in every step there are whole groups for every rank",
    ".rollout.promptsPerEpisode",
)
_BUDGET_HOLDS_A_SAMPLE = (
    "!has(self.trainers.maxTokensPerMicroBatch) || "
    "self.trainers.maxTokensPerMicroBatch >= self.prompts.maxPromptTokens + self.rollout.maxNewTokens",
    "must hold the longest sample: at least prompts.maxPromptTokens + rollout.maxNewTokens",
    ".trainers.maxTokensPerMicroBatch",
)
_ADAPTERS_STAY_WHOLE = (
    "self.trainers.tensorParallel == 1 || "
    "!has(self.models.actor.lora) && !(has(self.models.critic) && has(self.models.critic.lora))",
    "must be 1 with lora: adapters are not divided",
    ".trainers.tensorParallel",
)
_BUFFER_HOLDS_AN_EPISODE = (
    "!has(self.buffer.capacity) || "
    "self.buffer.capacity >= self.rollout.promptsPerEpisode * self.rollout.samplesPerPrompt",
    "must hold one episode: at least rollout.promptsPerEpisode * rollout.samplesPerPrompt",
    ".buffer.capacity",
)
_BATCH_HOLDS_A_GROUP = (
    "!has(self.makers.maxBatchSamples) || self.makers.maxBatchSamples >= self.rollout.samplesPerPrompt",
    "must hold one group: at least rollout.samplesPerPrompt",
    ".makers.maxBatchSamples",
)
_GROUPS_COMPARE = (
    "self.algorithm.type != 'GRPO' || self.rollout.samplesPerPrompt >= 2",
    "must be at least 2 for GRPO, which compares a prompt's samples with one another",
    ".rollout.samplesPerPrompt",
)
_CRITIC_IS_USED = (
    "!has(self.models.critic) || self.algorithm.type == 'PPO'",
    "nothing uses it: only PPO has a critic",
    ".models.critic",
)
_REFERENCE_IS_USED = (
    "!has(self.models.reference) || has(self.algorithm.kl)",
    "nothing uses it: only algorithm.kl compares with a reference",
    ".models.reference",
)
_TEACHER_AND_DISTILLATION = (
    "has(self.models.teacher) == has(self.algorithm.distillation)",
    "must be set if and only if algorithm.distillation is: one is nothing without the other",
    ".models.teacher",
)
_REWARDED_BY_THE_MODEL = (
    "(self.rewards.exists(r, has(r.model)) || has(self.evaluation) && has(self.evaluation.rewards) && "
    "self.evaluation.rewards.exists(r, has(r.model)))"
)
_MODEL_THAT_REWARDS = (
    f"!{_REWARDED_BY_THE_MODEL} || has(self.models.reward)",
    "a reward with `model: reward` needs models.reward",
    ".models.reward",
)
_REWARD_OF_THE_MODEL = (
    f"!has(self.models.reward) || {_REWARDED_BY_THE_MODEL}",
    "nothing uses models.reward: rewards needs an item with `model: reward`",
    ".models.reward",
)
_IMMUTABLE = ("self == oldSelf", "spec is immutable after creation; delete the job and create it again")
_NAME_LENGTH = (
    f"size(self.metadata.name) <= {MAX_NAME_LENGTH}",
    f"must be at most {MAX_NAME_LENGTH} characters: names of the job's pods derive from it",
    ".metadata.name",
)
_NAME_FORM = (
    "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "must start with a letter and hold only lower-case letters, digits and '-' (Services take it)",
    ".metadata.name",
)


class RLHFJobSpec(ApiModel):
    """What to train, how, and with which pods."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            _IMMUTABLE,
            _GROUPS_DIVIDE,
            _GROUPS_COMPARE,
            _BUFFER_HOLDS_AN_EPISODE,
            _BATCH_HOLDS_A_GROUP,
            _BUDGET_HOLDS_A_SAMPLE,
            _ADAPTERS_STAY_WHOLE,
            _CRITIC_IS_USED,
            _REFERENCE_IS_USED,
            _TEACHER_AND_DISTILLATION,
            _MODEL_THAT_REWARDS,
            _REWARD_OF_THE_MODEL,
        )
    )

    mode: Literal["FullyAsync"] = "FullyAsync"
    """Where a rollout becomes an experience. FullyAsync: makers and trainers on their own pods, makers complete
    the experience. Default FullyAsync."""
    max_staleness: Annotated[int, Field(ge=0, le=1000)] = 1
    """Versions that a sample's oldest token may be behind the trainer when it is trained. 0 is strictly on-policy.
    Default 1, range 0 to 1000."""
    staleness_policy: Literal["Wait", "DropAndRefill"] = "Wait"
    """Wait: makers start nothing that would be too stale. DropAndRefill: makers go on as far as the buffer allows;
    what is too stale when it would be trained is dropped and its prompt sampled again. Default Wait."""
    episodes: Annotated[int, Field(ge=1, le=1_000_000)]
    """Collect-and-update cycles, each ending in a published policy version. Required. Range 1 to 1,000,000."""
    algorithm: Algorithm
    """The algorithm and its parameters. Required."""
    models: Models
    """The models. Required."""
    rewards: Rewards
    """What completions are worth: a sample's reward is the weighted sum. Required. 1 to 16 items."""
    prompts: Prompts
    """Training prompts. Required."""
    evaluation: Evaluation | None = None
    """Held-out prompts. Default none: no score."""
    rollout: Rollout
    """Sampling. Required."""
    head: Head = Head()
    """The Ray head pod. Default: every field's own default."""
    makers: Makers = Makers()
    """The makers. Default: every field's own default."""
    trainers: Trainers = Trainers()
    """The trainers. Default: every field's own default."""
    buffer: Buffer = Buffer()
    """The buffer between them. Default: every field's own default."""
    weight_sync: WeightSync = WeightSync()
    """Weight sync. Default: every field's own default."""
    checkpoint: Checkpoint
    """Checkpoints. Required."""
    runtime: Runtime = Runtime()
    """Image, environment and code of the pods. Default: every field's own default."""
    backoff_limit: Annotated[int, Field(ge=0, le=1000)] = 2
    """Failed attempts that are retried from the newest checkpoint. Default 2, range 0 to 1000."""
    pre_running_deadline_seconds: Annotated[int, Field(ge=1, le=604_800)] = 1800
    """Seconds an attempt may take until its first rollout: pods, images, model loading. Default 1800, range 1
    to 604,800."""
    progress_deadline_seconds: Annotated[int, Field(ge=1, le=604_800)] = 1800
    """Seconds without a trained episode after which the attempt fails. Default 1800, range 1 to 604,800."""

    @property
    def samples_per_episode(self) -> int:
        """Samples trained in one episode."""
        return self.rollout.prompts_per_episode * self.rollout.samples_per_prompt


class RLHFJob(ApiModel):
    """One RLHF training run."""

    model_config = ConfigDict(json_schema_extra=cel(_NAME_LENGTH, _NAME_FORM))

    api_version: Literal["rlhf.dev/v1alpha1"]
    """rlhf.dev/v1alpha1."""
    kind: Literal["RLHFJob"]
    """RLHFJob."""
    metadata: dict[str, Any]
    """Standard object metadata."""
    spec: RLHFJobSpec
    """What the user wants."""
    status: RLHFJobStatus = RLHFJobStatus()
    """What was observed; written by the operator only."""

    @property
    def name(self) -> str:
        return str(self.metadata["name"])

    @property
    def namespace(self) -> str:
        return str(self.metadata.get("namespace", "default"))

    @property
    def uid(self) -> str:
        return str(self.metadata.get("uid", ""))

    @property
    def generation(self) -> int:
        return int(self.metadata.get("generation", 1))
