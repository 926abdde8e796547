"""What ends a completion: tokens, and strings in its text."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Decode = Callable[[list[int]], str]

#: Most tokens that one character of text is spread over, as bytes.
_TOKENS_OF_A_CHARACTER = 4


def end_ids(tokenizer: Any, folder: Path, extra: Sequence[int] = ()) -> tuple[int, ...]:
    """The tokenizer's end of sequence, those of the model's generation_config.json, and `extra`; each once.

    Chat models end a turn with another token than a text, and say so in that file only.
    """
    path = folder / "generation_config.json"
    named = json.loads(path.read_bytes()).get("eos_token_id") if path.is_file() else None
    of_model = named if isinstance(named, list) else [] if named is None else [named]
    return tuple(dict.fromkeys(int(i) for i in (tokenizer.eos_token_id, *of_model, *extra)))


class StopStrings:
    """Finds the token with which a completion's text first contains one of `strings`."""

    def __init__(self, strings: Sequence[str], decode: Decode) -> None:
        self._strings = tuple(strings)
        self._decode = decode
        self._reach = _TOKENS_OF_A_CHARACTER * max(len(string) for string in strings)

    def length(self, ids: Sequence[int], looked_at: int) -> int | None:
        """How many tokens of `ids` make a complete completion, None if no string is in their text.

        The first `looked_at` are known to hold none. A string may begin in one token and end in a later one, or lie
        within one: the whole token that completes it belongs to the completion.
        """
        if not self._is_in(ids[max(0, looked_at - self._reach) :]):
            return None
        for end in range(looked_at + 1, len(ids) + 1):
            if self._is_in(ids[max(0, end - 1 - self._reach) : end]):
                return end
        return None

    def _is_in(self, ids: Sequence[int]) -> bool:
        text = self._decode(list(ids))
        return any(string in text for string in self._strings)
