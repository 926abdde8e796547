"""The memory that decoding works in; on GPU it is kept between calls, with the steps recorded on it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_runtime.engines.recorded_steps import RecordedSteps
from rlhf_runtime.engines.row_cache import RowCache
from rlhf_runtime.engines.rows import Rows

#: Columns of a block. On GPU columns come in blocks, so that recorded steps are of few sizes.
GPU_COLUMNS = 64


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one size; `column_numbers` [columns] are 0, 1, ... `recorded` is None on CPU."""

    rows: Rows
    cache: RowCache
    column_numbers: Tensor
    recorded: RecordedSteps | None


class KeptMemory:
    """The memory of the last call, where the next can use it."""

    def __init__(self, layers: int, device: torch.device) -> None:
        self._layers = layers
        self._device = device
        self._kept: Memory | None = None

    def of_size(self, rows: int, columns: int, max_new_tokens: int) -> Memory:
        """Memory of exactly `rows`, each of `max_new_tokens`, and of at least `columns`."""
        kept = self._kept
        if (
            kept is not None
            and (kept.cache.rows, kept.rows.uniforms.shape[1]) == (rows, max_new_tokens)
            and kept.cache.columns >= columns
        ):
            return kept
        is_gpu = self._device.type == "cuda"
        # Freed before the new one is made.
        kept = self._kept = None
        if is_gpu:
            columns = -(-columns // GPU_COLUMNS) * GPU_COLUMNS
        made = Memory(
            Rows(rows, max_new_tokens, self._device),
            RowCache(layers=self._layers, rows=rows, columns=columns, device=self._device),
            torch.arange(columns, device=self._device),
            RecordedSteps() if is_gpu else None,
        )
        self._kept = made if is_gpu else None
        return made

    def free(self) -> None:
        self._kept = None
