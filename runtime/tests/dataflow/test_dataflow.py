"""The coordinator's loops over workers that sleep instead of compute, die, and lose what they send.

The workers here are fakes for faults that real ones cannot be made to show on demand; test_local_run.py has the
real ones.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rlhf_api.run import RunConfig
from rlhf_runtime.data.prompts import HELD_OUT_INDEX, Prompt, TrainingPrompts
from rlhf_runtime.dataflow.episode_finisher import Standing, standing_of
from rlhf_runtime.dataflow.flow import Flow, MakerSlot
from rlhf_runtime.dataflow.watch import Watch
from rlhf_runtime.dataflow.wiring import Storage, run_dataflow
from rlhf_runtime.dataflow.workers import Made, MakerLost, PayloadLost
from rlhf_runtime.experience.buffer import ExperienceBuffer, ExperienceGroup
from rlhf_runtime.experience.messages import GroupSummary, Task, Trained, TrainedGroup
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.scheduling.ledger import Dispatch, Ledger
from rlhf_runtime.storage.checkpoints import Checkpoints, StagedFile, staged_files
from rlhf_runtime.storage.run_directory import RunDirectory
from rlhf_runtime.weight_sync.manifest import Manifest, Order, Publication
from tiny_prompts import prompt_set
from tiny_run import RecordingChannel, run_config


class World:
    """What the fakes share: chance, faults, and what really happened."""

    def __init__(self, seed: int = 0, *, death: float = 0.0, loss: float = 0.0, slow_sync: float = 0.0) -> None:
        self.chance = random.Random(seed)
        self.death, self.loss, self.slow_sync = death, loss, slow_sync
        self.trained: list[Dispatch] = []
        self.staleness: list[int] = []
        self.versions: dict[Dispatch, int] = {}
        self.evaluated: list[tuple[int, int]] = []
        self.makers_placed = 0
        self.trainers_version = 0

    async def work(self) -> None:
        await asyncio.sleep(self.chance.random() * 0.004)


class FakeMaker:
    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.pod, self.version = world, name, f"pod-of-{name}", -1
        self.killed = False

    async def make(self, tasks: Sequence[Task]) -> Made:
        version = self.version
        assert version >= 0, "asked to sample before the first sync"
        await self.world.work()
        self._maybe_die()
        for task in tasks:
            self.world.versions[task.dispatch] = version
        groups = tuple(
            GroupSummary(
                dispatch=task.dispatch,
                oldest_version=version,
                rewards=(0.0, 1.0),
                rewards_each={"ones": (0.0, 1.0)},
                tokens=6,
                truncated=1,
                shown=(),
            )
            for task in tasks
        )
        return Made(groups, ([ExperienceGroup(task.dispatch, ()) for task in tasks],))

    async def evaluate(self, prompts: Sequence[Prompt], version: int) -> list[float]:
        assert version == self.version
        await self.world.work()
        self._maybe_die()
        assert version == self.version, "a version came into use in the middle of an evaluation"
        self.world.evaluated += [(version, prompt.index - HELD_OUT_INDEX) for prompt in prompts]
        return [float(version)] * len(prompts)

    async def receive(self, publication: Publication, seconds: float) -> None:
        await self.world.work()
        self._maybe_die()
        if self.world.chance.random() < self.world.slow_sync:
            raise TimeoutError
        assert publication.version > self.version
        self.version = publication.version

    async def ping(self, seconds: float) -> None:
        await self.world.work()

    def kill(self) -> None:
        self.killed = True

    def _maybe_die(self) -> None:
        if self.killed or self.world.chance.random() < self.world.death:
            self.killed = True
            raise MakerLost(f"{self.name} died")


class FakeTrainers:
    pods = ["trainer-pod"]

    def __init__(self, world: World, capacity: int, version: int) -> None:
        self.world, self.buffer, self.version = world, ExperienceBuffer(capacity), version

    async def receive(self, made: Made, admitted: Sequence[Dispatch]) -> None:
        await self.world.work()
        if self.world.chance.random() < self.world.loss:
            raise PayloadLost("its node is gone")
        self.buffer.add(group for group in made.payloads[0] if group.dispatch in admitted)

    async def forget(self, dispatches: Sequence[Dispatch]) -> None:
        self.buffer.forget(dispatches)

    async def train(self, dispatches: Sequence[Dispatch], version: int) -> Trained:
        assert version == self.version + 1
        self.buffer.take(dispatches)
        await self.world.work()
        self.world.trained += dispatches
        self.world.staleness += [self.version - self.world.versions[dispatch] for dispatch in dispatches]
        self.version += 1
        return Trained(
            loss=0.1,
            kl=0.0,
            entropy=1.0,
            clip_fraction=0.0,
            gradient_norm=1.0,
            effective_sample_size=1.0,
            reference_kl=None,
            teacher_kl=None,
            value_loss=None,
            explained_variance=None,
            moved=True,
            optimizer_steps=self.version,
            groups=tuple(TrainedGroup(dispatch.cursor, 2) for dispatch in dispatches),
        )

    async def publish(self, order: Order, *, must_differ: bool, seconds: float) -> Publication:
        assert order.version == self.version
        await self.world.work()
        return Publication(Manifest(order, (), must_differ), (), "")

    async def save(self, folder: Path, *, resumable: bool) -> list[StagedFile]:
        await asyncio.to_thread(folder.mkdir)
        await asyncio.to_thread((folder / "weights").write_text, str(self.version))
        return staged_files(folder)

    async def ping(self, seconds: float) -> None: ...

    def kill(self) -> None: ...


class FakeWorkers:
    def __init__(self, world: World, config: RunConfig, version: int) -> None:
        self.world, self.config, self.version = world, config, version

    async def trainers(self, resume: Path | None) -> FakeTrainers:
        if resume is not None:
            assert (resume / "weights").read_text() == str(self.version)
        return FakeTrainers(self.world, self.config.buffer_capacity // 2, self.version)

    async def maker(self, name: str) -> FakeMaker:
        self.world.makers_placed += 1
        await self.world.work()
        if self.world.chance.random() < self.world.death:
            raise MakerLost(f"{name} died while its model was loaded")
        return FakeMaker(self.world, name)


def prompts(count: int) -> TrainingPrompts:
    return TrainingPrompts(prompt_set(*map(str, range(count))), seed=1)


def held_out(count: int) -> list[Prompt]:
    return [Prompt(index=HELD_OUT_INDEX + i, row=i, text="", token_ids=(1,), columns={}) for i in range(count)]


def config_of(folder: Path, **changes: Any) -> RunConfig:
    """Groups of 2 samples, 4 prompts an episode, 6 episodes."""
    base: dict[str, Any] = {
        "episodes": 6,
        "rollout": {"promptsPerEpisode": 4, "samplesPerPrompt": 2, "maxNewTokens": 4},
        "maxBatchSamples": 4,
        "bufferCapacity": 16,
        "progressDeadlineSeconds": 20,
        "preRunningDeadlineSeconds": 20,
    }
    return run_config(folder, Path("/nowhere"), **{**base, **changes})


async def run(
    world: World, config: RunConfig, channel: RecordingChannel | None = None, questions: int = 5
) -> tuple[RecordingChannel, Standing]:
    """One attempt over fakes."""
    channel = channel or RecordingChannel(config)
    directory = RunDirectory(config.run_directory)
    directory.attempt(config.attempt).path.mkdir(parents=True)
    checkpoints = Checkpoints(directory, config.attempt, config.checkpoint_keep)
    standing = standing_of(checkpoints.newest())
    first = standing.latest_episode
    flow = Flow(
        config=config,
        channel=channel,
        ledger=Ledger(prompts_per_episode=config.rollout.prompts_per_episode, first_episode=first),
        version=first,
        slots=[MakerSlot(i) for i in range(config.makers.replicas)],
    )
    watch = Watch(flow, standing)
    await run_dataflow(
        FakeWorkers(world, config, first),
        flow,
        watch,
        storage=Storage(directory=directory, checkpoints=checkpoints),
        standing=standing,
        training=prompts(30),
        held_out=held_out(questions),
    )
    await watch.tell()
    return channel, standing


def failure_in(group: BaseExceptionGroup[Any]) -> RunFailure:
    [failure] = [error for error in _leaves(group) if isinstance(error, RunFailure)]
    return failure


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


def cursors(dispatches: Sequence[Dispatch]) -> list[int]:
    return [dispatch.cursor for dispatch in dispatches]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of the real thing, shortened."""
    monkeypatch.setattr("rlhf_runtime.dataflow.maker_loop.REPLACE_AFTER_SECONDS", 0.001)
    monkeypatch.setattr("rlhf_runtime.dataflow.maker_loop.SYNC_AGAIN_AFTER_SECONDS", 0.001)
    monkeypatch.setattr("rlhf_runtime.dataflow.maker_loop.PING_EVERY_SECONDS", 0.002)
    monkeypatch.setattr("rlhf_runtime.dataflow.watch.LOOK_EVERY_SECONDS", 0.02)


@pytest.mark.parametrize("policy", ["Wait", "DropAndRefill"])
@pytest.mark.parametrize(("makers", "bound", "capacity"), [(1, 0, 8), (2, 0, 16), (1, 1, 16), (3, 1, 10), (2, 3, 40)])
async def test_each_planned_prompt_is_trained_once_and_within_the_bound(
    tmp_path: Path, policy: str, makers: int, bound: int, capacity: int
) -> None:
    world = World(seed=makers)
    config = config_of(
        tmp_path, stalenessPolicy=policy, makers={"replicas": makers}, maxStaleness=bound, bufferCapacity=capacity
    )
    channel, standing = await run(world, config)
    assert cursors(world.trained) == list(range(24))
    assert max(world.staleness) <= bound
    assert [report.episode for report in channel.episodes] == [1, 2, 3, 4, 5, 6]
    assert standing.final_model == f"{config.run_directory}/model"
    ledger = channel.states[-1].ledger
    assert (ledger.trained, ledger.buffered, ledger.in_flight) == (24, 0, 0)
    assert ledger.dispatched == 24 + ledger.dropped_stale + ledger.dropped_lost


@pytest.mark.parametrize("seed", range(6))
async def test_makers_that_die_and_payloads_that_are_lost_change_nothing_in_what_is_trained(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlhf_runtime.dataflow.maker_loop.MAX_LOSSES", 50)
    world = World(seed, death=0.1, loss=0.1, slow_sync=0.2)
    policy = ["Wait", "DropAndRefill"][seed % 2]
    config = config_of(
        tmp_path,
        makers={"replicas": 1 + seed % 3},
        maxStaleness=seed % 2,
        stalenessPolicy=policy,
        evaluation={"uri": "/x", "everyEpisodes": 2},
    )
    channel, _ = await run(world, config)
    assert cursors(world.trained) == list(range(24))
    assert max(world.staleness) <= config.max_staleness
    # The run may end before the last of the lost makers has its replacement.
    assert (
        0
        <= channel.states[-1].repairs.makers - (world.makers_placed - config.makers.replicas)
        <= config.makers.replicas
    )
    assert channel.states[-1].repairs.makers + channel.states[-1].ledger.dropped_lost > 0
    # A maker that died in the middle of an evaluation may have been asked twice; no question was left out.
    for version in (0, 2, 4, 6):
        assert {question for v, question in world.evaluated if v == version} == set(range(5))


async def test_every_due_version_is_evaluated_by_that_version_and_the_best_checkpoint_kept(tmp_path: Path) -> None:
    world = World()
    config = config_of(
        tmp_path,
        evaluation={"uri": "/x", "everyEpisodes": 4},
        checkpointEveryEpisodes=5,
        checkpointKeep=1,
        makers={"replicas": 2},
    )
    channel, standing = await run(world, config)
    assert Counter(world.evaluated) == Counter((v, q) for v in (0, 4, 6) for q in range(5))
    assert [report.score for report in channel.episodes] == [None, None, None, 4.0, None, 6.0]
    assert channel.states[-1].initial_score == 0.0
    assert standing.best_checkpoint == f"{config.run_directory}/attempts/00001/checkpoints/episode-000006"


async def test_a_best_checkpoint_outlives_newer_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def falling(self: FakeMaker, prompts: Sequence[Prompt], version: int) -> list[float]:
        return [-float(version)] * len(prompts)

    monkeypatch.setattr(FakeMaker, "evaluate", falling)
    config = config_of(
        tmp_path, evaluation={"uri": "/x", "everyEpisodes": 2}, checkpointEveryEpisodes=1, checkpointKeep=1
    )
    _, standing = await run(World(), config)
    folder = Path(config.run_directory) / "attempts" / "00001" / "checkpoints"
    assert standing.best_checkpoint == str(folder / "episode-000002")
    assert sorted(path.name for path in folder.iterdir()) == ["episode-000002", "episode-000006"]


async def test_no_checkpoint_is_ahead_of_the_journal(tmp_path: Path) -> None:
    config = config_of(tmp_path, checkpointEveryEpisodes=1)
    folder = Path(config.run_directory) / "attempts" / "00001" / "checkpoints"

    class SlowJournal(RecordingChannel):
        async def episode(self, report: Any) -> None:
            await asyncio.sleep(0.02)
            assert not (folder / f"episode-{report.episode:06d}").exists()
            await super().episode(report)

    channel, _ = await run(World(), config, SlowJournal(config))
    assert len(channel.episodes) == 6


class StopsAfter(RecordingChannel):
    """Asks to stop when it hears of this episode."""

    def __init__(self, config: RunConfig, episode: int) -> None:
        super().__init__(config)
        self.last = episode

    async def episode(self, report: Any) -> None:
        await super().episode(report)
        self.stop = self.stop or report.episode >= self.last


@pytest.mark.parametrize("seed", range(5))
async def test_a_stop_saves_what_is_trained_and_the_next_attempt_goes_on_from_there(tmp_path: Path, seed: int) -> None:
    config = config_of(tmp_path, episodes=40, checkpointEveryEpisodes=30, evaluation={"uri": "/x"})
    first, world = StopsAfter(config, 2), World(seed)
    with pytest.raises(ExceptionGroup) as raised:
        await run(world, config, first)
    failure = failure_in(raised.value)
    assert failure.reason == "Stopped"
    trained = len(first.episodes)
    assert len(world.trained) == trained * 4
    assert f"resumes after episode {trained}" in failure.message

    config = config_of(tmp_path, episodes=trained + 3, attempt=2)
    second = RecordingChannel(config)
    resumed = World()
    resumed.versions = world.versions
    await run(resumed, config, second)
    assert cursors(world.trained + resumed.trained) == list(range((trained + 3) * 4))
    assert second.states[0].resumed_from == trained
    assert [report.episode for report in second.episodes] == [trained + 1, trained + 2, trained + 3]


async def test_fewer_episodes_and_another_bound_are_taken_while_it_runs(tmp_path: Path) -> None:
    config = config_of(tmp_path, episodes=1000, maxStaleness=3, bufferCapacity=40)

    class Changing(RecordingChannel):
        async def episode(self, report: Any) -> None:
            await super().episode(report)
            if report.episode == 2:
                self.settings = self.settings.model_copy(update={"generation": 2, "max_staleness": 0, "episodes": 9})

    world = World()
    channel, _ = await run(world, config, Changing(config))
    assert 9 <= len(channel.episodes) <= 10
    assert channel.states[-1].applied_generation == 2
    assert channel.episodes[-1].staleness_max == 0


async def test_a_maker_that_always_dies_ends_the_attempt_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await run(World(death=1.0), config_of(tmp_path))
    failure = failure_in(raised.value)
    assert failure.reason == "MakerLost"
    assert "6 times in a row" in failure.message
    assert not failure.permanent


async def test_a_run_without_progress_fails_and_names_its_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(self: FakeMaker, tasks: Sequence[Task]) -> Made:
        await asyncio.sleep(100)
        raise AssertionError

    monkeypatch.setattr(FakeMaker, "make", hangs)
    monkeypatch.setattr("rlhf_runtime.dataflow.waits.SILENT_SECONDS", 0.1)
    with pytest.raises(ExceptionGroup) as raised:
        await run(World(), config_of(tmp_path, progressDeadlineSeconds=1))
    failure = failure_in(raised.value)
    assert failure.reason == "ProgressDeadlineExceeded"
    assert "episode 1 has 0 of 4 groups (PartitionUnderfilled)" in failure.message


async def test_makers_without_a_pod_fail_the_attempt_at_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(self: FakeWorkers, name: str) -> FakeMaker:
        await asyncio.sleep(100)
        raise AssertionError

    monkeypatch.setattr(FakeWorkers, "maker", never)
    monkeypatch.setattr("rlhf_runtime.dataflow.waits.SILENT_SECONDS", 0.1)
    with pytest.raises(ExceptionGroup) as raised:
        await run(World(), config_of(tmp_path, preRunningDeadlineSeconds=1))
    failure = failure_in(raised.value)
    assert failure.reason == "PreRunningDeadlineExceeded"
    assert "maker-0 waits for a pod and its model (PlacementPending)" in failure.message


async def test_an_episode_quicker_than_the_watch_is_told_after_the_state_that_begins_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlhf_runtime.dataflow.watch.LOOK_EVERY_SECONDS", 5.0)
    channel, _ = await run(World(), config_of(tmp_path, episodes=1))
    assert len(channel.episodes) == 1


async def test_makers_that_wait_for_weights_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(self: FakeTrainers, dispatches: Sequence[Dispatch], version: int) -> Trained:
        await asyncio.sleep(0.3)
        return await quick(self, dispatches, version)

    quick = FakeTrainers.train
    monkeypatch.setattr(FakeTrainers, "train", slow)
    monkeypatch.setattr("rlhf_runtime.dataflow.waits.SILENT_SECONDS", 0.1)
    monkeypatch.setattr("rlhf_runtime.dataflow.watch.TELL_EVERY_SECONDS", 0.05)
    channel, _ = await run(World(), config_of(tmp_path, episodes=2, maxStaleness=0))
    reasons = {wait.reason for state in channel.states for wait in state.waits}
    assert "StalenessBudgetExhausted" in reasons
