"""The input of every decision, and the two ways in which a decision ends an attempt or the job."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from rlhf_api import names
from rlhf_api.conditions import AnyReason, Phase, ReadReason, Reason
from rlhf_api.job import RLHFJob
from rlhf_api.run import Report
from rlhf_api.status import FailureStatus, RLHFJobStatus

from rlhf_operator.decisions.plan import Action, Plan, StopSubmission
from rlhf_operator.observed.obstacles import obstacles
from rlhf_operator.observed.picture import Code, Observed, Obstacle
from rlhf_operator.observed.report_view import Follow, ReportView
from rlhf_operator.status import build as statuses
from rlhf_operator.status.stages import Stage

#: A supervisor that has not answered for so long is called unreachable: one lost poll says nothing.
SILENCE_SECONDS = 10.0
#: Unfinished jobs are looked at again after so many seconds even without an event.
RESYNC_SECONDS = 60.0
SHORTEST_WAIT_SECONDS = 2.0


@dataclass(frozen=True)
class Situation:
    """One job at one instant: (object, observed, report, now)."""

    job: RLHFJob
    observed: Observed
    view: ReportView
    now: datetime

    @property
    def status(self) -> RLHFJobStatus:
        return self.job.status

    @property
    def report(self) -> Report | None:
        """The newest report of the current attempt."""
        report = self.view.report
        return report if report is not None and report.attempt == self.status.attempt else None

    @property
    def submitted(self) -> bool:
        """Whether the current attempt's submission is recorded; Ray may not have it yet."""
        return bool(self.status.submission_id)

    @property
    def submission_id(self) -> str:
        """The current attempt's."""
        return names.submission_id(self.job, self.status.incarnation, self.status.attempt)

    @property
    def head_is_ours(self) -> bool:
        """Whether the head is the very one that the current attempt was submitted to, not restarted since."""
        head = self.observed.head
        return head is not None and (head.uid, head.ray_restarts) == (
            self.status.head_pod_uid,
            self.status.head_restarts,
        )

    @property
    def head_ready(self) -> bool:
        return self.observed.head is not None and self.observed.head.ready

    @property
    def cluster_stands(self) -> bool:
        """Whether the RayCluster is there, is this job's, and is to stay."""
        return self.cluster_is_ours and self.observed.cluster is not None and not self.observed.cluster.deleting

    @property
    def cluster_is_ours(self) -> bool:
        """Whether the RayCluster is there and is this job's; it may be on its way out."""
        return self.observed.cluster is not None and self.observed.cluster.owner_uid == self.job.uid

    @property
    def obstacles(self) -> tuple[Obstacle, ...]:
        """What keeps pods from being ready, the most serious first."""
        return obstacles(self.observed, self.job.uid, first_attempt=self.status.attempt == 1)

    @property
    def obstacle(self) -> Obstacle | None:
        """What to say of the obstacles: the most serious one, or every object that is missing."""
        found = self.obstacles
        if not found or found[0].reason != Reason.REFERENCE_MISSING:
            return found[0] if found else None
        missing = [obstacle.message for obstacle in found if obstacle.reason == Reason.REFERENCE_MISSING]
        return replace(found[0], message="; ".join(dict.fromkeys(missing)))

    @property
    def copy_missing(self) -> Code | None:
        """The user's code while the job's own copy of it does not exist, unless it has changed since it was copied."""
        code = self.observed.code
        if code is None or code.copied or self.status.code_hash not in ("", code.digest):
            return None
        return code

    def seconds_since(self, time: datetime | None) -> float:
        return (self.now - (time or self.now)).total_seconds()

    def silent_for(self, seconds: float) -> bool:
        """Whether every poll of the last so many seconds has failed."""
        return self.view.silent_since is not None and self.seconds_since(self.view.silent_since) >= seconds

    @property
    def attempts(self) -> str:
        return f"attempt {self.status.attempt} of {self.job.spec.backoff_limit + 1}"

    def stage(self, phase: Phase, reason: Reason, message: str) -> Stage:
        """Not running yet: the first attempt is in ``phase``; a later one is Recovering and says from what."""
        earlier = self.status.failure
        if self.status.attempt <= 1 or earlier is None or phase == Phase.RUNNING:
            return Stage(phase, reason, message)
        if reason in (Reason.PENDING, Reason.PROVISIONING, Reason.STARTING):
            reason = Reason.RECOVERING
        return Stage(
            Phase.RECOVERING, reason, f"{self.attempts}: {message}; before: {earlier.reason}: {earlier.message}"
        )

    def plan(
        self,
        stage: Stage,
        *,
        actions: Iterable[Action] = (),
        follow: Follow | None = None,
        requeue_after: float | None = None,
        **changes: Any,
    ) -> Plan:
        """A plan whose status is the stored one with ``changes``, in this stage, brought up to what was observed."""
        base = self.status.model_copy(update=changes)
        status = statuses.build(self.job, base, stage, self.observed, self.view, self.now)
        return Plan(status=status, actions=tuple(actions), follow=follow, requeue_after=requeue_after)

    def end(self, stage: Stage, *, actions: Iterable[Action] = (), **changes: Any) -> Plan:
        """The job is over: that is written first, and the cluster is deleted in a later pass."""
        return self.plan(stage, actions=actions, requeue_after=0, completion_time=self.now, **changes)

    def fail(self, why: FailureStatus, *, actions: Iterable[Action] = ()) -> Plan:
        """The job fails at once: another attempt cannot help."""
        return self.end(Stage(Phase.FAILED, ReadReason(why.reason), why.message), actions=actions, failure=why)

    def fail_attempt(self, why: FailureStatus, *, actions: Iterable[Action] = (), new_cluster: bool = False) -> Plan:
        """The attempt is over; the next one comes while ``backoffLimit`` allows it."""
        status = self.status
        if status.attempt > self.job.spec.backoff_limit:
            message = f"{self.attempts} failed: {why.reason}: {why.message}"
            return self.fail(self.failure(Reason.BACKOFF_LIMIT_EXCEEDED, message, why.tail), actions=actions)
        incarnation = status.incarnation + new_cluster
        following = f"attempt {status.attempt + 1} of {self.job.spec.backoff_limit + 1} is next"
        message = f"attempt {status.attempt} failed: {why.reason}: {why.message}; {following}"
        # The status is built as the ended attempt's, so that its last episodes and checkpoint are taken over.
        plan = self.plan(
            Stage(Phase.RECOVERING, Reason.RECOVERING, message), actions=actions, requeue_after=0, failure=why
        )
        return Plan(
            status=plan.status.model_copy(update=_next_attempt(self.job, status.attempt + 1, incarnation, self.now)),
            actions=plan.actions,
            requeue_after=plan.requeue_after,
        )

    def failure(self, reason: AnyReason, message: str, tail: str = "") -> FailureStatus:
        """The current attempt's failure."""
        return statuses.failure(self.job, self.status.attempt, reason, message, tail)

    @property
    def head_ip(self) -> str:
        return self.observed.head.ip if self.observed.head else ""

    @property
    def follow(self) -> Follow | None:
        """Whose reports to follow: the submitted attempt's, as soon as its head has an address."""
        if not self.submitted or not self.head_ip:
            return None
        return Follow(ip=self.head_ip, attempt=self.status.attempt, cursor=self.status.reports)

    def stop(self) -> list[Action]:
        """Stops the current attempt, if there is one that could be reached."""
        if not self.submitted or not self.head_ready:
            return []
        return [StopSubmission(self.head_ip, self.status.submission_id)]

    def soon(self, seconds: float) -> float:
        """``seconds``, or less when the attempt's deadline comes before; never so little that it spins."""
        spec, status = self.job.spec, self.status
        since, limit = status.attempt_start_time, spec.pre_running_deadline_seconds
        if status.running_time is not None:
            since, limit = status.last_progress_time, spec.progress_deadline_seconds
        return max(SHORTEST_WAIT_SECONDS, min(seconds, limit - self.seconds_since(since)))


def _next_attempt(job: RLHFJob, attempt: int, incarnation: int, now: datetime) -> dict[str, Any]:
    return {
        "attempt": attempt,
        "incarnation": incarnation,
        "ray_cluster_name": names.ray_cluster_name(job, incarnation),
        "submission_id": "",
        "head_pod_uid": "",
        "head_restarts": 0,
        "attempt_start_time": now,
        "running_time": None,
        "last_progress_time": None,
    }
