"""Prompts: which rows there are, in which order they are trained on, and which tokens each becomes."""

import random
from array import array
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from rlhf_api.conditions import Reason
from rlhf_api.status import SourceStatus

from rlhf_runtime.data.prompt_rows import PromptRow, PromptRows, PromptValue, said
from rlhf_runtime.data.source_files import invalid
from rlhf_runtime.data.templates import Encoder, TemplateError, UnreadableText
from rlhf_runtime.failures import RunFailure

#: Held-out prompts have indices from here on, so that no draw of theirs is keyed like one of a training prompt.
HELD_OUT_INDEX = 1 << 48

#: Texts given to the tokenizer at once: one call each takes ten times as long.
_ENCODE_TOGETHER = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt as makers get it.

    index      the cursor in the run's order of prompts; held-out prompts: HELD_OUT_INDEX + position
    row        the row of the source, from 0 (blank lines of a file are not counted)
    text       the text that the policy reads, before it may have been truncated
    token_ids  its tokens, at least one
    columns    the row's other columns, JSON values; every prompt of a source has the same keys (None if absent)
    messages   what the text was made of, if the row has messages
    """

    index: int
    row: int
    text: str
    token_ids: tuple[int, ...]
    columns: dict[str, Any]
    messages: list[dict[str, Any]] | None = None

    @property
    def value(self) -> PromptValue:
        """What reward functions get: the row's messages, or its text."""
        return self.text if self.messages is None else self.messages

    def completion(self, text: str) -> PromptValue:
        """A completion as reward functions get it: one message of the assistant after messages, text after text."""
        return text if self.messages is None else [{"role": "assistant", "content": text}]


@dataclass(frozen=True, slots=True)
class LengthPolicy:
    """The most tokens that a prompt may have, and what is done with a longer one (`prompts.overlong`)."""

    max_tokens: int
    overlong: Literal["Error", "Drop", "TruncateLeft"] = "Error"


class PromptSet:
    """The rows of a source that become prompts: none that is in ``held_out``, none longer than the policy allows.

    Raises RunFailure (permanent): PromptsInvalid naming the first row that cannot be one; DatasetEmpty.
    """

    def __init__(
        self, rows: PromptRows, encoder: Encoder, lengths: LengthPolicy, field: str, held_out: Set[str] = frozenset()
    ) -> None:
        self._rows = rows
        self._encoder = encoder
        self._lengths = lengths
        self.longest = 0
        """Tokens of the longest prompt."""
        kept = array("q")
        left_out = dropped = truncated = 0
        for row, length in self._measured(held_out):
            if length is None:
                left_out += 1
                continue
            if length > lengths.max_tokens:
                if lengths.overlong == "Drop":
                    dropped += 1
                    continue
                truncated += 1
            kept.append(row.row)
            self.longest = max(self.longest, min(length, lengths.max_tokens))
        self._kept = np.frombuffer(kept, np.int64) if kept else np.zeros(0, np.int64)
        self.counts = SourceStatus(rows=len(rows), held_out=left_out, dropped=dropped, truncated=truncated)
        if not kept:
            raise RunFailure(
                Reason.DATASET_EMPTY, _nothing_left(self.counts, lengths, field, len(held_out)), permanent=True
            )

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that reward functions get."""
        return self._rows.columns

    def prompt(self, position: int, index: int) -> Prompt:
        """The prompt at ``position`` of the set, under ``index``."""
        row = self._rows[int(self._kept[position])]
        text = self._encoder.text(row.prompt)
        [ids] = self._encoder.ids([text], conversational=self._rows.conversational)
        return Prompt(
            index=index,
            row=row.row,
            text=text,
            token_ids=tuple(_truncated(ids, self._lengths.max_tokens, self._encoder.bos_id)),
            columns={name: row.columns.get(name) for name in self.columns},
            messages=None if isinstance(row.prompt, str) else row.prompt,
        )

    def _measured(self, held_out: Set[str]) -> Iterator[tuple[PromptRow, int | None]]:
        """Every row with its number of tokens, None if it is held out; some rows are in memory at a time."""
        rows = iter(self._rows)
        while batch := list(islice(rows, _ENCODE_TOGETHER)):
            some = [row for row in batch if said(row.prompt) not in held_out] if held_out else batch
            texts = [self._text(row) for row in some]
            try:
                ids = self._encoder.ids(texts, conversational=self._rows.conversational)
            except UnreadableText as error:
                invalid(f"{some[error.index].where}: {error}", error)
            lengths = {row.row: len(each) for row, each in zip(some, ids, strict=True)}
            for row in batch:
                length = lengths.get(row.row)
                if length == 0 or ((length or 0) > self._lengths.max_tokens and self._lengths.overlong == "Error"):
                    wanted = f"at most {self._lengths.max_tokens} (prompts.maxPromptTokens)" if length else "at least 1"
                    invalid(f"{row.where}: the prompt has {length} tokens, expected {wanted}")
                yield row, length

    def _text(self, row: PromptRow) -> str:
        try:
            return self._encoder.text(row.prompt)
        except TemplateError as error:
            invalid(f"{row.where}: {error}", error)


class TrainingPrompts:
    """The order of training prompts: cursor 0, 1, 2, ... for as long as the run goes.

    Every pass over the rows has an order of its own, which follows from (seed, pass) alone, or without ``shuffle``
    the rows' own: any process and any resumed attempt gets the same prompt for the same cursor.
    """

    def __init__(self, prompts: PromptSet, seed: int, shuffle: bool = True) -> None:
        self._prompts = prompts
        self._seed = seed
        self._shuffle = shuffle
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
        position = int(self._order(number)[offset]) if self._shuffle else offset
        return self._prompts.prompt(position, cursor)

    def _order_of_pass(self, number: int) -> npt.NDArray[np.uint32]:
        # Sorting by draws rather than shuffling: Python and NumPy promise the same draws in every version, not the
        # same shuffles. Python's generator takes the seed, a string because tuples of numbers are hashed; NumPy's of
        # the same kind, in the same state, makes the same draws at once.
        _, state, _ = random.Random(f"{self._seed}/{number}").getstate()
        generator = np.random.RandomState()
        generator.set_state(("MT19937", np.array(state[:-1], np.uint32), state[-1], 0, 0.0))
        draws = generator.random_sample(len(self._prompts))
        return np.argsort(draws, kind="stable").astype(np.uint32)


def columns_of(prompts: Sequence[Prompt]) -> dict[str, list[Any]]:
    """The columns of a batch as reward functions get them: one list a column, one value a prompt."""
    names = sorted({name for prompt in prompts for name in prompt.columns})
    return {name: [prompt.columns.get(name) for prompt in prompts] for name in names}


def held_out_prompts(prompts: PromptSet) -> list[Prompt]:
    """All prompts of a held-out set, in the order of their rows."""
    return [prompts.prompt(position, HELD_OUT_INDEX + position) for position in range(len(prompts))]


def _truncated(ids: list[int], max_tokens: int, bos_id: int | None) -> list[int]:
    """The last tokens, and before them the beginning of a sequence if there was one.

    >>> _truncated([1, 5, 6, 7, 8], 3, bos_id=1)
    [1, 7, 8]
    """
    if len(ids) <= max_tokens:
        return ids
    if ids[0] == bos_id and max_tokens > 1:
        return [ids[0], *ids[len(ids) - max_tokens + 1 :]]
    return ids[len(ids) - max_tokens :]


def _nothing_left(counts: SourceStatus, lengths: LengthPolicy, field: str, held_out: int) -> str:
    left = f"{field}: 0 of {counts.rows} rows left"
    if not counts.dropped:
        return f"{left} after taking out the {held_out} held-out prompts, expected problems of its own for evaluation"
    also = f" and {counts.held_out} held-out rows" if counts.held_out else ""
    return (
        f"{left} after overlong filter: {counts.dropped} rows{also} taken out; expected some of at most "
        f"{lengths.max_tokens} tokens (prompts.maxPromptTokens; prompts.overlong is {lengths.overlong})"
    )
