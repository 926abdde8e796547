"""A tokenizer that joins tokens as SentencePiece does: a mark in a token is a space, but not at a text's beginning."""

from collections.abc import Sequence
from typing import Any

VOCABULARY = ["<pad>", "<eos>", "a", "8", "▁8", "no", "▁no", "▁"]


def spaced_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {token: number for number, token in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def ids_of(tokenizer: Any, tokens: Sequence[str]) -> list[int]:
    found: list[int] = tokenizer.convert_tokens_to_ids(list(tokens))
    return found
