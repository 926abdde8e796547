"""The sample as a user applies it: it learns, its status is the journal, and killing the operator changes nothing."""

import json
import random
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest
from kube import ROOT, STORAGE, Kubectl, eventually
from rlhf_runtime.storage.journal import history
from rlhf_runtime.storage.run_directory import RunDirectory

KILLS = 10


@dataclass
class Run:
    """What one run of the sample left behind."""

    job: dict[str, Any]
    row: str
    clusters: set[str]
    submissions: set[str]
    kills: int

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.job["status"]
        return status


class OperatorKiller(threading.Thread):
    """Kills the operator's pod at random moments, and notes every RayCluster and submission that ever was."""

    def __init__(self, operator: Kubectl, kubectl: Kubectl) -> None:
        super().__init__(daemon=True)
        self.operator, self.kubectl = operator, kubectl
        self.moments = random.Random(0)
        self.kills = 0
        self.clusters: set[str] = set()
        self.submissions: set[str] = set()
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.is_set():
            self._observe(self.moments.uniform(2, 7))
            if self.kills < KILLS and not self.done.is_set():
                for pod in self.operator.items("pods", "app.kubernetes.io/name=rlhf-operator"):
                    self.operator.kill_pod(pod)
                self.kills += 1

    def _observe(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.done.is_set():
            self.clusters |= {item["metadata"]["uid"] for item in self.kubectl.items("rayclusters")}
            submission = self.kubectl.status("addition").get("submissionId")
            self.submissions |= {submission} if submission else set()
            self.done.wait(1.5)


@pytest.fixture(scope="module")
def run(kubectl: Kubectl, operator: Kubectl) -> Run:
    kubectl.run("apply", "-f", str(ROOT / "manifests" / "samples" / "addition.yaml"))
    killer = OperatorKiller(operator, kubectl)
    killer.start()
    kubectl.wait_for_job("addition", "Succeeded", "20m")
    killer.done.set()
    killer.join(timeout=30)
    row = kubectl.run("get", "rlhfjobs", "addition")
    return Run(kubectl.get("rlhfjob", "addition"), row, killer.clusters, killer.submissions, killer.kills)


def test_accuracy_on_held_out_problems_rises_from_below_06_to_above_08(run: Run) -> None:
    assert run.status["initialScore"] < 0.6
    assert run.status["score"]["last"] > 0.8


def test_every_episode_in_status_equals_the_journal(run: Run, kubectl: Kubectl) -> None:
    uid = run.job["metadata"]["uid"][:8]
    directory = RunDirectory(STORAGE / kubectl.namespace / kubectl.namespace / f"addition-{uid}")
    journal = [entry.to_dict() for entry in history(directory)]
    episodes = run.job["spec"]["episodes"]
    assert [entry["episode"] for entry in journal] == list(range(1, episodes + 1))
    assert run.status["episodes"] == journal[-10:]
    assert run.status["episode"] == episodes


def test_the_columns_say_what_happened(run: Run) -> None:
    header, values = (line.split() for line in run.row.strip().splitlines())
    row = dict(zip(header, values, strict=True))
    episodes = run.job["spec"]["episodes"]
    assert row["PHASE"] == "Succeeded"
    assert row["MODE"] == "FullyAsync"
    assert row["ALGORITHM"] == "GRPO"
    assert row["EPISODE"] == f"{episodes}/{episodes}"
    assert float(row["SCORE"]) > 0.8
    assert float(row["REWARD"]) == pytest.approx(run.status["reward"]["last"])
    assert int(row["STALENESS"]) <= run.job["spec"]["maxStaleness"]
    assert row["MAKERS"] == "0/1", "a finished job has no makers"


def test_history_reads_the_same_from_the_cluster(run: Run, kubectl: Kubectl) -> None:
    command = ["rlhf_cli.main", "history", "addition", "-n", kubectl.namespace, "-o", "json"]
    done = subprocess.run([sys.executable, "-m", *command], text=True, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == run.status["episodes"]


def test_an_operator_killed_ten_times_made_one_cluster_and_one_submission(run: Run) -> None:
    assert run.kills == KILLS
    assert len(run.clusters) == 1
    assert len(run.submissions) == 1
    assert run.status["attempt"] == 1
    assert run.status["incarnation"] == 1


def test_the_job_carries_no_finalizer_and_no_annotation_of_the_operator(run: Run) -> None:
    metadata = run.job["metadata"]
    assert "finalizers" not in metadata
    assert set(metadata.get("annotations", {})) <= {"kubectl.kubernetes.io/last-applied-configuration"}


def test_a_finished_job_keeps_its_status_and_costs_no_writes(run: Run, kubectl: Kubectl) -> None:
    eventually("the RayCluster is gone", lambda: not kubectl.items("rayclusters"), 90)
    eventually("its pods are gone", lambda: not kubectl.pods("addition"), 90)
    eventually("the status says that they are gone", lambda: _cluster_ready(kubectl)["reason"] == "Released", 60)
    version = kubectl.get("rlhfjob", "addition")["metadata"]["resourceVersion"]
    time.sleep(20)
    job = kubectl.get("rlhfjob", "addition")
    assert job["metadata"]["resourceVersion"] == version
    assert job["status"]["phase"] == "Succeeded"


def _cluster_ready(kubectl: Kubectl) -> dict[str, Any]:
    conditions: list[dict[str, Any]] = kubectl.status("addition")["conditions"]
    return next(condition for condition in conditions if condition["type"] == "ClusterReady")


def test_a_newer_crd_changes_nothing_of_a_finished_job(run: Run, kubectl: Kubectl) -> None:
    """It has a field that this operator does not know, with a default that the server fills in."""
    before = kubectl.status("addition")
    version = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/fieldOfTheNextVersion"
    patch_crd = ("patch", "crd", "rlhfjobs.rlhf.dev", "--type=json", "-p")
    added = [{"op": "add", "path": version, "value": {"type": "string", "default": "on"}}]
    kubectl.run(*patch_crd, json.dumps(added))
    try:
        eventually(
            "the server fills the new field in",
            lambda: kubectl.get("rlhfjob", "addition")["spec"].get("fieldOfTheNextVersion") == "on",
            30,
        )
        # Any event brings the object to the operator again.
        kubectl.run("annotate", "rlhfjob", "addition", "example.com/touched=yes")
        time.sleep(10)
        assert kubectl.status("addition") == before
    finally:
        kubectl.run(
            "patch", "crd", "rlhfjobs.rlhf.dev", "--type=json", "-p", f'[{{"op": "remove", "path": "{version}"}}]'
        )


def test_the_final_model_loads_in_plain_transformers(run: Run, kubectl: Kubectl) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    inside = run.status["finalModel"].removeprefix("/mnt/rlhf/")
    folder = STORAGE / kubectl.namespace / inside
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.vocab_size >= len(tokenizer)


def test_applying_the_same_job_again_changes_nothing(run: Run, kubectl: Kubectl) -> None:
    before = json.dumps(kubectl.status("addition"), sort_keys=True)
    kubectl.run("apply", "-f", str(ROOT / "manifests" / "samples" / "addition.yaml"))
    time.sleep(3)
    assert json.dumps(kubectl.status("addition"), sort_keys=True) == before


def test_deleting_the_job_leaves_nothing(run: Run, kubectl: Kubectl) -> None:
    kubectl.run("delete", "rlhfjob", "addition", "--timeout=60s")
    eventually(
        "nothing with the job's label is left",
        lambda: not kubectl.items("pods,secrets,configmaps,services,rayclusters", "rlhf.dev/job=addition"),
        90,
    )
