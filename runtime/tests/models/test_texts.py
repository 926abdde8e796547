"""The text of a completion: what it says after its prompt, with tokenizers that join tokens in different ways."""

from collections.abc import Sequence
from typing import Any

import pytest
from rlhf_runtime.engines.ends import StopStrings
from rlhf_runtime.models.tokenizer import decoder_of, text_after
from spaced_tokenizers import ids_of, spaced_tokenizer
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast


def byte_tokenizer() -> Any:
    """A token a byte: of an e with an accent, and of two letters."""
    vocabulary = {"<0xC3>": 0, "<0xA9>": 1, "a": 2, "b": 3, "<eos>": 4}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


@pytest.mark.parametrize(
    ("prompt", "completion", "text"),
    [
        pytest.param(["a"], ["8"], "8", id="no space"),
        pytest.param(["a"], ["▁8"], " 8", id="a space"),
        pytest.param(["▁no"] * 20, ["▁8", "8"], " 88", id="after a long prompt"),
        pytest.param(["<eos>"], ["▁no"], " no", id="after a special token"),
        pytest.param(["a"], [], "", id="nothing"),
        pytest.param(["a"], ["▁8", "<eos>"], " 8<eos>", id="a special token in it"),
    ],
)
def test_a_completions_first_space_is_part_of_it(prompt: list[str], completion: list[str], text: str) -> None:
    tokenizer = spaced_tokenizer()
    assert text_after(decoder_of(tokenizer), ids_of(tokenizer, prompt), ids_of(tokenizer, completion)) == text


@pytest.mark.parametrize(
    ("prompt", "completion", "text"), [([2, 0], [1, 3], "éb"), ([2], [0, 1], "é"), ([0, 1], [2], "a")]
)
def test_a_character_that_begins_in_the_prompt_ends_in_the_completion(
    prompt: list[int], completion: list[int], text: str
) -> None:
    assert text_after(decoder_of(byte_tokenizer()), prompt, completion) == text


@pytest.mark.parametrize(
    ("prompt", "completion", "length"),
    [
        pytest.param(["a"], ["▁no", "8"], 1, id="with the first token"),
        pytest.param(["a"], ["no", "8"], None, id="not without its space"),
        pytest.param(["a"], ["8", "▁no"], 2, id="with a later token"),
        pytest.param(["▁no"], ["8"], None, id="not in the prompt"),
        pytest.param(["▁"], ["no", "8"], None, id="not from the prompt on"),
    ],
)
def test_a_stop_string_may_begin_with_a_space(
    prompt: Sequence[str], completion: Sequence[str], length: int | None
) -> None:
    tokenizer = spaced_tokenizer()
    stop = StopStrings([" no"], decoder_of(tokenizer))
    assert stop.length(ids_of(tokenizer, prompt), ids_of(tokenizer, completion), 0) == length
