"""`up` and `down`: the only two states a cluster is brought to."""

import os
import shutil
import time

from . import binaries, configs, namespaces, node, packages, pause, pki, processes
from .settings import Layout
from .shell import ClusterError, locked, say


def up(layout: Layout) -> None:
    """Leaves a healthy cluster alone; replaces anything else, whatever ended it, by a new one."""
    if os.geteuid() != 0:
        raise ClusterError("up: needs root, for namespaces, mounts and cgroups")
    with locked(layout.cache / f"{layout.name}.lock"):
        if node.healthy(layout):
            say(f"already up: KUBECONFIG={layout.kubeconfig}")
            return
        started = time.monotonic()
        packages.require(packages.RUN, layout.build)
        with locked(layout.cache / "build.lock"):
            binaries.ensure(layout)
        built = time.monotonic()
        _clear(layout)
        _start(layout)
        say(f"up in {time.monotonic() - built:.1f} s (preparing it: {built - started:.1f} s)")
        say(f"KUBECONFIG={layout.kubeconfig}")


def down(layout: Layout) -> None:
    """Leaves no process, mount, namespace, cgroup, socket or file but the cache; on any state, and if nothing is up."""
    with locked(layout.cache / f"{layout.name}.lock"):
        _clear(layout)


def _start(layout: Layout) -> None:
    for folder in (layout.state, layout.logs, layout.pids):
        folder.mkdir(parents=True, exist_ok=True)
    pki.create(layout)
    namespaces.create(layout)
    configs.write(layout)
    node.start_control_plane(layout)
    node.start_containerd(layout)
    pause.ensure(layout)
    node.start_kubelet(layout)
    node.start_services(layout)
    node.start_kuberay(layout)
    node.await_node(layout)
    node.await_services(layout)


def _clear(layout: Layout) -> None:
    """Mounts need no work of their own: they are in the namespace that ends with the last process."""
    processes.end_everything(layout)
    processes.remove_cgroups(layout)
    namespaces.remove_network(layout)
    shutil.rmtree(layout.state, ignore_errors=True)
    if layout.state.exists():
        raise ClusterError(f"down: {layout.state} cannot be removed")
