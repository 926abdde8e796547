"""The two Linux namespaces that the whole cluster lives in, so that the machine stays as it was.

- A network namespace with a name: the API server, services and pods share it, tests enter it. Programs are
  started with `nsenter --net`; `ip netns exec` would also remount /sys, which hides the cgroups from the kubelet.
- A mount namespace without one, kept by a process that only sleeps. In it the folders that containerd, CNI
  and the kubelet hard-code are the cluster's own, and /etc/resolv.conf names the cluster's DNS: KubeRay's
  operator finds Ray's dashboards by *.svc.cluster.local names, and its RayJobs hang without.
  Every mount of every pod is in there too, and goes with the last process, however that ends.
"""

import os
import subprocess
from pathlib import Path

from .settings import CLUSTER_DOMAIN, NODE_IP, Layout
from .shell import run, succeeds, wait_until

_HOLDER = "namespace-holder"


def create(layout: Layout) -> None:
    """Both namespaces, new. Whatever an earlier cluster left must be gone by now."""
    _create_network(layout)
    _create_mounts(layout)


def enter_network(layout: Layout) -> list[str]:
    """The words to put before a command that should run inside the cluster's network."""
    return ["nsenter", f"--net={layout.network_namespace}", "--"]


def enter(layout: Layout) -> list[str]:
    """The words to put before a daemon: the network, and the cluster's own view of the file system."""
    holder = (layout.pids / _HOLDER).read_text()
    return ["nsenter", f"--net={layout.network_namespace}", f"--mount=/proc/{holder}/ns/mnt", "--"]


def remove_network(layout: Layout) -> None:
    """Also after a reboot, when the name is left over as a plain file. The folder goes with the last name in it."""
    handle = layout.network_namespace
    while _is_mount(handle) and succeeds(["umount", "--lazy", handle]):
        pass
    handle.unlink(missing_ok=True)
    folder = handle.parent
    if folder.is_dir() and not any(folder.iterdir()):
        while _is_mount(folder) and succeeds(["umount", folder]):
            pass


def _is_mount(path: Path) -> bool:
    """os.path.ismount compares folders' devices, and so misses mounted namespaces."""
    return any(line.split()[4] == str(path) for line in Path("/proc/self/mountinfo").read_text().splitlines())


def _create_network(layout: Layout) -> None:
    run(["ip", "netns", "add", layout.name], part="network")

    def inside(*words: str) -> None:
        run([*enter_network(layout), *words], part="network")

    inside("ip", "link", "set", "lo", "up")
    # The node's address sits on a bridge: not every kernel has the dummy device. The default route through it
    # leads nowhere, and only makes addresses of services routable until kube-proxy's rules rewrite them.
    inside("ip", "link", "add", "node0", "type", "bridge")
    inside("ip", "address", "add", f"{NODE_IP}/24", "dev", "node0")
    inside("ip", "link", "set", "node0", "up")
    inside("ip", "route", "add", "default", "dev", "node0")
    inside("sysctl", "-qw", "net.ipv4.ip_forward=1")
    # So that a pod reaches a service whose endpoint is on the same bridge. Some kernels lack it.
    succeeds([*enter_network(layout), "sysctl", "-qw", "net.bridge.bridge-nf-call-iptables=1"])


_PRIVATE_VIEW = """
set -e
mount --make-rslave / && mount --make-rshared /
for folder in /run/containerd /var/lib/cni /var/lib/kubelet /var/log/containers; do
    mkdir -p "$folder"
    mount -t tmpfs tmpfs "$folder"
done
mount --bind "$1" "$(readlink -f /etc/resolv.conf)"
touch "$2"
exec sleep infinity
"""


def _create_mounts(layout: Layout) -> None:
    resolver = layout.state / "resolv.conf"
    resolver.write_text(f"nameserver {NODE_IP}\nsearch svc.{CLUSTER_DOMAIN} {CLUSTER_DOMAIN}\n")
    ready, log = layout.state / "namespaces-ready", layout.logs / f"{_HOLDER}.log"
    with log.open("w") as output:
        holder = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", _PRIVATE_VIEW, "sh", str(resolver), str(ready)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, **layout.mark},
        )
    (layout.pids / _HOLDER).write_text(str(holder.pid))
    wait_until(
        ready.exists,
        part="mounts",
        wanted="the cluster's own mount namespace",
        deadline=10,
        log=log,
        pause=0.02,
    )
