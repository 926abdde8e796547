"""The RLHFJob itself: its spec's fields together, the rules across them, and the object around them."""

from typing import Annotated, Any, Literal, Self

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
    "must be a multiple of trainers.replicas / trainers.tensorParallel * algorithm.minibatches, "
    "so that every rank has whole groups in every step",
    ".rollout.promptsPerEpisode",
)
_BUDGET_HOLDS_A_SAMPLE = (
    "!has(self.trainers.maxTokensPerMicroBatch) || "
    "self.trainers.maxTokensPerMicroBatch >= self.prompts.maxPromptTokens + self.rollout.maxNewTokens",
    "must be at least prompts.maxPromptTokens + rollout.maxNewTokens, the length of the longest sample",
    ".trainers.maxTokensPerMicroBatch",
)
_ADAPTERS_STAY_WHOLE = (
    "self.trainers.tensorParallel == 1 || "
    "!has(self.models.actor.lora) && !(has(self.models.critic) && has(self.models.critic.lora))",
    "must be 1 where models.actor.lora or models.critic.lora is set: adapters cannot be divided",
    ".trainers.tensorParallel",
)
_BUFFER_HOLDS_AN_EPISODE = (
    "!has(self.buffer.capacity) || "
    "self.buffer.capacity >= self.rollout.promptsPerEpisode * self.rollout.samplesPerPrompt",
    "must be at least rollout.promptsPerEpisode * rollout.samplesPerPrompt, the samples of one episode",
    ".buffer.capacity",
)
_BATCH_HOLDS_A_GROUP = (
    "!has(self.makers.maxBatchSamples) || self.makers.maxBatchSamples >= self.rollout.samplesPerPrompt",
    "must be at least rollout.samplesPerPrompt, the samples of one group",
    ".makers.maxBatchSamples",
)
_GROUPS_COMPARE = (
    "self.algorithm.type != 'GRPO' || self.rollout.samplesPerPrompt >= 2",
    "must be at least 2 where algorithm.type is GRPO, which compares the samples of a prompt",
    ".rollout.samplesPerPrompt",
)
_CRITIC_IS_USED = (
    "!has(self.models.critic) || self.algorithm.type == 'PPO'",
    "must not be set where algorithm.type is GRPO: only PPO has a critic",
    ".models.critic",
)
_REFERENCE_IS_USED = (
    "!has(self.models.reference) || has(self.algorithm.kl)",
    "must not be set without algorithm.kl: nothing else uses the reference",
    ".models.reference",
)
_TEACHER_AND_DISTILLATION = (
    "has(self.models.teacher) == has(self.algorithm.distillation)",
    "must be set if and only if algorithm.distillation is set: neither has an effect without the other",
    ".models.teacher",
)
_REWARDED_BY_THE_MODEL = (
    "(self.rewards.exists(r, has(r.model)) || has(self.evaluation) && has(self.evaluation.rewards) && "
    "self.evaluation.rewards.exists(r, has(r.model)))"
)
_MODEL_THAT_REWARDS = (
    f"!{_REWARDED_BY_THE_MODEL} || has(self.models.reward)",
    "must be set where a reward has `model: reward`",
    ".models.reward",
)
_REWARD_OF_THE_MODEL = (
    f"!has(self.models.reward) || {_REWARDED_BY_THE_MODEL}",
    "must not be set where no reward has `model: reward`: nothing else uses models.reward",
    ".models.reward",
)
_IMMUTABLE = ("self == oldSelf", "spec is immutable after creation; delete the job and create it again")
_NAME_LENGTH = (
    f"size(self.metadata.name) <= {MAX_NAME_LENGTH}",
    f"must be at most {MAX_NAME_LENGTH} characters: the names of the job's pods are derived from it",
    ".metadata.name",
)
_NAME_FORM = (
    "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "must start with a lower-case letter, end with a letter or digit, and contain only lower-case letters, digits and "
    "'-': names of Services are derived from it",
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
    """How makers and trainers share the devices. FullyAsync: they run in separate pods and work at the same time;
    makers sample completions, score them and send them to the trainers. Default FullyAsync."""
    max_staleness: Annotated[int, Field(ge=0, le=1000)] = 1
    """Largest permitted staleness of a sample when it is trained: the trainers' policy version minus the version that
    sampled the sample's oldest token. 0 means strictly on-policy. Default 1, range 0 to 1000."""
    staleness_policy: Literal["Wait", "DropAndRefill"] = "Wait"
    """What keeps staleness within maxStaleness. Wait: a maker does not start a group that would be too stale when it
    is trained. DropAndRefill: makers continue as far as the buffer allows; a group that is too stale when it is about
    to be trained is dropped, and its prompt is sampled again. Default Wait."""
    episodes: Annotated[int, Field(ge=1, le=1_000_000)]
    """Number of episodes to train. An episode collects samples, updates the policy, and ends by publishing a new policy
    version. Required. Range 1 to 1,000,000."""
    algorithm: Algorithm
    """The training algorithm and its parameters. Required."""
    models: Models
    """The models that the job reads. Required."""
    rewards: Rewards
    """How completions are scored. The reward of a sample is the weighted sum of these. Required. 1 to 16 items."""
    prompts: Prompts
    """The training prompts. Required."""
    evaluation: Evaluation | None = None
    """The held-out prompts and how often the policy is evaluated on them. Default none: the policy is not
    evaluated, and the job has no score."""
    rollout: Rollout
    """How much is sampled in an episode, and how. Required."""
    head: Head = Head()
    """The Ray head pod. Default: every field's own default."""
    makers: Makers = Makers()
    """The makers, which sample and score completions. Default: every field's own default."""
    trainers: Trainers = Trainers()
    """The trainers, which update the policy. Default: every field's own default."""
    buffer: Buffer = Buffer()
    """The buffer between makers and trainers. Default: every field's own default."""
    weight_sync: WeightSync = WeightSync()
    """How a new policy version moves from the trainers to the makers. Default: every field's own default."""
    checkpoint: Checkpoint
    """Where and how often the job saves its state. Required."""
    runtime: Runtime = Runtime()
    """Image, environment and code of the job's pods. Default: every field's own default."""
    backoff_limit: Annotated[int, Field(ge=0, le=1000)] = 2
    """Number of failed attempts that are retried; each retry resumes from the newest checkpoint. Default 2, range 0
    to 1000."""
    pre_running_deadline_seconds: Annotated[int, Field(ge=1, le=604_800)] = 1800
    """Seconds that an attempt may take to start running: to start its pods, pull images, check files and load models.
    The attempt fails after that. Default 1800, range 1 to 604,800."""
    progress_deadline_seconds: Annotated[int, Field(ge=1, le=604_800)] = 1800
    """Seconds that may pass without a trained episode before the attempt fails. Default 1800, range 1 to 604,800."""

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
    """What the operator observed. Only the operator writes it."""

    @classmethod
    def read(cls, value: Any) -> Self:
        """As the API server gives it: fields of a newer version are ignored, and those of its status are kept."""
        return cls.model_validate(value, extra="allow")

    @property
    def name(self) -> str:
        return str(self.metadata["name"])

    @property
    def namespace(self) -> str:
        return str(self.metadata.get("namespace") or "default")

    @property
    def uid(self) -> str:
        return str(self.metadata.get("uid", ""))

    @property
    def generation(self) -> int:
        return int(self.metadata.get("generation", 1))
