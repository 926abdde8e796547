"""The trainers' torch.distributed group: one generation of it a process, with a deadline on every collective."""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]  # torch does not list them


def open_store(host: str, seconds: float) -> tuple[TCPStore, int]:
    """On rank 0: the place where the ranks meet, on a free port; returns the port too. `host` is this machine's."""
    store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=seconds))
    return store, store.port


def join(rank: int, ranks: int, rendezvous: tuple[str, int], store: TCPStore | None, seconds: float) -> None:
    """Become a rank of the group; returns when all have come, or raises after `seconds`.

    `store` is rank 0's own. Every later collective fails after `seconds`, on all ranks that live.
    """
    timeout = timedelta(seconds=seconds)
    if store is None:
        store = TCPStore(rendezvous[0], rendezvous[1], is_master=False, timeout=timeout)
    # On GPUs, gloo beside: for what rests in the host's memory, and for objects.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=timeout)


def join_alone() -> None:
    """Become the only rank of a group: what divides weights asks for one."""
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)


def gathered_objects(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """Each rank's value, by rank of the group (None: of all). What is sent is trusted: it is unpickled."""
    everyones: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyones, value, group=group)
    return everyones
