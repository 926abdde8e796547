"""A maker's log-probs are the trainer's, in every family; what int8 weights change, and what they do not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from family_models import make_model
from rlhf_runtime.engines.engine import Request, Sampling
from rlhf_runtime.engines.int8 import quantize, quantized_like, weight_bytes
from rlhf_runtime.engines.transformers_engine import TransformersEngine
from rlhf_runtime.experience.batch import rows_of
from rlhf_runtime.experience.rollout import Group, Rollout
from rlhf_runtime.maths.logprobs import token_logprobs
from rlhf_runtime.maths.truncation import Truncation
from rlhf_runtime.models.forwards import completion_logits
from rlhf_runtime.models.policy_weights import model_weights
from tiny_models import FAMILIES, VOCABULARY
from torch import nn

SAMPLING = Sampling(temperature=0.8, max_new_tokens=14, seed=3)


TOP_P, TOP_K, BOTH = Truncation(top_p=0.9), Truncation(top_k=5), Truncation(top_p=0.9, top_k=5)


LENGTHS = (1, 2, 5, 17, 30, 9, 1)


def requests() -> list[Request]:
    random = np.random.default_rng(0)
    return [
        Request(prompt_index=i, prompt_ids=random.integers(2, len(VOCABULARY), length).astype(np.int32), samples=3)
        for i, length in enumerate(LENGTHS)
    ]


def rollouts(groups: list[Group]) -> list[Rollout]:
    return [rollout for group in groups for rollout in group.rollouts]


def gaps(model: nn.Module, made: list[Rollout], truncation: Truncation | None = None) -> np.ndarray[Any, Any]:
    """|maker's log-prob - trainer's| of every token, the trainer's from one padded batch."""
    rows = rows_of(made, pad_id=0)
    with torch.no_grad():
        logits = completion_logits(model, rows)
        found = token_logprobs(logits, rows.completion_ids, SAMPLING.temperature, truncation).numpy()
    return np.concatenate(
        [np.abs(found[i, : len(rollout.logprobs)] - rollout.logprobs) for i, rollout in enumerate(made)]
    )


@pytest.mark.parametrize(
    ("options", "truncation"),
    [
        pytest.param({}, None, id="all together"),
        pytest.param({"max_rows": 4}, None, id="rows filled again"),
        pytest.param({"max_rows": 5, "prefill_tokens": 7}, None, id="long prompts in parts"),
        pytest.param({}, TOP_P, id="top-p"),
        pytest.param({}, TOP_K, id="top-k"),
        pytest.param({"max_rows": 4}, BOTH, id="top-k, top-p and rows filled again"),
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_makers_logprobs_are_the_trainers(
    family: str, options: dict[str, int], truncation: Truncation | None
) -> None:
    model, sampling = make_model(family), replace(SAMPLING, truncation=truncation)
    made = rollouts(TransformersEngine(model, end_ids=(1, 4), **options).generate(requests(), sampling))
    assert len({len(rollout.completion_ids) for rollout in made}) > 3, "rows should end at different steps"
    assert gaps(model, made, truncation).max() < 1e-5
    if truncation is not None:
        assert gaps(model, made).max() > 1e-2, "the untruncated policy says otherwise"
    whole = rollouts(TransformersEngine(model, end_ids=(1, 4)).generate(requests(), sampling))
    assert [r.completion_ids.tolist() for r in made] == [r.completion_ids.tolist() for r in whole]


def test_attention_code_that_wants_another_mask_gets_it() -> None:
    model = make_model("llama", attn_implementation="eager")
    made = rollouts(TransformersEngine(model, end_ids=(1,), max_rows=4).generate(requests(), SAMPLING))
    assert gaps(model, made).max() < 1e-5


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, "'sliding_attention'"),
        ({"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8}, "'sliding_attention'"),
    ],
)
def test_models_whose_rows_cannot_share_a_batch_are_refused(changes: dict[str, Any], found: str) -> None:
    with pytest.raises(ValueError, match=f"Qwen2ForCausalLM: found layers of .*{found}.*, expected full attention"):
        TransformersEngine(make_model("qwen2", **changes), end_ids=(1,))


def test_bfloat16_makers_report_the_logprobs_of_what_they_sample_from() -> None:
    """Log-probs are those of the bfloat16 model to fp32's rounding of its logits, and near the fp32 model's."""
    model = make_model("llama").bfloat16()
    made = rollouts(TransformersEngine(model, end_ids=(1,)).generate(requests(), SAMPLING))
    assert gaps(model, made).max() < 0.2
    assert 0 < gaps(make_model("llama"), made).mean() < 0.1


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "gpt2"])
def test_int8_makers_sample_from_what_they_say_and_load_what_is_published(family: str) -> None:
    model, other = make_model(family), make_model(family, seed=1)
    before = weight_bytes(model)
    head = model.get_output_embeddings().weight
    layers = quantize(model)
    assert len(layers) >= 8
    assert weight_bytes(model) < before
    assert model.get_output_embeddings().weight is head, "the head keeps its numbers"
    assert head.dtype == torch.float32
    engine = TransformersEngine(model, end_ids=(1,), as_held=quantized_like)
    made = rollouts(engine.generate(requests(), SAMPLING))
    assert gaps(model, made).max() < 1e-5
    assert 0 < gaps(make_model(family), made).mean() < 0.1
    engine.load(model_weights(other), 4)
    quantize(other)
    expected = rollouts(TransformersEngine(other, end_ids=(1,)).generate(requests(), SAMPLING))
    made = rollouts(engine.generate(requests(), SAMPLING))
    assert [r.completion_ids.tolist() for r in made] == [r.completion_ids.tolist() for r in expected]
    assert {int(version) for r in made for version in r.versions} == {4}


def test_int8_weights_that_do_not_fit_are_refused_and_change_nothing() -> None:
    model = make_model("llama")
    quantize(model)
    engine = TransformersEngine(model, end_ids=(1,), as_held=quantized_like)
    expected = [r.completion_ids.tolist() for r in rollouts(engine.generate(requests(), SAMPLING))]
    state = {name: tensor + 1 for name, tensor in model_weights(make_model("llama")).items()}
    state["model.layers.0.mlp.up_proj.weight"] = torch.zeros(3, 3)
    with pytest.raises(ValueError, match=r"up_proj.weight: found .*\[3, 3\]"):
        engine.load(state, 4)
    assert [r.completion_ids.tolist() for r in rollouts(engine.generate(requests(), SAMPLING))] == expected


def test_a_model_without_linear_layers_cannot_be_int8() -> None:
    with pytest.raises(ValueError, match=r"makers\.quantization: GPT2LMHeadModel has no linear layer besides its head"):
        quantize(make_model("gpt2"))
