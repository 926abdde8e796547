"""Which tokens are trained, and at which positions they stand: lengths decide, never a token's id."""

import pytest
import torch
from rlhf_runtime.maths.masks import completion_lengths, completion_mask, position_ids
from transformers import GPT2Config, GPT2LMHeadModel, OPTConfig, OPTForCausalLM

END = 0
"""The end token, and the pad token too."""


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        pytest.param([7, END, END, END], [1, 1, 0, 0], id="the first end token is trained, the padding isn't"),
        pytest.param([END, END, END, END], [1, 0, 0, 0], id="an end token at once"),
        pytest.param([5, 6, 7, 8], [1, 1, 1, 1], id="truncated: no end token is put in"),
        pytest.param([7, END, 9, END], [1, 1, 0, 0], id="junk behind the end"),
        pytest.param([5, 6, END, END, END], [1, 1, 1, 0, 0], id="a longer one"),
    ],
)
def test_the_first_end_token_is_the_last_one_that_counts(tokens: list[int], expected: list[int]) -> None:
    lengths = completion_lengths(torch.tensor([tokens]), END)
    assert completion_mask(lengths, len(tokens)).int().tolist() == [expected]


def test_positions_are_counted_from_the_first_real_token() -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]])
    assert position_ids(mask).tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]]


@pytest.mark.parametrize("family", ["gpt2", "opt"])
def test_left_padding_does_not_change_the_logits_of_a_model_with_absolute_positions(family: str) -> None:
    torch.manual_seed(0)
    if family == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=16, n_embd=16, n_layer=2, n_head=2)).eval()
    else:
        config = OPTConfig(
            vocab_size=20, hidden_size=16, ffn_dim=32, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=16, word_embed_proj_dim=16,
        )  # fmt: skip
        model = OPTForCausalLM(config).eval()
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    with torch.no_grad():
        expected = model(tokens).logits
        for padding in range(8):
            mask = torch.tensor([[0] * padding + [1] * 5])
            padded = torch.nn.functional.pad(tokens, (padding, 0))
            found = model(padded, attention_mask=mask, position_ids=position_ids(mask)).logits[:, padding:]
            assert float((found - expected).abs().max()) < 1e-5
