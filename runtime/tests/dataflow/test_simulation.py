"""Random runs of the coordinator's loops in simulated time: whatever dies, hangs or is lost, the invariants hold.

Each seed is a job with random settings that is run, attempt by attempt, until its model is in storage. After each
round of the event loop the ledger, the bounds and the waits are checked; the fakes check what they are asked to do.
"""

import random
import tempfile
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from rlhf_runtime.dataflow.pace import Pace
from rlhf_runtime.dataflow.waits import waiting_now
from rlhf_runtime.storage.checkpoints import Checkpoints
from rlhf_runtime.storage.run_directory import RunDirectory
from simulated_run import Attempt, Faults, Seconds, World, config_of, failure_in
from virtual_time import VirtualTime

#: Seeds of one test, so that a failure is found and repeated quickly.
CHUNK = 50
MOST_ATTEMPTS = 60
#: Fewer looks, so that there are more runs.
PACE = Pace(look_every=2.0, tell_every=4.0, ping_every=5.0)


class Simulation:
    """One seed: its settings, its world, and the attempts that it takes."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = chance = random.Random(seed)
        self.folder = folder
        self.endings: Counter[str] = Counter()
        self.checks = 0
        prompts, bound = chance.choice([1, 2, 4, 5]), chance.choice([0, 0, 1, 2, 4])
        self.capacity = max(prompts, prompts * chance.choice([1, 1, 2, bound + 1, 3]))
        self.settings: dict[str, Any] = {
            "episodes": chance.choice([2, 4, 8]),
            "rollout": {"promptsPerEpisode": prompts, "samplesPerPrompt": 2, "maxNewTokens": 4},
            "makers": {"replicas": chance.choice([1, 2, 3, 5])},
            "maxStaleness": bound,
            "stalenessPolicy": chance.choice(["Wait", "DropAndRefill"]),
            "bufferCapacity": 2 * self.capacity,
            "maxBatchSamples": 2 * chance.choice([1, 2, 3, 8]),
            "checkpointEveryEpisodes": chance.choice([1, 2, 5]),
            "checkpointKeep": chance.choice([1, 2]),
        }
        if chance.random() < 0.7:
            self.settings["evaluation"] = {"uri": "/x", "everyEpisodes": chance.choice([1, 2, 3])}
        self.most_episodes: int = self.settings["episodes"]
        self.world = World(
            seed,
            seconds=Seconds(train=chance.choice([(0.5, 4.0), (0.1, 0.2), (10.0, 20.0)])),
            faults=Faults(
                maker_dies=chance.choice([0, 0, 0.05, 0.15]),
                maker_hangs=chance.choice([0, 0, 0.02]),
                sync_is_late=chance.choice([0, 0, 0.1]),
                payload_is_lost=chance.choice([0, 0, 0.1]),
                trainer_dies=chance.choice([0, 0, 0.1]),
                training_hangs=chance.choice([0, 0, 0, 0.02]),
            ),
            continues=chance.random() < 0.5,
        )

    def run(self) -> None:
        for number in range(1, MOST_ATTEMPTS):
            ending = self._attempt(number)
            self.endings[ending] += 1
            if ending == "Succeeded":
                return
        raise AssertionError(f"no success in {MOST_ATTEMPTS} attempts: {dict(self.endings)}")

    def _attempt(self, number: int) -> str:
        attempt = Attempt(
            config=config_of(self.folder, attempt=number, **self.settings),
            world=self.world,
            time=VirtualTime(),
            pace=PACE,
            on_start=self._disturb,
            questions=3,
        )
        attempt.time.loop.each_round(lambda seconds: self._check(attempt, seconds))
        try:
            attempt.run()
        except ExceptionGroup as group:
            ending = failure_in(group)
            self._check_failure(attempt, ending.reason, ending.message)
            self._check_journal(attempt)
            return ending.reason
        self._check_journal(attempt)
        self._check_success(attempt)
        return "Succeeded"

    def _disturb(self, attempt: Attempt) -> None:
        """Stops, live settings, other numbers of makers and jumps of the wall clock, at random times."""
        loop, channel, chance = attempt.time.loop, attempt.channel, self.chance

        def stop() -> None:
            channel.stop = True

        def change() -> None:
            episodes = chance.choice([attempt.flow.version, attempt.flow.version + 1, self.most_episodes])
            bound = chance.choice([0, 1, 4])
            update = {"generation": 2, "max_staleness": bound, "episodes": max(1, episodes)}
            channel.settings = channel.settings.model_copy(update=update)

        def jump() -> None:
            attempt.time.jump += timedelta(hours=chance.uniform(-100, 100))

        def resize() -> None:
            attempt.flow.slots.resize(chance.choice([1, 2, 3, 5]))

        for action, probability in ((stop, 0.2), (change, 0.2), (jump, 0.3), (resize, 0.4), (resize, 0.4)):
            if chance.random() < probability:
                loop.call_at(chance.uniform(0, 60), action)

    def _check(self, attempt: Attempt, seconds: float) -> None:
        """After each round of the loop; the next one is `seconds` later."""
        self.checks += 1
        flow, world = attempt.flow, self.world
        ledger, totals = flow.groups.ledger, flow.groups.ledger.totals
        assert totals.dispatched == (
            totals.trained + totals.buffered + totals.in_flight + totals.dropped_stale + totals.dropped_lost
        ), totals
        assert totals.dispatched == len(world.tries), "the ledger and the makers count different tries"
        assert ledger.occupied <= self.capacity, f"{ledger.occupied} groups, capacity {self.capacity}"
        assert flow.version == len(world.trained), "an episode is counted that was not trained, or the other way"
        assert flow.groups.summarised == totals.buffered, "summaries are not those of the buffered groups"
        if seconds > 0 and not world.at_work:
            assert waiting_now(flow), f"at {attempt.time.loop.time():g} s nobody works and no wait is named"

    def _check_failure(self, attempt: Attempt, reason: str, message: str) -> None:
        faults = self.world.faults
        possible = {
            "TrainerLost": faults.trainer_dies > 0,
            "Stopped": attempt.channel.stop,
            "MakerLost": faults.maker_dies + faults.maker_hangs > 0,
            "ProgressDeadlineExceeded": faults.training_hangs > 0,
        }
        assert possible.get(reason), f"{reason}: {message}"
        if faults.training_hangs == 0:
            assert attempt.time.loop.time() < 3000, f"{reason}: {message}"

    def _check_journal(self, attempt: Attempt) -> None:
        """No checkpoint is ahead of the journal, and what is resumed from is in it."""
        first, config = attempt.first, attempt.config
        newest = Checkpoints(RunDirectory(config.run_directory), config.attempt, 1).newest()
        episode = newest[1].episode if newest else 0
        assert first <= episode <= first + len(attempt.channel.episodes)

    def _check_success(self, attempt: Attempt) -> None:
        channel, world = attempt.channel, self.world
        episodes = len(world.trained)
        assert channel.settings.episodes <= episodes <= self.most_episodes
        assert world.cursors == list(range(episodes * self.settings["rollout"]["promptsPerEpisode"]))
        last = channel.states[-1]
        assert (last.policy_version, last.final_model) == (episodes, f"{attempt.config.run_directory}/model")
        assert attempt.first + len(channel.episodes) == episodes
        # Every drop is in one episode's report, but for those after the last report.
        dropped = last.ledger.dropped_stale + last.ledger.dropped_lost
        assert sum(report.dropped for report in channel.episodes) <= dropped


def in_memory() -> Path | None:
    """A folder whose files take no disk, where there is one."""
    return Path("/dev/shm") if Path("/dev/shm").is_dir() else None


def simulate(seeds: range) -> Counter[str]:
    """Run these seeds; how their attempts ended. Raises AssertionError that names the seed."""
    endings: Counter[str] = Counter()
    for seed in seeds:
        with tempfile.TemporaryDirectory(dir=in_memory()) as folder:
            simulation = Simulation(seed, Path(folder))
            try:
                simulation.run()
            except (Exception, ExceptionGroup) as error:
                raise AssertionError(f"seed {seed}, {dict(simulation.endings)}, {simulation.settings}") from error
            endings += simulation.endings
            endings["checks"] += simulation.checks
    return endings


@pytest.mark.parametrize("first", range(0, 500, CHUNK))
def test_random_runs_keep_every_invariant(first: int) -> None:
    endings = simulate(range(first, first + CHUNK))
    assert endings["Succeeded"] == CHUNK
    # The faults do occur.
    assert {"Stopped", "TrainerLost"} <= set(endings)


@pytest.mark.full
@pytest.mark.parametrize("first", range(500, 6000, 500))
def test_thousands_of_random_runs_keep_every_invariant(first: int) -> None:
    assert simulate(range(first, first + 500))["Succeeded"] == 500
