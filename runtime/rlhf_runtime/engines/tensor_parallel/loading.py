"""A tensor-parallel engine from a RunConfig: its processes started, its model loaded and divided, its ranks joined."""

import os
from functools import partial

import torch
from rlhf_api.run import RunConfig
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not list it

from rlhf_runtime.distributed.devices import take_gpu
from rlhf_runtime.distributed.process_group import join, open_store
from rlhf_runtime.engines.loading import load_engine
from rlhf_runtime.engines.tensor_parallel.engine import TensorParallelEngine
from rlhf_runtime.engines.tensor_parallel.followers import Followers
from rlhf_runtime.engines.tensor_parallel.orders import Begin, Meet
from rlhf_runtime.engines.tensor_parallel.parts import DividedModel
from rlhf_runtime.engines.tensor_parallel.progress import Progress
from rlhf_runtime.engines.tensor_parallel.rank import RankEngine
from rlhf_runtime.models.model_folder import model_folder
from rlhf_runtime.models.policy import load_policy
from rlhf_runtime.models.pretrained import on_device
from rlhf_runtime.models.tokenizer import load_tokenizer

#: Where the ranks meet: they share a pod.
HOST = "127.0.0.1"
#: Longest that no rank may go on in a call, seconds. Ranks that die are found sooner.
STALL_SECONDS = 300.0


def start_engine(config: RunConfig, seconds: float = STALL_SECONDS) -> TensorParallelEngine:
    """An engine over `makers.tensorParallel` processes, of which this is one.

    Where there are GPUs, there are as many. Raises RunFailure for a model that cannot be loaded or divided, permanent;
    EngineLost.
    """
    ranks = config.makers.tensor_parallel
    text, threads = config.to_json(), torch.get_num_threads()
    begin = [Begin(config_json=text, rank=rank, threads=threads) for rank in range(1, ranks)]
    followers = Followers(begin, seconds)
    try:
        own = load_rank(config, 0, followers.progress)
        followers.until_ready(config.pre_running_deadline_seconds)
        store, port = open_store(HOST, seconds)
        # The watch comes first, and knows more.
        place = Meet(port, 2 * seconds)
        followers.tell(place)
        with followers.watched():
            meet(0, ranks, place, store)
    except BaseException:
        followers.close()
        raise
    return TensorParallelEngine(own, followers)


def load_rank(config: RunConfig, rank: int, progress: Progress) -> RankEngine:
    """One rank, with its part of the model on its device; it may be called after `meet`. Raises RunFailure."""
    take_gpu(rank)
    folder = model_folder(config.models.actor.uri, "models.actor")
    tokenizer = load_tokenizer(config.models.actor.uri, folder)
    # Divided in the host's memory: a device need not have room for the whole model.
    whole = load_policy(config.models.actor, folder.path, config.models.actor.dtype, place=lambda module: module.cpu())
    divided = DividedModel(whole, rank, config.makers.tensor_parallel)
    module = on_device(divided.module)
    return load_engine(config, module, tokenizer, folder.path, partial(RankEngine, divided, progress))


def meet(rank: int, ranks: int, place: Meet, store: TCPStore | None) -> None:
    """Become a rank of the default process group; `store` is rank 0's own."""
    for backend in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{backend}_SOCKET_IFNAME", "lo")
    join(rank, ranks, (HOST, place.port), store, place.seconds)
