"""Named situations of the coordinator's loops, in simulated time. test_simulation.py has random ones."""

import errno
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from rlhf_api.status import EpisodeReport
from rlhf_runtime.dataflow.pace import Pace
from simulated_run import FOREVER, Attempt, Faults, Seconds, SimulatedSupervisor, World, config_of


@pytest.mark.parametrize("policy", ["Wait", "DropAndRefill"])
@pytest.mark.parametrize(("makers", "bound", "capacity"), [(1, 0, 8), (2, 0, 16), (1, 1, 16), (3, 1, 10), (2, 3, 40)])
def test_each_planned_prompt_is_trained_once_and_within_the_bound(
    tmp_path: Path, policy: str, makers: int, bound: int, capacity: int
) -> None:
    config = config_of(
        tmp_path, stalenessPolicy=policy, makers={"replicas": makers}, maxStaleness=bound, bufferCapacity=capacity
    )
    attempt = Attempt(config=config, world=World(seed=makers)).run()
    assert attempt.world.cursors == list(range(24))
    assert max(attempt.world.staleness) <= bound
    assert [report.episode for report in attempt.channel.episodes] == [1, 2, 3, 4, 5, 6]
    assert attempt.channel.states[-1].final_model == f"{config.run_directory}/model"
    ledger = attempt.channel.states[-1].ledger
    assert (ledger.trained, ledger.buffered, ledger.in_flight) == (24, 0, 0)
    assert ledger.dispatched == 24 + ledger.dropped_stale + ledger.dropped_lost


@pytest.mark.parametrize("seed", range(6))
def test_makers_that_die_and_payloads_that_are_lost_change_nothing_in_what_is_trained(
    tmp_path: Path, seed: int
) -> None:
    world = World(seed, faults=Faults(maker_dies=0.1, payload_is_lost=0.1, sync_is_late=0.2))
    policy = ["Wait", "DropAndRefill"][seed % 2]
    config = config_of(
        tmp_path,
        makers={"replicas": 1 + seed % 3},
        maxStaleness=seed % 2,
        stalenessPolicy=policy,
        evaluation={"uri": "/x", "everyEpisodes": 2},
    )
    channel = Attempt(config=config, world=world, pace=Pace(max_losses=50)).run().channel
    assert world.cursors == list(range(24))
    assert max(world.staleness) <= config.max_staleness
    # The run may end before the last of the lost makers has its replacement.
    repairs = channel.states[-1].repairs.makers
    assert 0 <= repairs - (world.makers_placed - config.makers.replicas) <= config.makers.replicas
    assert repairs + channel.states[-1].ledger.dropped_lost > 0
    # A maker that died in the middle of an evaluation may have been asked twice; no question was left out.
    for version in (0, 2, 4, 6):
        assert {question for v, question in world.evaluated if v == version} == set(range(5))


def test_every_due_version_is_evaluated_by_that_version_and_the_best_checkpoint_kept(tmp_path: Path) -> None:
    config = config_of(
        tmp_path,
        evaluation={"uri": "/x", "everyEpisodes": 4},
        checkpointEveryEpisodes=5,
        checkpointKeep=1,
        makers={"replicas": 2},
    )
    attempt = Attempt(config=config).run()
    assert Counter(attempt.world.evaluated) == Counter((v, q) for v in (0, 4, 6) for q in range(5))
    assert [report.score for report in attempt.channel.episodes] == [None, None, None, 4.0, None, 6.0]
    assert attempt.channel.states[-1].initial_score == 0.0
    best = f"{config.run_directory}/attempts/00001/checkpoints/episode-000006"
    assert attempt.channel.states[-1].best_checkpoint == best


def test_a_best_checkpoint_outlives_newer_ones(tmp_path: Path) -> None:
    config = config_of(
        tmp_path, evaluation={"uri": "/x", "everyEpisodes": 2}, checkpointEveryEpisodes=1, checkpointKeep=1
    )
    attempt = Attempt(config=config, world=World(score=lambda version: -float(version))).run()
    folder = Path(config.run_directory) / "attempts" / "00001" / "checkpoints"
    assert attempt.channel.states[-1].best_checkpoint == str(folder / "episode-000002")
    assert sorted(path.name for path in folder.iterdir()) == ["episode-000002", "episode-000006"]


def test_no_checkpoint_is_ahead_of_the_journal(tmp_path: Path) -> None:
    config = config_of(tmp_path, checkpointEveryEpisodes=1)
    folder = Path(config.run_directory) / "attempts" / "00001" / "checkpoints"

    def is_not_there(_: SimulatedSupervisor, report: EpisodeReport) -> None:
        assert not (folder / f"episode-{report.episode:06d}").exists()

    world = World(seconds=Seconds(journal=(20, 30)))
    assert len(Attempt(config=config, world=world, on_episode=is_not_there).run().channel.episodes) == 6


@pytest.mark.parametrize("seed", range(5))
def test_a_stop_saves_what_is_trained_and_the_next_attempt_goes_on_from_there(tmp_path: Path, seed: int) -> None:
    def stop(channel: SimulatedSupervisor, report: EpisodeReport) -> None:
        channel.stop = channel.stop or report.episode >= 2

    world = World(seed)
    config = config_of(tmp_path, episodes=40, checkpointEveryEpisodes=30, evaluation={"uri": "/x"})
    first = Attempt(config=config, world=world, on_episode=stop)
    failure = first.failure()
    assert failure.reason == "Stopped"
    trained = len(first.channel.episodes)
    assert len(world.cursors) == trained * 4
    assert f"resumes after episode {trained}" in failure.message

    second = Attempt(config=config_of(tmp_path, episodes=trained + 3, attempt=2), world=world).run().channel
    assert world.cursors == list(range((trained + 3) * 4))
    assert second.states[0].resumed_from == trained
    assert [report.episode for report in second.episodes] == [trained + 1, trained + 2, trained + 3]


def test_fewer_episodes_and_another_bound_are_taken_while_it_runs(tmp_path: Path) -> None:
    def change(channel: SimulatedSupervisor, report: EpisodeReport) -> None:
        if report.episode == 2:
            channel.settings = channel.settings.model_copy(update={"generation": 2, "max_staleness": 0, "episodes": 9})

    config = config_of(tmp_path, episodes=1000, maxStaleness=3, bufferCapacity=40)
    channel = Attempt(config=config, on_episode=change).run().channel
    assert len(channel.episodes) == 9
    assert channel.states[-1].applied_generation == 2
    assert channel.episodes[-1].staleness_max == 0


def test_a_maker_that_always_dies_ends_the_attempt_and_says_so(tmp_path: Path) -> None:
    failure = Attempt(config=config_of(tmp_path), world=World(faults=Faults(maker_dies=1.0))).failure()
    assert failure.reason == "MakerLost"
    assert "6 times in a row" in failure.message
    assert not failure.permanent


@pytest.mark.parametrize(
    ("seconds", "reason", "message"),
    [
        pytest.param(
            Seconds(make=(FOREVER, FOREVER)),
            "ProgressDeadlineExceeded",
            "episode 1 has 0 of 4 groups (PartitionUnderfilled)",
            id="no maker ever completes a batch",
        ),
        pytest.param(
            Seconds(place=(FOREVER, FOREVER)),
            "PreRunningDeadlineExceeded",
            "maker-0 waits for a pod and its model (PlacementPending)",
            id="no maker ever has a pod",
        ),
    ],
)
def test_a_run_that_gets_nowhere_fails_at_its_deadline_and_names_its_waits(
    tmp_path: Path, seconds: Seconds, reason: str, message: str
) -> None:
    attempt = Attempt(config=config_of(tmp_path), world=World(seconds=seconds))
    failure = attempt.failure()
    assert failure.reason == reason
    assert message in failure.message
    assert 600 < attempt.time.loop.time() < 620


def test_an_episode_quicker_than_the_watch_is_told_after_the_state_that_begins_the_journal(tmp_path: Path) -> None:
    attempt = Attempt(config=config_of(tmp_path, episodes=1), pace=Pace(look_every=500.0, tell_every=500.0)).run()
    assert len(attempt.channel.episodes) == 1


def test_makers_that_wait_for_weights_say_so(tmp_path: Path) -> None:
    world = World(seconds=Seconds(train=(20, 20)))
    channel = Attempt(config=config_of(tmp_path, episodes=2, maxStaleness=0), world=world).run().channel
    reasons = {wait.reason for state in channel.states for wait in state.waits}
    assert "StalenessBudgetExhausted" in reasons


@pytest.mark.parametrize("hours", [-50, -1, 1, 50])
def test_a_jump_of_the_wall_clock_changes_nothing_but_the_times_reported(tmp_path: Path, hours: int) -> None:
    def jump(attempt: Attempt) -> None:
        def later() -> None:
            attempt.time.jump += timedelta(hours=hours)

        for seconds in (0.5, 4.0, 30.0, 31.5, 60.0):
            attempt.time.loop.call_at(seconds, later)

    def of(folder: str, on_start: Any) -> tuple[list[Any], list[Any], float]:
        config = config_of(
            tmp_path / folder, maxStaleness=0, evaluation={"uri": "/x"}, checkpointEveryEpisodes=1, episodes=8
        )
        world = World(seconds=Seconds(train=(10, 10), place=(6, 8)))
        attempt = Attempt(config=config, world=world, on_start=on_start).run()
        reports = [report.model_dump(exclude={"time"}) for report in attempt.channel.episodes]
        # Each wait, with how long it may last.
        waits = [
            [(wait.reason, wait.owner) for wait in state.waits if wait.reason != "PartitionUnderfilled"]
            for state in attempt.channel.states
        ]
        return reports, waits, attempt.time.loop.time()

    assert of("jumps", jump) == of("steady", None)


@pytest.mark.parametrize("lowered", [3, 2, 1])
def test_episodes_lowered_to_what_is_trained_ends_the_run_with_its_model_and_its_checkpoint(
    tmp_path: Path, lowered: int
) -> None:
    def lower(channel: SimulatedSupervisor, report: EpisodeReport) -> None:
        if report.episode == 3:
            channel.settings = channel.settings.model_copy(update={"generation": 2, "episodes": lowered})

    # The next episode takes long, so that the trainers wait for it when the settings come.
    world = World(seconds=Seconds(make=(30, 40), journal=(0, 0)))
    config = config_of(tmp_path, checkpointEveryEpisodes=50, maxStaleness=0)
    attempt = Attempt(config=config, world=world, on_episode=lower).run()
    last = attempt.channel.states[-1]
    assert (len(attempt.channel.episodes), last.policy_version) == (3, 3)
    assert last.final_model == f"{config.run_directory}/model"
    assert last.latest_checkpoint == f"{config.run_directory}/attempts/00001/checkpoints/episode-000003"


@pytest.mark.parametrize("seed", range(5))
def test_the_drops_of_all_episodes_add_up_to_the_ledger(tmp_path: Path, seed: int) -> None:
    # Groups are dropped while episodes wait for the journal too, which here takes longer than training.
    world = World(seed, seconds=Seconds(journal=(10, 20)), faults=Faults(payload_is_lost=0.3))
    config = config_of(tmp_path, makers={"replicas": 3}, maxStaleness=3, bufferCapacity=40, episodes=10)
    channel = Attempt(config=config, world=world).run().channel
    ledger = channel.states[-1].ledger
    assert ledger.dropped_lost > 5
    assert sum(report.dropped for report in channel.episodes) == ledger.dropped_stale + ledger.dropped_lost


@pytest.mark.parametrize("call", ["prune", "discard"])
def test_what_cannot_be_removed_does_not_end_a_run_that_has_lost_nothing(
    tmp_path: Path, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    def busy(_: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy", "/storage/x")

    config = config_of(
        tmp_path, checkpointEveryEpisodes=2, checkpointKeep=1, evaluation={"uri": "/x", "everyEpisodes": 1}
    )
    attempt = Attempt(config=config, world=World(score=lambda version: -float(version)))
    setattr(attempt.checkpoints, call, busy)
    assert len(attempt.run().channel.episodes) == 6
    assert "Device or resource busy" in caplog.text
