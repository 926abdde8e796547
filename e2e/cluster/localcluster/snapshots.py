"""Putting images into containerd without moving their bytes.

The usual way (push to an archive, `ctr images import`) writes every byte of an image three times: to the
archive, to containerd's content store, to the snapshot. Here a layer that already lies unpacked in a
folder becomes a snapshot of hard links to its files, and the image is a manifest and a config whose layers
need not exist as blobs, since containerd only reads them to unpack. Gigabytes take seconds and no disk.

Safe, because neither side ever writes to a file of a layer: both copy up first. Source folders and
containerd's must be on one file system.
"""

import hashlib
import io
import json
import tarfile
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .node import ctr
from .settings import Layout
from .shell import ClusterError, run, succeeds

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_INDEX = "application/vnd.oci.image.index.v1+json"


@dataclass(frozen=True)
class Layer:
    """An unpacked layer: the digest of its tar, and the folder with its files."""

    diff_id: str
    folder: Path


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def publish(layout: Layout, name: str, config: bytes, layers: Sequence[Layer]) -> bool:
    """Makes the image usable by pods under this name; says whether there was anything to do."""
    manifest = _manifest(config, layers)
    if _images(layout).get(name) == digest(manifest):
        return False
    chain = _chain_ids([layer.diff_id for layer in layers])
    for position, layer in enumerate(layers):
        _ensure_snapshot(layout, chain[position], chain[position - 1] if position else None, layer.folder)
    _write_image(layout, name, manifest, config)
    # What unpacking would have done: the config keeps the snapshots alive, so that they need not be kept for
    # ever, and go when no image refers to them.
    ctr(layout, "content", "label", digest(config), f"containerd.io/gc.ref.snapshot.overlayfs={chain[-1]}")
    for snapshot in chain:
        ctr(layout, "snapshots", "label", snapshot, "containerd.io/gc.root=")
    _forget_replaced(layout)
    return True


def _images(layout: Layout) -> dict[str, str]:
    """The digest of the manifest behind each name."""
    lines = [line.split() for line in ctr(layout, "images", "list").splitlines()[1:]]
    return {words[0]: words[2] for words in lines}


def _forget_replaced(layout: Layout) -> None:
    """The CRI plugin also names an image by its digest, which would keep it for ever when its name moves on."""
    images = _images(layout)
    current = {target for name, target in images.items() if not name.startswith("sha256:")}
    for name, target in images.items():
        if target not in current:
            ctr(layout, "images", "delete", name)


def _manifest(config: bytes, layers: Sequence[Layer]) -> bytes:
    document = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": {"mediaType": _CONFIG, "digest": digest(config), "size": len(config)},
        "layers": [{"mediaType": _LAYER, "digest": layer.diff_id, "size": 0} for layer in layers],
    }
    return json.dumps(document).encode()


def _chain_ids(diff_ids: Sequence[str]) -> list[str]:
    """The names that the OCI image specification gives to a layer on top of others."""
    chain: list[str] = []
    for diff_id in diff_ids:
        chain.append(digest(f"{chain[-1]} {diff_id}".encode()) if chain else diff_id)
    return chain


def _ensure_snapshot(layout: Layout, name: str, parent: str | None, source: Path) -> None:
    if succeeds(["ctr", f"--address={layout.containerd_socket}", "--namespace=k8s.io", "snapshots", "info", name]):
        return
    key = f"extract-{uuid.uuid4()}"
    ctr(layout, "snapshots", "prepare", key, *([parent] if parent else []))
    target = _writable_folder(layout, key)
    run(["cp", "--archive", "--link", f"{source}/.", f"{target}/"], part="images", timeout=300)
    ctr(layout, "snapshots", "commit", name, key)


def _writable_folder(layout: Layout, key: str) -> Path:
    """From the mount command of the snapshot: a bind mount without a parent, an overlay's upper folder with one."""
    words = ctr(layout, "snapshots", "mounts", "/unused", key).split()
    for word in words:
        for option in word.split(","):
            if option.startswith("upperdir="):
                return Path(option.removeprefix("upperdir="))
    if "bind" in words:
        return Path(next(word for word in words if word.startswith("/") and word != "/unused"))
    raise ClusterError(f"images: no folder to write to in `{' '.join(words)}`")


def _write_image(layout: Layout, name: str, manifest: bytes, config: bytes) -> None:
    """Through an import of an archive without layers: `ctr` has no other command that makes an image."""
    described = {
        "mediaType": _MANIFEST,
        "digest": digest(manifest),
        "size": len(manifest),
        "annotations": {"io.containerd.image.name": name},
    }
    index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [described]}
    files = {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps(index).encode(),
        "blobs/sha256/" + digest(manifest).removeprefix("sha256:"): manifest,
        "blobs/sha256/" + digest(config).removeprefix("sha256:"): config,
    }
    with tempfile.NamedTemporaryFile(suffix=".tar", dir=layout.state) as archive:
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for path, content in files.items():
                entry = tarfile.TarInfo(path)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
        archive.flush()
        ctr(layout, "images", "import", "--no-unpack", archive.name)
