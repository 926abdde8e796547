"""Whether this process may use the memory that its models need: what its pod and its GPU have."""

from pathlib import Path
from typing import Literal

import torch
from rlhf_api.run import RunConfig

from rlhf_runtime.models.role_models import Roles
from rlhf_runtime.preflight.memory import check_limit
from rlhf_runtime.preflight.models import role_needs

_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_MACHINE = Path("/proc/meminfo")
#: cgroup v1 says "no limit" by a number near 2^63.
_NO_LIMIT = 1 << 60


def check_own_memory(config: RunConfig, role: Literal["maker", "trainer"], roles: Roles) -> None:
    """Called where the models of `roles` are about to be loaded. Raises RunFailure MemoryTooSmall (permanent)."""
    need = next((need for need in role_needs(config, roles) if need.role == role), None)
    if need is None:
        return
    gpu = torch.cuda.is_available()
    limit, found_in = memory_limit()
    check_limit(role, need.in_pod(gpu=gpu), limit, found_in, processes=need.processes)
    if gpu:
        _, total = torch.cuda.mem_get_info()
        check_limit(role, need.models, total, f"the memory of {torch.cuda.get_device_name()}")


def memory_limit() -> tuple[int, str]:
    """Bytes, and what they are the limit of."""
    for path in _LIMITS:
        if path.exists() and (limit := _limit(path.read_text())) is not None:
            return limit, f"this pod's memory limit ({path})"
    return _total(_MACHINE.read_text()), "this machine's memory"


def _limit(text: str) -> int | None:
    """What a cgroup's file says; None for no limit."""
    text = text.strip()
    return None if text == "max" or int(text) >= _NO_LIMIT else int(text)


def _total(text: str) -> int:
    """MemTotal of a /proc/meminfo, in bytes."""
    line = next(line for line in text.splitlines() if line.startswith("MemTotal:"))
    return int(line.split()[1]) * 1024
