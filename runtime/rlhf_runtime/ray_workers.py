"""The workers of a run in a Ray cluster: places the actors, calls them, and says what their errors mean."""

import asyncio
import os
import time
import traceback
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import ObjectLostError, RayActorError, RayTaskError
from rlhf_api import names
from rlhf_api.conditions import TRAINER_LOST, WEIGHT_SYNC_FAILED
from rlhf_api.run import RunConfig
from rlhf_api.tails import last_lines

from rlhf_runtime.actors import maker_actor, trainer_actor
from rlhf_runtime.data.prompts import Prompt
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.ledger import Dispatch
from rlhf_runtime.topology import rank_of
from rlhf_runtime.weight_manifest import NotInPreparation, Order
from rlhf_runtime.workers import (
    GroupSummary,
    Made,
    MakerLost,
    PayloadLost,
    Publication,
    StagedFile,
    Task,
    Trained,
)

T = TypeVar("T")

#: Object store of a local run: small models, in memory that others want too.
LOCAL_OBJECT_STORE_BYTES = 512 * 2**20
#: When one rank fails, the others get so long to say their own, better reason, seconds.
_OTHER_RANKS_SECONDS = 3.0


class RayMaker:
    """A `workers.MakerHandle`; `ranks` of trainers that see different samples."""

    def __init__(self, actor: Any, name: str, pod: str, pid: int, ranks: int) -> None:
        self._actor = actor
        self._ranks = ranks
        self.name = name
        self.pod = pod
        self.pid = pid

    async def make(self, tasks: Sequence[Task]) -> Made:
        """As long as it takes: a maker that hangs misses its pings, or the progress deadline."""
        summaries, *payloads = self._actor.make.options(num_returns=1 + self._ranks).remote(tasks, self._ranks)
        groups: tuple[GroupSummary, ...] = await _of_maker(self.name, summaries)
        return Made(groups, tuple(payloads))

    async def evaluate(self, prompts: Sequence[Prompt], version: int) -> list[float]:
        return await _of_maker(self.name, self._actor.evaluate.remote(prompts, version))

    async def receive(self, publication: Publication, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        order = publication.manifest.order
        async with asyncio.timeout(seconds):
            if not await self._sync(self._actor.prepare.remote(publication.manifest, seconds)):
                # It was accepted in an earlier try, and put into use when the batch of that time ended.
                return
            for index, (digest, payload) in enumerate(publication.buckets):
                await self._sync(self._actor.stage.remote(order, index, digest, payload))
            left = deadline - time.monotonic()
            if not await self._sync(self._actor.commit.remote(order, publication.digest, left, publication.probe)):
                raise TimeoutError(f"{self.name} is in one batch for more than {seconds} s")

    async def ping(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await _of_maker(self.name, self._actor.tend.remote())
        except TimeoutError as error:
            raise MakerLost(f"{self.name} in {self.pod} has not answered for {seconds:g} s") from error

    def kill(self) -> None:
        ray.kill(self._actor)

    async def _sync(self, answer: Awaitable[T]) -> T:
        try:
            return await _of_maker(self.name, answer)
        except NotInPreparation as error:
            raise TimeoutError(str(error)) from error


class RayTrainers:
    """A `workers.TrainersHandle`: all ranks; rank 0 publishes and saves."""

    def __init__(self, actors: Sequence[Any], pods: list[str], pids: list[int]) -> None:
        self._actors = actors
        self.pods = pods
        self.pids = pids

    async def receive(self, made: Made, admitted: Sequence[Dispatch]) -> None:
        # Tensor-parallel peers are neighbours, and get the same.
        peers, data_ranks = len(self._actors) // len(made.payloads), len(made.payloads)
        calls = [
            actor.receive.remote(made.payloads[rank // peers], mine)
            for rank, actor in enumerate(self._actors)
            if (mine := [d for d in admitted if rank_of(d.cursor, data_ranks) == rank // peers])
        ]
        await self._all(calls)

    async def forget(self, dispatches: Sequence[Dispatch]) -> None:
        await self._all([actor.forget.remote(dispatches) for actor in self._actors])

    async def train(self, dispatches: Sequence[Dispatch], version: int) -> Trained:
        answers: list[Trained] = await self._all([actor.train.remote(dispatches, version) for actor in self._actors])
        return replace(answers[0], groups=tuple(group for answer in answers for group in answer.groups))

    async def publish(self, order: Order, *, must_differ: bool, seconds: float) -> Publication:
        try:
            async with asyncio.timeout(seconds):
                return await self._publish(order, must_differ)
        except TimeoutError as error:
            raise RunFailure(
                WEIGHT_SYNC_FAILED,
                f"{self.pods[0]} did not publish version {order.version} within {seconds:g} s "
                "(weightSync.deadlineSeconds)",
                permanent=False,
            ) from error

    async def save(self, folder: Path, *, resumable: bool) -> list[StagedFile]:
        # Weights that are divided over ranks come together by all ranks' work.
        files, *_ = await self._all([actor.save.remote(folder, resumable) for actor in self._actors])
        return list(files)

    async def ping(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._all([actor.ping.remote() for actor in self._actors])
        except TimeoutError as error:
            raise RunFailure(
                TRAINER_LOST, f"one of {self.pods} has not answered for {seconds:g} s", permanent=False
            ) from error

    def kill(self) -> None:
        for actor in self._actors:
            ray.kill(actor)

    async def _publish(self, order: Order, must_differ: bool) -> Publication:
        first = self._actors[0]
        # Weights that are divided over ranks come together by all ranks' work.
        manifest, *_ = await self._all([actor.prepare.remote(order, must_differ) for actor in self._actors])
        buckets = []
        for index in range(len(manifest.buckets)):
            digest, payload = first.shard.options(num_returns=2).remote(order, index)
            [found] = await self._all([digest])
            buckets.append((found, payload))
        [digest] = await self._all([first.commit.remote(order)])
        probe, *_ = await self._all([actor.probe.remote() for actor in self._actors])
        return Publication(manifest, tuple(buckets), digest, probe)

    async def _all(self, calls: Sequence[Any]) -> list[Any]:
        """The answers of all ranks, or the best reason for which one has none."""
        if not calls:
            return []
        tasks = [asyncio.ensure_future(_awaited(call)) for call in calls]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            if any(task.done() and task.exception() for task in tasks):
                # A collective breaks in all ranks when one dies: the dead one's reason is the better one.
                await asyncio.wait(tasks, timeout=_OTHER_RANKS_SECONDS)
                raise _best_reason([error for task in tasks if task.done() and (error := task.exception())], self.pods)
            return [task.result() for task in tasks]
        finally:
            for task in tasks:
                task.cancel()


class RayWorkers:
    """Places makers and trainers in the cluster that this process is connected to.

    `threads` each actor computes with; None: one actor has its pod to itself. `columns` that reward functions get.
    """

    def __init__(self, config: RunConfig, probe: str, threads: int | None, columns: tuple[str, ...]) -> None:
        self._config = config
        self._config_json = config.model_dump_json(by_alias=True, exclude_none=True)
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
            pod, pid = await _of_maker(name, actor.hello.remote(self._probe, self._threads, sharing))
            await _of_maker(name, actor.load.remote(self._columns))
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


async def _of_maker(name: str, answer: Awaitable[T]) -> T:
    try:
        return await _awaited(answer)
    except (RayActorError, MakerLost) as error:
        raise MakerLost(f"{name}: {_first_line(error)}") from error


async def _awaited(answer: Awaitable[T]) -> T:
    """An actor's answer, or the error that the actor raised itself. Raises RayActorError, PayloadLost."""
    try:
        return await answer
    except ObjectLostError as error:
        raise PayloadLost(_first_line(error)) from error
    except RayTaskError as error:
        if isinstance(error.cause, ObjectLostError):
            raise PayloadLost(_first_line(error.cause)) from error
        raise error.cause from error


def _best_reason(errors: Sequence[BaseException], pods: Sequence[str]) -> BaseException:
    for error in errors:
        if isinstance(error, RunFailure):
            return error
    for error in errors:
        if isinstance(error, RayActorError):
            return RunFailure(TRAINER_LOST, f"a trainer of {list(pods)} died: {_first_line(error)}", permanent=False)
    if isinstance(errors[0], PayloadLost):
        return errors[0]
    tail = last_lines("".join(traceback.format_exception(errors[0])))
    what = f"a trainer failed: {type(errors[0]).__name__}: {_first_line(errors[0])}"
    return RunFailure(TRAINER_LOST, what, permanent=False, tail=tail)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
