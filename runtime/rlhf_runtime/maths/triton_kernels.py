"""Whether kernels of our own can be had on a device."""

import os
import shutil
from functools import cache
from importlib.util import find_spec


@cache
def available(device: str) -> bool:
    """On a GPU, where Triton finds the C compiler that it needs."""
    compilers = (os.environ.get("CC", "cc"), "gcc", "clang")
    return device == "cuda" and find_spec("triton") is not None and any(map(shutil.which, compilers))
