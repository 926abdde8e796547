"""A follower, rank 1 or above: ``python -m rlhf_runtime.engines.tensor_parallel.follower CONNECTION PROGRESS``

Both are file descriptors that its leader gives it; it ends with the leader, and with the first error.
"""

import os
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from rlhf_api.run import RunConfig

from rlhf_runtime.engines.tensor_parallel.loading import load_rank, meet
from rlhf_runtime.engines.tensor_parallel.orders import (
    Begin,
    Cancel,
    Done,
    Failed,
    Generate,
    GoOn,
    Load,
    Logprobs,
    Meet,
    Ready,
)
from rlhf_runtime.engines.tensor_parallel.progress import Progress
from rlhf_runtime.engines.tensor_parallel.rank import RankEngine, digest, summary
from rlhf_runtime.failures import RunFailure


class _Cancelled(Exception):
    """The leader's hook has raised."""


def main(descriptors: Sequence[str]) -> None:
    connection = Connection(int(descriptors[0]))
    os.set_inheritable(connection.fileno(), False)
    try:
        begin = connection.recv()
        assert isinstance(begin, Begin)
        torch.set_num_threads(begin.threads)
        progress = Progress(int(descriptors[1]), begin.rank)
        engine = load_rank(RunConfig.read_json(begin.config_json), begin.rank, progress)
        connection.send(Ready(os.getpid()))
        place = connection.recv()
        assert isinstance(place, Meet)
        meet(begin.rank, engine.ranks, place, None)
        while True:
            connection.send(Done(_obey(connection.recv(), engine, connection, progress)))
    except EOFError:
        return
    except BaseException as error:
        connection.send(Failed(summary(error), error if isinstance(error, RunFailure) else None))
        raise


def _obey(order: Any, engine: RankEngine, connection: Connection, progress: Progress) -> str:
    """Do what the leader does; the digest of what came out."""

    def between_steps() -> None:
        progress.beat()
        while order.asks and not isinstance(answer := connection.recv(), GoOn):
            if isinstance(answer, Cancel):
                raise _Cancelled
            engine.load({}, answer.version)

    progress.beat()
    match order:
        case Load(version):
            engine.load({}, version)
        case Logprobs(rollouts, sampling):
            engine.logprobs(rollouts, sampling)
        case Generate(requests, sampling):
            try:
                return digest(engine.generate(requests, sampling, between_steps))
            except _Cancelled:
                pass
    return ""


if __name__ == "__main__":
    main(sys.argv[1:])
