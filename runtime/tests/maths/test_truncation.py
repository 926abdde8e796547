"""What top-k and top-p keep, by hand and by transformers; and that what is sampled is what is trained."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rlhf_runtime.engines.engine import Request, Sampling
from rlhf_runtime.engines.loading import sampling_of
from rlhf_runtime.engines.sampling import probabilities
from rlhf_runtime.engines.transformers_engine import TransformersEngine
from rlhf_runtime.experience.batch import collate
from rlhf_runtime.experience.rollout import Experience, Rollout
from rlhf_runtime.maths import truncation as module
from rlhf_runtime.maths.logprobs import token_logprobs, token_logprobs_and_entropy
from rlhf_runtime.maths.policy_loss import Clip
from rlhf_runtime.maths.truncation import Truncation, cutoffs, without
from rlhf_runtime.training.learner import Learner, StepFigures
from rlhf_runtime.training.learning_rate import Schedule
from rlhf_runtime.training.objective import Mean, PolicyObjective
from rlhf_runtime.training.optimized import AdamWParameters, OptimizedModel
from rlhf_runtime.training.settings import policy_objective
from rlhf_runtime.training.strategy import SingleProcess
from tiny_models import tiny_config
from tiny_run import run_config
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

NAN, INFINITY = float("nan"), float("inf")


def warped(logits_rv: Tensor, temperature: float, truncation: Truncation) -> Tensor:
    """logits / temperature, with -inf for what transformers removes."""
    scores = logits_rv / temperature
    if truncation.top_k is not None:
        scores = TopKLogitsWarper(truncation.top_k)(None, scores)
    if truncation.top_p < 1:
        scores = TopPLogitsWarper(truncation.top_p)(None, scores)
    return scores


def kept(logits: list[float], temperature: float, truncation: Truncation) -> list[int]:
    found = without(torch.tensor([logits]), temperature, truncation)[0]
    return found.isfinite().nonzero().flatten().tolist()


FOUR = [math.log(p) for p in (0.2, 0.4, 0.1, 0.3)]
#: Of e^2, e, e, e and 1 the second is at 0.45 + 0.16 of the whole.
TIED = [1.0, 0.0, 1.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("logits", "temperature", "options", "expected"),
    [
        pytest.param(FOUR, 1.0, {"top_p": 0.39}, [1], id="the likeliest reaches p"),
        pytest.param(FOUR, 1.0, {"top_p": 0.41}, [1, 3], id="the one that crosses p is kept"),
        pytest.param(FOUR, 1.0, {"top_p": 0.69}, [1, 3], id="p is nearly reached by two"),
        pytest.param(FOUR, 1.0, {"top_p": 1e-6}, [1], id="one is always kept"),
        pytest.param(FOUR, 1.0, {"top_p": 0.999999}, [0, 1, 2, 3], id="all are needed"),
        pytest.param(FOUR, 1.0, {"top_k": 3}, [0, 1, 3], id="three"),
        pytest.param(FOUR, 1.0, {"top_k": 9}, [0, 1, 2, 3], id="more than there are"),
        # Of the whole 0.4 + 0.3 do not reach 0.75; of three tokens' 0.9 they do, with 0.78.
        pytest.param(FOUR, 1.0, {"top_p": 0.75}, [0, 1, 3], id="p alone"),
        pytest.param(FOUR, 1.0, {"top_p": 0.75, "top_k": 3}, [1, 3], id="p of what k leaves"),
        # At temperature 2 they are 0.33 and 0.28.
        pytest.param(FOUR, 2.0, {"top_p": 0.65}, [0, 1, 3], id="p after temperature"),
        pytest.param(TIED, 1.0, {"top_k": 2}, [0, 2, 3, 4], id="ties with the last of k"),
        pytest.param(TIED, 1.0, {"top_p": 0.5}, [0, 2, 3, 4], id="ties with the one that crosses p"),
    ],
)
def test_what_is_kept(logits: list[float], temperature: float, options: dict[str, Any], expected: list[int]) -> None:
    assert kept(logits, temperature, Truncation(**options)) == expected


@pytest.mark.parametrize("top_k", [None, 1, 5, 50])
@pytest.mark.parametrize("top_p", [1.0, 0.99, 0.9, 0.3, 0.01])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_what_transformers_keeps_and_what_equals_the_last_of_it(
    top_k: int | None, top_p: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16 many are equal, of which transformers keeps some by the order of its sort."""
    truncation, temperature = Truncation(top_p=top_p, top_k=top_k), 0.7
    torch.manual_seed(0)
    for elements, vocabulary in ((1, 5), (100, 40), (10**6, 2000)):
        monkeypatch.setattr(module, "CPU_ELEMENTS", elements)
        logits = (3 * torch.randn(20, vocabulary)).to(dtype)
        logits[::3, :2] = -INFINITY
        others = warped(logits.float(), temperature, truncation)
        last = torch.where(others.isneginf(), INFINITY, logits.float()).amin(-1)
        found = without(logits, temperature, truncation)
        assert torch.equal(found, logits.masked_fill(logits.float() < last.unsqueeze(-1), -INFINITY))
        if dtype == torch.float32:
            assert torch.equal(found.isneginf(), others.isneginf())


def test_a_kept_mass_of_nine_tenths_is_a_ratio_of_nine_tenths() -> None:
    """Of 0.5, 0.4, 0.07 and 0.03 two are kept, which are then 5 and 4 of 9."""
    logits = torch.tensor([0.5, 0.4, 0.07, 0.03]).log()
    for truncation in (Truncation(top_p=0.85), Truncation(top_k=2)):
        sampled = probabilities(logits.unsqueeze(0), 1.0, truncation)[0].log()
        assert sampled.exp().tolist() == pytest.approx([5 / 9, 4 / 9, 0, 0])
        for token in (0, 1):
            at = logits.view(1, 1, 4), torch.tensor([[token]])
            whole, (ours, entropy) = token_logprobs(*at, 1.0), token_logprobs_and_entropy(*at, 1.0, truncation)
            assert float((whole - sampled[token]).exp()) == pytest.approx(0.9)
            assert float((ours - sampled[token]).exp()) == 1
            assert float(entropy) == pytest.approx(-(5 / 9 * math.log(5 / 9) + 4 / 9 * math.log(4 / 9)))
    # A token that is not kept, because the weights have moved say, is one of three then.
    found = token_logprobs(logits.view(1, 1, 4), torch.tensor([[3]]), 1.0, Truncation(top_k=2))
    assert float(found.exp()) == pytest.approx(0.03 / 0.93)


@pytest.mark.parametrize("elements", [1, 30, 10**6])
@pytest.mark.parametrize("truncation", [Truncation(top_p=0.8), Truncation(top_k=4), Truncation(top_p=0.7, top_k=6)])
def test_values_and_gradients_are_those_of_the_plain_formula(
    truncation: Truncation, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CPU_ELEMENTS", elements)
    torch.manual_seed(0)
    made, tokens, weights = 2 * torch.randn(3, 6, 11), torch.randint(0, 11, (3, 5)), torch.randn(2, 3, 5)

    def gradient(leaf: Tensor, logprobs: Tensor, entropy: Tensor) -> tuple[Tensor, ...]:
        (logprobs * weights[0] + entropy * weights[1]).sum().backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        return logprobs.float(), entropy.float(), leaf.grad.float()

    exact = made.double().requires_grad_()
    removed = warped(made[:, :-1].reshape(-1, 11), 0.8, truncation).isneginf().view(3, 5, 11)
    assert removed.gather(-1, tokens.unsqueeze(-1)).float().mean() > 0.2, "some tokens are outside"
    removed.scatter_(-1, tokens.unsqueeze(-1), False)
    plain = (exact[:, :-1] / 0.8).masked_fill(removed, -INFINITY).log_softmax(-1)
    entropy = -(plain.exp() * plain.clamp(min=-1e30)).sum(-1)
    expected = gradient(exact, plain.gather(-1, tokens.unsqueeze(-1)).squeeze(-1), entropy)
    leaf = made.clone().requires_grad_()
    found = gradient(leaf, *token_logprobs_and_entropy(leaf, tokens, 0.8, truncation))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)
    assert (found[2][:, :-1][removed] == 0).all()


@pytest.mark.parametrize("wrong", [NAN, INFINITY])
@pytest.mark.parametrize("truncation", [Truncation(top_p=0.5), Truncation(top_k=1), Truncation(top_p=0.5, top_k=1)])
def test_logits_that_are_no_numbers_are_not_hidden(truncation: Truncation, wrong: float) -> None:
    """One among the others would else be removed with them, or all others but the sampled token because of it."""
    for place in range(3):
        logits = torch.tensor([[[0.1, 0.2, 0.3]]])
        logits[0, 0, place] = wrong
        for token in range(3):
            assert token_logprobs(logits, torch.tensor([[token]]), 1.0, truncation).isnan().all()


def test_a_job_is_sampled_and_trained_by_its_own_fields(tmp_path: Path) -> None:
    rollout = {"promptsPerEpisode": 4, "samplesPerPrompt": 4, "maxNewTokens": 4}
    for options, expected in (
        ({}, None),
        ({"topP": 1}, None),
        ({"topP": 0.9}, Truncation(top_p=0.9)),
        ({"topK": 5}, Truncation(top_k=5)),
        ({"topP": 0.9, "topK": 5}, Truncation(top_p=0.9, top_k=5)),
    ):
        config = run_config(tmp_path, tmp_path, rollout=rollout | options)
        assert sampling_of(config).truncation == expected
        assert policy_objective(config).truncation == expected
    with pytest.raises(ValueError, match="found top_p 0 and top_k None"):
        Truncation(top_p=0)
    with pytest.raises(ValueError, match="top_k 0, expected"):
        Truncation(top_k=0)


SAMPLING = Sampling(temperature=0.8, max_new_tokens=10, seed=3)
OBJECTIVE = PolicyObjective(
    clip=Clip(low=0.2, high=0.2), mean=Mean(aggregation="Token", max_tokens=10), temperature=SAMPLING.temperature
)


def make_model() -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(tiny_config("llama")).eval()


def sampled(truncation: Truncation | None) -> list[Rollout]:
    engine = TransformersEngine(make_model(), end_ids=(1,))
    requests = [Request(prompt_index=i, prompt_ids=np.array([2 + i, 3], np.int32), samples=8) for i in range(4)]
    groups = engine.generate(requests, replace(SAMPLING, truncation=truncation))
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    # What it says of them afterwards is what it said when it drew them.
    again = engine.logprobs(rollouts, replace(SAMPLING, truncation=truncation))
    for rollout, logprobs in zip(rollouts, again, strict=True):
        np.testing.assert_allclose(logprobs, rollout.logprobs, atol=1e-5)
    return rollouts


def first_step(rollouts: list[Rollout], truncation: Truncation | None) -> StepFigures:
    """Figures of a learner with the model that sampled."""
    ones = [Experience(rollout=r, reward=1.0, advantages=np.ones(len(r.logprobs), np.float32)) for r in rollouts]
    optimizer = AdamWParameters(schedule=Schedule(peak=1e-3))
    actor = OptimizedModel(make_model(), optimizer, SingleProcess(), torch.float32)
    learner, batch = Learner(actor, replace(OBJECTIVE, truncation=truncation)), collate(ones, 0)
    # Old log-probs, where they are recomputed, and the probe of makers are these.
    recomputed = replace(batch, old_logprobs=learner.logprobs(batch))
    found = learner.step([batch])
    again = replace(OBJECTIVE, truncation=truncation, old="Recomputed")
    actor = OptimizedModel(make_model(), optimizer, SingleProcess(), torch.float32)
    assert Learner(actor, again).step([recomputed]).ratio == pytest.approx(1, abs=1e-6)
    return found


@pytest.mark.parametrize("truncation", [Truncation(top_p=0.9), Truncation(top_k=5), Truncation(top_p=0.8, top_k=6)])
def test_the_ratio_of_an_unchanged_policy_is_one_and_without_the_correction_the_kept_mass(
    truncation: Truncation,
) -> None:
    rollouts, model, masses = sampled(truncation), make_model(), []
    for rollout in rollouts:
        ids = torch.from_numpy(np.concatenate([rollout.prompt_ids, rollout.completion_ids])).long()
        with torch.no_grad():
            logits = model(ids.unsqueeze(0)).logits[0, len(rollout.prompt_ids) - 1 : -1]
        inside = warped(logits, SAMPLING.temperature, truncation).isfinite()
        assert inside[range(len(inside)), rollout.completion_ids.tolist()].all(), "nothing else is ever drawn"
        masses += ((logits / SAMPLING.temperature).softmax(-1) * inside).sum(-1).tolist()
    assert np.mean(masses) < 0.97
    ours, untruncated = first_step(rollouts, truncation), first_step(rollouts, None)
    assert ours.ratio == pytest.approx(1, abs=1e-6)
    assert ours.kl == pytest.approx(0, abs=1e-6)
    assert untruncated.ratio == pytest.approx(np.mean(masses), abs=1e-5)
    assert ours.entropy < untruncated.entropy


def test_the_likeliest_token_alone_is_certain_and_trains_nothing() -> None:
    """And a top_k of more than there are is the same samples as none."""
    one = Truncation(top_k=1)
    rollouts = sampled(one)
    assert all((rollout.logprobs == 0).all() for rollout in rollouts)
    assert len({tuple(rollout.completion_ids.tolist()) for rollout in rollouts}) <= 4, "a prompt's are all alike"
    assert first_step(rollouts, one).gradient_norm == 0
    whole, wide = sampled(None), sampled(Truncation(top_k=1000))
    assert [r.completion_ids.tolist() for r in whole] == [r.completion_ids.tolist() for r in wide]


def test_cutoffs_are_found_in_chunks_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of at most so many logits, or one position's, and the same whatever the size."""
    torch.manual_seed(0)
    logits, seen = torch.randn(4, 7, 10), []
    whole = cutoffs(logits, 1.0, Truncation(top_p=0.6))
    inner = module._sorted_cutoffs

    def recording(part: Tensor, *others: Any) -> Tensor:
        seen.append(part.numel())
        return inner(part, *others)

    monkeypatch.setattr(module, "_sorted_cutoffs", recording)
    for limit in (1, 30, 140):
        seen.clear()
        monkeypatch.setattr(module, "CPU_ELEMENTS", limit)
        assert torch.equal(cutoffs(logits, 1.0, Truncation(top_p=0.6)), whole)
        assert max(seen) == max(limit, 10)
        assert sum(seen) == logits.numel()
