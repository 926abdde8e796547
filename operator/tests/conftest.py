"""Builders of what a pass sees, so that a test names only what matters to it."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rlhf_api import names
from rlhf_api.job import RLHFJob
from rlhf_api.run import Failure, Report, RoleReport, Wait
from rlhf_api.status import EpisodeReport, LedgerStatus, RepairsStatus
from rlhf_operator.manifests import children
from rlhf_operator.observed.picture import ClusterSeen, ContainerSeen, PodSeen
from rlhf_operator.observed.report_view import ReportView

START = datetime(2026, 1, 2, 3, 4, 0, tzinfo=UTC)
UID = "0f1e2d3c-aaaa-bbbb-cccc-000000000001"


def manifest(**spec: Any) -> dict[str, Any]:
    """A job as the API server stores it, with one maker and one trainer."""
    return {
        "apiVersion": "rlhf.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {
            "name": "addition",
            "namespace": "team",
            "uid": UID,
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-02T03:04:00Z",
        },
        "spec": {
            "episodes": 12,
            "algorithm": {"type": "GRPO", "optimizer": {"learningRate": 1e-4}},
            "models": {"actor": {"uri": "/models/policy"}},
            "rewards": [{"function": "rewards:exact"}],
            "prompts": {"uri": "/data/prompts.jsonl"},
            "rollout": {"promptsPerEpisode": 4, "samplesPerPrompt": 2, "maxNewTokens": 8},
            "checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "runs"}}},
            "backoffLimit": 1,
            "preRunningDeadlineSeconds": 600,
            "progressDeadlineSeconds": 300,
            **spec,
        },
    }


class Given:
    """Values with a job's usual names and times; ``at(s)`` is so many seconds after its start."""

    uid = UID
    head_uid = "head-1"

    @staticmethod
    def at(seconds: float) -> datetime:
        return START + timedelta(seconds=seconds)

    @staticmethod
    def manifest(**spec: Any) -> dict[str, Any]:
        return manifest(**spec)

    def job(self, status: dict[str, Any] | None = None, **spec: Any) -> RLHFJob:
        return RLHFJob.model_validate({**manifest(**spec), "status": status or {}})

    @staticmethod
    def ray_cluster(job: RLHFJob, incarnation: int = 1, **memory: int) -> dict[str, Any]:
        """The RayCluster of a job, by what its templates say of memory unless ``memory`` says more."""
        templates = children.pod_templates(job)
        known = {role: children.ray_memory(job, role, template) for role, template in templates.items()}
        return children.ray_cluster(job, incarnation, templates, known | memory)

    def begun(self, **changes: Any) -> dict[str, Any]:
        """Status of a job whose first attempt may begin."""
        incarnation = changes.get("incarnation", 1)
        return {
            "startTime": START.isoformat(),
            "attemptStartTime": START.isoformat(),
            "attempt": 1,
            "incarnation": 1,
            "rayClusterName": names.ray_cluster_name(self.job(), incarnation),
            **changes,
        }

    def submitted(self, attempt: int = 1, **changes: Any) -> dict[str, Any]:
        """Status of a job whose attempt is recorded as submitted to the usual head."""
        incarnation = changes.get("incarnation", 1)
        recorded = {
            "attempt": attempt,
            "submissionId": names.submission_id(self.job(), incarnation, attempt),
            "headPodUid": self.head_uid,
            "phase": "Starting",
        }
        return self.begun(**{**recorded, **changes})

    def running(self, attempt: int = 1, **changes: Any) -> dict[str, Any]:
        """Status of a job whose attempt has been seen running since second 100."""
        times = {"runningTime": self.at(100).isoformat(), "lastProgressTime": self.at(100).isoformat()}
        return self.submitted(attempt, **{**times, "phase": "Running", **changes})

    def cluster(self, incarnation: int = 1, **changes: Any) -> ClusterSeen:
        usual = {"name": names.ray_cluster_name(self.job(), incarnation), "uid": "cluster-1", "owner_uid": UID}
        return ClusterSeen(**{**usual, "created": START, "answered": True, **changes})

    def pod(self, role: str, ready: bool = True, **changes: Any) -> PodSeen:
        usual: dict[str, Any] = {
            "name": f"addition-{role}-pod",
            "uid": f"{role}-1",
            "role": role,
            "ip": "10.0.0.1",
            "phase": "Running" if ready else "Pending",
            "ready": ready,
            "created": "2026-01-02T03:04:05Z",
            "containers": (self.container(),),
        }
        return PodSeen(**{**usual, **changes})

    def pods(self) -> tuple[PodSeen, ...]:
        """Head, maker and trainer, all ready."""
        return self.pod("head"), self.pod("maker"), self.pod("trainer")

    def container(self, **changes: Any) -> ContainerSeen:
        return ContainerSeen(**{"name": "ray", "image": "rlhfjob/runtime:0.1.0", **changes})

    def episode(self, number: int, *, attempt: int = 1, seq: int | None = None, **changes: Any) -> EpisodeReport:
        usual: dict[str, Any] = {
            "attempt": attempt,
            "seq": number if seq is None else seq,
            "episode": number,
            "policy_version": number,
            "reward": 0.1 * number,
            "reward_std": 0.25,
            "kl": 0.001234567891,
            "loss": -0.01,
            "entropy": 1.5,
            "clip_fraction": 0.01,
            "gradient_norm": 0.5,
            "staleness_mean": 0.5,
            "staleness_max": 1,
            "samples": 8,
            "tokens": 64,
            "tokens_per_second": 123.45678912,
            "truncated_fraction": 0.0,
            "dropped": 0,
            "seconds": 2.0,
            "train_seconds": 1.0,
            "wait_seconds": 0.5,
            "sync_seconds": 0.1,
            "time": self.at(100 + 2 * number),
        }
        return EpisodeReport(**{**usual, **changes})

    def report(self, state: str = "Running", *, attempt: int = 1, **changes: Any) -> Report:
        usual: dict[str, Any] = {
            "attempt": attempt,
            "incarnation": 1,
            "revision": 7,
            "applied_generation": 1,
            "state": state,
            "makers": RoleReport(desired=1, ready=1),
            "trainers": RoleReport(desired=1, ready=1),
            "ledger": LedgerStatus(dispatched=8, trained=4, in_flight=4),
            "policy_version": 1,
            "repairs": RepairsStatus(),
            "resumed_from": 0,
            "last_progress": self.at(100),
        }
        return Report(**{**usual, **changes})

    def failed_report(self, reason: str, message: str, *, permanent: bool, attempt: int = 1, tail: str = "") -> Report:
        failure = Failure(reason=reason, message=message, permanent=permanent, tail=tail)
        return self.report("Failed", attempt=attempt, failure=failure)

    def view(self, report: Report | None = None, *episodes: EpisodeReport, **changes: Any) -> ReportView:
        return ReportView(**{"report": report, "episodes": episodes, "drained": report is not None, **changes})

    def wait(self, message: str, since: float) -> Wait:
        return Wait(
            reason="PartitionUnderfilled",
            owner="trainers",
            message=message,
            since=self.at(since),
            deadline=self.at(since + 300),
        )


@pytest.fixture
def given() -> Given:
    return Given()


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Waits until a condition holds, at most 5 s."""

    async def wait(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110 -- the code under test has no event to wait for
                await asyncio.sleep(0.002)

    return wait
