"""An episode's numbers, the groups that are shown and recorded, and the score, from values worked out by hand."""

import json
import math
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rlhf_api.status import EpisodeReport, TrainingFigures
from rlhf_runtime.data.prompts import Prompt
from rlhf_runtime.dataflow.episode_report import Timing, episode_report
from rlhf_runtime.dataflow.evaluation import EvaluationRound, is_due
from rlhf_runtime.experience.messages import GroupSummary, LogprobGap, Trained, TrainedGroup
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.processors import _quota
from rlhf_runtime.scheduling.ledger import Dispatch
from rlhf_runtime.storage.journal import Journal
from rlhf_runtime.storage.run_directory import RunDirectory
from rlhf_runtime.storage.trained_groups import RecordedGroup, trained_groups, write_trained_groups

GROUPS = [
    GroupSummary(
        dispatch=Dispatch(8, 1, "m"),
        oldest_version=4,
        rewards=(0.0, 1.0),
        rewards_each={"length": (4.0, 2.0), "judge": (None, 0.5), "never": (None, None)},
        tokens=10,
        truncated=1,
        shown=(),
        logprob_gap=LogprobGap(mean=0.01, max=0.5),
    ),
    GroupSummary(
        dispatch=Dispatch(9, 2, "m"),
        oldest_version=2,
        rewards=(1.0, 2.0),
        rewards_each={"length": (3.0, 1.0), "judge": (1.0, None), "never": (None, None)},
        tokens=20,
        truncated=0,
        shown=(),
    ),
]
TRAINED = Trained(
    figures=TrainingFigures(
        loss=0.5,
        kl=0.01,
        entropy=1.5,
        clip_fraction=0.25,
        gradient_norm=2.0,
        effective_sample_size=0.9,
        reference_kl=0.02,
        value_loss=0.3,
        explained_variance=0.4,
    ),
    moved=True,
    optimizer_steps=5,
    groups=(TrainedGroup(8, 2), TrainedGroup(9, 2)),
)


def report(changed_weights: float = 0.99) -> EpisodeReport:
    return episode_report(
        attempt=3,
        version=4,
        groups=GROUPS,
        trained=TRAINED,
        timing=Timing(whole=4.0, wait=1.0, train=2.0, publish=0.5),
        sync_seconds=0.75,
        changed_weights=changed_weights,
        dropped=3,
        score=None,
        time=datetime(2026, 1, 1, tzinfo=UTC),
    )


def test_the_numbers_of_an_episode() -> None:
    found = report()
    assert (found.episode, found.policy_version, found.attempt) == (5, 5, 3)
    assert (found.reward, found.reward_std) == (1.0, pytest.approx(0.5**0.5))
    assert found.rewards == {"length": 2.5, "judge": 0.75}
    assert (found.staleness_mean, found.staleness_max) == (1.0, 2)
    assert (found.logprob_gap_mean, found.logprob_gap_max) == (0.01, 0.5)
    assert (found.samples, found.tokens, found.tokens_per_second, found.truncated_fraction) == (4, 30, 7.5, 0.25)
    assert (found.seconds, found.wait_seconds, found.train_seconds, found.sync_seconds) == (4.0, 1.0, 2.0, 0.75)
    assert (found.kl, found.loss, found.entropy, found.clip_fraction, found.gradient_norm) == (0.01, 0.5, 1.5, 0.25, 2)
    assert (found.effective_sample_size, found.reference_kl, found.teacher_kl) == (0.9, 0.02, None)
    assert (found.value_loss, found.explained_variance) == (0.3, 0.4)
    assert (found.dropped, found.score, found.changed_weights) == (3, None, 0.99)


@pytest.mark.parametrize(
    ("situation", "version", "every", "last", "due"),
    [
        ("the starting policy", 0, 5, 40, True),
        ("one of every five", 10, 5, 40, True),
        ("in between", 11, 5, 40, False),
        ("the last, although it is no fifth", 38, 5, 38, True),
    ],
)
def test_which_versions_are_evaluated(situation: str, version: int, every: int, last: int, due: bool) -> None:
    assert is_due(version, every_episodes=every, last=last) == due, situation


def test_a_score_is_the_mean_over_all_prompts_whoever_sampled_them_and_in_whatever_order() -> None:
    prompts = [Prompt(index=i, row=i, text="", token_ids=(1,), columns={}) for i in range(5)]
    evaluation = EvaluationRound(3, prompts, batch=2)
    batches = [batch for _ in range(3) if (batch := evaluation.take())]
    assert [[prompt.row for prompt in batch.prompts] for batch in batches] == [[0, 1], [2, 3], [4]]
    assert evaluation.take() is None
    evaluation.complete(batches[2], [5.0])
    evaluation.give_back(batches[0])
    again = evaluation.take()
    assert again == batches[0]
    evaluation.complete(batches[0], [1.0, 2.0])
    assert evaluation.score is None
    with pytest.raises(ValueError, match="found 1 rewards, expected 2"):
        evaluation.complete(batches[1], [3.0])
    evaluation.complete(batches[1], [3.0, 4.0])
    assert evaluation.score == 3.0


def test_the_record_of_trained_groups_leaves_out_what_a_later_attempt_superseded(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    for attempt, resumed_from, episodes in ((1, 0, (1, 2, 3)), (2, 2, (3, 4))):
        folder = directory.attempt(attempt)
        folder.path.mkdir(parents=True)
        journal = Journal(directory, attempt)
        journal.begin(resumed_from)
        for episode in episodes:
            write_trained_groups(directory, folder, episode, [TrainedGroup(10 * episode + attempt, 2)])
            journal.append(report().model_copy(update={"episode": episode}))
    assert trained_groups(directory) == [
        RecordedGroup(1, 11, 2),
        RecordedGroup(2, 21, 2),
        RecordedGroup(3, 32, 2),
        RecordedGroup(4, 42, 2),
    ]
    assert json.loads((tmp_path / "attempts/00001/trained/episode-000003.json").read_text()) == [
        {"prompt": 31, "samples": 2}
    ]


def test_a_pod_s_share_of_the_processors_is_read_from_its_control_group() -> None:
    assert _quota("150000 100000\n") == 1.5
    assert _quota("max 100000\n") is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_not_finite_ends_the_attempt_and_is_not_reported_as_absent(value: float) -> None:
    with pytest.raises(RunFailure, match=r"^NotFinite: episode 5: changed_weights: .*finite number$") as raised:
        report(changed_weights=value)
    assert (raised.value.reason, raised.value.permanent) == ("NotFinite", False)
