"""Condition types and reasons, which programs may rely on. Ready, Reconciling and Stalled have kstatus's meaning."""

from typing import Final

# Condition types.
READY: Final = "Ready"  # True while the runtime trains and its supervisor answers, and after the job has succeeded
RECONCILING: Final = "Reconciling"  # True while the operator is bringing the job to the state that the spec asks for
STALLED: Final = "Stalled"  # True after the job has failed; a person must act
SUCCEEDED: Final = "Succeeded"  # True or False after the end of the job; Unknown before
CLUSTER_READY: Final = "ClusterReady"  # True while the head pod and all worker pods are ready
RUNTIME_READY: Final = (
    "RuntimeReady"  # True while the runtime is running and the supervisor answers; Unknown while it does not answer
)
STALENESS_WITHIN_BOUNDS: Final = (
    "StalenessWithinBounds"  # True if the largest staleness in the last episode was at most maxStaleness
)

# Reasons of a job in progress.
PENDING: Final = "Pending"  # the operator has seen the job and has not created anything yet
PROVISIONING: Final = "Provisioning"  # not all pods of the RayCluster are ready
UNSCHEDULABLE: Final = "Unschedulable"  # a pod cannot be scheduled; the message gives the scheduler's reason
IMAGE_PULL: Final = "ImagePullBackOff"  # an image cannot be pulled; Kubernetes keeps trying
STARTING: Final = "Starting"  # the Ray job is submitted; the runtime checks files and loads models
RUNNING: Final = "Running"  # episodes are being trained
RECOVERING: Final = "Recovering"  # an attempt ended; the operator is starting the next one
UNREACHABLE: Final = (
    "Unreachable"  # the supervisor does not answer; the operator draws no conclusion from that before a deadline
)
KUBERAY_MISSING: Final = (
    "KubeRayMissing"  # the cluster has no RayCluster resource: KubeRay is not installed, or not yet
)
ALL_PODS_READY: Final = "AllPodsReady"  # reason of ClusterReady: the head pod and all worker pods are ready
RELEASED: Final = "Released"  # reason of ClusterReady: the job is over, and its RayCluster and pods are gone
WITHIN_BOUND: Final = "WithinBound"  # reason of StalenessWithinBounds: staleness was at most maxStaleness
EXCEEDED: Final = "Exceeded"  # reason of StalenessWithinBounds: staleness was above maxStaleness

# Reasons for the end of a job or an attempt.
COMPLETED: Final = "Completed"  # every episode is trained and the model is saved
BACKOFF_LIMIT_EXCEEDED: Final = (
    "BackoffLimitExceeded"  # more attempts failed than backoffLimit allows; the message is that of the last failure
)
PRE_RUNNING_DEADLINE_EXCEEDED: Final = (
    "PreRunningDeadlineExceeded"  # an attempt did not start running in time; the message names what it waited for
)
PROGRESS_DEADLINE_EXCEEDED: Final = (
    "ProgressDeadlineExceeded"  # no episode was trained in time; the message names what the attempt waited for
)
TEMPLATE_INVALID: Final = "TemplateInvalid"  # the API server refuses a pod made from the template of a role
RAY_CLUSTER_INVALID: Final = "RayClusterInvalid"  # the API server or KubeRay refuses the RayCluster
REFERENCE_MISSING: Final = "ReferenceMissing"  # a ConfigMap, Secret or claim that the spec names does not exist
HEAD_LOST: Final = "HeadLost"  # the head pod was replaced or restarted, and the attempt in it is lost
CONTAINER_CRASHED: Final = "ContainerCrashed"  # a container keeps crashing before Ray starts
IMAGE_NAME_INVALID: Final = "InvalidImageName"  # the name of an image is not valid
RAY_JOB_FAILED: Final = "RayJobFailed"  # Ray reports that the submission failed, and the supervisor gave no reason
REPORT_MISSED: Final = (
    "ReportMissed"  # the submission ended before its last report was read; the next attempt recovers it
)
INVALID_SPEC: Final = "InvalidSpec"  # the object does not match the version of the API that this operator knows

# Reasons in status.failure that come from the runtime.
PROMPTS_INVALID: Final = (
    "PromptsInvalid"  # permanent: a source of prompts is invalid; the message names file, row and key, what was found
    # and expected
)
SOURCE_UNREACHABLE: Final = "SourceUnreachable"  # a remote file cannot be reached; the next attempt tries again
CHAT_TEMPLATE_MISSING: Final = (
    "ChatTemplateMissing"  # permanent: prompts are lists of messages, and neither the spec nor the tokenizer has a chat
    # template
)
DATASET_EMPTY: Final = (
    "DatasetEmpty"  # permanent: no prompts are left; the message gives their numbers before and after filtering
)
MODEL_INVALID: Final = (
    "ModelInvalid"  # permanent: a model cannot be used, for example because its folder or its tokenizer is missing
)
STRATEGY_INVALID: Final = (
    "StrategyInvalid"  # permanent: trainers.strategyFactory cannot be called, or does not return a strategy
)
DEVICES_MISSING: Final = (
    "DevicesMissing"  # permanent: torch finds fewer GPUs than the resources request, or than the processes need
)
MEMORY_TOO_SMALL: Final = (
    "MemoryTooSmall"  # permanent: the memory limit of a pod is smaller than the parameters of its models alone
)
REWARD_FUNCTION_INVALID: Final = (
    "RewardFunctionInvalid"  # permanent: a reward function cannot be imported, or returns invalid rewards
)
REWARD_FUNCTION_FAILED: Final = "RewardFunctionFailed"  # a reward function raised an exception
REWARD_FUNCTION_TIMEOUT: Final = (
    "RewardFunctionTimeout"  # a call of a reward function took longer than timeoutSeconds and was stopped
)
REWARD_ENDPOINT_INVALID: Final = (
    "RewardEndpointInvalid"  # a reward endpoint refuses requests or does not answer with a list of rewards; permanent
    # if no answer was valid before
)
REWARD_ENDPOINT_FAILED: Final = (
    "RewardEndpointFailed"  # a reward endpoint could not be reached, answered too late, or answered 429 or 5xx, in
    # every try
)
REWARD_INVALID: Final = (
    "RewardInvalid"  # permanent: no reward applies to a completion, or the weighted sum is not a finite number
)
STORAGE_READ_ONLY: Final = "StorageReadOnly"  # permanent: the storage cannot be written because it is read-only
STORAGE_FAILED: Final = (
    "StorageFailed"  # the storage cannot be read or written for another reason, for example because it is full
)
STORAGE_NOT_SHARED: Final = "StorageNotShared"  # permanent: a pod does not see a file that another pod has written
TRAINER_LOST: Final = "TrainerLost"  # a trainer process died; the next attempt resumes from the checkpoint
MAKER_LOST: Final = "MakerLost"  # makers died faster than they could be replaced
WEIGHT_SYNC_FAILED: Final = "WeightSyncFailed"  # a publish was refused, or was incomplete at its deadline
NOT_FINITE: Final = "NotFinite"  # the loss or the gradient is NaN or infinite
COORDINATOR_CRASHED: Final = "CoordinatorCrashed"  # an unexpected error; `failure.tail` holds the end of the log
ATTEMPT_TAKEN: Final = "AttemptTaken"  # another supervisor runs, or ran, the same attempt; the next attempt continues
STOPPED: Final = "Stopped"  # the run was stopped (Ctrl-C); it can be resumed

# Reasons for a wait inside the runtime, in the supervisor's report.
STALENESS_BUDGET_EXHAUSTED: Final = "StalenessBudgetExhausted"  # makers wait for a newer policy version
PARTITION_UNDERFILLED: Final = "PartitionUnderfilled"  # trainers wait for experiences
WEIGHT_SYNC_PENDING: Final = "WeightSyncPending"  # a publish is in progress
PLACEMENT_PENDING: Final = "PlacementPending"  # actors wait for their pods
