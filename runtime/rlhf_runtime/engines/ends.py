"""What ends a completion: tokens, and strings in its text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf_runtime.models.end_tokens import model_end_ids
from rlhf_runtime.models.tokenizer import Decode, text_after

#: Most tokens that one character of text is spread over, as bytes.
_TOKENS_OF_A_CHARACTER = 4


def end_ids(tokenizer: Any, folder: Path, extra: Sequence[int] = ()) -> tuple[int, ...]:
    """The tokenizer's end of sequence, those by which transformers ends a text of the model, and `extra`; each once.

    Chat models end a turn with another token than a text, and say so in the model's folder only. Raises RunFailure
    ModelInvalid (permanent).
    """
    of_model, _ = model_end_ids(folder)
    return tuple(dict.fromkeys(int(i) for i in (tokenizer.eos_token_id, *of_model, *extra)))


class StopStrings:
    """Finds the token with which a completion's text first contains one of `strings`."""

    def __init__(self, strings: Sequence[str], decode: Decode) -> None:
        self._strings = tuple(strings)
        self._decode = decode
        self._reach = _TOKENS_OF_A_CHARACTER * max(len(string) for string in strings)

    def length(self, prompt: Sequence[int], ids: Sequence[int], looked_at: int) -> int | None:
        """How many tokens of `ids`, which follow `prompt`, make a complete completion; None if no string is in it.

        The first `looked_at` are known to hold none. A string may begin in one token and end in a later one, or lie
        within one: the whole token that completes it belongs to the completion. It does not begin in the prompt.
        """
        if not self._is_in(prompt, ids, max(0, looked_at - self._reach), len(ids)):
            return None
        for end in range(looked_at + 1, len(ids) + 1):
            if self._is_in(prompt, ids, max(0, end - 1 - self._reach), end):
                return end
        return None

    def _is_in(self, prompt: Sequence[int], ids: Sequence[int], start: int, end: int) -> bool:
        # What is before a later start belongs to no string that is not found yet.
        part = list(ids[start:end])
        text = self._decode(part) if start else text_after(self._decode, prompt, part)
        return any(string in text for string in self._strings)
