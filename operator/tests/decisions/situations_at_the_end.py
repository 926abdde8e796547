"""Attempts that end, jobs that are finished, suspended or deleted: what the operator decides."""

from rlhf_operator.decisions.plan import Acknowledge, DeleteRayCluster, DeleteSecretAndCode
from rlhf_operator.observed.picture import Observed, Submission
from situation import DONE, FAILURE, Case, cluster, ready, silent

#: What Ray says of a driver that failed: an announcement, and the end of its log.
RAYS_MESSAGE = (
    "Job entrypoint command failed with exit code 78, last available logs (truncated to 20,000 chars):\n"
    "of a traceback\nattempt 1 failed: PromptsInvalid: no prompts\n"
)

RELEASED = {
    "type": "ClusterReady",
    "status": "False",
    "reason": "Released",
    "observedGeneration": 1,
    "lastTransitionTime": "2026-01-02T03:30:00Z",
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
    "after success the supervisor may exit, and the RayCluster is deleted before anything else": Case(
        status=lambda g: g.running(**DONE),
        observed=ready,
        view=lambda g: g.view(g.report("Succeeded")),
        phase="Succeeded",
        reason="",
        message="",
        actions=lambda g: [Acknowledge(1, g.job().status.reports, 7), DeleteRayCluster(cluster(g))],
        requeue=10,
    ),
    "a finished job whose RayCluster is on its way out waits for that": Case(
        status=lambda g: g.running(**DONE),
        observed=lambda g: Observed(cluster=g.cluster(deleting=True)),
        phase="Succeeded",
        reason="",
        message="",
        requeue=10,
    ),
    "a finished job whose pods still end waits for that: they hold the GPUs": Case(
        status=lambda g: g.running(**DONE),
        observed=lambda g: Observed(pods=(g.pod("trainer", terminating=True),)),
        phase="Succeeded",
        reason="",
        message="",
        requeue=10,
    ),
    "once the cluster and its pods are gone the rest is deleted": Case(
        status=lambda g: g.running(**DONE),
        phase="Succeeded",
        reason="",
        message="",
        actions=lambda g: [DeleteSecretAndCode()],
        requeue=None,
    ),
    "a finished job whose cluster was seen gone costs nothing": Case(
        status=lambda g: g.running(**DONE, conditions=[RELEASED]),
        observed=ready,
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
        actions=lambda g: [DeleteSecretAndCode()],
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
        observed=lambda g: ready(g, submission=Submission("Failed", RAYS_MESSAGE, 78)),
        phase="Failed",
        reason="RayJobFailed",
        message="submission {sid} is FAILED in Ray: Job entrypoint command failed with exit code 78; its last line: "
        "attempt 1 failed: PromptsInvalid: no prompts",
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
