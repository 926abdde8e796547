"""The image that stands in for `python:3.11-slim-bookworm` where no registry can be pulled from: the same
Debian release with its own Python 3.11, made from packages."""

import hashlib
from pathlib import Path

from . import buildah
from .settings import Layout
from .shell import run_logged, say

_RELEASE = "bookworm"
# With Python's headers, as the image that this one stands in for.
_PACKAGES = ("python3", "python3-venv", "python3-dev", "ca-certificates")
# As in Debian's slim images. Without fsync for each file the unpacking takes half the time.
_DPKG_OPTIONS = (
    "path-exclude=/usr/share/doc/*",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/locale/*",
    "force-unsafe-io",
)
# mmdebstrap leaves in the image which settings it was given; they are this machine's.
_FORGET_SETTINGS = 'rm -f "$1"/etc/apt/apt.conf.d/99mmdebstrap "$1"/etc/dpkg/dpkg.cfg.d/99mmdebstrap'


def ensure(layout: Layout) -> str:
    """The base image's name; made once for each recipe."""
    recipe = repr((_RELEASE, _PACKAGES, _DPKG_OPTIONS, _FORGET_SETTINGS))
    name = f"localhost/rlhfjob/base:{hashlib.sha256(recipe.encode()).hexdigest()[:16]}"
    if not buildah.exists(layout, name):
        say("making the base image from Debian packages")
        archive = layout.build / "base.tar"
        _bootstrap(layout, archive)
        _commit(layout, archive, name)
        archive.unlink()
    return name


def _bootstrap(layout: Layout, archive: Path) -> None:
    words: list[str | Path] = [
        "mmdebstrap",
        "--variant=minbase",
        "--mode=root",
        f"--include={','.join(_PACKAGES)}",
    ]
    words += [
        f"--aptopt={buildah.apt_settings(layout)}",
        *(f"--dpkgopt={option}" for option in _DPKG_OPTIONS),
    ]
    words += [f"--customize-hook={_FORGET_SETTINGS}", _RELEASE, archive]
    run_logged(words, part="base image", log=layout.build / "base.log", timeout=900)


def _commit(layout: Layout, archive: Path, name: str) -> None:
    container = buildah.buildah(layout, "from", "scratch")
    buildah.buildah(layout, "add", container, archive, "/", timeout=300)
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    buildah.buildah(layout, "config", f"--env=PATH={path}", "--cmd=python3", container)
    buildah.buildah(layout, "commit", "--rm", container, name, timeout=300)
