"""Makers and trainers as Ray actors. This module and `ray_workers.py`, which calls them, are all that knows Ray.

Every actor is bound to its worker group by a custom resource, one unit an actor, and never restarted by Ray: the
coordinator decides what a death means. Methods run in threads by concurrency group, so that a maker receives
weights and answers pings while it samples, and a trainer receives experiences while it trains.

What needs torch is imported in the actors' processes only.
"""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import ray
from rlhf_api import names
from rlhf_api.conditions import NOT_FINITE, WEIGHT_SYNC_FAILED
from rlhf_api.run import RunConfig

from rlhf_runtime.data.prompts import Prompt
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.ledger import Dispatch
from rlhf_runtime.logprob_gap import Probe
from rlhf_runtime.processors import available_processors, unhide_gpus
from rlhf_runtime.run_directory import RunDirectory
from rlhf_runtime.topology import rank_of
from rlhf_runtime.weight_manifest import Manifest, Order, SyncRefused
from rlhf_runtime.workers import MakerLost, StagedFile, Task, Trained

F = TypeVar("F", bound=Callable[..., Any])

#: Longest that one collective of the trainers may take, seconds. Ranks that die or hang are found by other means, and
#: much sooner; this ends the wait of one whose partner is there and never comes.
COLLECTIVE_SECONDS = 300.0


def _beside(group: str) -> Callable[[F], F]:
    """The method runs in the thread of this concurrency group, beside the actor's main one."""
    decorator: Callable[[F], F] = ray.method(concurrency_group=group)
    return decorator


class _Actor:
    """What both roles do first."""

    def __init__(self, config_json: str) -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
        self._config = RunConfig.model_validate_json(config_json)

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

    @_beside("health")
    def ping(self) -> None:
        """It lives."""


class MakerActor(_Actor):
    """`maker.Maker` in a process of its own. Every method that uses its engine raises MakerLost."""

    def load(self, columns: tuple[str, ...]) -> None:
        """Load model, tokenizer and reward functions. Raises RunFailure."""
        from rlhf_runtime.loading import load_maker

        self._maker = _alive(load_maker, self._config, columns)

    def make(self, tasks: Sequence[Task], ranks: int) -> Any:
        """Summaries of the groups, and then for each rank what it shall get."""
        made = _alive(self._maker.make, tasks)
        summaries = tuple(summary for summary, _ in made)
        if ranks == 0:
            return summaries
        shares: list[list[Any]] = [[] for _ in range(ranks)]
        for _, group in made:
            shares[rank_of(group.dispatch.cursor, ranks)].append(group)
        return (summaries, *shares)

    def evaluate(self, prompts: Sequence[Prompt], version: int) -> list[float]:
        return list(_alive(self._maker.evaluate, prompts, version))

    @_beside("sync")
    def prepare(self, manifest: Manifest, lease_seconds: float) -> bool:
        return bool(_sync(self._maker.prepare, manifest, lease_seconds))

    @_beside("sync")
    def stage(self, order: Order, index: int, digest: str, content: Any) -> None:
        _sync(self._maker.stage, order, index, digest, content)

    @_beside("sync")
    def commit(self, order: Order, digest: str, seconds: float, probe: Probe | None) -> bool:
        return bool(_alive(_sync, self._maker.commit, order, digest, seconds, probe))

    @_beside("health")
    def tend(self) -> None:
        _alive(self._maker.tend)


class TrainerActor(_Actor):
    """`trainer.Trainer`, one rank, in a process of its own."""

    def open_rendezvous(self) -> tuple[str, int]:
        """On rank 0: where the other ranks meet it."""
        from rlhf_runtime.training.process_group import open_store

        self._store, port = open_store(ray.util.get_node_ip_address(), COLLECTIVE_SECONDS)
        return ray.util.get_node_ip_address(), port

    def load(self, rank: int, place: int, rendezvous: tuple[str, int] | None, resume: Path | None) -> None:
        """Join the process group and load model and optimiser. Raises RunFailure.

        `place` is the rank's number among those of its pod, and of the pod's GPU that it takes.
        """
        from rlhf_runtime.doctor.gpus import check_own_gpus
        from rlhf_runtime.loading import load_trainer
        from rlhf_runtime.training.devices import take_gpu
        from rlhf_runtime.training.process_group import join

        check_own_gpus(self._config, "trainer", place)
        # In the thread that trains: which GPU is current is a matter of threads.
        take_gpu(place)
        if rendezvous is not None:
            store = self._store if rank == 0 else None
            join(rank, self._config.trainers.replicas, rendezvous, store, COLLECTIVE_SECONDS)
        self._trainer, self._publisher = load_trainer(self._config, rank, resume)

    @_beside("receive")
    def receive(self, groups: Any, admitted: Sequence[Dispatch]) -> None:
        self._trainer.receive(groups, admitted)

    @_beside("receive")
    def forget(self, dispatches: Sequence[Dispatch]) -> None:
        self._trainer.forget(dispatches)

    def train(self, dispatches: Sequence[Dispatch], version: int) -> Trained:
        from rlhf_runtime.training.learner import NonFiniteError

        try:
            return self._trainer.train(dispatches, version)
        except NonFiniteError as error:
            raise RunFailure(NOT_FINITE, str(error), permanent=False) from error

    def prepare(self, order: Order, must_differ: bool) -> Manifest | None:
        """All ranks together; rank 0 has the manifest."""
        return self._publisher.prepare(order, must_differ=must_differ)

    def shard(self, order: Order, index: int) -> tuple[str, Any]:
        return self._publisher.shard(order, index)

    def commit(self, order: Order) -> str:
        return self._publisher.commit(order)

    def probe(self) -> Probe | None:
        """All ranks together, after a publish."""
        return self._trainer.probe()

    def save(self, folder: Path, resumable: bool) -> list[StagedFile]:
        return self._trainer.save(folder, resumable=resumable)


# Out of order: a call whose argument is still on its way from another node must not hold up a ping behind it. Where
# the order of two calls matters, the first is awaited.
_OPTIONS = {"max_restarts": 0, "num_cpus": 0, "allow_out_of_order_execution": True}
maker_actor: Any = ray.remote(concurrency_groups={"sync": 1, "health": 1}, **_OPTIONS)(MakerActor)
trainer_actor: Any = ray.remote(concurrency_groups={"receive": 1, "health": 1}, **_OPTIONS)(TrainerActor)


def _alive(call: Any, *args: Any) -> Any:
    """A maker that has lost a part of its engine is lost: another takes its place."""
    from rlhf_runtime.engines.engine import EngineLost

    try:
        return call(*args)
    except EngineLost as error:
        raise MakerLost(str(error)) from error


def _sync(call: Any, *args: Any) -> Any:
    """A refused version ends the attempt: what is published is not what can be used."""
    try:
        return call(*args)
    except SyncRefused as error:
        raise RunFailure(WEIGHT_SYNC_FAILED, str(error), permanent=False) from error
