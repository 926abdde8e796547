"""What every Ray actor of a run has: its configuration, its first words, its ping.

Every actor is bound to its worker group by a custom resource, one unit an actor, and never restarted by Ray: the
coordinator decides what a death means. Methods run in threads by concurrency group, so that a maker receives
weights and answers pings while it samples, and a trainer receives experiences while it trains.

What needs torch is imported in the actors' processes only.
"""

import logging
import os
from collections.abc import Callable
from typing import Any, TypeVar

import ray
from rlhf_api import names
from rlhf_api.run import RunConfig

from rlhf_runtime.processors import available_processors, unhide_gpus
from rlhf_runtime.storage.run_directory import RunDirectory

F = TypeVar("F", bound=Callable[..., Any])


def beside(group: str) -> Callable[[F], F]:
    """The method runs in the thread of this concurrency group, beside the actor's main one."""
    decorator: Callable[[F], F] = ray.method(concurrency_group=group)
    return decorator


class Actor:
    """What both roles do first."""

    def __init__(self, config_json: str) -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
        self._config = RunConfig.read_json(config_json)

    def hello(self, probe: str, threads: int | None, sharing: int = 1) -> tuple[str, int]:
        """Check the storage, set the number of threads (None: all of the pod's CPUs); the pod's name and this pid.

        `sharing`: processes that share the pod, and so its CPUs.
        """
        # The actors here have their pod's GPUs to themselves, and ask Ray for none.
        unhide_gpus(os.environ)
        # Threads that wait by spinning take the processors that the other actors of this machine compute on.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        import torch
        from transformers.utils import logging as transformers_logging

        pod = os.environ.get(names.POD_NAME_ENV) or f"{os.uname().nodename}/{os.getpid()}"
        RunDirectory(self._config.run_directory).read_probe(probe, pod)
        torch.set_num_threads(threads or max(1, available_processors() // sharing))
        transformers_logging.disable_progress_bar()
        return pod, os.getpid()

    @beside("health")
    def ping(self) -> None:
        """It lives."""


# Out of order: a call whose argument is still on its way from another node must not hold up a ping behind it. Where
# the order of two calls matters, the first is awaited.
OPTIONS = {"max_restarts": 0, "num_cpus": 0, "allow_out_of_order_execution": True}
