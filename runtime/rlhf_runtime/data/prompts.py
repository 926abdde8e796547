"""Prompts: which rows there are, in which order they are trained on, and which tokens they become.

Text becomes tokens here and nowhere else: with the tokenizer's default special tokens, except an end of
sequence that it would append, because the policy is to go on from the prompt. Special tokens that a row's own
text spells out ("<|im_start|>") are read as such, so a prompt can be given ready formatted.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rlhf_api.conditions import DATASET_EMPTY, PROMPTS_INVALID
from rlhf_api.prompts import PromptSource

from rlhf_runtime.data.prompt_rows import PromptRow, column_names, load_rows
from rlhf_runtime.failures import RunFailure

#: Held-out prompts have indices from here on, so that no draw of theirs is keyed like one of a training prompt.
HELD_OUT_INDEX = 1 << 48

#: Texts to their token ids, see `encoder`.
Encode = Callable[[Sequence[str]], list[list[int]]]

#: Texts given to the tokenizer at once: one call each takes ten times as long.
_ENCODE_TOGETHER = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt as makers get it.

    index      the cursor in the run's order of prompts; held-out prompts: HELD_OUT_INDEX + row
    row        the row of the source, from 0 (blank lines of a file are not counted)
    text       the prompt's text, which reward functions get
    token_ids  its tokens, at least one
    columns    the row's other columns, JSON values; every prompt of a source has the same keys (None if absent)
    """

    index: int
    row: int
    text: str
    token_ids: tuple[int, ...]
    columns: dict[str, Any]


class PromptSet:
    """Rows of one source that all become prompts: each has a token, and none is longer than allowed.

    Raises RunFailure PromptsInvalid naming the first row that does not.
    """

    def __init__(self, rows: Sequence[PromptRow], encode: Encode, max_tokens: int) -> None:
        self._rows = rows
        self._encode = encode
        self.columns = column_names(rows)
        """Names of the columns that reward functions get."""
        self.longest = max(self._lengths(max_tokens), default=0)
        """Tokens of the longest prompt."""

    def __len__(self) -> int:
        return len(self._rows)

    def prompt(self, position: int, index: int) -> Prompt:
        """The prompt at ``position`` of the set, under ``index``."""
        row = self._rows[position]
        return Prompt(
            index=index,
            row=row.row,
            text=row.text,
            token_ids=tuple(self._encode([row.text])[0]),
            columns={name: row.columns.get(name) for name in self.columns},
        )

    def _lengths(self, max_tokens: int) -> Iterator[int]:
        for start in range(0, len(self._rows), _ENCODE_TOGETHER):
            rows = self._rows[start : start + _ENCODE_TOGETHER]
            for row, ids in zip(rows, self._encode([row.text for row in rows]), strict=True):
                if not 1 <= len(ids) <= max_tokens:
                    wanted = f"at most {max_tokens} (prompts.maxPromptTokens)" if ids else "at least 1"
                    raise RunFailure(
                        PROMPTS_INVALID,
                        f"{row.where}: the prompt has {len(ids)} tokens, expected {wanted}",
                        permanent=True,
                    )
                yield len(ids)


class TrainingPrompts:
    """The order of training prompts: cursor 0, 1, 2, ... for as long as the run goes.

    Every pass over the rows has an order of its own, which follows from (seed, pass) alone: any process and any
    resumed attempt gets the same prompt for the same cursor.
    """

    def __init__(self, prompts: PromptSet, seed: int) -> None:
        self._prompts = prompts
        self._seed = seed
        # A pass and its neighbour: dispatch runs ahead of what is sampled again.
        self._order = lru_cache(maxsize=2)(self._order_of_pass)

    def __len__(self) -> int:
        return len(self._prompts)

    @property
    def columns(self) -> tuple[str, ...]:
        return self._prompts.columns

    @property
    def longest(self) -> int:
        return self._prompts.longest

    def prompt_at(self, cursor: int) -> Prompt:
        """The prompt at a cursor from 0 on."""
        if cursor < 0:
            raise ValueError(f"cursor {cursor}: expected 0 or more")
        number, offset = divmod(cursor, len(self._prompts))
        return self._prompts.prompt(self._order(number)[offset], cursor)

    def _order_of_pass(self, number: int) -> list[int]:
        # Sorting by draws rather than shuffle(): Python promises the same draws in every version, not the same
        # shuffles. A string seed, because tuples of numbers are hashed.
        generator = random.Random(f"{self._seed}/{number}")
        draws = [generator.random() for _ in range(len(self._prompts))]
        return sorted(range(len(draws)), key=draws.__getitem__)


def training_rows(source: PromptSource, held_out: Sequence[PromptRow]) -> tuple[list[PromptRow], int]:
    """The source's rows without those whose text is a held-out prompt's, and how many those were.

    Raises RunFailure DatasetEmpty if none is left, and what ``load_rows`` raises.
    """
    rows = load_rows(source, "prompts")
    taken = {row.text for row in held_out}
    left = [row for row in rows if row.text not in taken]
    if not left:
        raise RunFailure(
            DATASET_EMPTY,
            f"prompts: {len(left)} of {len(rows)} rows left after taking out the {len(taken)} held-out prompts, "
            "expected at least 1: evaluation needs problems of its own",
            permanent=True,
        )
    return left, len(rows) - len(left)


def columns_of(prompts: Sequence[Prompt]) -> dict[str, list[Any]]:
    """The columns of a batch as reward functions get them: one list a column, one value a prompt."""
    names = sorted({name for prompt in prompts for name in prompt.columns})
    return {name: [prompt.columns.get(name) for prompt in prompts] for name in names}


def held_out_prompts(prompts: PromptSet) -> list[Prompt]:
    """All prompts of a held-out set, in the order of their rows."""
    return [prompts.prompt(position, HELD_OUT_INDEX + position) for position in range(len(prompts))]


def encoder(tokenizer: Any) -> Encode:
    """Texts to ids with a transformers tokenizer's default special tokens, an end of sequence it appends taken off."""
    appended = 0
    for token in reversed(tokenizer("a")["input_ids"]):
        if token != tokenizer.eos_token_id:
            break
        appended += 1

    def encode(texts: Sequence[str]) -> list[list[int]]:
        found: list[list[int]] = tokenizer(list(texts))["input_ids"]
        return [ids[: len(ids) - appended] for ids in found]

    return encode
