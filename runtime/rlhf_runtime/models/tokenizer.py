"""A model's tokenizer, from its folder."""

from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from rlhf_api.conditions import Reason

from rlhf_runtime.failures import RunFailure, first_words
from rlhf_runtime.maths.vocabulary import Vocabulary
from rlhf_runtime.models.model_folder import ModelFolder

_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")

#: The text of token ids.
Decode = Callable[[Sequence[int]], str]
#: Tokens before a completion that its text may depend on: those of a character that is spread over several, and a few.
_NEAR = 8


def has_tokenizer(folder: Path) -> bool:
    """Whether anything of a tokenizer is there."""
    return any((folder / name).is_file() for name in _FILES)


def read_tokenizer(uri: str, model: ModelFolder, field: str) -> Any:
    """The transformers tokenizer in the folder of the model at ``uri``. Raises RunFailure ModelInvalid (permanent)."""
    # Imported here: it takes seconds, and what else is wrong is said before.
    from transformers import AutoTokenizer

    try:
        # A folder's own code is not run: asked whether to, transformers would wait for a keyboard.
        return AutoTokenizer.from_pretrained(str(model.path), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        # transformers says that there is no tokenizer, or a broken one, by many kinds of exception.
        said = first_words(error)
        raise _invalid(f"{field}.uri: {uri}: no tokenizer can be loaded from {model.path}: {said}") from error


def load_tokenizer(uri: str, model: ModelFolder) -> Any:
    """The actor's: it must have an end token, and no more tokens than the model. Raises RunFailure ModelInvalid."""
    tokenizer = read_tokenizer(uri, model, "models.actor")
    if tokenizer.eos_token_id is None:
        raise _invalid(
            f"models.actor.uri: {uri}: the tokenizer in {model.path} has no end-of-sequence token, so no completion "
            "could end; set eos_token in its tokenizer_config.json"
        )
    if model.vocabulary is not None and len(tokenizer) > model.vocabulary:
        raise _invalid(
            f"models.actor.uri: {uri}: the tokenizer in {model.path} has {len(tokenizer)} tokens, the model's "
            f"embedding {model.vocabulary} (vocab_size in config.json): they do not belong together"
        )
    return tokenizer


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """The ids that have a token."""
    return Vocabulary.of(set(tokenizer.get_vocab().values()))


def decoder_of(tokenizer: Any) -> Decode:
    """What gives the text of tokens, special ones included."""

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    return decode


def text_after(decode: Decode, before: Sequence[int], ids: Sequence[int]) -> str:
    """What `ids` say after the tokens `before`: the text of both less that of the first.

    Not the text of `ids` alone: tokenizers such as SentencePiece leave out a space at the beginning of a text, and a
    character may begin in one token and end in the next.
    """
    near = before[-_NEAR:]
    first, whole = decode(near), decode([*near, *ids])
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, whole, strict=False))
    return whole[sum(1 for _ in same) :]


def _invalid(message: str) -> RunFailure:
    return RunFailure(Reason.MODEL_INVALID, message, permanent=True)


def pad_id(tokenizer: Any) -> int:
    """What fills batches; masks never come from it, so the end token does where there is none."""
    return int(tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id)
