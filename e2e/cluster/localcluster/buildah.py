"""buildah, for machines without a container daemon, with a storage of its own inside the cache.

It runs in a mount namespace of its own, so that an interrupted build leaves no mounts behind, and runs the
steps of a Dockerfile by chroot, which needs no more of the machine than root.
"""

import base64
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from .settings import Layout
from .shell import ClusterError, run, run_logged, succeeds
from .snapshots import Layer

_MACHINE_CERTIFICATES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_MACHINE_INDEXES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT")
_MACHINE_UV = ("UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_HTTP_TIMEOUT")


def buildah(layout: Layout, *words: str | Path, timeout: float = 120) -> str:
    return run([*_program(layout), *words], part="images", timeout=timeout, env=_environment(layout)).strip()


def exists(layout: Layout, image: str) -> bool:
    return image_id(layout, image) is not None


def image_id(layout: Layout, image: str) -> str | None:
    found = buildah(layout, "images", "--quiet", "--no-trunc", f"--filter=reference={image}")
    return found.splitlines()[0].removeprefix("sha256:") if found else None


def forget(layout: Layout, image: str) -> None:
    """An image that has been replaced, with those of its layers that no other image is made of."""
    succeeds([*_program(layout), "rmi", image], env=_environment(layout), timeout=120)


def build(layout: Layout, context: Path, target: str, tag: str, arguments: Mapping[str, str]) -> None:
    """One target of the context's Dockerfile. Its cached layers are used as far as nothing changed."""
    words: list[str | Path] = ["bud", "--layers", "--isolation=chroot", "--network=host", "--pull-never"]
    words += [f"--target={target}", f"--tag={tag}", *_secrets(layout)]
    words += [f"--build-arg={name}={value}" for name, value in arguments.items()]
    run_logged(
        [*_program(layout), *words, context],
        part=f"build of the {target} image",
        log=layout.build / f"image-{target}.log",
        timeout=1800,
        env=_environment(layout),
    )


def config_and_layers(layout: Layout, image: str) -> tuple[bytes, list[Layer]]:
    """The image's config as it is stored, and its layers' folders, lowest first."""
    found = image_id(layout, image)
    if found is None:
        raise ClusterError(f"images: {image} is not built")
    storage = layout.image_store / "root"
    encoded = base64.b64encode(f"sha256:{found}".encode()).decode()
    config = (storage / "overlay-images" / found / f"={encoded}").read_bytes()
    images = json.loads((storage / "overlay-images" / "images.json").read_text())
    layers = {layer["id"]: layer for layer in json.loads((storage / "overlay-layers" / "layers.json").read_text())}
    layer_id = next(entry["layer"] for entry in images if entry["id"] == found)
    stacked: list[Layer] = []
    while layer_id:
        stacked.insert(0, Layer(layers[layer_id]["diff-digest"], storage / "overlay" / layer_id / "diff"))
        layer_id = layers[layer_id].get("parent")
    return config, stacked


def _program(layout: Layout) -> Sequence[str]:
    storage = [f"--root={layout.image_store}/root", f"--runroot={layout.image_store}/run"]
    return ["unshare", "--mount", "buildah", *storage, "--storage-driver=overlay"]


def _environment(layout: Layout) -> dict[str, str]:
    """Big temporary files belong to the cache's disk, which may not be that of /tmp or /var/tmp."""
    temporary = layout.build / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    return {**os.environ, "TMPDIR": str(temporary)}


def apt_settings(layout: Layout) -> Path:
    """How this machine reaches Debian's packages."""
    settings = layout.build / "apt.conf"
    settings.write_text(run(["apt-config", "dump", "Acquire"], part="images"))
    return settings


def _secrets(layout: Layout) -> list[str]:
    """How this machine reaches package indexes: for the build's steps only, and in no layer."""
    lines = [f"export {name}='{os.environ[name]}'" for name in (*_MACHINE_INDEXES, *_MACHINE_UV) if name in os.environ]
    secrets = []
    certificates = os.environ.get("SSL_CERT_FILE")
    if certificates and Path(certificates).is_file():
        secrets.append(f"--secret=id=ca,src={certificates}")
        lines += [f"export {name}=/run/secrets/ca" for name in _MACHINE_CERTIFICATES]
    lines.append("export APT_CONFIG=/run/secrets/apt")
    environment = layout.build / "build-env"
    environment.write_text("\n".join([*lines, ""]))
    return [
        *secrets,
        f"--secret=id=build-env,src={environment}",
        f"--secret=id=apt,src={apt_settings(layout)}",
    ]
