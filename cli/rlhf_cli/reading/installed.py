"""What is installed on this machine, without importing any of it."""

import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from rlhf_cli.exits import Unavailable

#: Modules that a local run loads, here or in its processes.
_NEEDED = ("aiohttp", "matplotlib", "ray", "safetensors", "torch", "transformers")
#: Packages whose versions decide what a run computes.
_TELLING = ("rlhfjob", "ray", "torch", "transformers", "reasoning-gym", "numpy")


def require_runtime() -> None:
    """Raises Unavailable when a package is absent that a local run needs."""
    absent = [name for name in _NEEDED if find_spec(name) is None]
    if absent:
        raise Unavailable(f"a local run needs {', '.join(absent)}: pip install 'rlhfjob[runtime]'")


def installed_versions() -> dict[str, str]:
    """Versions of what computes a run here; what is not installed is left out."""
    versions = {"python": platform.python_version(), "platform": platform.platform()}
    for package in _TELLING:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
