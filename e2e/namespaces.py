"""Namespaces for tests: restricted pod security enforced, the samples' storage claim bound to a folder of the node."""

import os
import shutil

from kube import ROOT, STORAGE, Kubectl


def _volume(namespace: str) -> dict[str, object]:
    folder = STORAGE / namespace
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
    delete_namespace(kubectl)
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


def delete_namespace(kubectl: Kubectl) -> None:
    """The namespace, its volume and the volume's folder go; fails when they are not gone in time."""
    kubectl.run("delete", "namespace", kubectl.namespace, "--ignore-not-found", "--timeout=180s")
    kubectl.run("delete", "pv", f"e2e-{kubectl.namespace}", "--ignore-not-found", "--timeout=60s")
    shutil.rmtree(STORAGE / kubectl.namespace, ignore_errors=True)
