"""Condition types and reasons: what programs may rely on. Ready, Reconciling and Stalled follow kstatus.

Each kind is a type of its own, so that a type checker sees one taken for another. Messages keep them as plain text,
since another version may have more of them.
"""

from enum import StrEnum
from typing import NewType


class Phase(StrEnum):
    """Where a job stands, for people; derived from its conditions."""

    PENDING = "Pending"
    PROVISIONING = "Provisioning"
    STARTING = "Starting"
    RUNNING = "Running"
    RECOVERING = "Recovering"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def over(self) -> bool:
        """Whether the job has ended: such a phase never changes."""
        return self in (Phase.SUCCEEDED, Phase.FAILED)


class ConditionType(StrEnum):
    """A condition of the status."""

    # Condition types.
    READY = "Ready"  # True while the runtime trains and its supervisor answers, and after the job has succeeded
    RECONCILING = "Reconciling"  # True while the operator is bringing the job to the state that the spec asks for
    STALLED = "Stalled"  # True after the job has failed; a person must act
    SUCCEEDED = "Succeeded"  # True or False after the end of the job; Unknown before
    CLUSTER_READY = "ClusterReady"  # True while the head pod and all worker pods are ready
    RUNTIME_READY = (
        "RuntimeReady"  # True while the runtime is running and the supervisor answers; Unknown while it does not answer
    )
    STALENESS_WITHIN_BOUNDS = (
        "StalenessWithinBounds"  # True if the largest staleness in the last episode was at most maxStaleness
    )


class Reason(StrEnum):
    """Why a condition is as it is, why something failed, and what is waited for."""

    # Reasons of a job in progress.
    PENDING = "Pending"  # the operator has seen the job and has not created anything yet
    PROVISIONING = "Provisioning"  # not all pods of the RayCluster are ready
    UNSCHEDULABLE = "Unschedulable"  # a pod cannot be scheduled; the message gives the scheduler's reason
    IMAGE_PULL = "ImagePullBackOff"  # an image cannot be pulled; Kubernetes keeps trying
    STARTING = "Starting"  # the Ray job is submitted; the runtime checks files and loads models
    RUNNING = "Running"  # episodes are being trained
    RECOVERING = "Recovering"  # an attempt ended; the operator is starting the next one
    UNREACHABLE = (
        "Unreachable"  # the supervisor does not answer; the operator draws no conclusion from that before a deadline
    )
    KUBERAY_MISSING = "KubeRayMissing"  # the cluster has no RayCluster resource: KubeRay is not installed, or not yet
    ALL_PODS_READY = "AllPodsReady"  # reason of ClusterReady: the head pod and all worker pods are ready
    RELEASED = "Released"  # reason of ClusterReady: the job is over, and its RayCluster and pods are gone
    WITHIN_BOUND = "WithinBound"  # reason of StalenessWithinBounds: staleness was at most maxStaleness
    EXCEEDED = "Exceeded"  # reason of StalenessWithinBounds: staleness was above maxStaleness

    # Reasons for the end of a job or an attempt.
    COMPLETED = "Completed"  # every episode is trained and the model is saved
    BACKOFF_LIMIT_EXCEEDED = (
        "BackoffLimitExceeded"  # more attempts failed than backoffLimit allows; the message is that of the last failure
    )
    PRE_RUNNING_DEADLINE_EXCEEDED = (
        "PreRunningDeadlineExceeded"  # an attempt did not start running in time; the message names what it waited for
    )
    PROGRESS_DEADLINE_EXCEEDED = (
        "ProgressDeadlineExceeded"  # no episode was trained in time; the message names what the attempt waited for
    )
    TEMPLATE_INVALID = "TemplateInvalid"  # the API server refuses a pod made from the template of a role
    RAY_CLUSTER_INVALID = "RayClusterInvalid"  # the API server or KubeRay refuses the RayCluster
    REFERENCE_MISSING = "ReferenceMissing"  # a ConfigMap, Secret or claim that the spec names does not exist
    HEAD_LOST = "HeadLost"  # the head pod was replaced or restarted, and the attempt in it is lost
    CONTAINER_CRASHED = "ContainerCrashed"  # a container keeps crashing before Ray starts
    IMAGE_NAME_INVALID = "InvalidImageName"  # the name of an image is not valid
    RAY_JOB_FAILED = "RayJobFailed"  # Ray reports that the submission failed, and the supervisor gave no reason
    REPORT_MISSED = "ReportMissed"  # the submission ended before its last report was read; the next attempt recovers it
    INVALID_SPEC = "InvalidSpec"  # the object does not match the version of the API that this operator knows

    # Reasons in status.failure that come from the runtime.
    PROMPTS_INVALID = (
        "PromptsInvalid"  # permanent: a source of prompts is invalid; the message names file, row and key, what was
        # found and expected
    )
    SOURCE_UNREACHABLE = "SourceUnreachable"  # a remote file cannot be reached; the next attempt tries again
    CHAT_TEMPLATE_MISSING = (
        "ChatTemplateMissing"  # permanent: prompts are lists of messages, and neither the spec nor the tokenizer has a
        # chat template
    )
    DATASET_EMPTY = (
        "DatasetEmpty"  # permanent: no prompts are left; the message gives their numbers before and after filtering
    )
    MODEL_INVALID = (
        "ModelInvalid"  # permanent: a model cannot be used, for example because its folder or its tokenizer is missing
    )
    STRATEGY_INVALID = (
        "StrategyInvalid"  # permanent: trainers.strategyFactory cannot be called, or does not return a strategy
    )
    DEVICES_MISSING = (
        "DevicesMissing"  # permanent: torch finds fewer GPUs than the resources request, or than the processes need
    )
    MEMORY_TOO_SMALL = (
        "MemoryTooSmall"  # permanent: the memory limit of a pod is smaller than the parameters of its models alone
    )
    REWARD_FUNCTION_INVALID = (
        "RewardFunctionInvalid"  # permanent: a reward function cannot be imported, or returns invalid rewards
    )
    REWARD_FUNCTION_FAILED = "RewardFunctionFailed"  # a reward function raised an exception
    REWARD_FUNCTION_TIMEOUT = (
        "RewardFunctionTimeout"  # a call of a reward function took longer than timeoutSeconds and was stopped
    )
    REWARD_ENDPOINT_INVALID = (
        "RewardEndpointInvalid"  # a reward endpoint refuses requests or does not answer with a list of rewards;
        # permanent if no answer was valid before
    )
    REWARD_ENDPOINT_FAILED = (
        "RewardEndpointFailed"  # a reward endpoint could not be reached, answered too late, or answered 429 or 5xx, in
        # every try
    )
    REWARD_INVALID = (
        "RewardInvalid"  # permanent: no reward applies to a completion, or the weighted sum is not a finite number
    )
    STORAGE_READ_ONLY = "StorageReadOnly"  # permanent: the storage cannot be written because it is read-only
    STORAGE_FAILED = (
        "StorageFailed"  # the storage cannot be read or written for another reason, for example because it is full
    )
    STORAGE_NOT_SHARED = "StorageNotShared"  # permanent: a pod does not see a file that another pod has written
    TRAINER_LOST = "TrainerLost"  # a trainer process died; the next attempt resumes from the checkpoint
    MAKER_LOST = "MakerLost"  # makers died faster than they could be replaced
    WEIGHT_SYNC_FAILED = "WeightSyncFailed"  # a publish was refused, or was incomplete at its deadline
    NOT_FINITE = "NotFinite"  # the loss or the gradient is NaN or infinite
    COORDINATOR_CRASHED = "CoordinatorCrashed"  # an unexpected error; `failure.tail` holds the end of the log
    ATTEMPT_TAKEN = "AttemptTaken"  # another supervisor runs, or ran, the same attempt; the next attempt continues
    STOPPED = "Stopped"  # the run was stopped (Ctrl-C); it can be resumed

    # Reasons for a wait inside the runtime, in the supervisor's report.
    STALENESS_BUDGET_EXHAUSTED = "StalenessBudgetExhausted"  # makers wait for a newer policy version
    PARTITION_UNDERFILLED = "PartitionUnderfilled"  # trainers wait for experiences
    WEIGHT_SYNC_PENDING = "WeightSyncPending"  # a publish is in progress
    PLACEMENT_PENDING = "PlacementPending"  # actors wait for their pods


#: A reason that was read from a report or a status: another version may have given one that this one does not know.
ReadReason = NewType("ReadReason", str)
AnyReason = Reason | ReadReason
