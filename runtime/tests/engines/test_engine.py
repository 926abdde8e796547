"""The engine samples what it says it samples: log-probs, draws, ends and weights."""

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rlhf_runtime.engines.draws import uniforms
from rlhf_runtime.engines.ends import end_ids
from rlhf_runtime.engines.engine import Request, Sampling
from rlhf_runtime.engines.seating import Seating
from rlhf_runtime.engines.transformers_engine import TransformersEngine
from rlhf_runtime.experience.rollout import Group, Rollout
from rlhf_runtime.maths.truncation import Truncation
from rlhf_runtime.models.policy_weights import model_weights
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

VOCABULARY, EOS = 17, 1
SAMPLING = Sampling(temperature=0.7, max_new_tokens=12, seed=5)


def make_model(*, tied: bool = False, seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).eval()


def make_engine(model: LlamaForCausalLM, eos_id: int = EOS, max_rows: int = 512) -> TransformersEngine:
    return TransformersEngine(model, end_ids=(eos_id,), version=3, max_rows=max_rows)


def request(prompt_index: int, *prompt_ids: int, samples: int = 6) -> Request:
    return Request(prompt_index=prompt_index, prompt_ids=np.array(prompt_ids, np.int32), samples=samples)


REQUESTS = [request(10, 3, 4, 5, 6), request(11, 7), request(12, 8, 9, 2, 3, 4, 5, samples=3)]


def rollouts(groups: list[Group]) -> list[Rollout]:
    return [rollout for group in groups for rollout in group.rollouts]


def tokens(groups: list[Group]) -> list[list[int]]:
    return [rollout.completion_ids.tolist() for rollout in rollouts(groups)]


def test_logprobs_are_those_of_a_plain_forward_of_prompt_and_completion() -> None:
    model = make_model()
    made = rollouts(make_engine(model).generate(REQUESTS, SAMPLING))
    assert len(made) == 15
    for rollout in made:
        ids = torch.from_numpy(np.concatenate([rollout.prompt_ids, rollout.completion_ids])).long()
        with torch.no_grad():
            logits = model(ids.unsqueeze(0)).logits[0, :-1].float()
        logprobs = (logits / SAMPLING.temperature).log_softmax(-1)[range(len(ids) - 1), ids[1:]]
        expected = logprobs[len(rollout.prompt_ids) - 1 :].numpy()
        np.testing.assert_allclose(rollout.logprobs, expected, atol=1e-5)
    assert len({len(rollout.completion_ids) for rollout in made}) > 2, "rows should leave at different steps"


def test_groups_come_back_in_the_order_of_the_requests_with_their_own_prompts() -> None:
    groups = make_engine(make_model()).generate(REQUESTS, SAMPLING)
    assert [group.prompt_index for group in groups] == [10, 11, 12]
    assert [len(group.rollouts) for group in groups] == [6, 6, 3]
    for asked, group in zip(REQUESTS, groups, strict=True):
        assert all(r.prompt_ids.tolist() == asked.prompt_ids.tolist() for r in group.rollouts)


@pytest.mark.parametrize("max_rows", [1, 9, 512])
def test_what_is_sampled_does_not_depend_on_what_shares_the_batch(max_rows: int) -> None:
    model = make_model()
    alone = [group for r in REQUESTS for group in make_engine(model).generate([r], SAMPLING)]
    together = make_engine(model, max_rows=max_rows).generate(REQUESTS[::-1], SAMPLING)[::-1]
    assert tokens(together) == tokens(alone)
    fewer = make_engine(model).generate([request(10, 3, 4, 5, 6, samples=2)], SAMPLING)
    assert tokens(fewer) == tokens(alone)[:2]


@pytest.mark.parametrize("end_ids", [(1,), (1, 4, 5, 6), (99,)])
def test_rows_that_wait_to_be_filled_together_change_nothing(end_ids: tuple[int, ...]) -> None:
    """Of 24 rows three must be free: until then those that have ended stay, also those that ran to the limit."""
    model, asked = make_model(), [request(0, 3, 4, samples=50), request(1, 5, 6, 7, samples=41)]
    whole = TransformersEngine(model, end_ids=end_ids).generate(asked, SAMPLING)
    for look_every in (1, 5):
        engine = TransformersEngine(model, end_ids=end_ids, max_rows=24, look_every=look_every)
        filled = engine.generate(asked, SAMPLING)
        assert tokens(filled) == tokens(whole)
        for one, other in zip(rollouts(filled), rollouts(whole), strict=True):
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


def test_a_batch_gets_narrower_only_to_sizes_it_may_have() -> None:
    """Rows 1, 4 and 6 of eight are left: as three rows, the two last move; as four, the same, and one is empty."""
    for widths, width, sources, targets in ((None, 3, [4, 6], [0, 2]), ([2, 4, 8], 4, [4, 6], [0, 2])):
        seating = Seating(range(8), 8)
        assert seating.fill().rows.tolist() == list(range(8))
        seating.leave([0, 2, 3, 5, 7])
        found = seating.shrink(widths)
        assert [moved.tolist() for moved in found] == [sources, targets]
        assert seating.width == width
        assert seating.sample_of_row[:width].tolist() == [4, 1, 6, -1][:width]
        assert [moved.tolist() for moved in seating.shrink(widths)] == [[], []]


def test_another_seed_or_prompt_index_gives_other_samples() -> None:
    engine = make_engine(make_model())
    first = tokens(engine.generate([request(10, 3, 4)], SAMPLING))
    assert tokens(engine.generate([request(10, 3, 4)], SAMPLING)) == first
    assert tokens(engine.generate([request(11, 3, 4)], SAMPLING)) != first
    other_seed = Sampling(temperature=0.7, max_new_tokens=12, seed=6)
    assert tokens(engine.generate([request(10, 3, 4)], other_seed)) != first


def test_a_completion_ends_with_its_first_eos_or_at_the_limit() -> None:
    made = rollouts(make_engine(make_model()).generate([request(0, 3, samples=64)], SAMPLING))
    for rollout in made:
        ids = rollout.completion_ids.tolist()
        assert EOS not in ids[:-1]
        assert rollout.truncated == (ids[-1] != EOS)
        assert len(ids) == 12 or not rollout.truncated
    assert {rollout.truncated for rollout in made} == {True, False}


#: Token t reads as its letter, and 16 as two of them.
LETTERS = "abcdefghijklmnop"


def letters(ids: Sequence[int]) -> str:
    return "".join(LETTERS[i] if i < 16 else "po" for i in ids)


@pytest.mark.parametrize("max_rows", [5, 512])
@pytest.mark.parametrize("stop", [("c",), ("cd", "ho"), ("op", "ff"), ("abcdefgh",)])
def test_a_completion_ends_with_the_token_that_completes_a_stop_string(stop: tuple[str, ...], max_rows: int) -> None:
    """The same draws as without, cut behind the first token whose text completes one, across tokens too."""
    model = make_model()
    asked = [request(0, 3, samples=64)]
    free = tokens(TransformersEngine(model, end_ids=(99,), max_rows=max_rows).generate(asked, SAMPLING))
    engine = TransformersEngine(model, end_ids=(99,), max_rows=max_rows, decode=letters)
    stopping = dataclasses.replace(SAMPLING, stop=stop)
    made = rollouts(engine.generate(asked, stopping))
    ends = [next((n for n in range(1, 13) if any(string in letters(ids[:n]) for string in stop)), None) for ids in free]
    assert any(ends) == (stop != ("abcdefgh",))
    assert [r.completion_ids.tolist() for r in made] == [ids[:end] for ids, end in zip(free, ends, strict=True)]
    assert [r.truncated for r in made] == [end is None for end in ends]
    with pytest.raises(ValueError, match="no tokenizer"):
        make_engine(model).generate(asked, stopping)


def test_each_of_several_end_tokens_ends_a_completion() -> None:
    made = rollouts(TransformersEngine(make_model(), end_ids=(1, 5, 9)).generate([request(0, 3, samples=64)], SAMPLING))
    for rollout in made:
        ids = rollout.completion_ids.tolist()
        assert not {1, 5, 9} & set(ids[:-1])
        assert rollout.truncated == (ids[-1] not in (1, 5, 9))
    assert {int(rollout.completion_ids[-1]) for rollout in made} >= {1, 5, 9}


@pytest.mark.parametrize(
    ("generation_config", "config", "expected"),
    [
        pytest.param(None, {}, (1, 9), id="the tokenizer's and the job's"),
        pytest.param({"eos_token_id": 4}, {}, (1, 4, 9), id="one of generation_config.json"),
        pytest.param({"eos_token_id": [1, 4]}, {}, (1, 4, 9), id="several of generation_config.json"),
        pytest.param(None, {"eos_token_id": 7}, (1, 7, 9), id="one of config.json"),
        pytest.param(None, {"eos_token_id": [1, 7]}, (1, 7, 9), id="several of config.json"),
        pytest.param(None, {"text_config": {"eos_token_id": [1, 7]}}, (1, 7, 9), id="of its text model"),
        pytest.param({}, {"eos_token_id": [1, 7]}, (1, 9), id="generation_config.json, where it is there"),
    ],
)
def test_end_tokens_are_the_tokenizers_transformers_and_the_jobs(
    tmp_path: Path, generation_config: dict[str, object] | None, config: dict[str, object], expected: tuple[int, ...]
) -> None:
    if generation_config is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation_config))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    assert end_ids(SimpleNamespace(eos_token_id=1), tmp_path, [9]) == expected


@pytest.mark.parametrize(
    ("truncation", "drawn"),
    [
        (None, VOCABULARY),
        (Truncation(top_p=0.6), 6),
        (Truncation(top_k=5), 5),
        (Truncation(top_p=0.7, top_k=5), 4),
    ],
)
def test_tokens_are_drawn_with_their_probabilities(truncation: Truncation | None, drawn: int) -> None:
    """4,000 first tokens against the model's own distribution: all within five standard errors, and none outside."""
    model, count = make_model(), 4000
    one_token = Sampling(temperature=1.3, max_new_tokens=1, seed=0, truncation=truncation)
    [group] = make_engine(model).generate([request(0, 3, 4, samples=count)], one_token)
    with torch.no_grad():
        scores = model(torch.tensor([[3, 4]])).logits[:, -1] / 1.3
    if truncation is not None and truncation.top_k is not None:
        scores = TopKLogitsWarper(truncation.top_k)(None, scores)
    if truncation is not None:
        scores = TopPLogitsWarper(truncation.top_p)(None, scores)
    expected = scores[0].softmax(-1).numpy()
    found = np.bincount([int(r.completion_ids[0]) for r in group.rollouts], minlength=VOCABULARY) / count
    assert (np.abs(found - expected) <= 5 * np.sqrt(expected / count)).all()
    assert np.count_nonzero(expected) == np.count_nonzero(found) == drawn
    for rollout in group.rollouts:
        assert rollout.logprobs[0] == pytest.approx(math.log(expected[rollout.completion_ids[0]]), abs=1e-5)


def test_draws_are_uniform_and_differ_in_every_key() -> None:
    prompts, samples = (grid.ravel() for grid in np.meshgrid(np.arange(200), np.arange(50)))
    draws = np.concatenate([uniforms(seed, prompts, samples, 2).ravel() for seed in (0, 1)])
    assert draws.min() >= 0
    assert draws.max() < 1
    assert len(np.unique(draws)) == len(draws) == 40_000
    assert draws.mean() == pytest.approx(0.5, abs=5 * math.sqrt(1 / 12 / 40_000))
    shares = np.histogram(draws, 10, (0, 1))[0] / 40_000
    assert np.abs(shares - 0.1).max() < 5 * math.sqrt(0.09 / 40_000)


def test_draws_are_the_same_on_every_machine() -> None:
    found = uniforms(-1, np.array([0, 7]), np.array([0, 3]), 3)[:, 2]
    assert found.tolist() == [0.5161866440459998, 0.19708574628004272]


def test_every_token_records_the_version_that_drew_it() -> None:
    engine, new_weights = make_engine(make_model(), eos_id=99), model_weights(make_model(seed=1))
    steps = 0

    def load_after_two_steps() -> None:
        nonlocal steps
        steps += 1
        if steps == 2:
            engine.load(new_weights, 4)

    [group] = engine.generate([request(0, 3, samples=2)], SAMPLING, load_after_two_steps)
    assert group.rollouts[0].versions.tolist() == [3, 3] + [4] * 10
    assert group.oldest_version == 3
    assert steps == 11


def test_a_hook_that_raises_cancels_and_leaves_the_engine_usable() -> None:
    class CancelledByTestError(Exception):
        pass

    def cancel() -> None:
        raise CancelledByTestError

    engine = make_engine(make_model())
    expected = tokens(engine.generate(REQUESTS, SAMPLING))
    with pytest.raises(CancelledByTestError):
        engine.generate(REQUESTS, SAMPLING, cancel)
    assert tokens(engine.generate(REQUESTS, SAMPLING)) == expected


@pytest.mark.parametrize("tied", [False, True])
def test_loaded_weights_are_the_ones_used(tied: bool) -> None:
    source, engine = make_model(tied=tied, seed=1), make_engine(make_model(tied=tied))
    engine.load(model_weights(source), 4)
    assert engine.version == 4
    assert tokens(engine.generate(REQUESTS, SAMPLING)) == tokens(make_engine(source).generate(REQUESTS, SAMPLING))


def test_a_tied_head_is_sent_once_and_stays_tied() -> None:
    model = make_model(tied=True)
    engine, weights = make_engine(model), model_weights(make_model(tied=True, seed=1))
    assert "lm_head.weight" not in weights
    engine.load(weights, 4)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    engine.load(make_model(tied=True, seed=2).state_dict(), 5)
    assert model.lm_head.weight is model.model.embed_tokens.weight


Change = Callable[[dict[str, Tensor]], None]


def _drop(state: dict[str, Tensor]) -> None:
    del state["model.norm.weight"]


def _add(state: dict[str, Tensor]) -> None:
    state["model.lora_A.weight"] = torch.zeros(1)


def _reshape(state: dict[str, Tensor]) -> None:
    state["model.norm.weight"] = torch.zeros(31)


def _halve(state: dict[str, Tensor]) -> None:
    state["model.norm.weight"] = state["model.norm.weight"].half()


def _untie(state: dict[str, Tensor]) -> None:
    state["lm_head.weight"] = state["model.embed_tokens.weight"] + 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_drop, "missing model.norm.weight"),
        (_add, "unknown model.lora_A.weight"),
        (_reshape, r"model.norm.weight: found torch.float32\[31\], expected torch.float32\[32\]"),
        (_halve, r"model.norm.weight: found torch.float16\[32\], expected torch.float32\[32\]"),
        (_untie, "lm_head.weight: differs from model.embed_tokens.weight"),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_change_nothing(change: Change, message: str) -> None:
    model = make_model(tied=True)
    engine = make_engine(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = {name: tensor + 1 for name, tensor in model_weights(model).items()}
    change(state)
    with pytest.raises(ValueError, match=message):
        engine.load(state, 4)
    assert engine.version == 3
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_requests_and_sampling_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="found 0 samples"):
        request(0, 3, samples=0)
    with pytest.raises(ValueError, match="found temperature 0"):
        Sampling(temperature=0.0, max_new_tokens=1, seed=0)
