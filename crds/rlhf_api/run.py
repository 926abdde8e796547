"""The contract between operator and runtime: RunConfig and LiveSettings go down, Report comes up.

Down: the RunConfig is JSON in the Ray job's submission, one for each attempt; LiveSettings are PUT to the
supervisor and echoed. Up: the operator long-polls ``GET /v1/report`` with the cursor of what it has consumed.
The local runner uses the same RunConfig and the same supervisor.
"""

from enum import IntEnum
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from rlhf_api.algorithm import Algorithm
from rlhf_api.gpus import PodGpus, pod_gpus
from rlhf_api.job import RLHFJob
from rlhf_api.models import Models
from rlhf_api.prompts import Evaluation, Prompts
from rlhf_api.rewards import Rewards
from rlhf_api.roles import MakerSettings, TrainerSettings
from rlhf_api.rollout import Rollout
from rlhf_api.schema import ApiModel, Time
from rlhf_api.status import EpisodeReport, LedgerStatus, RepairsStatus, SourceStatus

S = TypeVar("S", bound=ApiModel)

#: Environment variable of the submission that holds the RunConfig as JSON.
RUN_CONFIG_ENV = "RLHF_RUN_CONFIG"
#: Environment variable that holds the bearer token of the report endpoint; KubeRay sets it for Ray's own
#: token authentication from the job's Secret, so both ends share one secret.
TOKEN_ENV = "RAY_AUTH_TOKEN"
#: Port of the supervisor's report endpoint on the head.
REPORT_PORT = 8266
REPORT_PATH = "/v1/report"
SETTINGS_PATH = "/v1/settings"
#: Longest wait of one long poll, seconds.
MAX_POLL_SECONDS = 30
#: Most episodes in one Report; a reader that is behind polls again at once.
MAX_EPISODES_PER_REPORT = 100


class ExitCode(IntEnum):
    """Exit codes of the supervisor: they hold even when its last report was not read.

    1 and 2 are left to Python and to wrong arguments: they say that the supervisor itself is broken.
    """

    SUCCEEDED = 0
    RETRYABLE = 75
    """Failed, and another attempt may go better (EX_TEMPFAIL of sysexits.h)."""
    PERMANENT = 78
    """Failed, and every attempt would fail the same way: spec, files or code are wrong (EX_CONFIG)."""
    STOPPED = 130
    """Asked to stop; another attempt resumes from the newest checkpoint (what a shell says of Ctrl-C)."""


class RunConfig(ApiModel):
    """Everything one attempt needs, on a laptop as in a cluster. It says nothing of pods except their GPUs."""

    name: str
    namespace: str
    uid: str
    generation: int
    attempt: Annotated[int, Field(ge=1)]
    incarnation: Annotated[int, Field(ge=1)]
    run_directory: str
    """Absolute path of this job's own folder in the shared storage."""
    mode: Literal["FullyAsync"]
    max_staleness: int
    staleness_policy: Literal["Wait", "DropAndRefill"]
    episodes: int
    algorithm: Algorithm
    models: Models
    rewards: Rewards
    prompts: Prompts
    evaluation: Evaluation | None = None
    rollout: Rollout
    makers: MakerSettings
    trainers: TrainerSettings
    maker_gpus: PodGpus | None = None
    """GPUs that each maker must have. Default none: a maker uses a GPU if torch finds one, and otherwise the CPU."""
    trainer_gpus: PodGpus | None = None
    """GPUs that each pod of `trainers.per_pod` ranks must have, one for each rank. Default none: as for makers."""
    max_batch_samples: int
    """Samples that a maker generates at the same time; a multiple of the group size."""
    buffer_capacity: int
    """Largest number of samples in flight or buffered."""
    weight_sync_deadline_seconds: int
    checkpoint_every_episodes: int
    checkpoint_keep: int
    pre_running_deadline_seconds: int
    progress_deadline_seconds: int


class LiveSettings(ApiModel):
    """Settings that may change while an attempt runs. Setting them is idempotent; the highest generation wins."""

    generation: int
    max_staleness: int
    episodes: int


class Failure(ApiModel):
    """Why an attempt ended without success."""

    reason: str
    """Reason in CamelCase: one of those in `conditions`."""
    message: str
    """One sentence: what was found, what was expected, and where."""
    permanent: bool
    """Whether the job must fail at once because another attempt cannot help (a missing file, an invalid function)."""
    tail: str = ""
    """End of the traceback or log."""


class Wait(ApiModel):
    """A wait in progress: its owner, its reason, and the times of its start and its deadline."""

    reason: str
    """StalenessBudgetExhausted, PartitionUnderfilled, WeightSyncPending or PlacementPending."""
    owner: str
    message: str
    since: Time
    deadline: Time


class RoleReport(ApiModel):
    """Actors of one role: how many are wanted, how many are alive, and the pods they run in."""

    desired: int
    ready: int
    pods: list[str] = []


class Report(ApiModel):
    """The state of an attempt, and the episodes after the reader's cursor, oldest first.

    ``(attempt, seq)`` of the last episode is the next cursor. A poll acknowledges a finished attempt when its cursor
    has reached the last episode and its revision is current; the supervisor may then exit.
    """

    attempt: int
    incarnation: int
    revision: int
    """Grows whenever anything in the report changes."""
    applied_generation: int
    state: Literal["Starting", "Running", "Succeeded", "Failed"]
    failure: Failure | None = None
    waits: list[Wait] = []
    makers: RoleReport
    trainers: RoleReport
    ledger: LedgerStatus
    policy_version: int
    repairs: RepairsStatus
    resumed_from: int
    """Number of episodes of earlier attempts that this attempt builds on; their later episodes are superseded."""
    latest_checkpoint: str | None = None
    best_checkpoint: str | None = None
    final_model: str | None = None
    initial_score: float | None = None
    """Score of the policy before the first episode."""
    prompts: SourceStatus | None = None
    """Rows of the training prompts. None until they are checked."""
    evaluation: SourceStatus | None = None
    """Rows of the held-out prompts. None until they are checked."""
    last_progress: Time
    """When the last episode was trained, or when the attempt started running."""
    episodes: list[EpisodeReport] = []

    @property
    def ended(self) -> bool:
        """Whether the attempt is over: nothing but the episodes that the reader has not read yet will follow."""
        return self.state in ("Succeeded", "Failed")


def run_directory(storage_root: str, job: RLHFJob) -> str:
    """The job's own folder below the storage root. Two jobs never share one; a re-created job gets a new one."""
    return f"{storage_root.rstrip('/')}/{job.namespace}/{job.name}-{job.uid[:8]}"


def run_config(job: RLHFJob, storage_root: str, attempt: int, incarnation: int) -> RunConfig:
    """The RunConfig of an RLHFJob. This is its only derivation; it succeeds for every valid job."""
    spec = job.spec
    group = spec.rollout.samples_per_prompt
    share = -(-spec.rollout.prompts_per_episode // spec.makers.replicas) * group
    batch = spec.makers.max_batch_samples or share
    return RunConfig(
        name=job.name,
        namespace=job.namespace,
        uid=job.uid,
        generation=job.generation,
        attempt=attempt,
        incarnation=incarnation,
        run_directory=run_directory(storage_root, job),
        mode=spec.mode,
        max_staleness=spec.max_staleness,
        staleness_policy=spec.staleness_policy,
        episodes=spec.episodes,
        algorithm=spec.algorithm,
        models=spec.models,
        rewards=spec.rewards,
        prompts=spec.prompts,
        evaluation=spec.evaluation,
        rollout=spec.rollout,
        makers=_settings(MakerSettings, spec.makers),
        trainers=_settings(TrainerSettings, spec.trainers),
        maker_gpus=pod_gpus("makers", spec.makers),
        trainer_gpus=pod_gpus("trainers", spec.trainers),
        max_batch_samples=batch // group * group,
        buffer_capacity=spec.buffer.capacity or (spec.max_staleness + 1) * spec.samples_per_episode,
        weight_sync_deadline_seconds=spec.weight_sync.deadline_seconds,
        checkpoint_every_episodes=spec.checkpoint.every_episodes,
        checkpoint_keep=spec.checkpoint.keep,
        pre_running_deadline_seconds=spec.pre_running_deadline_seconds,
        progress_deadline_seconds=spec.progress_deadline_seconds,
    )


def _settings(kind: type[S], role: S) -> S:
    """The settings of a role without its pods."""
    return kind(**{name: getattr(role, name) for name in kind.model_fields})
