"""``RLHFJob.status``: what was observed, bounded in size, written by the operator only.

Condition types and reasons are constants in ``rlhf_api.conditions``.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from rlhf_api.rewards import MAX_REWARDS
from rlhf_api.schema import ApiModel, Time
from rlhf_api.tails import MAX_TAIL

#: Episodes kept in status; the whole series is in the journal (``rlhfjob history``).
EPISODES_IN_STATUS = 10
#: Longest message in status, characters; longer ones are cut and point to the logs.
MAX_MESSAGE = 1024

Message = Annotated[str, Field(max_length=MAX_MESSAGE)]
Name = Annotated[str, Field(max_length=253)]
Path = Annotated[str, Field(max_length=4096)]


class Condition(ApiModel):
    """A metav1.Condition."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """CamelCase name of the condition."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    observed_generation: int
    """Generation of the spec that this was observed for."""
    last_transition_time: Time
    """When status last changed."""
    reason: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """CamelCase reason."""
    message: Annotated[str, Field(max_length=32_768)] = ""
    """A sentence for people."""


class ReportCursor(ApiModel):
    """What of the journal has been written into this status."""

    attempt: int = 0
    """Attempt of the last episode consumed."""
    seq: int = 0
    """Its position in that attempt."""

    def __lt__(self, other: "ReportCursor") -> bool:
        """Whether ``other`` is further on in the journal, whose order is attempt, then seq."""
        return (self.attempt, self.seq) < (other.attempt, other.seq)


class EpisodeReport(ApiModel):
    """What one episode did. The journal holds all of them; status the last 10."""

    attempt: int
    """Attempt that trained it."""
    seq: int
    """Position in that attempt's journal, from 1."""
    episode: int
    """Episode number, from 1."""
    policy_version: int
    """Version published at its end."""
    reward: float
    """Mean reward of its samples (weighted sum of the reward functions)."""
    reward_std: float
    """Standard deviation of that reward over samples."""
    rewards: Annotated[dict[str, float], Field(max_length=MAX_REWARDS)] = {}
    """Mean of each reward before weighting, by its name, over the samples that it applies to."""
    score: float | None = None
    """Mean reward on the held-out prompts at the published version; absent when not evaluated."""
    kl: float
    """KL(sampling policy || trained policy) per token, nats, k3 estimate, over the episode's updates."""
    loss: float
    """Mean loss of its optimiser steps."""
    entropy: float
    """Mean entropy of the policy's token distribution, nats."""
    clip_fraction: float
    """Share of tokens whose ratio was clipped."""
    gradient_norm: float
    """Mean gradient norm before clipping."""
    changed_weights: float | None = None
    """Share of the policy's weights, in the dtype that makers are sent, that the episode changed, of about a million
    of them: near 0, its steps are too small for that dtype."""
    effective_sample_size: float = 1.0
    """Share of the tokens that as good as count, by their off-policy weights, or ratios where there are none: 1 when
    all weigh the same."""
    reference_kl: float | None = None
    """KL(trained policy || reference) per token, nats, k3 estimate; absent without `algorithm.kl`."""
    teacher_kl: float | None = None
    """KL(trained policy || teacher) per token, nats, k3 estimate; absent without a teacher."""
    value_loss: float | None = None
    """Mean loss of the critic, squared reward units; absent without a critic."""
    explained_variance: float | None = None
    """Share of the returns' variance that the critic's values explain, at most 1; absent without a critic."""
    logprob_gap_mean: float | None = None
    """|maker's log-prob - trainers'| of the same tokens under the same version, nats, mean over a few rollouts that
    travel with each publish: what bfloat16 or int8 makers are off by. Absent in the first episode of an attempt."""
    logprob_gap_max: float | None = None
    """The largest of them, nats."""
    staleness_mean: float
    """Mean staleness of the samples, versions."""
    staleness_max: int
    """Largest staleness of a sample, versions."""
    samples: int
    """Samples trained."""
    tokens: int
    """Completion tokens trained."""
    tokens_per_second: float
    """Completion tokens trained per second of the episode."""
    truncated_fraction: float
    """Share of completions cut at maxNewTokens."""
    dropped: int
    """Groups dropped and sampled again during the episode."""
    seconds: float
    """Wall time of the episode, seconds."""
    train_seconds: float
    """Of it: optimiser steps."""
    wait_seconds: float
    """Of it: trainers waiting for experiences."""
    sync_seconds: float
    """Of it: weight sync."""
    time: Time
    """When it ended."""

    @property
    def cursor(self) -> ReportCursor:
        """Of a reader whose last episode this is."""
        return ReportCursor(attempt=self.attempt, seq=self.seq)


class LedgerStatus(ApiModel):
    """Groups: dispatched = trained + buffered + inFlight + dropped, at every instant."""

    dispatched: int = 0
    """Groups given to makers."""
    trained: int = 0
    """Groups trained."""
    buffered: int = 0
    """Groups completed and waiting to be trained."""
    in_flight: int = 0
    """Groups being sampled."""
    dropped_stale: int = 0
    """Groups dropped as too stale, and sampled again."""
    dropped_lost: int = 0
    """Groups lost with a maker, and sampled again."""


class RepairsStatus(ApiModel):
    """Repairs inside attempts; they spend no backoffLimit."""

    makers: int = 0
    """Makers replaced."""


class SourceStatus(ApiModel):
    """Rows of a source of prompts, and what became of those that are not taken as they are."""

    rows: int = 0
    """Rows that the source has."""
    held_out: int = 0
    """Left out of training, because evaluation has them too."""
    dropped: int = 0
    """Left out, because they have more tokens than prompts.maxPromptTokens."""
    truncated: int = 0
    """Shortened to prompts.maxPromptTokens."""


class RoleStatus(ApiModel):
    """Actors of a role."""

    desired: int = 0
    """Wanted."""
    ready: int = 0
    """Alive and at a known policy version."""
    summary: Annotated[str, Field(max_length=64)] = ""
    """ready/desired, for the column."""


class ValueSummary(ApiModel):
    """Newest and best of a series."""

    last: float
    """Newest."""
    best: float
    """Highest."""


class FailureStatus(ApiModel):
    """Why the job, or its last attempt, failed."""

    reason: Annotated[str, Field(max_length=256)]
    """CamelCase reason."""
    message: Message
    """One sentence that says why."""
    attempt: int
    """The attempt that failed."""
    tail: Annotated[str, Field(max_length=MAX_TAIL)] = ""
    """End of the traceback or log."""


class RLHFJobStatus(ApiModel):
    """What was observed. `conditions` are for programs, `phase` for people."""

    model_config = ConfigDict(json_schema_extra={"default": {"observedGeneration": -1}})

    observed_generation: int = -1
    """Generation of the spec that the runtime has acted on; -1 before the operator has seen the job."""
    phase: Annotated[str, Field(max_length=64)] = ""
    """Pending, Provisioning, Starting, Running, Recovering, Succeeded or Failed; derived, for people."""
    message: Message = ""
    """One sentence on the current state."""
    conditions: Annotated[
        list[Condition],
        Field(
            max_length=32,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = []
    """Ready, Reconciling, Stalled, Succeeded, ClusterReady, RuntimeReady, StalenessWithinBounds."""
    episode: int = 0
    """Episodes trained."""
    progress: Annotated[str, Field(max_length=64)] = ""
    """episode/episodes, for the column."""
    reward: ValueSummary | None = None
    """Mean reward of an episode."""
    score: ValueSummary | None = None
    """Score on the held-out prompts."""
    initial_score: float | None = None
    """Score of the starting policy."""
    kl: float | None = None
    """KL of the last episode, nats per token."""
    staleness: int | None = None
    """Largest staleness in the last episode, versions."""
    tokens_per_second: float | None = None
    """Throughput of the last episode."""
    prompts: SourceStatus | None = None
    """Rows of spec.prompts, once they are checked."""
    evaluation: SourceStatus | None = None
    """Rows of spec.evaluation, once they are checked."""
    ledger: LedgerStatus = LedgerStatus()
    """Ledger of the current attempt, in groups."""
    makers: RoleStatus = RoleStatus()
    """Makers."""
    trainers: RoleStatus = RoleStatus()
    """Trainers."""
    attempt: int = 0
    """Current attempt: a submission of the Ray job."""
    incarnation: int = 0
    """Current incarnation: a RayCluster."""
    repairs: RepairsStatus = RepairsStatus()
    """Repairs in the current attempt."""
    ray_cluster_name: Name = ""
    """Name of the RayCluster."""
    submission_id: Name = ""
    """Submission id of the current attempt; recorded before it is submitted."""
    head_pod_uid: Name = ""
    """UID of the head pod that the current attempt runs in; another UID means that the attempt is gone."""
    head_restarts: int = 0
    """Restarts of that pod's Ray container when the attempt was submitted; more means that the attempt is gone."""
    code_hash: Name = ""
    """sha256 of the code copied from runtime.code.configMap."""
    latest_checkpoint: Path | None = None
    """Path of the newest complete checkpoint."""
    best_checkpoint: Path | None = None
    """Path of the checkpoint with the best score."""
    final_model: Path | None = None
    """Path of the trained model."""
    reports: ReportCursor = ReportCursor()
    """Cursor into the journal."""
    start_time: Time | None = None
    """When the operator first acted on the job."""
    attempt_start_time: Time | None = None
    """When the current attempt's cluster was asked for, or the last attempt ended."""
    running_time: Time | None = None
    """When the runtime was first seen running in the current attempt."""
    last_progress_time: Time | None = None
    """When the last episode was trained, or the attempt started running."""
    completion_time: Time | None = None
    """When the job succeeded or failed."""
    episodes: Annotated[list[EpisodeReport], Field(max_length=EPISODES_IN_STATUS)] = []
    """The last 10 episodes, oldest first."""
    failure: FailureStatus | None = None
    """The last failure."""
