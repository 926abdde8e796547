"""`training.Trainer` as Ray actors, one for each rank."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from rlhf_api.conditions import Reason

from rlhf_runtime.actors.actor import OPTIONS, Actor, beside
from rlhf_runtime.experience.messages import Trained
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.scheduling.ledger import Dispatch
from rlhf_runtime.storage.checkpoints import StagedFile
from rlhf_runtime.weight_sync.manifest import Manifest, Order
from rlhf_runtime.weight_sync.probe import Probe

#: Longest that one collective of the trainers may take, seconds. Ranks that die or hang are found by other means, and
#: much sooner; this ends the wait of one whose partner is there and never comes.
COLLECTIVE_SECONDS = 300.0


class TrainerActor(Actor):
    """`trainer.Trainer`, one rank, in a process of its own."""

    def open_rendezvous(self) -> tuple[str, int]:
        """On rank 0: where the other ranks meet it."""
        from rlhf_runtime.distributed.process_group import open_store

        self._store, port = open_store(ray.util.get_node_ip_address(), COLLECTIVE_SECONDS)
        return ray.util.get_node_ip_address(), port

    def load(self, rank: int, place: int, rendezvous: tuple[str, int] | None, resume: Path | None) -> None:
        """Join the process group and load model and optimiser. Raises RunFailure.

        `place` is the rank's number among those of its pod, and of the pod's GPU that it takes.
        """
        from rlhf_runtime.distributed.devices import take_gpu
        from rlhf_runtime.distributed.process_group import join
        from rlhf_runtime.preflight.gpus import check_own_gpus
        from rlhf_runtime.training.loading import load_trainer

        check_own_gpus(self._config, "trainer", place)
        # In the thread that trains: which GPU is current is a matter of threads.
        take_gpu(place)
        if rendezvous is not None:
            store = self._store if rank == 0 else None
            join(rank, self._config.trainers.replicas, rendezvous, store, COLLECTIVE_SECONDS)
        self._trainer, self._publisher = load_trainer(self._config, rank, resume)

    @beside("receive")
    def receive(self, groups: Any, admitted: Sequence[Dispatch]) -> None:
        self._trainer.receive(groups, admitted)

    @beside("receive")
    def forget(self, dispatches: Sequence[Dispatch]) -> None:
        self._trainer.forget(dispatches)

    def train(self, dispatches: Sequence[Dispatch], version: int) -> Trained:
        from rlhf_runtime.training.learner import NonFiniteError

        try:
            return self._trainer.train(dispatches, version)
        except NonFiniteError as error:
            raise RunFailure(Reason.NOT_FINITE, str(error), permanent=False) from error

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


trainer_actor: Any = ray.remote(concurrency_groups={"receive": 1, "health": 1}, **OPTIONS)(TrainerActor)
