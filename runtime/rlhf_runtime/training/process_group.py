"""The trainers' torch.distributed group: one generation of it a process, with a deadline on every collective."""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not list it


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
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=timeout)
