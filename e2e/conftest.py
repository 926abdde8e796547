"""The cluster that the tests share: our CRD and operator from manifests/, a restricted namespace with storage.

Runs inside the cluster's network (`make e2e` does that). Nothing here skips: without a cluster every test fails.
"""

from collections.abc import Iterator

import pytest
from kube import ROOT, Kubectl
from namespaces import delete_namespace, make_namespace


@pytest.fixture(scope="session")
def operator() -> Kubectl:
    """kubectl in the operator's namespace; the operator is installed and available."""
    kubectl = Kubectl("rlhf-system")
    kubectl.run("apply", "--server-side", "--force-conflicts", "-k", str(ROOT / "manifests" / "base"))
    kubectl.run("rollout", "restart", "deployment/rlhf-operator")
    kubectl.run("rollout", "status", "deployment/rlhf-operator", "--timeout=180s")
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
    delete_namespace(kubectl)


def _dump(kubectl: Kubectl, operator: Kubectl) -> None:
    print(operator.run("logs", "deployment/rlhf-operator", "--tail=150", check=False))
    print(kubectl.run("get", "rlhfjobs,rayclusters,pods,events", "-o", "wide", check=False)[-8000:])
    print(kubectl.run("get", "rlhfjobs", "-o", "yaml", check=False)[-12000:])
    for pod in kubectl.items("pods"):
        print(kubectl.run("logs", pod["metadata"]["name"], "--all-containers", "--tail=60", check=False))
