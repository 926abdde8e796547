"""Named situations of a job, and what the operator decides: exact actions, reasons and messages."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from rlhf_api import names
from rlhf_operator.decide import decide
from rlhf_operator.observed import Code, Observed, Obstacle, Submission, Unreachable
from rlhf_operator.plan import (
    Acknowledge,
    Action,
    CreateConfigMap,
    CreateRayCluster,
    CreateSecret,
    DeleteChildren,
    Plan,
    StopSubmission,
    Submit,
)
from rlhf_operator.report_view import NOTHING_HEARD, Follow, ReportView

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
MISSING = "PersistentVolumeClaim runs (spec.checkpoint.storage) does not exist in team"
CLAIM = Obstacle("ReferenceMissing", MISSING, heals=True)
REFUSED = "the API server refuses the maker pod: spec.nodeSelector: Invalid value"
BAD_TEMPLATE = Obstacle("TemplateInvalid", REFUSED, heals=False)
BACK_OFF = {"waiting_reason": "ImagePullBackOff", "waiting_message": "not found", "image": "x:1"}
PULLING = "container ray of pod addition-maker-pod: image 'x:1' cannot be pulled: not found"
CRASHING = {"waiting_reason": "CrashLoopBackOff", "exit_code": 127, "exit_reason": "Error", "exit_message": "no ray\n"}
NO_NODE = "pod addition-maker-pod finds no node: 0/1 nodes are available: 1 Insufficient cpu."
DONE = {"completionTime": "2026-01-02T03:30:00Z", "phase": "Succeeded"}


def with_maker(g: G, **maker: Any) -> Observed:
    pods = (g.pod("head"), g.pod("maker", **{"ready": False, **maker}), g.pod("trainer"))
    return Observed(cluster=g.cluster(), pods=pods, submission=Submission("Running"))


def unschedulable(g: G) -> Observed:
    return with_maker(g, unschedulable="0/1 nodes are available: 1 Insufficient cpu.")


def silent(g: G, since: float, report: Any = None) -> ReportView:
    return g.view(report, silent_since=g.at(since), error="connection refused")


FIRST_STEPS: dict[str, Case] = {
    "a job seen for the first time gets its start time, and nothing is created yet": Case(
        status=lambda g: {},
        phase="Pending",
        reason="Pending",
        message="the job is seen; its pods are checked next",
        requeue=0,
    ),
    "with nothing in the way the secret comes first and the cluster last": Case(
        status=lambda g: g.begun(),
        phase="Provisioning",
        reason="Provisioning",
        message="RayCluster {cluster} is asked for",
        actions=lambda g: [CreateSecret(), CreateRayCluster(1)],
        requeue=60,
    ),
    "code from a ConfigMap is copied before the cluster that mounts it": Case(
        status=lambda g: g.begun(),
        observed=lambda g: Observed(code=CODE),
        phase="Provisioning",
        reason="Provisioning",
        message="RayCluster {cluster} is asked for",
        actions=lambda g: [CreateSecret(), CreateConfigMap(CODE), CreateRayCluster(1)],
        requeue=60,
    ),
    "a missing claim may still come: a condition at once, looked at again soon, nothing created": Case(
        status=lambda g: g.begun(),
        observed=lambda g: Observed(refusals=(CLAIM,)),
        phase="Pending",
        reason="ReferenceMissing",
        message=MISSING,
        requeue=10,
    ),
    "a claim still missing at the deadline fails the job, saying what it waited for": Case(
        status=lambda g: g.begun(),
        observed=lambda g: Observed(refusals=(CLAIM,)),
        at=600,
        phase="Failed",
        reason="PreRunningDeadlineExceeded",
        message=f"no rollout within 600 s; attempt 1 of 2 was waiting: ReferenceMissing: {MISSING}",
        requeue=0,
        over=True,
    ),
    "a template that the API server refuses fails the job at once with the server's words": Case(
        status=lambda g: g.begun(),
        observed=lambda g: Observed(refusals=(CLAIM, BAD_TEMPLATE)),
        phase="Failed",
        reason="TemplateInvalid",
        message=REFUSED,
        requeue=0,
        over=True,
    ),
    "KubeRay refusing the RayCluster by an event fails the job at once": Case(
        status=lambda g: g.begun(),
        observed=lambda g: Observed(
            cluster=g.cluster(answered=False),
            refusals=(Obstacle("RayClusterInvalid", "KubeRay refuses the RayCluster: bad", heals=False),),
        ),
        phase="Failed",
        reason="RayClusterInvalid",
        message="KubeRay refuses the RayCluster: bad",
        requeue=0,
        over=True,
    ),
    "a RayCluster of that name that is somebody else's is left alone": Case(
        status=lambda g: g.begun(),
        observed=lambda g: Observed(cluster=g.cluster(owner_uid="another")),
        phase="Pending",
        reason="RayClusterInvalid",
        message="RayCluster {cluster} exists and does not belong to this job; delete it, or rename the job",
        requeue=10,
    ),
    "a cluster deleted before anything was submitted is waited out and made again under its name": Case(
        status=lambda g: g.begun(),
        observed=lambda g: Observed(cluster=g.cluster(deleting=True)),
        phase="Pending",
        reason="Pending",
        message="RayCluster {cluster} is being deleted, and made again then",
        requeue=10,
    ),
}

AWAY: dict[str, Case] = {
    "the operator was away past the deadline before it could create anything: it creates": Case(
        status=lambda g: g.begun(),
        at=4000,
        phase="Provisioning",
        reason="Provisioning",
        message="RayCluster {cluster} is asked for",
        actions=lambda g: [CreateSecret(), CreateRayCluster(1)],
        requeue=2,
    ),
    "pods that are not ready at the deadline fail the job though no reason is known": Case(
        status=lambda g: g.begun(),
        observed=lambda g: Observed(cluster=g.cluster(), pods=(g.pod("head", ready=False),)),
        at=600,
        phase="Failed",
        reason="PreRunningDeadlineExceeded",
        message="no rollout within 600 s; attempt 1 of 2 was waiting: head not ready, 0 of 2 workers ready",
        requeue=0,
        over=True,
    ),
    "an attempt before that will not end fails the job at the deadline": Case(
        status=lambda g: g.begun(attempt=2, failure=FAILURE),
        observed=lambda g: ready(g, previous=Unreachable("timeout")),
        at=600,
        phase="Failed",
        reason="PreRunningDeadlineExceeded",
        message="no rollout within 600 s; attempt 2 of 2 was waiting: attempt 1 did not end",
        requeue=0,
        attempt=2,
        over=True,
    ),
    "submitted, and its supervisor never heard: the attempt fails only after a minute of silence": Case(
        status=lambda g: g.submitted(),
        observed=lambda g: ready(g, submission=Submission("Running")),
        view=lambda g: silent(g, 541),
        at=600,
        phase="Starting",
        reason="Starting",
        message="the runtime checks its files and loads models",
        requeue=2,
        follows=True,
    ),
    "submitted, and its supervisor silent to the deadline: the attempt fails": Case(
        status=lambda g: g.submitted(),
        observed=lambda g: ready(g, submission=Submission("Running")),
        view=lambda g: silent(g, 540),
        at=600,
        phase="Recovering",
        reason="Recovering",
        message="attempt 1 failed: PreRunningDeadlineExceeded: no rollout within 600 s; attempt 1 of 2 was waiting: "
        "the supervisor has not answered (connection refused); head ready, 2 of 2 workers ready; "
        "attempt 2 of 2 is next",
        actions=lambda g: [StopSubmission("10.0.0.1", sid(g))],
        requeue=0,
        attempt=2,
    ),
}

PODS: dict[str, Case] = {
    "until the head is ready it says which pod it waits for": Case(
        status=lambda g: g.begun(),
        observed=lambda g: Observed(cluster=g.cluster()),
        phase="Provisioning",
        reason="Provisioning",
        message="waiting for the head pod of {cluster}",
        requeue=60,
    ),
    "a pod that finds no node is a condition at once": Case(
        status=lambda g: g.begun(),
        observed=lambda g: Observed(
            cluster=g.cluster(), pods=(g.pod("head", ready=False, unschedulable="0/1 nodes are available"),)
        ),
        phase="Provisioning",
        reason="Unschedulable",
        message="pod addition-head-pod finds no node: 0/1 nodes are available",
        requeue=60,
    ),
    "quota that keeps KubeRay from creating pods is a condition at once": Case(
        status=lambda g: g.begun(),
        observed=lambda g: Observed(cluster=g.cluster(replica_failure="exceeded quota: gpus")),
        phase="Provisioning",
        reason="Provisioning",
        message="KubeRay cannot create the pods of {cluster}: exceeded quota: gpus",
        requeue=60,
    ),
    "an image that cannot be pulled yet is a condition naming the image": Case(
        status=lambda g: g.submitted(),
        observed=lambda g: with_maker(g, containers=(g.container(**BACK_OFF),)),
        phase="Starting",
        reason="ImagePullBackOff",
        message=PULLING,
        requeue=5,
        follows=True,
    ),
    "an image still not pulled at the deadline fails the job, naming the image": Case(
        status=lambda g: g.submitted(),
        observed=lambda g: with_maker(g, containers=(g.container(**BACK_OFF),)),
        at=601,
        phase="Failed",
        reason="PreRunningDeadlineExceeded",
        message=f"no rollout within 600 s; attempt 1 of 2 was waiting: ImagePullBackOff: {PULLING}",
        actions=lambda g: [StopSubmission("10.0.0.1", sid(g))],
        requeue=0,
        over=True,
    ),
    "an image name that no registry can have fails the job at once": Case(
        status=lambda g: g.begun(),
        observed=lambda g: with_maker(
            g,
            containers=(
                g.container(image="No Image", waiting_reason="InvalidImageName", waiting_message="invalid reference"),
            ),
        ),
        phase="Failed",
        reason="InvalidImageName",
        message="container ray of pod addition-maker-pod: 'No Image' is no image name: invalid reference",
        requeue=0,
        over=True,
    ),
    "a missing Secret of the environment may still come": Case(
        status=lambda g: g.submitted(),
        observed=lambda g: with_maker(
            g,
            containers=(
                g.container(waiting_reason="CreateContainerConfigError", waiting_message='secret "hf" not found'),
            ),
        ),
        phase="Starting",
        reason="ReferenceMissing",
        message='container ray of pod addition-maker-pod cannot be started: secret "hf" not found',
        requeue=5,
        follows=True,
    ),
    "a container that crashed twice before Ray ran may still come": Case(
        status=lambda g: g.submitted(),
        observed=lambda g: with_maker(g, containers=(g.container(**CRASHING, restarts=2),)),
        phase="Starting",
        reason="ContainerCrashed",
        message="container ray of pod addition-maker-pod ended 2 times before Ray ran (exit code 127, Error): no ray",
        requeue=5,
        follows=True,
    ),
    "a container that crashed three times before Ray ran fails the job, with exit code and last words": Case(
        status=lambda g: g.submitted(),
        observed=lambda g: with_maker(g, containers=(g.container(**CRASHING, restarts=3),)),
        phase="Failed",
        reason="ContainerCrashed",
        message="container ray of pod addition-maker-pod ended 3 times before Ray ran (exit code 127, Error): no ray",
        actions=lambda g: [StopSubmission("10.0.0.1", sid(g))],
        requeue=0,
        over=True,
    ),
    "after a lost head the old workers crash until the new one answers: that fails nothing": Case(
        status=lambda g: g.submitted(attempt=2, failure=FAILURE),
        observed=lambda g: with_maker(g, containers=(g.container(**CRASHING, restarts=4),)),
        phase="Recovering",
        reason="ContainerCrashed",
        message="attempt 2 of 2: container ray of pod addition-maker-pod ended 4 times before Ray ran "
        "(exit code 127, Error): no ray; before: TrainerLost: rank 0 died",
        requeue=5,
        attempt=2,
        follows=True,
    ),
    "a maker that crashes while the attempt runs is the runtime's to repair": Case(
        status=lambda g: g.running(),
        observed=lambda g: with_maker(g, containers=(g.container(**CRASHING, restarts=9),)),
        view=lambda g: g.view(g.report(), g.episode(1)),
        at=130,
        phase="Running",
        reason="Running",
        message="1 of 12 episodes trained",
        requeue=60,
        follows=True,
    ),
}

SUBMISSION: dict[str, Case] = {
    "the head is ready: the submission is recorded with its head, and not handed over in the same pass": Case(
        status=lambda g: g.begun(),
        observed=ready,
        phase="Starting",
        reason="Starting",
        message="the runtime is submitted to the head",
        requeue=0,
    ),
    "the head is ready and the workers are not: it is submitted all the same": Case(
        status=lambda g: g.begun(),
        observed=lambda g: Observed(cluster=g.cluster(), pods=(g.pod("head"), g.pod("maker", ready=False))),
        phase="Starting",
        reason="Starting",
        message="the runtime is submitted to the head",
        requeue=0,
    ),
    "recorded and unknown to the very head that it was recorded for: handed over": Case(
        status=lambda g: g.submitted(),
        observed=lambda g: ready(g, submission=Submission("Unknown")),
        phase="Starting",
        reason="Starting",
        message="the runtime is submitted to the head",
        actions=lambda g: [Submit("10.0.0.1", sid(g), 1, 1)],
        requeue=1,
        follows=True,
    ),
    "handed over and known: nothing is submitted again": Case(
        status=lambda g: g.submitted(),
        observed=lambda g: ready(g, submission=Submission("Running")),
        phase="Starting",
        reason="Starting",
        message="the runtime checks its files and loads models",
        requeue=5,
        follows=True,
    ),
    "handed over and waiting for its driver: nothing is submitted again": Case(
        status=lambda g: g.submitted(),
        observed=lambda g: ready(g, submission=Submission("Pending")),
        phase="Starting",
        reason="Starting",
        message="the runtime checks its files and loads models",
        requeue=5,
        follows=True,
    ),
    "Ray does not answer after the record: nothing is concluded and nothing submitted": Case(
        status=lambda g: g.submitted(),
        observed=lambda g: ready(g, submission=Unreachable("timeout")),
        phase="Starting",
        reason="Starting",
        message="the runtime checks its files and loads models",
        requeue=5,
        follows=True,
    ),
    "the operator was away past the deadline before it could submit: the attempt begins": Case(
        status=lambda g: g.begun(),
        observed=ready,
        at=4000,
        phase="Starting",
        reason="Starting",
        message="the runtime is submitted to the head",
        requeue=0,
    ),
    "the next attempt waits until the one before has ended by itself": Case(
        status=lambda g: g.begun(attempt=2, failure=FAILURE, attemptStartTime=g.at(50).isoformat()),
        observed=lambda g: ready(g, previous=Submission("Running")),
        at=55,
        phase="Recovering",
        reason="Recovering",
        message="attempt 2 of 2: waiting for attempt 1 to end; before: TrainerLost: rank 0 died",
        requeue=2,
        attempt=2,
    ),
    "the next attempt stops the one before when it lingers": Case(
        status=lambda g: g.begun(attempt=2, failure=FAILURE, attemptStartTime=g.at(50).isoformat()),
        observed=lambda g: ready(g, previous=Submission("Running")),
        at=60,
        phase="Recovering",
        reason="Recovering",
        message="attempt 2 of 2: waiting for attempt 1 to end; before: TrainerLost: rank 0 died",
        actions=lambda g: [StopSubmission("10.0.0.1", sid(g))],
        requeue=2,
        attempt=2,
    ),
    "the next attempt lets the one before go once its failure is written": Case(
        status=lambda g: g.begun(attempt=2, failure=FAILURE, attemptStartTime=g.at(50).isoformat()),
        observed=lambda g: ready(g, previous=Submission("Running")),
        view=lambda g: g.view(g.failed_report("TrainerLost", "rank 0 died", permanent=False)),
        at=51,
        phase="Recovering",
        reason="Recovering",
        message="attempt 2 of 2: waiting for attempt 1 to end; before: TrainerLost: rank 0 died",
        actions=lambda g: [Acknowledge(1, g.job().status.reports, 7)],
        requeue=2,
        attempt=2,
    ),
    "the one before has ended: the next attempt is recorded in the same cluster": Case(
        status=lambda g: g.begun(attempt=2, failure=FAILURE, attemptStartTime=g.at(50).isoformat()),
        observed=lambda g: ready(g, previous=Submission("Failed")),
        phase="Recovering",
        reason="Recovering",
        message="attempt 2 of 2: the runtime is submitted to the head; before: TrainerLost: rank 0 died",
        requeue=0,
        attempt=2,
    ),
}

RUNNING: dict[str, Case] = {
    "the runtime reports what it waits for while it starts": Case(
        status=lambda g: g.submitted(),
        observed=ready,
        view=lambda g: g.view(g.report("Starting", waits=[g.wait("loading the policy", 20)])),
        phase="Starting",
        reason="Starting",
        message="loading the policy",
        requeue=60,
        follows=True,
    ),
    "the first report of a running runtime makes the job run": Case(
        status=lambda g: g.submitted(),
        observed=ready,
        view=lambda g: g.view(g.report()),
        at=101,
        phase="Running",
        reason="Running",
        message="0 of 12 episodes trained",
        requeue=60,
        follows=True,
    ),
    "a long wait is told, a short one is not": Case(
        status=lambda g: g.running(),
        observed=ready,
        view=lambda g: g.view(
            g.report(waits=[g.wait("short", 160), g.wait("trainers wait for 3 groups", 110)]), g.episode(1)
        ),
        at=171,
        phase="Running",
        reason="Running",
        message="1 of 12 episodes trained; trainers wait for 3 groups",
        requeue=60,
        follows=True,
    ),
    "one lost poll says nothing": Case(
        status=lambda g: g.running(),
        observed=lambda g: ready(g, submission=Submission("Running")),
        view=lambda g: silent(g, 125, g.report()),
        at=130,
        phase="Running",
        reason="Running",
        message="0 of 12 episodes trained",
        requeue=5,
        follows=True,
    ),
    "a supervisor that stays silent is unreachable: the job still counts as running": Case(
        status=lambda g: g.running(),
        observed=lambda g: ready(g, submission=Unreachable("timeout")),
        view=lambda g: silent(g, 115, g.report()),
        at=130,
        phase="Running",
        reason="Unreachable",
        message="the supervisor does not answer: connection refused",
        requeue=5,
        follows=True,
    ),
    "silence up to the deadline is no progress: the attempt is stopped and the next one comes": Case(
        status=lambda g: g.running(),
        observed=lambda g: ready(g, submission=Unreachable("timeout")),
        view=lambda g: silent(g, 115, g.report()),
        at=400,
        phase="Recovering",
        reason="Recovering",
        message="attempt 1 failed: ProgressDeadlineExceeded: no episode within 300 s since 2026-01-02 03:05:40 UTC in "
        "attempt 1 of 2; its supervisor does not answer: connection refused; attempt 2 of 2 is next",
        actions=lambda g: [StopSubmission("10.0.0.1", sid(g))],
        requeue=0,
        attempt=2,
    ),
    "an operator that was away for longer than the deadline hears the runtime first": Case(
        status=lambda g: g.running(),
        observed=lambda g: ready(g, submission=Submission("Running")),
        at=4000,
        phase="Running",
        reason="",
        message="",
        requeue=5,
        follows=True,
    ),
    "a runtime that answers and trains nothing is late with what it waits for": Case(
        status=lambda g: g.running(),
        observed=ready,
        view=lambda g: g.view(g.report(waits=[g.wait("3 of 4 groups", 110)])),
        at=460,
        phase="Recovering",
        reason="Recovering",
        message="attempt 1 failed: ProgressDeadlineExceeded: no episode within 300 s since 2026-01-02 03:05:40 UTC in "
        "attempt 1 of 2; it waits for PartitionUnderfilled: trainers: 3 of 4 groups; attempt 2 of 2 is next",
        actions=lambda g: [StopSubmission("10.0.0.1", sid(g))],
        requeue=0,
        attempt=2,
    ),
    "a runtime that is late is left a minute to say so itself": Case(
        status=lambda g: g.running(),
        observed=ready,
        view=lambda g: g.view(g.report()),
        at=459,
        phase="Running",
        reason="Running",
        message="0 of 12 episodes trained",
        requeue=2,
        follows=True,
    ),
    "a runtime that never starts fails its attempt with what it waits for": Case(
        status=lambda g: g.submitted(),
        observed=ready,
        view=lambda g: g.view(g.report("Starting", waits=[g.wait("loading the policy", 20)])),
        at=600,
        phase="Recovering",
        reason="Recovering",
        message="attempt 1 failed: PreRunningDeadlineExceeded: no rollout within 600 s; attempt 1 of 2 was waiting: "
        "PartitionUnderfilled: trainers: loading the policy; attempt 2 of 2 is next",
        actions=lambda g: [StopSubmission("10.0.0.1", sid(g))],
        requeue=0,
        attempt=2,
    ),
}

ENDS: dict[str, Case] = {
    "success is written first; the cluster is not touched in that pass": Case(
        status=lambda g: g.running(),
        observed=ready,
        view=lambda g: g.view(g.report("Succeeded", final_model="/mnt/rlhf/final"), g.episode(12)),
        at=300,
        phase="Succeeded",
        reason="Completed",
        message="12 episodes trained; the model is in /mnt/rlhf/final",
        requeue=0,
        over=True,
    ),
    "a final report whose journal is not read to its end is not the end yet": Case(
        status=lambda g: g.running(),
        observed=ready,
        view=lambda g: g.view(g.report("Succeeded"), g.episode(1), drained=False),
        at=300,
        phase="Running",
        reason="Running",
        message="1 of 12 episodes trained",
        requeue=60,
        follows=True,
    ),
    "after success the supervisor is let go, then everything but the job itself is deleted": Case(
        status=lambda g: g.running(**DONE),
        observed=ready,
        view=lambda g: g.view(g.report("Succeeded")),
        phase="Succeeded",
        reason="",
        message="",
        actions=lambda g: [Acknowledge(1, g.job().status.reports, 7), DeleteChildren(cluster(g))],
        requeue=None,
    ),
    "a finished job whose cluster is gone costs nothing": Case(
        status=lambda g: g.running(**DONE),
        phase="Succeeded",
        reason="",
        message="",
        requeue=None,
    ),
    "a finished job never touches a cluster that is not its own": Case(
        status=lambda g: g.running(**DONE),
        observed=lambda g: Observed(cluster=g.cluster(owner_uid="another")),
        phase="Succeeded",
        reason="",
        message="",
        requeue=None,
    ),
    "a failure that no attempt can help fails the job with the runtime's reason and message": Case(
        status=lambda g: g.submitted(),
        observed=ready,
        view=lambda g: g.view(g.failed_report("PromptsInvalid", "p.jsonl, line 3: no key 'prompt'", permanent=True)),
        phase="Failed",
        reason="PromptsInvalid",
        message="p.jsonl, line 3: no key 'prompt'",
        requeue=0,
        over=True,
    ),
    "a failure that another attempt may help is followed by one in the same cluster": Case(
        status=lambda g: g.running(),
        observed=ready,
        view=lambda g: g.view(g.failed_report("TrainerLost", "rank 0 died", permanent=False)),
        at=130,
        phase="Recovering",
        reason="Recovering",
        message="attempt 1 failed: TrainerLost: rank 0 died; attempt 2 of 2 is next",
        requeue=0,
        attempt=2,
    ),
    "the last attempt's failure is the job's": Case(
        status=lambda g: g.running(attempt=2, failure=FAILURE),
        observed=ready,
        view=lambda g: g.view(g.failed_report("WeightSyncFailed", "no commit in 300 s", permanent=False, attempt=2)),
        at=130,
        phase="Failed",
        reason="BackoffLimitExceeded",
        message="attempt 2 of 2 failed: WeightSyncFailed: no commit in 300 s",
        requeue=0,
        attempt=2,
        over=True,
    ),
    "another head pod means that the attempt is gone": Case(
        status=lambda g: g.running(),
        observed=lambda g: Observed(cluster=g.cluster(), pods=(g.pod("head", ready=False, uid="head-2", name="new"),)),
        at=130,
        phase="Recovering",
        reason="Recovering",
        message="attempt 1 failed: HeadLost: the head pod was replaced by new while attempt 1 of 2 was in it; "
        "attempt 2 of 2 is next",
        requeue=0,
        attempt=2,
    ),
    "the same head pod with its Ray container restarted means that the attempt is gone": Case(
        status=lambda g: g.submitted(),
        observed=lambda g: Observed(
            cluster=g.cluster(),
            pods=(g.pod("head", containers=(g.container(restarts=1, exit_code=137, exit_reason="OOMKilled"),)),),
        ),
        phase="Recovering",
        reason="Recovering",
        message="attempt 1 failed: HeadLost: head pod addition-head-pod restarted while attempt 1 of 2 was in it "
        "(exit code 137, OOMKilled); "
        "attempt 2 of 2 is next",
        requeue=0,
        attempt=2,
    ),
    "with no retry left a lost head fails the job": Case(
        status=lambda g: g.running(),
        observed=lambda g: Observed(cluster=g.cluster(), pods=(g.pod("head", uid="head-2", name="new"),)),
        at=130,
        spec={"backoffLimit": 0},
        phase="Failed",
        reason="BackoffLimitExceeded",
        message="attempt 1 of 1 failed: HeadLost: the head pod was replaced by new while attempt 1 of 1 was in it",
        requeue=0,
        over=True,
    ),
    "a head on its way out beside its successor is not taken for the head": Case(
        status=lambda g: g.running(),
        observed=lambda g: Observed(
            cluster=g.cluster(),
            pods=(g.pod("head", terminating=True, created="2026-01-02T04:00:00Z"), g.pod("head", uid="h2", name="new")),
        ),
        at=130,
        phase="Recovering",
        reason="Recovering",
        message="attempt 1 failed: HeadLost: the head pod was replaced by new while attempt 1 of 2 was in it; "
        "attempt 2 of 2 is next",
        requeue=0,
        attempt=2,
    ),
    "a running attempt that its own head no longer knows is never submitted again": Case(
        status=lambda g: g.running(),
        observed=lambda g: ready(g, submission=Submission("Unknown")),
        at=130,
        phase="Recovering",
        reason="Recovering",
        message="attempt 1 failed: HeadLost: Ray on the head at 10.0.0.1 no longer knows submission {sid}; "
        "attempt 2 of 2 is next",
        requeue=0,
        attempt=2,
    ),
    "the head is away and its successor not there yet: nothing is concluded": Case(
        status=lambda g: g.running(),
        observed=lambda g: Observed(cluster=g.cluster(), pods=(g.pod("maker"), g.pod("trainer"))),
        at=130,
        phase="Running",
        reason="Unreachable",
        message="the head pod is not ready: waiting for the head pod of {cluster}",
        requeue=5,
    ),
    "a RayCluster deleted under a running attempt is replaced by a new incarnation": Case(
        status=lambda g: g.running(),
        at=130,
        phase="Recovering",
        reason="Recovering",
        message="attempt 1 failed: HeadLost: RayCluster {cluster} was deleted while attempt 1 of 2 was in it; "
        "attempt 2 of 2 is next",
        requeue=0,
        attempt=2,
    ),
    "a driver that died without a word fails the attempt with Ray's words": Case(
        status=lambda g: g.running(),
        observed=lambda g: ready(g, submission=Submission("Failed", "Job entrypoint exited with code -9", -9)),
        view=lambda g: silent(g, 125, g.report()),
        at=130,
        phase="Recovering",
        reason="Recovering",
        message="attempt 1 failed: RayJobFailed: submission {sid} is FAILED in Ray: Job entrypoint exited with "
        "code -9; attempt 2 of 2 is next",
        requeue=0,
        attempt=2,
    ),
    "a driver that ended unheard with the exit code for no help fails the job": Case(
        status=lambda g: g.submitted(),
        observed=lambda g: ready(g, submission=Submission("Failed", "exit code 78", 78)),
        phase="Failed",
        reason="RayJobFailed",
        message="submission {sid} is FAILED in Ray: exit code 78",
        requeue=0,
        over=True,
    ),
    "a driver that succeeded unheard is asked again by an attempt that finds all done": Case(
        status=lambda g: g.running(),
        observed=lambda g: ready(g, submission=Submission("Succeeded")),
        at=130,
        phase="Recovering",
        reason="Recovering",
        message="attempt 1 failed: ReportMissed: submission {sid} ended before its last report was heard; "
        "attempt 2 of 2 is next",
        requeue=0,
        attempt=2,
    ),
    "with no retry left Ray's word for success has to do": Case(
        status=lambda g: g.running(),
        observed=lambda g: ready(g, submission=Submission("Succeeded")),
        at=130,
        spec={"backoffLimit": 0},
        phase="Succeeded",
        reason="Completed",
        message="Ray says that it succeeded; submission {sid} ended before its last report was heard, "
        "so the last episodes are in the journal only",
        requeue=0,
        over=True,
    ),
    "a report of an earlier attempt concludes nothing about this one": Case(
        status=lambda g: g.submitted(attempt=2, failure=FAILURE),
        observed=lambda g: ready(g, submission=Submission("Running")),
        view=lambda g: g.view(g.failed_report("TrainerLost", "rank 0 died", permanent=True)),
        phase="Recovering",
        reason="Recovering",
        message="attempt 2 of 2: the runtime checks its files and loads models; before: TrainerLost: rank 0 died",
        requeue=5,
        attempt=2,
        follows=True,
    ),
}

CASES = FIRST_STEPS | AWAY | PODS | SUBMISSION | RUNNING | ENDS


def decided(given: G, case: Case) -> Plan:
    job = given.job(case.status(given), **case.spec or {})
    return decide(job, case.observed(given), case.view(given), given.at(case.at))


@pytest.mark.parametrize("name", CASES)
def test_a_situation_leads_to(given: G, name: str) -> None:
    case = CASES[name]
    plan = decided(given, case)
    status = plan.status
    ready_condition = {condition.type: condition for condition in status.conditions}.get("Ready")
    message = case.message.replace("{cluster}", cluster(given)).replace("{sid}", sid(given))

    assert list(plan.actions) == case.actions(given)
    assert (status.phase, ready_condition.reason if ready_condition else "") == (case.phase, case.reason)
    assert status.message == message
    assert plan.requeue_after == case.requeue
    assert status.attempt == (case.attempt if status.start_time else 0)
    assert (plan.follow is not None) == case.follows
    if case.over:
        assert status.completion_time == given.at(case.at)


def test_the_submission_is_recorded_with_the_head_that_it_is_for(given: G) -> None:
    observed = Observed(cluster=given.cluster(), pods=(given.pod("head", containers=(given.container(restarts=2),)),))
    status = decide(given.job(given.begun()), observed, NOTHING_HEARD, given.at(60)).status
    recorded = (status.submission_id, status.head_pod_uid, status.head_restarts)
    assert recorded == ("addition-0f1e2d3c-1-1", "head-1", 2)


def test_the_next_attempt_starts_its_own_clocks_and_forgets_the_head(given: G) -> None:
    view = given.view(given.failed_report("TrainerLost", "rank 0 died", permanent=False), given.episode(1))
    status = decide(given.job(given.running()), ready(given), view, given.at(130)).status
    assert (status.attempt_start_time, status.running_time, status.last_progress_time) == (given.at(130), None, None)
    assert (status.submission_id, status.head_pod_uid, status.incarnation) == ("", "", 1)
    assert (status.episode, status.reports.seq) == (1, 1), "the ended attempt's last episodes are taken over"
    assert status.failure is not None
    assert status.failure.reason == "TrainerLost"


def test_a_lost_cluster_gets_a_new_name(given: G) -> None:
    status = decide(given.job(given.running()), Observed(), NOTHING_HEARD, given.at(130)).status
    assert (status.incarnation, status.ray_cluster_name) == (2, cluster(given, 2))


def test_reports_are_followed_from_the_cursor_in_status(given: G) -> None:
    status = given.running(reports={"attempt": 1, "seq": 4})
    plan = decide(given.job(status), ready(given), given.view(given.report()), given.at(130))
    assert plan.follow == Follow(ip="10.0.0.1", attempt=1, cursor=given.job(status).status.reports)


def test_an_operator_that_reconnects_leaves_the_status_as_it_is(given: G) -> None:
    job = given.job(given.running(message="3 of 12 episodes trained", episode=3))
    plan = decide(job, ready(given, submission=Submission("Running")), NOTHING_HEARD, given.at(4000))
    assert plan.status == job.status
