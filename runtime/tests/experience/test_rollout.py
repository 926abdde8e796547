"""What a rollout may be, and that laying it out as tensors loses nothing."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from rlhf_runtime.experience.batch import collate, rows_of
from rlhf_runtime.experience.rollout import Experience, Group, Rollout
from rlhf_runtime.maths.kl import token_rewards


def rollout(**changes: object) -> Rollout:
    """Two prompt tokens, three completion tokens."""
    fields: dict[str, object] = {
        "prompt_index": 4,
        "sample": 0,
        "prompt_ids": np.array([7, 8], np.int32),
        "completion_ids": np.array([5, 6, 1], np.int32),
        "logprobs": np.array([-1.0, -2.0, -3.0], np.float32),
        "versions": np.array([2, 2, 3], np.int32),
        "truncated": False,
    }
    return Rollout(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_ids": np.zeros(0, np.int32)}, r"prompt_ids: found int32\[0\], expected int32 of length 1 or more"),
        ({"completion_ids": np.zeros(0, np.int32)}, r"completion_ids: found int32\[0\]"),
        ({"completion_ids": np.array([5, 6, 1])}, r"completion_ids: found int64\[3\], expected int32"),
        ({"logprobs": np.zeros(2, np.float32)}, r"logprobs: found float32\[2\], expected float32 of length 3"),
        ({"logprobs": np.zeros(3)}, r"logprobs: found float64\[3\], expected float32"),
        ({"logprobs": np.array([-1, np.nan, -1], np.float32)}, "expected finite values <= 0"),
        ({"logprobs": np.array([-1, 0.5, -1], np.float32)}, "expected finite values <= 0"),
        ({"versions": np.zeros((3, 1), np.int32)}, r"versions: found int32\[3, 1\]"),
        ({"versions": np.array([0, -1, 0], np.int32)}, "versions: found -1, expected >= 0"),
        ({"sample": -1}, "found prompt_index 4, sample -1"),
    ],
)
def test_a_rollout_that_contradicts_itself_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rollout(**changes)


def test_staleness_is_measured_from_the_oldest_token() -> None:
    newer = rollout(sample=1, versions=np.array([3, 4, 4], np.int32))
    assert rollout().oldest_version == 2
    assert newer.oldest_version == 3
    assert Group(prompt_index=4, rollouts=(rollout(), newer)).oldest_version == 2


@pytest.mark.parametrize(
    "rollouts",
    [(), (rollout(sample=1),), (rollout(), rollout()), (rollout(), rollout(prompt_index=5, sample=1))],
    ids=["empty", "first sample lost", "a sample twice", "another prompt's sample"],
)
def test_a_group_is_whole_or_refused(rollouts: tuple[Rollout, ...]) -> None:
    with pytest.raises(ValueError, match="group: found"):
        Group(prompt_index=4, rollouts=rollouts)


def test_a_score_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="found reward nan"):
        Experience(rollout=rollout(), reward=float("nan"), advantages=np.zeros(3, np.float32))


def test_collate_aligns_the_boundary_of_prompt_and_completion() -> None:
    short = rollout(
        prompt_ids=np.array([9], np.int32),
        completion_ids=np.array([1], np.int32),
        logprobs=np.array([-0.5], np.float32),
        versions=np.array([2], np.int32),
    )
    # The padding token is also the EOS (1): lengths, not token ids, say what is padding.
    batch = collate(
        [
            Experience(rollout=rollout(), reward=1.0, advantages=np.full(3, 0.5, np.float32)),
            Experience(rollout=short, reward=0.0, advantages=np.full(1, -0.5, np.float32)),
        ],
        pad_id=1,
    )
    assert batch.input_ids.tolist() == [[7, 8, 5, 6, 1], [1, 9, 1, 1, 1]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1, 1], [0, 1, 1, 0, 0]]
    assert batch.position_ids.tolist()[1][:3] == [0, 0, 1]
    assert batch.completion_ids.tolist() == [[5, 6, 1], [1, 1, 1]]
    assert batch.mask.tolist() == [[True, True, True], [True, False, False]]
    assert batch.sampled_logprobs.tolist() == [[-1.0, -2.0, -3.0], [-0.5, 0.0, 0.0]]
    assert batch.advantages.tolist() == [[0.5, 0.5, 0.5], [-0.5, 0.0, 0.0]]
    assert batch.versions.tolist()[1] == [2, 0, 0]
    assert batch.returns is None


def test_where_pad_is_the_end_token_lengths_say_what_is_trained_and_where_the_score_stands() -> None:
    """Case R10: end and pad are 0, which is in the prompt too."""
    completions = {(7, 0): 1, (0,): 0, (5, 6, 7, 8): 3, (7, 9, 0): 2}
    made = [
        rollout(
            prompt_ids=np.array([3, 0, 4][: 1 + i], np.int32),
            completion_ids=np.array(ids, np.int32),
            logprobs=np.full(len(ids), -1, np.float32),
            versions=np.zeros(len(ids), np.int32),
            truncated=ids[-1] != 0,
        )
        for i, ids in enumerate(completions)
    ]
    rows = rows_of(made, pad_id=0)
    assert rows.mask.int().tolist() == [[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 0]]
    assert rows.input_ids.tolist()[1:3] == [[0, 3, 0, 0, 0, 0, 0], [3, 0, 4, 5, 6, 7, 8]]
    assert rows.attention_mask.tolist()[1:3] == [[0, 1, 1, 1, 0, 0, 0], [1] * 7]
    scores = token_rewards(torch.full((4,), 2.5), torch.zeros(4, 4), None, rows.mask, estimator="K1", coefficient=0.0)
    assert scores.argmax(-1).tolist() == list(completions.values())
    assert [one.truncated for one in made] == [False, False, True, False]


def test_nothing_to_collate_is_refused() -> None:
    with pytest.raises(ValueError, match="rollouts: found none"):
        collate([], pad_id=0)


def test_a_process_that_only_routes_rollouts_needs_no_torch() -> None:
    code = "import rlhf_runtime.experience.rollout, rlhf_samples.addition, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
