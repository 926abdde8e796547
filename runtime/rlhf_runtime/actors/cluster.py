"""Connects to the Ray cluster and places a run's actors in it."""

import os
from collections.abc import Sequence
from pathlib import Path

import ray
from rlhf_api import names
from rlhf_api.run import RunConfig

from rlhf_runtime.actors.answers import of_maker
from rlhf_runtime.actors.maker_actor import maker_actor
from rlhf_runtime.actors.maker_handle import RayMaker
from rlhf_runtime.actors.trainer_actor import trainer_actor
from rlhf_runtime.actors.trainers_handle import RayTrainers

#: Object store of a local run: small models, in memory that others want too.
LOCAL_OBJECT_STORE_BYTES = 512 * 2**20


class RayWorkers:
    """Places makers and trainers in the cluster that this process is connected to.

    `threads` each actor computes with; None: one actor has its pod to itself. `columns` that reward functions get.
    """

    def __init__(self, config: RunConfig, probe: str, threads: int | None, columns: tuple[str, ...]) -> None:
        self._config = config
        self._config_json = config.to_json()
        self._probe = probe
        self._threads = threads
        self._columns = columns

    async def trainers(self, resume: Path | None) -> RayTrainers:
        """Place all ranks, let them meet, load the model, or what a checkpoint has of it. Raises RunFailure."""
        actors = [
            trainer_actor.options(resources={names.TRAINER_RESOURCE: 1}).remote(self._config_json)
            for _ in range(self._config.trainers.replicas)
        ]
        sharing = self._config.trainers.per_pod
        found = await RayTrainers(actors, [], [])._all(
            [actor.hello.remote(self._probe, self._threads, sharing) for actor in actors]
        )
        # Ranks of a pod are neighbours: those that talk most, tensor-parallel peers, share it.
        order = sorted(range(len(actors)), key=lambda index: found[index])
        actors, places = [actors[index] for index in order], [found[index] for index in order]
        pods = [pod for pod, _ in places]
        trainers = RayTrainers(actors, pods, [pid for _, pid in places])
        rendezvous = None
        if len(actors) > 1:
            [rendezvous] = await trainers._all([actors[0].open_rendezvous.remote()])
        await trainers._all(
            [
                actor.load.remote(rank, place, rendezvous, resume)
                for rank, (actor, place) in enumerate(zip(actors, _places(pods), strict=True))
            ]
        )
        return trainers

    async def maker(self, name: str) -> RayMaker:
        """Place a maker and load its model. Raises MakerLost, RunFailure."""
        actor = maker_actor.options(resources={names.MAKER_RESOURCE: 1}).remote(self._config_json)
        try:
            sharing = self._config.makers.tensor_parallel
            pod, pid = await of_maker(name, actor.hello.remote(self._probe, self._threads, sharing))
            await of_maker(name, actor.load.remote(self._columns))
        except BaseException:
            ray.kill(actor)
            raise
        settings = self._config.trainers
        return RayMaker(actor, name, pod, pid, settings.replicas // settings.tensor_parallel)


def _places(pods: Sequence[str]) -> list[int]:
    """Each rank's number among those of its pod; without pods, of its machine, which starts the actor's name."""
    hosts = [pod.partition("/")[0] for pod in pods]
    return [hosts[:rank].count(host) for rank, host in enumerate(hosts)]


def connect(config: RunConfig) -> bool:
    """Connect to the cluster that RAY_ADDRESS names; without one, start Ray on this machine. True if it was started."""
    # Ray asks before it tells its makers about usage; a training job is no place for that.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if os.environ.get("RAY_ADDRESS"):
        ray.init(address="auto")
        return False
    ray.init(
        address="local",
        include_dashboard=False,
        num_cpus=1,
        resources={names.MAKER_RESOURCE: config.makers.replicas, names.TRAINER_RESOURCE: config.trainers.replicas},
        object_store_memory=LOCAL_OBJECT_STORE_BYTES,
    )
    return True


def disconnect() -> None:
    """Leave the cluster, or end the local Ray; actors end with it."""
    ray.shutdown()
