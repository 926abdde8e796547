"""What a pass decides to do: actions in order, then one status write."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlhf_api.status import ReportCursor, RLHFJobStatus

from rlhf_operator.observed.picture import Code
from rlhf_operator.observed.report_view import Follow


@dataclass(frozen=True)
class CreateSecret:
    """The job's token. Existing is success: its name derives from the job's UID."""


@dataclass(frozen=True)
class CreateConfigMap:
    """The job's own copy of the user's code."""

    code: Code


@dataclass(frozen=True)
class CreateRayCluster:
    """The RayCluster of the current incarnation, as it was proven."""

    manifest: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Submit:
    """Hand the attempt to Ray. "Already exists" is success: the id derives from UID, incarnation and attempt."""

    ip: str
    """The head's."""
    submission_id: str
    incarnation: int
    attempt: int


@dataclass(frozen=True)
class StopSubmission:
    """End an attempt's processes; unknown or ended already is success. When Ray does not answer it is left undone:
    the next attempt begins only once Ray has said that this one is over."""

    ip: str
    submission_id: str


@dataclass(frozen=True)
class Acknowledge:
    """Tell the supervisor that its last report is safe in status, so that it may exit."""

    attempt: int
    cursor: ReportCursor
    revision: int


@dataclass(frozen=True)
class DeleteRayCluster:
    """Delete the RayCluster, and with it the pods: first of all, since they hold the GPUs."""

    name: str


@dataclass(frozen=True)
class DeleteSecretAndCode:
    """Delete what is left once the RayCluster is gone. They cost nothing, and go with the job at the latest."""


Action = (
    CreateSecret
    | CreateConfigMap
    | CreateRayCluster
    | Submit
    | StopSubmission
    | Acknowledge
    | DeleteRayCluster
    | DeleteSecretAndCode
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Actions in order; then the status is written if it differs, and the pass repeats after ``requeue_after`` s."""

    status: RLHFJobStatus
    actions: tuple[Action, ...] = ()
    follow: Follow | None = None
    """Whose reports to follow from now on; None ends the link."""
    requeue_after: float | None = None
    """None: only an event brings the job back. 0: at once."""
