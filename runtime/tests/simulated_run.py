"""The coordinator's loops in simulated time, over workers that sleep instead of compute, die, and lose what they send.

The workers are fakes, for faults and orders of events that real ones cannot be made to show. The loops, ledger,
buffer, checkpoints and files are the real ones.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf_api.run import RunConfig
from rlhf_api.status import EpisodeReport, TrainingFigures
from rlhf_runtime.data.prompts import HELD_OUT_INDEX, Prompt, TrainingPrompts
from rlhf_runtime.dataflow.flow import Flow, start_flow
from rlhf_runtime.dataflow.pace import Pace
from rlhf_runtime.dataflow.progress import RunProgress
from rlhf_runtime.dataflow.storage import Storage
from rlhf_runtime.dataflow.wiring import run_dataflow
from rlhf_runtime.dataflow.workers import Made, MakerLost, PayloadLost
from rlhf_runtime.experience.buffer import ExperienceBuffer, ExperienceGroup
from rlhf_runtime.experience.messages import GroupSummary, Task, Trained, TrainedGroup
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.scheduling.ledger import Dispatch
from rlhf_runtime.storage.calls import StorageCalls
from rlhf_runtime.storage.checkpoints import Checkpoints, StagedFile, staged_files
from rlhf_runtime.storage.run_directory import RunDirectory
from rlhf_runtime.weight_sync.manifest import Manifest, Order, Publication
from tiny_prompts import prompt_set
from tiny_run import RecordingChannel, run_config
from virtual_time import VirtualTime, at_once

FOREVER = 1e9
PROMPTS = TrainingPrompts(prompt_set(*map(str, range(30))), seed=1)
Range = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Shortest and longest time that each kind of work takes."""

    place: Range = (0.0, 5.0)
    place_trainers: Range = (1.0, 1.0)
    make: Range = (0.5, 8.0)
    score: Range = (0.0, 1.0)
    evaluate: Range = (0.2, 2.0)
    receive_version: Range = (0.0, 0.5)
    receive_groups: Range = (0.0, 3.0)
    train: Range = (0.5, 4.0)
    publish: Range = (0.0, 0.3)
    save: Range = (0.0, 2.0)
    journal: Range = (0.0, 0.2)
    storage: Range = (0.0, 0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Probability of each, every time that it could happen."""

    maker_dies: float = 0.0
    maker_hangs: float = 0.0
    sync_is_late: float = 0.0
    payload_is_lost: float = 0.0
    trainer_dies: float = 0.0
    training_hangs: float = 0.0


@dataclass(slots=True)
class World:
    """What the fakes of a run share, over all its attempts: chance, faults, and what really happened."""

    seed: int = 0
    seconds: Seconds = field(default_factory=Seconds)
    faults: Faults = field(default_factory=Faults)
    score: Callable[[int], float] = float
    """Reward of every held-out prompt by the policy of a version."""
    continues: bool = False
    """Makers take up a version in the middle of a batch."""
    chance: random.Random = field(init=False)
    at_work: int = 0
    """Pieces of work that go on and will end."""
    tries: dict[Dispatch, int] = field(default_factory=dict)
    """Every try of the running attempt, and the oldest version that sampled it."""
    trained: dict[int, list[int]] = field(default_factory=dict)
    """Cursors trained, by episode from 0, of the lineage that counts."""
    staleness: list[int] = field(default_factory=list)
    """Of every group when it was trained."""
    evaluated: list[tuple[int, int]] = field(default_factory=list)
    """Version and number of every held-out prompt that was sampled."""
    makers_placed: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def happens(self, probability: float) -> bool:
        return probability > 0 and self.chance.random() < probability

    async def work(self, seconds: Range) -> None:
        with self.working():
            await asyncio.sleep(self.chance.uniform(*seconds))

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        self.at_work += 1
        try:
            yield
        finally:
            self.at_work -= 1

    @property
    def cursors(self) -> list[int]:
        """All that was trained, in the order of the episodes."""
        return [cursor for episode in sorted(self.trained) for cursor in self.trained[episode]]

    def resumes(self, episode: int) -> None:
        """A new attempt goes on after this many episodes: what was trained later does not count."""
        self.tries = {}
        self.trained = {number: cursors for number, cursors in self.trained.items() if number < episode}
        assert sorted(self.trained) == list(range(episode)), "an episode that was never trained is resumed from"


class FakeMaker:
    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.pod, self.version = world, name, f"pod-of-{name}", -1
        self.dead, self.hung = False, False
        self.engine = asyncio.Lock()

    async def make(self, tasks: Sequence[Task]) -> Made:
        assert self.version >= 0, "asked to sample before the first sync"
        world = self.world
        world.tries |= dict.fromkeys((task.dispatch for task in tasks), self.version)
        async with self.engine:
            oldest = self.version
            world.tries |= dict.fromkeys((task.dispatch for task in tasks), oldest)
            await world.work(world.seconds.make)
            self._may_die()
            if world.happens(world.faults.maker_hangs):
                self.hung = True
                await asyncio.sleep(FOREVER)
        await world.work(world.seconds.score)
        groups = tuple(_summary(task.dispatch, oldest) for task in tasks)
        return Made(groups, ([ExperienceGroup(task.dispatch, ()) for task in tasks],))

    async def evaluate(self, prompts: Sequence[Prompt], version: int) -> list[float]:
        assert version == self.version, "evaluates a version that it does not hold"
        async with self.engine:
            await self.world.work(self.world.seconds.evaluate)
            self._may_die()
            assert version == self.version, "a version came into use in the middle of an evaluation"
        self.world.evaluated += [(version, prompt.index - HELD_OUT_INDEX) for prompt in prompts]
        return [self.world.score(version)] * len(prompts)

    async def receive(self, publication: Publication, seconds: float) -> None:
        async with asyncio.timeout(seconds):
            await self.world.work(self.world.seconds.receive_version)
            self._may_die()
            if self.world.happens(self.world.faults.sync_is_late):
                raise TimeoutError
            async with contextlib.nullcontext() if self.world.continues else self.engine:
                assert publication.version > self.version, "an older version than the one in use"
                self.version = publication.version

    async def ping(self, seconds: float) -> None:
        await asyncio.sleep(0.01)
        if self.hung:
            await asyncio.sleep(seconds)
        if self.hung or self.dead:
            raise MakerLost(f"{self.name} does not answer")

    def kill(self) -> None:
        self.dead = True

    def _may_die(self) -> None:
        if self.dead or self.world.happens(self.world.faults.maker_dies):
            self.dead = True
            raise MakerLost(f"{self.name} died")


def _summary(dispatch: Dispatch, oldest: int) -> GroupSummary:
    return GroupSummary(
        dispatch=dispatch,
        oldest_version=oldest,
        rewards=(0.0, 1.0),
        rewards_each={"ones": (0.0, 1.0)},
        tokens=6,
        truncated=1,
        shown=(),
    )


class FakeTrainers:
    pods = ["trainer-pod"]

    def __init__(self, world: World, channel: RecordingChannel, capacity: int, version: int) -> None:
        self.world, self.channel, self.version = world, channel, version
        self.buffer = ExperienceBuffer(capacity)

    async def receive(self, made: Made, admitted: Sequence[Dispatch]) -> None:
        world, kept = self.world, set(admitted)
        lost = world.happens(world.faults.payload_is_lost)
        some_arrive = not lost or world.happens(0.5)

        async def arrive() -> None:
            await world.work(world.seconds.receive_groups)
            if some_arrive:
                self.buffer.add(group for group in made.payloads[0] if group.dispatch in kept)

        # A call of another process goes on when its caller is cancelled.
        await asyncio.shield(asyncio.ensure_future(arrive()))
        if lost:
            raise PayloadLost("its node is gone")

    async def forget(self, dispatches: Sequence[Dispatch]) -> None:
        await self.world.work(self.world.seconds.storage)
        self.buffer.forget(dispatches)

    async def train(self, dispatches: Sequence[Dispatch], version: int) -> Trained:
        world = self.world
        assert version == self.version + 1, f"asked for version {version} at version {self.version}"
        behind = [self.version - world.tries[dispatch] for dispatch in dispatches]
        bound = self.channel.settings.max_staleness
        assert max(behind) <= bound, f"a group {max(behind)} versions behind is trained, the bound is {bound}"
        self.buffer.take(dispatches)
        await world.work(world.seconds.train)
        if world.happens(world.faults.training_hangs):
            with world.working():
                await asyncio.sleep(FOREVER)
        if world.happens(world.faults.trainer_dies):
            raise RunFailure("TrainerLost", "a trainer died", permanent=False)
        assert self.version not in world.trained, f"episode {self.version} is trained twice"
        world.trained[self.version] = [dispatch.cursor for dispatch in dispatches]
        world.staleness += behind
        self.buffer.trained(max(dispatch.cursor for dispatch in dispatches) + 1)
        self.version += 1
        return Trained(
            figures=TrainingFigures(
                loss=0.1,
                kl=0.0,
                entropy=1.0,
                clip_fraction=0.0,
                gradient_norm=1.0,
                effective_sample_size=1.0,
            ),
            moved=True,
            optimizer_steps=self.version,
            groups=tuple(TrainedGroup(dispatch.cursor, 2) for dispatch in dispatches),
        )

    async def publish(self, order: Order, *, must_differ: bool, seconds: float) -> Publication:
        assert order.version == self.version
        await self.world.work(self.world.seconds.publish)
        return Publication(Manifest(order, (), must_differ), (), "")

    async def save(self, folder: Path, *, resumable: bool) -> list[StagedFile]:
        version = self.version
        await at_once(_write_weights, folder, version)
        await self.world.work(self.world.seconds.save)
        assert version == self.version, "trained in the middle of a save"
        return staged_files(folder)

    async def ping(self, seconds: float) -> None: ...

    def kill(self) -> None: ...


def _write_weights(folder: Path, version: int) -> None:
    folder.mkdir()
    (folder / "weights").write_text(str(version))


class FakeWorkers:
    def __init__(self, world: World, channel: RecordingChannel, config: RunConfig, version: int) -> None:
        self.world, self.channel, self.config, self.version = world, channel, config, version

    async def trainers(self, resume: Path | None) -> FakeTrainers:
        await self.world.work(self.world.seconds.place_trainers)
        if resume is not None:
            assert (resume / "weights").read_text() == str(self.version)
        capacity = self.config.buffer_capacity // self.config.rollout.samples_per_prompt
        return FakeTrainers(self.world, self.channel, capacity, self.version)

    async def maker(self, name: str) -> FakeMaker:
        self.world.makers_placed += 1
        await self.world.work(self.world.seconds.place)
        if self.world.happens(self.world.faults.maker_dies):
            raise MakerLost(f"{name} died while its model was loaded")
        return FakeMaker(self.world, name)


class SimulatedSupervisor(RecordingChannel):
    """Takes its time for the journal; `on_episode` may act, for instance change the settings or ask to stop."""

    def __init__(
        self,
        config: RunConfig,
        world: World,
        on_episode: Callable[["SimulatedSupervisor", EpisodeReport], None] | None = None,
    ) -> None:
        super().__init__(config)
        self._world, self._on_episode = world, on_episode

    async def episode(self, report: EpisodeReport) -> None:
        await self._world.work(self._world.seconds.journal)
        expected = self.states[-1].resumed_from + len(self.episodes) + 1
        assert report.episode == expected, f"episode {report.episode} is journaled, expected {expected}"
        await super().episode(report)
        if self._on_episode is not None:
            self._on_episode(self, report)


def failure_in(group: ExceptionGroup[Exception]) -> RunFailure:
    """The failure that ended an attempt. Raises the group if it holds anything else."""
    failures, others = group.split(RunFailure)
    if failures is None or others is not None:
        raise group
    error: Exception = failures
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, RunFailure)
    return error


def config_of(folder: Path, **changes: Any) -> RunConfig:
    """Groups of 2 samples, 4 prompts an episode, 6 episodes."""
    base: dict[str, Any] = {
        "episodes": 6,
        "rollout": {"promptsPerEpisode": 4, "samplesPerPrompt": 2, "maxNewTokens": 4},
        "maxBatchSamples": 4,
        "bufferCapacity": 16,
        "progressDeadlineSeconds": 600,
        "preRunningDeadlineSeconds": 600,
    }
    return run_config(folder, Path("/nowhere"), **{**base, **changes})


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One attempt at a run: set it up, run it once, and look at what it left."""

    config: RunConfig
    world: World = field(default_factory=World)
    time: VirtualTime = field(default_factory=VirtualTime)
    pace: Pace = field(default_factory=Pace)
    on_episode: Callable[[SimulatedSupervisor, EpisodeReport], None] | None = None
    on_start: Callable[["Attempt"], None] | None = None
    questions: int = 5
    channel: SimulatedSupervisor = field(init=False)
    checkpoints: Checkpoints = field(init=False)
    flow: Flow = field(init=False)

    def __post_init__(self) -> None:
        config, directory = self.config, RunDirectory(self.config.run_directory)
        self.channel = SimulatedSupervisor(config, self.world, self.on_episode)
        directory.attempt(config.attempt).path.mkdir(parents=True)
        self.checkpoints = Checkpoints(directory, config.attempt, config.checkpoint_keep)
        clock = self.time.clock
        progress = RunProgress(clock, self.checkpoints.newest())
        self.world.resumes(progress.resumed_from)
        held_out = [
            Prompt(index=HELD_OUT_INDEX + i, row=i, text="", token_ids=(1,), columns={}) for i in range(self.questions)
        ]
        self.flow = start_flow(config, self.channel, progress, held_out=held_out, clock=clock, pace=self.pace)

    @property
    def first(self) -> int:
        """Episodes of earlier attempts that this one builds on."""
        return self.flow.progress.resumed_from

    def run(self) -> "Attempt":
        """To the end. Raises what ends the attempt, in a group."""
        self.time.run(self._run())
        return self

    def failure(self) -> RunFailure:
        """Run to the end, which must be a RunFailure."""
        try:
            self.run()
        except ExceptionGroup as group:
            return failure_in(group)
        raise AssertionError("the attempt succeeded")

    async def _run(self) -> None:
        if self.on_start is not None:
            self.on_start(self)
        await run_dataflow(
            FakeWorkers(self.world, self.channel, self.config, self.flow.version),
            self.flow,
            Storage(
                directory=RunDirectory(self.config.run_directory),
                checkpoints=self.checkpoints,
                calls=StorageCalls(beside=at_once),
            ),
            PROMPTS,
        )
