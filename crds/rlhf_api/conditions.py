"""Condition types and reasons: what programs may rely on. Ready, Reconciling and Stalled follow kstatus."""

from typing import Final

# Condition types.
READY: Final = "Ready"  # the runtime is running with a fresh report, or the job succeeded
RECONCILING: Final = "Reconciling"  # the operator is moving the job forward
STALLED: Final = "Stalled"  # it ended in failure; a person must act
SUCCEEDED: Final = "Succeeded"  # Unknown while active
CLUSTER_READY: Final = "ClusterReady"  # head and all workers are ready
RUNTIME_READY: Final = "RuntimeReady"  # the supervisor answers; Unknown when it cannot be reached
STALENESS_WITHIN_BOUNDS: Final = "StalenessWithinBounds"  # measured staleness is at most maxStaleness

# Reasons for a job that is on its way.
PENDING: Final = "Pending"  # seen, nothing created yet
PROVISIONING: Final = "Provisioning"  # pods of the RayCluster are not all ready
UNSCHEDULABLE: Final = "Unschedulable"  # a pod finds no node
IMAGE_PULL: Final = "ImagePullBackOff"  # an image cannot be pulled (yet)
STARTING: Final = "Starting"  # submitted; models are loading, files are checked
RUNNING: Final = "Running"  # episodes are being trained
RECOVERING: Final = "Recovering"  # an attempt ended; the next is coming
UNREACHABLE: Final = "Unreachable"  # the supervisor does not answer; nothing is concluded from that yet
KUBERAY_MISSING: Final = "KubeRayMissing"  # the cluster has no RayCluster resource: KubeRay is not installed (yet)
ALL_PODS_READY: Final = "AllPodsReady"  # of ClusterReady
WITHIN_BOUND: Final = "WithinBound"  # of StalenessWithinBounds
EXCEEDED: Final = "Exceeded"  # of StalenessWithinBounds

# Reasons for the end.
COMPLETED: Final = "Completed"  # every episode is trained and the model is saved
BACKOFF_LIMIT_EXCEEDED: Final = "BackoffLimitExceeded"  # message: the last attempt's failure
PRE_RUNNING_DEADLINE_EXCEEDED: Final = "PreRunningDeadlineExceeded"  # message: what it was waiting for
PROGRESS_DEADLINE_EXCEEDED: Final = "ProgressDeadlineExceeded"  # message: what was being waited for
TEMPLATE_INVALID: Final = "TemplateInvalid"  # the API server refuses a pod made from a role's template
RAY_CLUSTER_INVALID: Final = "RayClusterInvalid"  # the API server or KubeRay refuses the RayCluster
REFERENCE_MISSING: Final = "ReferenceMissing"  # a ConfigMap or claim that the spec names does not exist
HEAD_LOST: Final = "HeadLost"  # the head pod was replaced; the attempt in it is gone
CONTAINER_CRASHED: Final = "ContainerCrashed"  # a container keeps crashing before Ray starts
IMAGE_NAME_INVALID: Final = "InvalidImageName"  # no registry can have an image of that name
RAY_JOB_FAILED: Final = "RayJobFailed"  # Ray says that the submission ended badly, and no report said why
REPORT_MISSED: Final = "ReportMissed"  # the submission ended unheard; the next attempt tells how
INVALID_SPEC: Final = "InvalidSpec"  # the object does not follow this operator's version of the API

# Reasons that the runtime gives in Failure.reason.
PROMPTS_INVALID: Final = "PromptsInvalid"  # permanent: message names file, line, key, found, expected
SOURCE_UNREACHABLE: Final = "SourceUnreachable"  # a remote file cannot be reached: the next attempt tries again
CHAT_TEMPLATE_MISSING: Final = (
    "ChatTemplateMissing"  # permanent: rows have messages, neither spec nor tokenizer a template
)
DATASET_EMPTY: Final = "DatasetEmpty"  # permanent: message gives the count before and after filtering
MODEL_INVALID: Final = "ModelInvalid"  # permanent: no such folder, no tokenizer, no end token ...
STRATEGY_INVALID: Final = (
    "StrategyInvalid"  # permanent: trainers.strategyFactory cannot be called, or gives no strategy
)
DEVICES_MISSING: Final = (
    "DevicesMissing"  # permanent: torch finds fewer GPUs than the resources ask for, or than processes take
)
MEMORY_TOO_SMALL: Final = "MemoryTooSmall"  # permanent: a pod may not use what its models' parameters alone take
REWARD_FUNCTION_INVALID: Final = (
    "RewardFunctionInvalid"  # permanent: cannot be imported, wrong result type or length, NaN
)
REWARD_FUNCTION_FAILED: Final = "RewardFunctionFailed"  # it raised
REWARD_FUNCTION_TIMEOUT: Final = "RewardFunctionTimeout"  # it took longer than timeoutSeconds and was ended
REWARD_ENDPOINT_INVALID: Final = (
    "RewardEndpointInvalid"  # it refuses, or answers what is no list of rewards; permanent if it never was right
)
REWARD_ENDPOINT_FAILED: Final = "RewardEndpointFailed"  # no connection, no answer in time, 429 or 5xx, each try again
REWARD_INVALID: Final = "RewardInvalid"  # permanent: no reward applies to a completion, or no finite sum
STORAGE_READ_ONLY: Final = "StorageReadOnly"  # permanent
STORAGE_FAILED: Final = "StorageFailed"  # it cannot be written or read for another reason: full, input/output error
STORAGE_NOT_SHARED: Final = "StorageNotShared"  # permanent: a pod does not see what another wrote
TRAINER_LOST: Final = "TrainerLost"  # a trainer process died; the next attempt resumes from the checkpoint
MAKER_LOST: Final = "MakerLost"  # makers died faster than they could be replaced
WEIGHT_SYNC_FAILED: Final = "WeightSyncFailed"  # a publish was refused or not complete by its deadline
NOT_FINITE: Final = "NotFinite"  # loss or gradient is NaN or infinite
COORDINATOR_CRASHED: Final = "CoordinatorCrashed"  # an error that nothing expected; the failure has its end
ATTEMPT_TAKEN: Final = "AttemptTaken"  # another supervisor has, or had, this attempt's folder; the next one is free
STOPPED: Final = "Stopped"  # asked to stop (Ctrl-C); resumable

# Reasons of waits, in Report.waits.
STALENESS_BUDGET_EXHAUSTED: Final = "StalenessBudgetExhausted"  # makers wait for new weights
PARTITION_UNDERFILLED: Final = "PartitionUnderfilled"  # trainers wait for experiences
WEIGHT_SYNC_PENDING: Final = "WeightSyncPending"  # a publish is under way
PLACEMENT_PENDING: Final = "PlacementPending"  # actors wait for their pods
