"""The daemons of the cluster in the order they need each other, each with the check that it works."""

import shutil
from collections.abc import Callable
from pathlib import Path

from . import checks, configs, processes
from .settings import CLUSTER_DOMAIN, NODE_IP, NODE_NAME, SERVICE_CIDR, Layout
from .shell import run, succeeds, wait_until

_ETCD_URL = "http://127.0.0.1:2379"
DAEMONS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "containerd",
    "kubelet",
    "kube-proxy",
    "coredns",
    "kuberay-operator",
)


def start_control_plane(layout: Layout) -> None:
    _start_etcd(layout)
    _start_api_server(layout)
    _await(layout, "kube-apiserver", "answers /readyz", lambda: checks.api_ready(layout), 90)
    _start_controller_manager(layout)
    scheduler = [f"--kubeconfig={layout.pki}/scheduler.conf", "--leader-elect=false"]
    processes.start(layout, "kube-scheduler", [layout.binary("kube-scheduler"), *scheduler])


def start_containerd(layout: Layout) -> None:
    """Twice. Images outlive the cluster in containerd's folder, and with them the records of containers that
    are long dead; these must be gone before the CRI plugin reads them."""
    shutil.rmtree(layout.containerd_root / "io.containerd.grpc.v1.cri", ignore_errors=True)
    _run_containerd(layout, configs.containerd(layout, disabled_plugins=("io.containerd.grpc.v1.cri",)))
    for container in ctr(layout, "containers", "list", "--quiet").split():
        ctr(layout, "containers", "delete", container)
    processes.stop(layout, "containerd")
    _run_containerd(layout, configs.containerd(layout))


def start_kubelet(layout: Layout) -> None:
    processes.create_cgroups(layout)
    words: list[str | Path] = [
        layout.binary("kubelet"),
        f"--config={layout.state}/kubelet.json",
        f"--kubeconfig={layout.pki}/kubelet.conf",
        f"--root-dir={layout.state}/kubelet",
        f"--cert-dir={layout.pki}/kubelet",
        f"--hostname-override={NODE_NAME}",
        f"--node-ip={NODE_IP}",
    ]
    processes.start(layout, "kubelet", words)


def start_services(layout: Layout) -> None:
    proxy = [f"--config={layout.state}/kube-proxy.json", f"--hostname-override={NODE_NAME}"]
    processes.start(layout, "kube-proxy", [layout.binary("kube-proxy"), *proxy])
    processes.start(layout, "coredns", [layout.binary("coredns"), "-conf", layout.state / "Corefile"])


def start_kuberay(layout: Layout) -> None:
    """As a process beside the others, not as a pod: its image would have to be built and imported first, and
    it needs nothing of a pod but the cluster's DNS, which every daemon here has."""
    checks.kubectl(layout, "apply", "--server-side", "--force-conflicts", f"--filename={layout.crds}", timeout=60)
    checks.kubectl(
        layout,
        "wait",
        "--for=condition=Established",
        "--timeout=30s",
        f"--filename={layout.crds}",
        timeout=40,
    )
    words: list[str | Path] = [
        layout.binary("kuberay-operator"),
        f"-kubeconfig={layout.pki}/admin.conf",
        "-metrics-addr=:18080",
        "-health-probe-bind-address=:18081",
        "-enable-leader-election=false",
    ]
    processes.start(layout, "kuberay-operator", words)


def await_node(layout: Layout) -> None:
    _await(layout, "kubelet", "the node is Ready", lambda: checks.node_ready(layout), 90)


def await_services(layout: Layout) -> None:
    _await(layout, "coredns", "resolves the API server's name", lambda: checks.names_resolve(layout), 60)
    _await(layout, "kube-proxy", "a service's address answers", lambda: checks.services_answer(layout), 60)
    _await(layout, "kuberay-operator", "answers /readyz", lambda: checks.kuberay_ready(layout), 60)


def healthy(layout: Layout) -> bool:
    return (
        all(processes.alive(layout, name) for name in DAEMONS)
        and checks.api_ready(layout)
        and checks.node_ready(layout)
        and checks.names_resolve(layout)
        and checks.services_answer(layout)
        and checks.kuberay_ready(layout)
    )


def ctr(layout: Layout, *words: str | Path, timeout: float = 60) -> str:
    """containerd's own client, in the space of images and containers that Kubernetes uses."""
    command = ["ctr", f"--address={layout.containerd_socket}", "--namespace=k8s.io", *words]
    return run(command, part="containerd", timeout=timeout)


def _await(layout: Layout, daemon: str, wanted: str, check: Callable[[], bool], deadline: float) -> None:
    def checked() -> bool:
        processes.require_alive(layout, [daemon])
        return check()

    wait_until(checked, part=daemon, wanted=wanted, deadline=deadline, log=layout.logs / f"{daemon}.log")


def _start_etcd(layout: Layout) -> None:
    """Without fsync: what a test cluster knew may be lost with the machine, and shared disks are slow."""
    words: list[str | Path] = [
        layout.binary("etcd"),
        f"--data-dir={layout.state}/etcd",
        f"--listen-client-urls={_ETCD_URL}",
        f"--advertise-client-urls={_ETCD_URL}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--unsafe-no-fsync",
    ]
    processes.start(layout, "etcd", words)


def _start_api_server(layout: Layout) -> None:
    """kubelet-preferred-address-types: else `kubectl exec` and `logs` look the node's name up in the DNS."""
    pki = layout.pki
    words: list[str | Path] = [
        layout.binary("kube-apiserver"),
        f"--etcd-servers={_ETCD_URL}",
        f"--advertise-address={NODE_IP}",
        "--secure-port=6443",
        f"--client-ca-file={pki}/ca.crt",
        f"--tls-cert-file={pki}/api-server.crt",
        f"--tls-private-key-file={pki}/api-server.key",
        f"--kubelet-client-certificate={pki}/admin.crt",
        f"--kubelet-client-key={pki}/admin.key",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        f"--service-account-issuer=https://kubernetes.default.svc.{CLUSTER_DOMAIN}",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
    ]
    processes.start(layout, "kube-apiserver", words)


def _start_controller_manager(layout: Layout) -> None:
    pki = layout.pki
    words: list[str | Path] = [
        layout.binary("kube-controller-manager"),
        f"--kubeconfig={pki}/controller-manager.conf",
        f"--service-account-private-key-file={pki}/sa.key",
        f"--root-ca-file={pki}/ca.crt",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
    ]
    processes.start(layout, "kube-controller-manager", words)


def _run_containerd(layout: Layout, config: str) -> None:
    path = layout.state / "containerd.toml"
    path.write_text(config)
    processes.start(layout, "containerd", ["containerd", "--config", path])
    version = ["ctr", f"--address={layout.containerd_socket}", "version"]
    _await(layout, "containerd", "answers", lambda: succeeds(version), 30)
