"""The cluster that the tests share: our CRD and operator from manifests/, a restricted namespace with storage.

Runs inside the cluster's network (`make e2e` does that). Nothing here skips: without a cluster every test fails.
"""

import os
import subprocess
from collections.abc import Iterator

import pytest
from kube import ROOT, STORAGE, Kubectl


@pytest.fixture(scope="session")
def operator() -> Kubectl:
    """kubectl in the operator's namespace; the operator is installed and available."""
    kubectl = Kubectl("rlhf-system")
    kubectl.run("apply", "--server-side", "--force-conflicts", "-k", str(ROOT / "manifests" / "base"))
    kubectl.run("rollout", "restart", "deployment/rlhf-operator")
    kubectl.run("rollout", "status", "deployment/rlhf-operator", "--timeout=180s")
    return kubectl


def _volume(namespace: str) -> dict[str, object]:
    folder = STORAGE / namespace
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    folder.mkdir(parents=True)
    os.chown(folder, 1000, 1000)
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"e2e-{namespace}"},
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(folder), "type": "Directory"},
            "claimRef": {"namespace": namespace, "name": "rlhf-storage"},
        },
    }


def make_namespace(name: str) -> Kubectl:
    """A namespace that enforces restricted pod security, with the samples' storage claim bound to a folder."""
    kubectl = Kubectl(name)
    kubectl.run("delete", "namespace", name, "--ignore-not-found", "--timeout=120s")
    kubectl.run("delete", "pv", f"e2e-{name}", "--ignore-not-found", "--timeout=60s")
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
        },
        _volume(name),
    )
    kubectl.run("apply", "-f", str(ROOT / "manifests" / "samples" / "storage.yaml"))
    return kubectl


@pytest.fixture(scope="module")
def kubectl(request: pytest.FixtureRequest, operator: Kubectl) -> Iterator[Kubectl]:
    """kubectl in a namespace of the test module's own; on failure its objects and logs are printed."""
    failed_before = request.session.testsfailed
    name = "e2e-" + request.module.__name__.rsplit(".", 1)[-1].removeprefix("test_").replace("_", "-")
    kubectl = make_namespace(name)
    yield kubectl
    if request.session.testsfailed > failed_before:
        _dump(kubectl, operator)
    kubectl.run("delete", "namespace", name, "--timeout=180s")
    kubectl.run("delete", "pv", f"e2e-{name}", "--ignore-not-found", "--timeout=60s")


def _dump(kubectl: Kubectl, operator: Kubectl) -> None:
    print(operator.run("logs", "deployment/rlhf-operator", "--tail=150", check=False))
    print(kubectl.run("get", "rlhfjobs,rayclusters,pods,events", "-o", "wide", check=False)[-8000:])
    print(kubectl.run("get", "rlhfjobs", "-o", "yaml", check=False)[-12000:])
    for pod in kubectl.items("pods"):
        print(kubectl.run("logs", pod["metadata"]["name"], "--all-containers", "--tail=60", check=False))
