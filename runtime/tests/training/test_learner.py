"""One step is the same step for any split into micro-batches and ranks, and a bad one is not taken."""

import copy
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from learners import (
    OBJECTIVES,
    PAD,
    adamw,
    figures,
    make_experiences,
    make_learner,
    moments,
    split,
    take_step,
    taken,
    weights,
)
from rlhf_runtime.experience.batch import Batch, collate
from rlhf_runtime.experience.rollout import Experience, Rollout
from rlhf_runtime.training.learner import NonFiniteError
from rlhf_runtime.training.learning_rate import Schedule
from rlhf_runtime.training.merge import whitened
from rlhf_runtime.training.optimized import OptimizedModel
from rlhf_runtime.training.strategy import DataParallel, SingleProcess
from rlhf_runtime.training.trainer import training_figures
from torch import Tensor


def assert_same_step(found: tuple[Any, Any], expected: tuple[Any, Any]) -> None:
    assert found[0] == pytest.approx(expected[0], abs=1e-6, rel=1e-6)
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        assert float((found[1][name] - gradient).abs().max()) <= 1e-6, name


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("sizes", [(4, 4, 4), (5, 5, 2), (1,) * 12])
def test_micro_batches_do_not_change_the_step(sizes: tuple[int, ...], name: str) -> None:
    whole = take_step(make_learner(name), make_experiences())
    parts = take_step(make_learner(name), *split(make_experiences(), *sizes))
    assert whole[0]["gradient_norm"] > 1e-2
    assert whole[0]["samples"] == 12
    assert_same_step(parts, whole)


def test_padding_does_not_change_the_step() -> None:
    """The same rows, padded further by a 13th that is then taken away."""
    experiences = make_experiences()
    tokens = np.full(20, -1, np.float32)
    long = Rollout(
        prompt_index=12,
        sample=0,
        prompt_ids=np.full(20, 3, np.int32),
        completion_ids=np.full(20, 3, np.int32),
        logprobs=tokens,
        versions=np.zeros(20, np.int32),
        truncated=True,
    )
    longest = replace(
        experiences[0],
        rollout=long,
        **dict.fromkeys(("advantages", "returns", "values", "reference_logprobs", "teacher_logprobs"), tokens),
    )
    padded = collate([*experiences, longest], PAD)
    rows = replace(padded, **{name: value[:12] for name, value in vars_of(padded).items()})
    assert rows.input_ids.shape == (12, 40)
    assert_same_step(taken(make_learner("PPO"), [rows]), take_step(make_learner("PPO"), experiences))


def vars_of(batch: Batch) -> dict[str, Tensor]:
    return {name: value for name in batch.__dataclass_fields__ if (value := getattr(batch, name)) is not None}


def _rank_main(rank: int, folder: Path, scenario: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2)
    experiences = make_experiences()
    # Unequal shares and unequal numbers of micro-batches.
    mine = split(experiences[:7], 3, 3, 1) if rank == 0 else split(experiences[7:], 5)
    if scenario == "step":
        steps = {name: take_step(make_learner(name, distributed=True), *mine) for name in OBJECTIVES}
        steps["whitened"] = (
            {},
            {"advantages": advantages(whitened_by(DataParallel(), [one for part in mine for one in part]))},
        )
        torch.save(steps, folder / f"{rank}.pt")
    else:
        learner = make_learner("PPO", distributed=True)
        before = weights(learner)
        batches = [collate(part, PAD) for part in mine]
        if rank == 1:
            batches = [] if scenario == "empty" else batches
            for batch in batches:
                batch.sampled_logprobs[0, 0] = float("nan")
        try:
            learner.step(batches)
        except (NonFiniteError, ValueError) as error:
            unchanged = all(torch.equal(tensor, before[name]) for name, tensor in weights(learner).items())
            torch.save((type(error).__name__, unchanged), folder / f"{rank}.pt")
    dist.destroy_process_group()


def run_two_ranks(folder: Path, scenario: str) -> list[Any]:
    """What each rank saved."""
    spawn = multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=_rank_main, args=(rank, folder, scenario)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
    assert [process.exitcode for process in ranks] == [0, 0]
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


def test_two_ranks_take_the_step_of_one_process(tmp_path: Path) -> None:
    ranks = run_two_ranks(tmp_path, "step")
    for name in OBJECTIVES:
        expected = take_step(make_learner(name), make_experiences())
        for found in ranks:
            assert_same_step(found[name], expected)
    whole = advantages(whitened_by(SingleProcess(), make_experiences()))
    assert float(whole.mean()) == pytest.approx(0, abs=1e-6)
    assert float(whole.std()) == pytest.approx(1, abs=1e-6)
    torch.testing.assert_close(torch.cat([found["whitened"][1]["advantages"] for found in ranks]), whole)


def whitened_by(strategy: Any, experiences: list[Experience]) -> list[Experience]:
    return whitened(experiences, strategy.sum_over_ranks, torch.device("cpu"))


def advantages(experiences: list[Experience]) -> Tensor:
    return torch.from_numpy(np.concatenate([experience.advantages for experience in experiences]))


@pytest.mark.parametrize(("scenario", "error"), [("nan", "NonFiniteError"), ("empty", "ValueError")])
def test_what_one_rank_cannot_do_no_rank_does(tmp_path: Path, scenario: str, error: str) -> None:
    assert run_two_ranks(tmp_path, scenario) == [(error, True), (error, True)]


@pytest.mark.parametrize("field", ["advantages", "returns"])
def test_a_step_that_is_not_finite_changes_neither_weights_nor_optimisers(field: str) -> None:
    learner = make_learner("PPO")
    batch = collate(make_experiences(), PAD)
    learner.step([batch])
    before = copy.deepcopy((moments(learner), weights(learner)))
    getattr(batch, field)[0, 0] = float("inf")
    with pytest.raises(NonFiniteError, match="step 2: found"):
        learner.step([batch])
    torch.testing.assert_close((moments(learner), weights(learner)), before, rtol=0, atol=0)
    assert learner.steps == 1


def test_a_learning_rate_of_zero_leaves_the_weights_equal() -> None:
    learner = make_learner(optimizer=adamw(0.0, weight_decay=0.1))
    before = weights(learner)
    found, _ = take_step(learner, make_experiences())
    assert found["gradient_norm"] > 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(learner).items())


def test_the_rate_warms_up_and_the_gradient_is_bounded() -> None:
    learner = make_learner(optimizer=adamw(0.4, warmup_steps=4, max_grad_norm=0.01))
    rates = []
    for _ in range(5):
        found, gradients = take_step(learner, make_experiences())
        rates.append(found["learning_rate"])
        norm = torch.stack([g.norm() for g in gradients.values()]).norm()
        assert found["gradient_norm"] > 0.01
        assert float(norm) == pytest.approx(0.01, rel=1e-3)
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])


@pytest.mark.parametrize(
    ("kind", "final", "expected"),
    [
        ("Constant", 0.0, [0.5, 1, 1, 1, 1, 1, 1]),
        ("Linear", 0.0, [0.5, 1, 1, 0.75, 0.5, 0.25, 0.0]),
        ("Linear", 0.2, [0.5, 1, 1, 0.8, 0.6, 0.4, 0.2]),
        ("Cosine", 0.0, [0.5, 1, 1, 0.85355339, 0.5, 0.14644661, 0.0]),
    ],
)
def test_the_schedule_ends_with_the_last_step_and_stays_there(kind: Any, final: float, expected: list[float]) -> None:
    schedule = Schedule(peak=1, kind=kind, warmup_steps=2, total_steps=7, final_fraction=final)
    assert [schedule.rate(step) for step in range(7)] == pytest.approx(expected)
    assert schedule.rate(100) == pytest.approx(expected[-1])


@pytest.mark.parametrize("name", ["Token", "PPO"])
def test_a_resumed_learner_continues_as_if_it_had_not_stopped(tmp_path: Path, name: str) -> None:
    options = adamw(weight_decay=0.1, warmup_steps=3)
    batch = collate(make_experiences(), PAD)
    uninterrupted = make_learner(name, options)
    uninterrupted.step([batch])
    torch.save(uninterrupted.state_dict(), tmp_path / "state.pt")
    resumed = make_learner(name, options)
    for model, other in zip((resumed.actor, resumed.critic), (uninterrupted.actor, uninterrupted.critic), strict=True):
        if model is not None and other is not None:
            model.module.load_state_dict(other.module.state_dict())
    resumed.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert resumed.steps == 1
    for learner in (uninterrupted, resumed):
        learner.step([batch])
    torch.testing.assert_close(weights(resumed), weights(uninterrupted), rtol=0, atol=0)
    torch.testing.assert_close(moments(resumed), moments(uninterrupted), rtol=0, atol=0)


def test_the_step_raises_what_was_rewarded_and_lowers_what_was_not() -> None:
    learner = make_learner(optimizer=adamw(1e-4))
    good, bad = (
        replace(experience, advantages=np.full_like(experience.advantages, sign))
        for experience, sign in zip(make_experiences(2), (1, -1), strict=True)
    )
    losses = [learner.step([collate([good, bad], PAD)]).loss for _ in range(3)]
    assert losses == sorted(losses, reverse=True)


def test_recomputed_log_probs_are_the_policys_own_and_the_first_ratio_is_one() -> None:
    learner = make_learner("corrected, with KL and teacher")
    batch = collate(make_experiences(), PAD)
    recomputed = replace(batch, old_logprobs=learner.logprobs(batch))
    found = learner.step([recomputed], version=4)
    assert found.ratio == pytest.approx(1, abs=1e-6)
    assert found.off_policy_weight is not None
    assert found.off_policy_weight > 0
    # Without them the step takes its own, which at this point are the same.
    again = make_learner("corrected, with KL and teacher").step([batch], version=4)
    assert figures(again) == pytest.approx(figures(found), abs=1e-6)


@pytest.mark.parametrize(("value", "update", "moved"), [(1.0, 6e-4, 0.94), (0.02, 1e-6, 0.0199)])
def test_small_steps_are_kept_by_fp32_masters_though_bfloat16_computes(
    value: float, update: float, moved: float
) -> None:
    """Case R14: each step is less than half of what bfloat16 tells apart at this value."""
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(layer.weight, value)
    model = OptimizedModel(layer, adamw(update), SingleProcess(), torch.bfloat16)
    for number in range(100):
        model.zero_grad()
        output = model.call(torch.ones(1, 1))
        assert output.dtype == torch.bfloat16
        output.sum().backward()
        model.step(number)
    assert layer.weight.dtype == torch.float32
    assert layer.weight.item() == pytest.approx(moved, rel=1e-2)
    assert torch.tensor(value, dtype=torch.bfloat16) - update == torch.tensor(value, dtype=torch.bfloat16)


def test_the_figures_of_an_episode_are_means_over_its_steps_and_finite() -> None:
    learner = make_learner("Token")
    steps = [learner.step([collate(make_experiences(), PAD)], version=4) for _ in range(2)]
    found = training_figures(steps)
    assert found.kl == pytest.approx((steps[0].kl + steps[1].kl) / 2)
    assert found.value_loss is None
    with pytest.raises(NonFiniteError, match=r"the figures of an episode: kl: .*finite number"):
        training_figures([replace(steps[0], kl=float("inf"))])
