"""Two jobs of one name in two namespaces, at once: neither knows of the other."""

from typing import Any

import pytest
from kube import ROOT, STORAGE, Kubectl, documents
from namespaces import delete_namespace, make_namespace

pytestmark = pytest.mark.full


def small_job() -> dict[str, Any]:
    [job] = documents(ROOT / "manifests" / "samples" / "addition.yaml")
    job["spec"].update(episodes=2)
    job["spec"].pop("evaluation")
    job["spec"]["rollout"].update(promptsPerEpisode=8)
    for role in ("head", "makers", "trainers"):
        job["spec"][role]["resources"]["requests"]["cpu"] = "100m"
    return job


def test_two_jobs_of_one_name_in_two_namespaces_both_succeed(operator: Kubectl) -> None:
    namespaces = [make_namespace(name) for name in ("e2e-left", "e2e-right")]
    for kubectl in namespaces:
        kubectl.apply(small_job())
    models = set()
    for kubectl in namespaces:
        status = kubectl.wait_for_job("addition", "Succeeded", "10m")
        models.add(STORAGE / kubectl.namespace / status["finalModel"].removeprefix("/mnt/rlhf/"))
        assert status["attempt"] == 1
    assert len(models) == 2
    assert all((model / "config.json").exists() for model in models)
    for kubectl in namespaces:
        delete_namespace(kubectl)
