"""The processors that this process may use: what its pod was given, not what the machine has, or Ray gives an actor."""

import os
from collections.abc import MutableMapping
from pathlib import Path

_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
#: By which Ray hides NVIDIA's and AMD's GPUs.
_HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def available_processors() -> int:
    """At least 1: the smaller of the processors it may run on and its control group's quota."""
    allowed = len(os.sched_getaffinity(0))
    quota = _quota(_CPU_MAX.read_text()) if _CPU_MAX.exists() else None
    return max(1, allowed if quota is None else min(allowed, int(quota)))


def unhide_gpus(environment: MutableMapping[str, str]) -> None:
    """To be called before torch looks: older Rays hide GPUs from actors that ask for none, as ours do."""
    for name in _HIDING:
        if environment.get(name) == "":
            del environment[name]


def _quota(text: str) -> float | None:
    """Processors that a cgroup v2 ``cpu.max`` allows ("150000 100000" is 1.5); None for no limit."""
    limit, period = text.split()
    return None if limit == "max" else int(limit) / int(period)
