"""The sandbox image, from which every pod starts: one static program, nothing else."""

import io
import json
import shutil
import tarfile
from pathlib import Path

from . import packages, snapshots
from .settings import HERE, PAUSE_IMAGE, Layout
from .shell import run

_SOURCE = HERE / "pause" / "pause.c"


def ensure(layout: Layout) -> None:
    """Built by hand, without buildah: `up` should not wait for image tools when nobody builds an image."""
    folder = layout.cache / "pause"
    program = folder / "pause"
    if not program.exists() or program.stat().st_mtime < _SOURCE.stat().st_mtime:
        packages.require(packages.COMPILER, layout.build)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        run(["gcc", "-static", "-Os", "-s", "-o", program, _SOURCE], part="pause image")
    layer = snapshots.Layer(snapshots.digest(_as_tar(program)), folder)
    snapshots.publish(layout, PAUSE_IMAGE, _config(layer.diff_id), [layer])


def _as_tar(program: Path) -> bytes:
    """The layer's identity; nothing ever unpacks it."""
    content = program.read_bytes()
    entry = tarfile.TarInfo(program.name)
    entry.size, entry.mode = len(content), 0o755
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _config(diff_id: str) -> bytes:
    document = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
    }
    return json.dumps(document).encode()
