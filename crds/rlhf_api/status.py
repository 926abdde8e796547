"""``RLHFJob.status``: what the operator observed, bounded in size. Only the operator writes it.

Condition types and reasons are constants in ``rlhf_api.conditions``.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from rlhf_api.rewards import MAX_REWARDS
from rlhf_api.schema import ApiModel, Time
from rlhf_api.tails import MAX_TAIL

#: Episodes kept in status; the whole series is in the journal (``rlhfjob history``).
EPISODES_IN_STATUS = 10
#: Longest message in status, in characters. A longer one is cut and points to the logs.
MAX_MESSAGE = 1024

Message = Annotated[str, Field(max_length=MAX_MESSAGE)]
Name = Annotated[str, Field(max_length=253)]
Path = Annotated[str, Field(max_length=4096)]


class StatusModel(ApiModel):
    """Base of what is in status: fields that this version does not know are kept when the status is written back."""

    model_config = ConfigDict(extra="allow")


class Condition(StatusModel):
    """A metav1.Condition."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """Type of the condition, in CamelCase."""
    status: Literal["True", "False", "Unknown"]
    """Status of the condition: True, False or Unknown."""
    observed_generation: int
    """Generation of the spec that the condition was set for."""
    last_transition_time: Time
    """When the status of the condition last changed."""
    reason: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """Reason for the condition's last transition, in CamelCase."""
    message: Annotated[str, Field(max_length=32_768)] = ""
    """Human-readable details of the last transition."""


class ReportCursor(StatusModel):
    """Position in the journal up to which episodes are in this status."""

    attempt: int = 0
    """Attempt of the last episode that was read."""
    seq: int = 0
    """Position of that episode in the journal of its attempt."""

    def __lt__(self, other: "ReportCursor") -> bool:
        """Whether ``other`` is later in the journal, which is ordered by attempt, then by seq."""
        return (self.attempt, self.seq) < (other.attempt, other.seq)


class TrainingFigures(StatusModel):
    """Figures of an episode's optimiser steps: means over the steps, each of which is over all ranks."""

    kl: float
    """KL(sampling policy || trained policy) over the episode's updates, nats per token, K3 estimate."""
    loss: float
    """Mean loss over the optimiser steps."""
    entropy: float
    """Mean entropy of the policy's token distribution, nats."""
    clip_fraction: float
    """Fraction of the tokens whose ratio was clipped."""
    gradient_norm: float
    """Mean norm of the gradient over the optimiser steps, before clipping."""
    effective_sample_size: float = 1.0
    """Effective sample size as a fraction of the tokens, from the off-policy weights, or from the ratios if there are
    none. 1 if all weights are equal."""
    reference_kl: float | None = None
    """KL(trained policy || reference), nats per token, K3 estimate. Absent without algorithm.kl."""
    teacher_kl: float | None = None
    """KL(trained policy || teacher), nats per token, K3 estimate. Absent without a teacher."""
    value_loss: float | None = None
    """Mean loss of the critic, squared reward units. Absent without a critic."""
    explained_variance: float | None = None
    """Fraction of the variance of the returns that the critic's values explain, at most 1. Absent without a critic."""


class EpisodeReport(TrainingFigures):
    """Figures of one episode. The journal keeps all episodes, the status the last 10."""

    attempt: int
    """Attempt that trained the episode."""
    seq: int
    """Position of the episode in the journal of its attempt, from 1."""
    episode: int
    """Number of the episode, from 1."""
    policy_version: int
    """Policy version that the episode published."""
    reward: float
    """Mean reward over the samples of the episode, where the reward of a sample is the weighted sum of its rewards."""
    reward_std: float
    """Standard deviation of that reward over the samples."""
    rewards: Annotated[dict[str, float], Field(max_length=MAX_REWARDS)] = {}
    """Mean of each reward by its name, before weighting, over the samples that it applies to."""
    score: float | None = None
    """Mean reward on the held-out prompts at the published version. Absent if the episode was not evaluated."""
    changed_weights: float | None = None
    """Fraction of the policy's weights that the episode changed, in the dtype that makers receive, estimated from about
    a million of them. Near 0, the steps are too small for that dtype."""
    logprob_gap_mean: float | None = None
    """Mean of |maker's log-prob - trainers' log-prob| for the same tokens and policy version, nats, over a few rollouts
    that each publish carries. It shows the error of makers in bfloat16 or Int8. Absent in the first episode of an
    attempt."""
    logprob_gap_max: float | None = None
    """Largest |maker's log-prob - trainers' log-prob| of the same tokens, nats. Absent in the first episode of an
    attempt."""
    staleness_mean: float
    """Mean staleness of the samples, policy versions."""
    staleness_max: int
    """Largest staleness of a sample, policy versions."""
    samples: int
    """Number of samples trained."""
    tokens: int
    """Number of completion tokens trained."""
    tokens_per_second: float
    """Completion tokens trained per second of the episode."""
    truncated_fraction: float
    """Fraction of the completions that were truncated at maxNewTokens."""
    dropped: int
    """Number of groups dropped, and sampled again, during the episode."""
    seconds: float
    """Wall time of the episode, seconds."""
    train_seconds: float
    """Seconds of the episode spent in optimiser steps."""
    wait_seconds: float
    """Seconds of the episode during which trainers waited for experiences."""
    sync_seconds: float
    """Seconds that the weight sync took."""
    time: Time
    """When the episode ended."""

    @property
    def cursor(self) -> ReportCursor:
        """The cursor of a reader that has read up to this episode."""
        return ReportCursor(attempt=self.attempt, seq=self.seq)


class LedgerStatus(StatusModel):
    """Numbers of groups, for which dispatched = trained + buffered + inFlight + droppedStale + droppedLost always
    holds."""

    dispatched: int = 0
    """Groups handed to makers."""
    trained: int = 0
    """Groups trained."""
    buffered: int = 0
    """Groups completed and waiting to be trained."""
    in_flight: int = 0
    """Groups being sampled and scored."""
    dropped_stale: int = 0
    """Groups dropped because they were too stale. Their prompts are sampled again."""
    dropped_lost: int = 0
    """Groups lost with a maker. Their prompts are sampled again."""


class RepairsStatus(StatusModel):
    """Repairs inside an attempt. They do not count against backoffLimit."""

    makers: int = 0
    """Number of makers replaced."""


class SourceStatus(StatusModel):
    """Number of rows in a source of prompts, and how many of them were left out or shortened."""

    rows: int = 0
    """Rows in the source."""
    held_out: int = 0
    """Rows left out of training because evaluation has the same prompt."""
    dropped: int = 0
    """Rows left out because their prompt has more than prompts.maxPromptTokens tokens."""
    truncated: int = 0
    """Rows whose prompt was shortened to prompts.maxPromptTokens tokens."""


class RoleStatus(StatusModel):
    """Number of actors of a role."""

    desired: int = 0
    """Number of actors that the role should have."""
    ready: int = 0
    """Number of actors that are alive and at a known policy version."""
    summary: Annotated[str, Field(max_length=64)] = ""
    """ready/desired, as shown by `kubectl get`."""


class ValueSummary(StatusModel):
    """Latest and highest value of a series."""

    last: float
    """Latest value."""
    best: float
    """Highest value."""


class FailureStatus(StatusModel):
    """Why the job, or its last attempt, failed."""

    reason: Annotated[str, Field(max_length=256)]
    """Reason for the failure, in CamelCase."""
    message: Message
    """One sentence that explains the failure."""
    attempt: int
    """Attempt that failed."""
    tail: Annotated[str, Field(max_length=MAX_TAIL)] = ""
    """End of the traceback or log."""


class RLHFJobStatus(StatusModel):
    """What the operator observed. Programs should read `conditions`; `phase` is a summary for people."""

    model_config = ConfigDict(json_schema_extra={"default": {"observedGeneration": -1}})

    observed_generation: int = -1
    """Generation of the spec that the runtime has acted on. -1 until the operator has seen the job."""
    phase: Annotated[str, Field(max_length=64)] = ""
    """Summary of the conditions for people: Pending, Provisioning, Starting, Running, Recovering, Succeeded or
    Failed."""
    message: Message = ""
    """One sentence that describes the current state."""
    conditions: Annotated[
        list[Condition],
        Field(
            max_length=32,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = []
    """Conditions of the types Ready, Reconciling, Stalled, Succeeded, ClusterReady, RuntimeReady and
    StalenessWithinBounds."""
    episode: int = 0
    """Number of episodes trained."""
    progress: Annotated[str, Field(max_length=64)] = ""
    """episode/episodes, as shown by `kubectl get`."""
    reward: ValueSummary | None = None
    """Mean reward of an episode."""
    score: ValueSummary | None = None
    """Score on the held-out prompts."""
    initial_score: float | None = None
    """Score of the policy before the first episode."""
    kl: float | None = None
    """KL of the last episode, nats per token."""
    staleness: int | None = None
    """Largest staleness of a sample in the last episode, policy versions."""
    tokens_per_second: float | None = None
    """Completion tokens trained per second of the last episode."""
    prompts: SourceStatus | None = None
    """Rows of spec.prompts. Absent until they are checked."""
    evaluation: SourceStatus | None = None
    """Rows of spec.evaluation. Absent until they are checked."""
    ledger: LedgerStatus = LedgerStatus()
    """Where the groups of the current attempt are."""
    makers: RoleStatus = RoleStatus()
    """Number of makers."""
    trainers: RoleStatus = RoleStatus()
    """Number of trainer ranks."""
    attempt: int = 0
    """Number of the current attempt. An attempt is one submission of the Ray job."""
    incarnation: int = 0
    """Number of the current incarnation. An incarnation is one RayCluster."""
    repairs: RepairsStatus = RepairsStatus()
    """Repairs in the current attempt."""
    ray_cluster_name: Name = ""
    """Name of the current RayCluster."""
    submission_id: Name = ""
    """Submission ID of the current attempt. It is recorded before the attempt is submitted."""
    head_pod_uid: Name = ""
    """UID of the head pod that the current attempt runs in. If the head pod has another UID, the attempt is lost."""
    head_restarts: int = 0
    """Restart count of the Ray container in that pod when the attempt was submitted. If the count is higher, the
    attempt is lost."""
    code_hash: Name = ""
    """SHA-256 of the code copied from runtime.code.configMap."""
    latest_checkpoint: Path | None = None
    """Path of the newest complete checkpoint."""
    best_checkpoint: Path | None = None
    """Path of the checkpoint with the best score."""
    final_model: Path | None = None
    """Path of the trained model. Absent until the job has succeeded."""
    reports: ReportCursor = ReportCursor()
    """Position in the journal up to which episodes are in this status."""
    start_time: Time | None = None
    """When the operator first acted on the job."""
    attempt_start_time: Time | None = None
    """When the operator created the RayCluster of the current attempt, or when the previous attempt ended."""
    running_time: Time | None = None
    """When the operator first saw the current attempt running."""
    last_progress_time: Time | None = None
    """When the last episode was trained, or when the current attempt started running."""
    completion_time: Time | None = None
    """When the job succeeded or failed."""
    episodes: Annotated[list[EpisodeReport], Field(max_length=EPISODES_IN_STATUS)] = []
    """The last 10 episodes, oldest first."""
    failure: FailureStatus | None = None
    """The last failure of an attempt."""
