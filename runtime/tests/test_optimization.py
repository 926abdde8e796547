"""One step is the same step for any split into micro-batches and ranks, and a bad one is not taken."""

import copy
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from rlhf_runtime.maths.aggregation import Aggregation
from rlhf_runtime.rollout import Experience, Rollout, collate
from rlhf_runtime.training.learner import AdamWParameters, Learner, NonFiniteError, PolicyObjective
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

PAD = 0
ADAMW = AdamWParameters(learning_rate=1e-2, max_grad_norm=1e9)


def make_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=17,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.06,
    )
    return LlamaForCausalLM(config)


def make_experiences(count: int = 12) -> list[Experience]:
    """Prompts of 2-5 and completions of 1-7 tokens, with log-probs some way off the policy's."""
    random = np.random.default_rng(0)
    experiences = []
    for index in range(count):
        prompt, completion = random.integers(2, 6), random.integers(1, 8)
        rollout = Rollout(
            prompt_index=index,
            sample=0,
            prompt_ids=random.integers(2, 17, prompt).astype(np.int32),
            completion_ids=random.integers(2, 17, completion).astype(np.int32),
            logprobs=(-np.log(17) - random.random(completion)).astype(np.float32),
            versions=np.zeros(completion, np.int32),
            truncated=True,
        )
        experiences.append(Experience(rollout=rollout, reward=0.0, advantage=float(random.normal())))
    return experiences


def make_learner(
    *, aggregation: Aggregation = "Token", optimizer: AdamWParameters = ADAMW, distributed: bool = False
) -> Learner:
    objective = PolicyObjective(clip_low=0.2, clip_high=0.3, aggregation=aggregation, temperature=0.9, max_tokens=7)
    return Learner(make_model(), optimizer, objective, distributed=distributed)


def take_step(learner: Learner, *parts: list[Experience]) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Metrics, and the gradients the step was taken with."""
    found = learner.step([collate(part, PAD) for part in parts])
    gradients = {n: p.grad.clone() for n, p in learner.model.named_parameters() if p.grad is not None}
    return found, gradients


def split(experiences: list[Experience], *sizes: int) -> list[list[Experience]]:
    ends = np.cumsum(sizes)
    return [experiences[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def assert_same_step(found: tuple[Any, Any], expected: tuple[Any, Any]) -> None:
    assert found[0] == pytest.approx(expected[0], abs=1e-6, rel=1e-6)
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        assert float((found[1][name] - gradient).abs().max()) <= 1e-6, name


@pytest.mark.parametrize("aggregation", ["Token", "Sequence", "Fixed"])
@pytest.mark.parametrize("sizes", [(4, 4, 4), (5, 5, 2), (1,) * 12])
def test_micro_batches_do_not_change_the_step(sizes: tuple[int, ...], aggregation: Aggregation) -> None:
    whole = take_step(make_learner(aggregation=aggregation), make_experiences())
    parts = take_step(make_learner(aggregation=aggregation), *split(make_experiences(), *sizes))
    assert whole[0]["grad_norm"] > 1e-2
    assert whole[0]["samples"] == 12
    assert_same_step(parts, whole)


def test_padding_does_not_change_the_step() -> None:
    """The same rows, padded further by a 13th whose advantage is 0 and which counts in no denominator."""
    experiences = make_experiences()
    longest = Rollout(
        prompt_index=12,
        sample=0,
        prompt_ids=np.full(20, 3, np.int32),
        completion_ids=np.full(20, 3, np.int32),
        logprobs=np.full(20, -1, np.float32),
        versions=np.zeros(20, np.int32),
        truncated=True,
    )
    padded = collate([*experiences, Experience(rollout=longest, reward=0.0, advantage=0.0)], PAD)
    learner, expected = make_learner(), take_step(make_learner(), experiences)
    rows = copy.copy(padded)
    for name in ("input_ids", "attention_mask", "position_ids", "mask", "old_logprobs", "advantages"):
        object.__setattr__(rows, name, getattr(padded, name)[:12])
    assert rows.input_ids.shape == (12, 40)
    found = learner.step([rows])
    gradients = {n: p.grad for n, p in learner.model.named_parameters()}
    assert_same_step((found, gradients), expected)


def _rank_main(rank: int, folder: Path, scenario: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2)
    experiences = make_experiences()
    # Unequal shares and unequal numbers of micro-batches.
    mine = split(experiences[:7], 3, 3, 1) if rank == 0 else split(experiences[7:], 5)
    learner = make_learner(distributed=True)
    before = copy.deepcopy(learner.state_dict())
    if scenario == "step":
        torch.save(take_step(learner, *mine), folder / f"{rank}.pt")
    else:
        batches = [collate(part, PAD) for part in mine]
        if rank == 1:
            batches = [] if scenario == "empty" else batches
            for batch in batches:
                batch.old_logprobs[0, 0] = float("nan")
        try:
            learner.step(batches)
        except (NonFiniteError, ValueError) as error:
            unchanged = all(
                torch.equal(tensor, before["model"][name]) for name, tensor in learner.state_dict()["model"].items()
            )
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
    expected = take_step(make_learner(), make_experiences())
    for found in run_two_ranks(tmp_path, "step"):
        assert_same_step(found, expected)


@pytest.mark.parametrize(("scenario", "error"), [("nan", "NonFiniteError"), ("empty", "ValueError")])
def test_what_one_rank_cannot_do_no_rank_does(tmp_path: Path, scenario: str, error: str) -> None:
    assert run_two_ranks(tmp_path, scenario) == [(error, True), (error, True)]


def test_a_step_that_is_not_finite_changes_neither_weights_nor_optimiser() -> None:
    learner = make_learner()
    batch = collate(make_experiences(), PAD)
    learner.step([batch])
    before = copy.deepcopy(learner.state_dict())
    batch.advantages[0] = float("inf")
    with pytest.raises(NonFiniteError, match="step 2: found"):
        learner.step([batch])
    torch.testing.assert_close(learner.state_dict(), before, rtol=0, atol=0)
    assert learner.steps == 1


def test_a_learning_rate_of_zero_leaves_the_weights_equal() -> None:
    learner = make_learner(optimizer=AdamWParameters(learning_rate=0.0, weight_decay=0.1))
    before = copy.deepcopy(learner.model.state_dict())
    found, _ = take_step(learner, make_experiences())
    assert found["grad_norm"] > 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in learner.model.state_dict().items())


def test_the_rate_warms_up_and_the_gradient_is_bounded() -> None:
    learner = make_learner(optimizer=AdamWParameters(learning_rate=0.4, warmup_steps=4, max_grad_norm=0.01))
    rates = []
    for _ in range(5):
        found, gradients = take_step(learner, make_experiences())
        rates.append(found["learning_rate"])
        norm = torch.stack([g.norm() for g in gradients.values()]).norm()
        assert found["grad_norm"] > 0.01
        assert float(norm) == pytest.approx(0.01, rel=1e-3)
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])


def test_a_resumed_learner_continues_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    options = AdamWParameters(learning_rate=1e-2, weight_decay=0.1, warmup_steps=3)
    batch = collate(make_experiences(), PAD)
    uninterrupted = make_learner(optimizer=options)
    uninterrupted.step([batch])
    torch.save(uninterrupted.state_dict(), tmp_path / "state.pt")
    resumed = make_learner(optimizer=options)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert resumed.steps == 1
    for learner in (uninterrupted, resumed):
        learner.step([batch])
    torch.testing.assert_close(resumed.state_dict(), uninterrupted.state_dict(), rtol=0, atol=0)


def test_the_step_raises_what_was_rewarded_and_lowers_what_was_not() -> None:
    learner = make_learner(optimizer=AdamWParameters(learning_rate=1e-4))
    good, bad = make_experiences(2)
    good = Experience(rollout=good.rollout, reward=1.0, advantage=1.0)
    bad = Experience(rollout=bad.rollout, reward=0.0, advantage=-1.0)
    losses = [learner.step([collate([good, bad], PAD)])["loss"] for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
