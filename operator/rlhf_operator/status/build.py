"""The status of a job: what was observed, bounded, and the same for the same observation. Pure."""

from datetime import datetime

from rlhf_api.conditions import AnyReason, ConditionType, Phase, Reason
from rlhf_api.job import RLHFJob
from rlhf_api.run import Report, RoleReport
from rlhf_api.status import MAX_MESSAGE, FailureStatus, RLHFJobStatus, RoleStatus
from rlhf_api.tails import last_lines

from rlhf_operator.observed.obstacles import of_sidecars
from rlhf_operator.observed.picture import Observed
from rlhf_operator.observed.report_view import ReportView
from rlhf_operator.status import episodes
from rlhf_operator.status import stages as stages
from rlhf_operator.status.stages import Fact, Stage


def bounded(message: str, name: str) -> str:
    """At most 1024 characters; a longer message is cut and ends with where the rest is."""
    if len(message) <= MAX_MESSAGE:
        return message
    pointer = f" ... (cut; the rest is in the logs: kubectl logs -l rlhf.dev/job={name})"
    return message[: MAX_MESSAGE - len(pointer)] + pointer


def failure(job: RLHFJob, attempt: int, reason: AnyReason, message: str, tail: str = "") -> FailureStatus:
    """Why an attempt failed, bounded: of a tail the last lines are kept."""
    return FailureStatus(
        reason=reason[:256], message=bounded(message, job.name), attempt=attempt, tail=last_lines(tail)
    )


def workers_wanted(job: RLHFJob) -> int:
    """Pods of makers and trainers."""
    return job.spec.makers.replicas + job.spec.trainers.pods


def build(
    job: RLHFJob, base: RLHFJobStatus, stage: Stage, observed: Observed, view: ReportView, now: datetime
) -> RLHFJobStatus:
    """``base`` (the stored status with a decision's own changes) brought up to what was observed.

    A report of another attempt than ``base``'s changes nothing but the episodes it brings.
    """
    stage = Stage(stage.phase, stage.reason, bounded(stage.message, job.name))
    report = view.report if view.report and view.report.attempt == base.attempt else None
    status = episodes.fold(base, report, view.episodes)
    if report is not None:
        status = _with_report(status, report, now)
    code = observed.code
    makers, trainers = (report.makers, report.trainers) if report and not stage.phase.over else (None, None)
    status = status.model_copy(
        update={
            "phase": stage.phase,
            "message": stage.message,
            "progress": f"{status.episode}/{job.spec.episodes}",
            "makers": _role(job.spec.makers.replicas, makers),
            "trainers": _role(job.spec.trainers.replicas, trainers),
            "observed_generation": job.generation if stage.phase.over else status.observed_generation,
            # Recorded once the copy is there; then it stays, whatever becomes of the user's ConfigMap.
            "code_hash": status.code_hash or (code.digest if code is not None and code.copied else ""),
        }
    )
    facts = [
        *stages.of_stage(stage),
        _cluster_ready(job, stage, observed),
        _runtime_ready(stage, report),
        _staleness(job, status),
    ]
    return status.model_copy(update={"conditions": stages.merged(job.status.conditions, facts, job.generation, now)})


def _with_report(status: RLHFJobStatus, report: Report, now: datetime) -> RLHFJobStatus:
    score = report.initial_score
    progress = max(filter(None, (status.last_progress_time, report.last_progress)))
    changes = {
        "observed_generation": report.applied_generation,
        "ledger": report.ledger,
        "repairs": report.repairs,
        "latest_checkpoint": report.latest_checkpoint or status.latest_checkpoint,
        "best_checkpoint": report.best_checkpoint or status.best_checkpoint,
        "final_model": report.final_model or status.final_model,
        "initial_score": status.initial_score if score is None else episodes.rounded(score),
        "prompts": report.prompts or status.prompts,
        "evaluation": report.evaluation or status.evaluation,
    }
    if report.state != "Starting":
        changes["running_time"] = status.running_time or now
        changes["last_progress_time"] = progress
    return status.model_copy(update=changes)


def _role(desired: int, report: RoleReport | None) -> RoleStatus:
    ready = report.ready if report else 0
    return RoleStatus(desired=desired, ready=ready, summary=f"{ready}/{desired}")


def _cluster_ready(job: RLHFJob, stage: Stage, observed: Observed) -> Fact:
    """The pods as seen; after the end the cluster is deleted next, and ``release`` says what becomes of it."""
    if stage.phase.over:
        message = f"the job is over; RayCluster {job.status.ray_cluster_name} will be deleted next"
        return Fact(ConditionType.CLUSTER_READY, "False", stage.reason, message)
    head, wanted = observed.head, workers_wanted(job)
    if head is not None and head.ready and observed.ready_workers >= wanted:
        sidecars = of_sidecars(observed.pods)
        message = f"head and {wanted} workers are ready" + (f"; {sidecars}" if sidecars else "")
        return Fact(ConditionType.CLUSTER_READY, "True", Reason.ALL_PODS_READY, bounded(message, job.name))
    message = bounded(pods_message(job, observed), job.name)
    reason = stage.reason if stage.phase in (Phase.PENDING, Phase.PROVISIONING) else Reason.PROVISIONING
    return Fact(ConditionType.CLUSTER_READY, "False", reason, message)


def pods_message(job: RLHFJob, observed: Observed) -> str:
    """Which pods are ready, in one sentence."""
    head = "ready" if observed.head and observed.head.ready else "not ready"
    sidecars = of_sidecars(observed.pods)
    workers = f"head {head}, {observed.ready_workers} of {workers_wanted(job)} workers ready"
    return f"{workers}; {sidecars}" if sidecars else workers


def _runtime_ready(stage: Stage, report: Report | None) -> Fact:
    if stage.reason == Reason.UNREACHABLE:
        return Fact(ConditionType.RUNTIME_READY, "Unknown", stage.reason, stage.message)
    if not stage.phase.over and report is not None and report.state == "Running":
        return Fact(ConditionType.RUNTIME_READY, "True", Reason.RUNNING)
    return Fact(ConditionType.RUNTIME_READY, "False", stage.reason)


def _staleness(job: RLHFJob, status: RLHFJobStatus) -> Fact:
    kind, bound = ConditionType.STALENESS_WITHIN_BOUNDS, job.spec.max_staleness
    if status.staleness is None:
        return Fact(kind, "Unknown", Reason.PENDING, "no episode yet")
    message = f"staleness {status.staleness} of at most {bound} in episode {status.episode}"
    if status.staleness <= bound:
        return Fact(kind, "True", Reason.WITHIN_BOUND, message)
    return Fact(kind, "False", Reason.EXCEEDED, message)
