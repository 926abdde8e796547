"""Whether this process has the GPUs that it must compute on: CPUs, hundreds of times slower, never stand in for them.

In a cluster, that is. The RunConfig of a local run asks for no GPUs: there, processes compute on what they find.
"""

import os
from typing import Literal

import torch
from rlhf_api import names
from rlhf_api.conditions import Reason
from rlhf_api.gpus import PodGpus
from rlhf_api.run import RunConfig

from rlhf_runtime.failures import RunFailure, first_words

#: Variables that hide GPUs of NVIDIA's or of AMD's.
_HIDING = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_NEXT = (
    "check the image's torch, the node's driver and the pod's runtime class, or ask for fewer GPUs; where none are "
    "asked for, CPUs compute"
)


def shortage(asked: PodGpus | None, taken: int, by: str, found: int) -> str | None:
    """What is missing of the GPUs `asked` for, or of those that so many processes take, `by` whom; None if nothing is.

    `found` by torch. Where nobody asked for any and there are none, processes compute on CPUs.
    """
    if asked is not None and found < asked.count:
        return f"{asked}, but torch finds {found}"
    if 0 < found < taken:
        return f"{by} takes a GPU, but torch finds {found}"
    return None


def check_own_gpus(config: RunConfig, role: Literal["maker", "trainer"], place: int = 0) -> None:
    """Called before anything is loaded; `place`: a trainer's number among those that share its pod, or its machine.

    Raises RunFailure DevicesMissing (permanent).
    """
    if role == "maker":
        asked, taken = config.maker_gpus, config.makers.tensor_parallel
        by = f"each of the {taken} processes of a maker (makers.tensorParallel)"
    else:
        # Of a local run, all ranks share the machine, whatever `per_pod` says.
        asked, taken = config.trainer_gpus, max(place + 1, config.trainers.per_pod)
        by = f"each of the {taken} trainers that share a pod (trainers.perPod) or a machine"
    missing = shortage(asked, taken, by, count_gpus())
    if missing is not None:
        where = os.environ.get(names.POD_NAME_ENV) or os.uname().nodename
        raise RunFailure(Reason.DEVICES_MISSING, f"{missing} in {where} ({circumstances()}): {_NEXT}", permanent=True)


def count_gpus() -> int:
    """Those that torch can use; its count alone may be of GPUs whose driver is too old for it."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def circumstances() -> str:
    """What decides how many they are: torch, its own words if it can use none, and variables that hide them."""
    words = [f"torch {torch.__version__}"]
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch has no types for it
    except (AssertionError, RuntimeError) as error:
        words.append(first_words(error).rstrip("."))
    words += [f"{name}={os.environ[name]!r}" for name in _HIDING if name in os.environ]
    return ", ".join(words)
