"""Keys and values of the rows being decoded, in memory that is allocated once.

A row's token number c lies in column c: rows are aligned to the left, so prompts of any lengths share a batch
without padding, and a finished row's place is taken by overwriting it from column 0. What lies right of a row's
own length is left over from earlier use and is never attended to. Nothing is concatenated while decoding.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin


@dataclass(slots=True)
class _Window:
    """What the next step looks at: rows [0, width), columns [0, columns), and the column each row writes, [width].

    `places`, by the number of heads: where each head of each row writes, counted through all of a layer's memory.
    """

    width: int
    columns: int
    positions: Tensor
    places: dict[int, Tensor]


class RowCache(Cache):  # type: ignore[misc]  # transformers has no types
    """`rows` x `columns` places for each of `layers` layers; the model fills them through `update`."""

    def __init__(self, *, layers: int, rows: int, columns: int, device: torch.device) -> None:
        self._window = _Window(rows, columns, torch.zeros(rows, dtype=torch.int64, device=device), {})
        self.rows = rows
        self.columns = columns
        super().__init__(layers=[_RowLayer(rows, columns, self._window) for _ in range(layers)])

    def look_at(self, width: int, columns: int, positions: Tensor) -> None:
        """Let the next forward decode one token of each of the first `width` rows, at its column in `positions`."""
        window = self._window
        window.width, window.columns = width, columns
        window.positions, window.places = positions, {}

    def adopt(self, prompts: Cache, sources: Tensor, rows: Tensor) -> None:
        """Give each of `rows` [n] the keys and values of the entry of `prompts` that `sources` [n] names."""
        for own, other in zip(self.layers, prompts.layers, strict=True):
            own.adopt(other.keys, other.values, sources, rows)

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy whole rows onto others, both [n]; no row is on both sides."""
        for layer in self.layers:
            layer.move(sources, targets)


class _RowLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer: keys and values [rows, heads, columns, head size], allocated when their shape is known."""

    is_sliding = False

    def __init__(self, rows: int, columns: int, window: _Window) -> None:
        super().__init__()
        self._rows = rows
        self._columns = columns
        self._window = window

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        # Zeros and not empty: a NaN left in memory would survive the mask (0 * NaN).
        self.keys = self._allocate(key_states)
        self.values = self._allocate(value_states)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store one token of each row, [width, heads, 1, head size]; returns views of what to attend over."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self._extended(self.keys, key_states), self._extended(self.values, value_states)

    def adopt(self, keys: Tensor, values: Tensor, sources: Tensor, rows: Tensor) -> None:
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        self.keys[rows, :, : keys.shape[2]] = keys[sources]
        self.values[rows, :, : values.shape[2]] = values[sources]

    def move(self, sources: Tensor, targets: Tensor) -> None:
        if self.is_initialized:
            self.keys[targets] = self.keys[sources]
            self.values[targets] = self.values[sources]

    def get_seq_length(self) -> int:
        # To the model, every row's new token stands in the last column; the mask says which others are its own.
        return self._window.columns - 1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._window.columns, 0

    def get_max_length(self) -> int:
        return self._columns

    def _allocate(self, states: Tensor) -> Tensor:
        _, heads, _, size = states.shape
        return states.new_zeros(self._rows, heads, self._columns, size)

    def _extended(self, kept: Tensor, states: Tensor) -> Tensor:
        window, heads = self._window, kept.shape[1]
        if heads not in window.places:
            # The same for all layers.
            firsts = torch.arange(window.width * heads, device=kept.device) * self._columns
            window.places[heads] = firsts + window.positions.repeat_interleave(heads)
        kept.flatten(0, 2).index_copy_(0, window.places[heads], states.flatten(0, 2))
        return kept[: window.width, :, : window.columns]
