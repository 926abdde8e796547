"""The configuration files of the daemons, as text; what is peculiar in them says why."""

import json

from .settings import (
    API_SERVER,
    CLUSTER_DOMAIN,
    MAX_PODS,
    NODE_IP,
    NODE_POD_CIDR,
    PAUSE_IMAGE,
    POD_CIDR,
    Layout,
)


def write(layout: Layout) -> None:
    network = layout.state / "cni" / "10-bridge.conflist"
    network.parent.mkdir(parents=True, exist_ok=True)
    network.write_text(_container_network())
    (layout.state / "containerd.toml").write_text(containerd(layout))
    (layout.state / "kubelet.json").write_text(_kubelet(layout))
    (layout.state / "kube-proxy.json").write_text(_kube_proxy(layout))
    (layout.state / "Corefile").write_text(_coredns(layout))


def containerd(layout: Layout, disabled_plugins: tuple[str, ...] = ()) -> str:
    """restrict_oom_score_adj: root may lack CAP_SYS_RESOURCE (as in a sandbox), and then the negative score
    that Kubernetes asks for sandboxes is refused and no pod starts."""
    return f"""version = 2
root = "{layout.containerd_root}"
state = "{layout.state}/containerd"
disabled_plugins = {json.dumps(disabled_plugins)}
[grpc]
  address = "{layout.containerd_socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{layout.state}/cni"
"""


def _container_network() -> str:
    """Debian's plugins: pods hang on a bridge. Nothing enforces NetworkPolicies."""
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": NODE_POD_CIDR}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "hairpinMode": True}
    return json.dumps(
        {
            "cniVersion": "1.0.0",
            "name": "e2e",
            "plugins": [
                {**bridge, "ipam": addresses},
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        },
        indent=2,
    )


def _kubelet(layout: Layout) -> str:
    """failCgroupV1: the kubelet of 1.34 still runs on cgroup v1, but only when told to.

    resolvConf: pods should resolve the cluster's names and nothing of the machine's. Eviction and image
    collection by disk use would act on what others do to a shared disk. Crash loops are retried quickly, so
    that a test need not wait for Kubernetes' five minutes.
    """
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "x509": {"clientCAFile": f"{layout.pki}/ca.crt"},
                "webhook": {"enabled": True},
                "anonymous": {"enabled": False},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{layout.cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
            "clusterDomain": CLUSTER_DOMAIN,
            "clusterDNS": [NODE_IP],
            "resolvConf": "/dev/null",
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "imagefs.available": "1%",
            },
            "maxPods": MAX_PODS,
            "volumePluginDir": f"{layout.state}/volume-plugins",
            "podLogsDir": f"{layout.state}/pod-logs",
            "serializeImagePulls": False,
            "registryPullQPS": 0,
            "eventRecordQPS": 0,
            "kubeAPIQPS": 100,
            "kubeAPIBurst": 200,
            "syncFrequency": "10s",
            "nodeStatusUpdateFrequency": "5s",
            "featureGates": {"KubeletCrashLoopBackOffMax": True},
            "crashLoopBackOff": {"maxContainerRestartPeriod": "10s"},
        },
        indent=2,
    )


def _kube_proxy(layout: Layout) -> str:
    """Connection-tracking limits are the machine's, not this namespace's to set: zero leaves them alone."""
    return json.dumps(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {"kubeconfig": f"{layout.pki}/proxy.conf"},
            "clusterCIDR": POD_CIDR,
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
            "nftables": {"minSyncPeriod": "200ms"},
        },
        indent=2,
    )


def _coredns(layout: Layout) -> str:
    """On the node's own address, so that pods need no service to find it. Only the cluster's names."""
    return f""".:53 {{
    bind {NODE_IP}
    errors
    ready {NODE_IP}:8181
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa ip6.arpa {{
        endpoint {API_SERVER}
        kubeconfig {layout.pki}/admin.conf e2e
        pods insecure
        ttl 2
    }}
    cache 2
}}
"""
