"""Prompts of a few characters, each a token, without a file and without a tokenizer."""

import json
from collections.abc import Sequence
from typing import Any

from rlhf_runtime.data.prompt_rows import PromptRows, PromptValue
from rlhf_runtime.data.prompts import LengthPolicy, PromptSet, TrainingPrompts
from rlhf_runtime.data.source_files import unpacked


class Characters:
    """Every character is a token."""

    bos_id = ord("^")

    def text(self, prompt: PromptValue) -> str:
        return prompt if isinstance(prompt, str) else "".join(message["content"] for message in prompt)

    def ids(self, texts: Sequence[str], *, conversational: bool) -> list[list[int]]:
        return [[ord(character) for character in text] for text in texts]


def rows(*values: Any) -> PromptRows:
    """Rows of these prompts, or of these objects."""
    lines = [json.dumps(value if isinstance(value, dict) else {"prompt": value}).encode() for value in values]
    return PromptRows([unpacked("some rows", lines, lambda number: f"row {number - 1}")], "prompt")


#: Eight characters at most.
EIGHT = LengthPolicy(8)


def prompt_set(*values: Any, policy: LengthPolicy = EIGHT, held_out: Sequence[str] = ()) -> PromptSet:
    return PromptSet(rows(*values), Characters(), policy, "prompts", frozenset(held_out))


def order(letters: str, seed: int, cursors: int) -> list[int]:
    """Rows of the prompts at the first cursors."""
    prompts = TrainingPrompts(prompt_set(*letters), seed)
    return [prompts.prompt_at(cursor).row for cursor in range(cursors)]
