"""A named situation of a job and what the operator decides in it; and what situations are built from."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rlhf_api import names
from rlhf_operator.decisions.plan import Action
from rlhf_operator.observed.picture import Code, Observed, Obstacle, Submission
from rlhf_operator.observed.report_view import NOTHING_HEARD, ReportView

G = Any  # the ``given`` fixture: builders of values


@dataclass(frozen=True, kw_only=True)
class Case:
    """One situation; ``status`` and the rest are functions of the builders."""

    status: Callable[[G], dict[str, Any]]
    observed: Callable[[G], Observed] = lambda g: Observed()
    view: Callable[[G], ReportView] = lambda g: NOTHING_HEARD
    at: float = 60
    spec: dict[str, Any] | None = None
    phase: str
    reason: str
    message: str
    actions: Callable[[G], list[Action]] = lambda g: []
    requeue: float | None
    attempt: int = 1
    follows: bool = False
    over: bool = False


def ready(g: G, **changes: Any) -> Observed:
    return Observed(cluster=g.cluster(), pods=g.pods(), **changes)


def sid(g: G, attempt: int = 1, incarnation: int = 1) -> str:
    return names.submission_id(g.job(), incarnation, attempt)


def cluster(g: G, incarnation: int = 1) -> str:
    return names.ray_cluster_name(g.job(), incarnation)


FAILURE = {"reason": "TrainerLost", "message": "rank 0 died", "attempt": 1}
CODE = Code({"rewards.py": "def exact(): ..."}, {})
COPY = replace(CODE, copied=True)
EDITED = Code({"rewards.py": "def exact(): return 1"}, {})
PROVEN = {"kind": "RayCluster"}
MISSING = "PersistentVolumeClaim runs (spec.checkpoint.storage) does not exist in team"
CODE_MISSING = Obstacle("ReferenceMissing", "ConfigMap mine (spec.runtime.code) does not exist in team", heals=True)
QUOTA = Obstacle("Provisioning", "the API server refuses the maker pod: exceeded quota", heals=True)
CLAIM = Obstacle("ReferenceMissing", MISSING, heals=True)
REFUSED = "the API server refuses the maker pod: spec.nodeSelector: Invalid value"
BAD_TEMPLATE = Obstacle("TemplateInvalid", REFUSED, heals=False)
BACK_OFF = {"waiting_reason": "ImagePullBackOff", "waiting_message": "not found", "image": "x:1"}
PULLING = "container ray of pod addition-maker-pod: image 'x:1' cannot be pulled: not found"
CRASHING = {"waiting_reason": "CrashLoopBackOff", "exit_code": 127, "exit_reason": "Error", "exit_message": "no ray\n"}
NO_NODE = "pod addition-maker-pod cannot be scheduled: 0/1 nodes are available: 1 Insufficient cpu."
DONE = {"completionTime": "2026-01-02T03:30:00Z", "phase": "Succeeded"}


def with_maker(g: G, **maker: Any) -> Observed:
    pods = (g.pod("head"), g.pod("maker", **{"ready": False, **maker}), g.pod("trainer"))
    return Observed(cluster=g.cluster(), pods=pods, submission=Submission("Running"))


def unschedulable(g: G) -> Observed:
    return with_maker(g, unschedulable="0/1 nodes are available: 1 Insufficient cpu.")


def silent(g: G, since: float, report: Any = None) -> ReportView:
    return g.view(report, silent_since=g.at(since), error="connection refused")
