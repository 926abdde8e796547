"""Whether each part of the cluster does its work, asked from inside the cluster's network."""

import os
import sys

from . import namespaces
from .settings import API_SERVICE_IP, CLUSTER_DOMAIN, NODE_NAME, Layout
from .shell import ClusterError, run, succeeds

_KUBERAY_READY = "import urllib.request as r; r.urlopen('http://127.0.0.1:18081/readyz', timeout=2)"


def kubectl(layout: Layout, *words: str, timeout: float = 30) -> str:
    return run([*_kubectl(layout), *words], part="kubectl", timeout=timeout, env=environment(layout))


def environment(layout: Layout) -> dict[str, str]:
    """The caller's, with the cluster as the default of kubectl and of every client library.

    Proxies are for the machine's network, and the cluster's addresses are not in it.
    """
    env = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    path = f"{layout.binaries}:{env.get('PATH', '')}"
    return {**env, "KUBECONFIG": str(layout.kubeconfig), "PATH": path}


def api_ready(layout: Layout) -> bool:
    return succeeds([*_kubectl(layout), "get", "--raw=/readyz", "--request-timeout=3s"], env=environment(layout))


def node_ready(layout: Layout) -> bool:
    condition = '{.status.conditions[?(@.type=="Ready")].status}'
    words = [
        "get",
        "node",
        NODE_NAME,
        "--ignore-not-found",
        f"--output=jsonpath={condition}",
        "--request-timeout=3s",
    ]
    try:
        return kubectl(layout, *words) == "True"
    except ClusterError:
        return False


def names_resolve(layout: Layout) -> bool:
    """The daemons' own view of the file system names the cluster's DNS as resolver."""
    question = ["getent", "hosts", f"kubernetes.default.svc.{CLUSTER_DOMAIN}"]
    return succeeds([*namespaces.enter(layout), *question])


def services_answer(layout: Layout) -> bool:
    words = [f"--server=https://{API_SERVICE_IP}", "get", "--raw=/readyz", "--request-timeout=3s"]
    return succeeds([*_kubectl(layout), *words], env=environment(layout))


def kuberay_ready(layout: Layout) -> bool:
    return succeeds([*namespaces.enter_network(layout), sys.executable, "-c", _KUBERAY_READY])


def _kubectl(layout: Layout) -> list[str]:
    return [*namespaces.enter_network(layout), str(layout.binary("kubectl"))]
