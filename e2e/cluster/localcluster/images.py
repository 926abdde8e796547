"""`images`: the project's two images, built from the Dockerfile and made usable by pods."""

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import base, buildah, packages, processes, snapshots
from .settings import OPERATOR_IMAGE, REPOSITORY, RUNTIME_IMAGE, Layout
from .shell import locked, say

# What the Dockerfile copies; .dockerignore says the same to the builder.
_INPUTS = (
    "Dockerfile",
    ".dockerignore",
    "pyproject.toml",
    "README.md",
    "requirements",
    "crds/rlhf_api",
    "operator/rlhf_operator",
    "runtime/rlhf_runtime",
    "runtime/rlhf_samples",
    "cli/rlhf_cli",
    "e2e/cluster/slim_torch.py",
)


@dataclass(frozen=True)
class Image:
    """A target of the Dockerfile and the name that pods use for it."""

    target: str
    name: str

    @property
    def local(self) -> str:
        return f"localhost/rlhfjob/{self.target}:e2e"


IMAGES = (Image("operator", OPERATOR_IMAGE), Image("runtime", RUNTIME_IMAGE))


def update(layout: Layout) -> None:
    """Builds and imports what changed since the last time; nothing to do takes well under a second."""
    started = time.monotonic()
    packages.require(packages.BUILD_IMAGES, layout.build)
    with locked(layout.cache / "images.lock"):
        inputs = _digest_of_inputs()
        for image in IMAGES:
            _build(layout, image, inputs)
            _publish(layout, image)
    say(f"images up to date after {time.monotonic() - started:.1f} s")


def _publish(layout: Layout, image: Image) -> None:
    if not processes.alive(layout, "containerd"):
        say(f"{image.target} image built; the cluster is not up, so call `images` again when it is")
        return
    config, layers = buildah.config_and_layers(layout, image.local)
    if snapshots.publish(layout, image.name, config, layers):
        say(f"{image.name} is new in the cluster")


def _build(layout: Layout, image: Image, inputs: str) -> None:
    stamp = layout.image_store / f"{image.target}.inputs"
    if stamp.exists() and stamp.read_text() == inputs and buildah.exists(layout, image.local):
        return
    base_image = base.ensure(layout)
    say(f"building the {image.target} image")
    before = buildah.image_id(layout, image.local)
    buildah.build(layout, REPOSITORY, image.target, image.local, {"BASE": base_image, "SLIM": "1"})
    if before not in (None, buildah.image_id(layout, image.local)):
        buildah.forget(layout, before)
    stamp.write_text(inputs)


def _digest_of_inputs() -> str:
    digest = hashlib.sha256()
    for path in _files():
        digest.update(str(path.relative_to(REPOSITORY)).encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _files() -> Iterator[Path]:
    for name in _INPUTS:
        top = REPOSITORY / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and "__pycache__" not in path.parts:
                yield path
