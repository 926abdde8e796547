"""The Debian packages that the cluster runs on; installed when a program of theirs is missing."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from .shell import ClusterError, run_logged, say, succeeds

# A program (or file) that shows the package is there, and the package.
RUN = {
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "nft": "nftables",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "openssl": "openssl",
    "iptables": "iptables",
}
COMPILER = {"gcc": "gcc", "/usr/lib/x86_64-linux-gnu/libc.a": "libc6-dev"}
BUILD_IMAGES = {"buildah": "buildah", "mmdebstrap": "mmdebstrap"}


def require(wanted: dict[str, str], log_folder: Path) -> None:
    """Installs what is missing; the package lists are only fetched when the install fails without them."""
    missing = sorted({package for proof, package in wanted.items() if not _present(proof)})
    if not missing:
        return
    if os.geteuid() != 0:
        raise ClusterError(f"packages: {' '.join(missing)} are missing, and installing them needs root")
    say(f"installing Debian packages: {' '.join(missing)}")
    if not succeeds(["apt-cache", "show", *missing]):
        _apt(["update"], log_folder)
    _apt(["install", "--yes", "--no-install-recommends", *missing], log_folder)
    still = [proof for proof in wanted if not _present(proof)]
    if still:
        raise ClusterError(f"packages: installed {' '.join(missing)}, and still without {' '.join(still)}")


def _present(proof: str) -> bool:
    return Path(proof).exists() if proof.startswith("/") else shutil.which(proof) is not None


def _apt(words: Iterable[str], log_folder: Path) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "-o", "DPkg::Lock::Timeout=120", *words]
    run_logged(command, part="packages", log=log_folder / "apt.log", timeout=600, env=env)
