"""One call of an engine's `generate`: prompts are read, and samples decode together.

Each prompt is read once, whatever its number of samples, all but its last token, in passes of bounded size. Then
all samples decode together, one token a step, each from its prompt's last token on. A sample that has ended gives
its row to one that waits; when none waits, the batch gets narrower.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from rlhf_runtime.engines.decoding_memory import GPU_COLUMNS, KeptMemory
from rlhf_runtime.engines.decoding_model import DecodingModel
from rlhf_runtime.engines.draws import uniforms
from rlhf_runtime.engines.ends import StopStrings
from rlhf_runtime.engines.engine import Hook, Request, Sampling
from rlhf_runtime.engines.seating import Placement, Seating
from rlhf_runtime.experience.rollout import Float32Array, Group, Int32Array, Rollout
from rlhf_runtime.models.tokenizer import Decode

#: Fewest rows of a batch on GPU, where they are only ever halved, so that recorded steps are of few sizes.
_GPU_ROWS = 8


@dataclass(slots=True)
class _Sample:
    """One completion to make: the request it is of, its number there, and the step that draws its first token.

    `looked_at`: how many of its first tokens are known to hold no stop string.
    """

    request: int
    number: int
    first_step: int = 0
    looked_at: int = 0
    rollout: Rollout | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodingSettings:
    """What is the same in all calls of an engine.

    end_ids         tokens that end a completion
    end_tokens      the same on the device, [ends]; kept with the engine, since recorded steps read it where it lies
    max_rows        samples that decode together, at most
    prefill_tokens  prompt tokens in one forward pass, padding included
    decode          the text of tokens, where stop strings are wanted
    look_every      steps between two looks at who has ended
    """

    end_ids: frozenset[int]
    end_tokens: Tensor
    max_rows: int
    prefill_tokens: int
    decode: Decode | None
    look_every: int


class Generation:
    """One call of `generate`; `version` gives that of the weights in use, which may change between two steps."""

    def __init__(
        self,
        model: DecodingModel,
        memory: KeptMemory,
        settings: DecodingSettings,
        version: Callable[[], int],
        requests: Sequence[Request],
        sampling: Sampling,
    ) -> None:
        self._model = model
        self._settings = settings
        self._version = version
        self._requests = requests
        self._sampling = sampling
        # Longest first: prompts of like length are read together, and the longest texts do not come last.
        order = sorted(range(len(requests)), key=lambda i: -len(requests[i].prompt_ids))
        self._samples = [_Sample(i, number) for i in order for number in range(requests[i].samples)]
        self._seating = Seating(range(len(self._samples)), settings.max_rows)
        longest = max(len(r.prompt_ids) for r in requests)
        # The last token drawn is never read.
        columns = longest + sampling.max_new_tokens - 1
        found = memory.of_size(self._seating.rows, columns, sampling.max_new_tokens)
        self._rows, self._cache, self._recorded = found.rows, found.cache, found.recorded
        self._column_numbers = found.column_numbers
        # Widths of the batch, ascending; any on CPU.
        self._widths = None if found.recorded is None else _halved(self._seating.rows)
        self._columns_at_start = self._oldest_start = 0
        self._stop = None
        if sampling.stop:
            if settings.decode is None:
                raise ValueError(f"sampling: found stop strings {sampling.stop}, but no tokenizer to find them with")
            self._stop = StopStrings(sampling.stop, settings.decode)
        self._versions: list[int] = []

    def run(self, between_steps: Hook | None) -> list[Group]:
        seating = self._seating
        self._start(seating.fill())
        self._measure()
        while len(seating.alive):
            for _ in range(self._steps_until_look()):
                if self._versions and between_steps is not None:
                    between_steps()
                self._step()
            if self._look():
                self._seat()
        by_request: dict[int, list[Rollout]] = {}
        for sample in self._samples:
            assert sample.rollout is not None
            by_request.setdefault(sample.request, []).append(sample.rollout)
        return [
            Group(prompt_index=request.prompt_index, rollouts=tuple(by_request[i]))
            for i, request in enumerate(self._requests)
        ]

    def _seat(self) -> None:
        """Give rows that have become free to samples that wait, or make the batch narrower."""
        self._start(self._seating.fill())
        sources, targets = self._seating.shrink(self._widths)
        if len(sources):
            on_device = [torch.from_numpy(rows).to(self._model.device) for rows in (sources, targets)]
            self._cache.move(*on_device)
            self._rows.move(*on_device)
        self._measure()

    def _start(self, placement: Placement) -> None:
        """Read the prompts of these samples, and let the samples begin in their rows."""
        if not len(placement.rows):
            return
        started = [self._samples[number] for number in placement.samples]
        for sample in started:
            sample.first_step = len(self._versions)
        requests = [self._requests[sample.request] for sample in started]
        prompts = sorted({sample.request for sample in started}, key=lambda i: -len(self._requests[i].prompt_ids))
        for batch in self._prefill_batches(prompts):
            keys_and_values = self._prefill(batch)
            members = [i for i, sample in enumerate(started) if sample.request in batch]
            sources = [batch.index(started[i].request) for i in members]
            if keys_and_values is not None:
                self._cache.adopt(keys_and_values, self._on_device(sources), self._on_device(placement.rows[members]))
        draws = uniforms(
            self._sampling.seed,
            np.array([r.prompt_index for r in requests]),
            np.array([sample.number for sample in started]),
            self._sampling.max_new_tokens,
        )
        self._rows.start(
            self._on_device(placement.rows),
            self._on_device([int(r.prompt_ids[-1]) for r in requests]),
            self._on_device([len(r.prompt_ids) - 1 for r in requests]),
            torch.from_numpy(draws).to(self._model.device),
        )

    def _prefill_batches(self, prompts: Sequence[int]) -> list[list[int]]:
        """Requests, longest first, in batches of which each is bounded with its padding, or of one alone."""
        batches: list[list[int]] = []
        for i in prompts:
            longest = len(self._requests[batches[-1][0]].prompt_ids) if batches else 0
            if not batches or (len(batches[-1]) + 1) * longest > self._settings.prefill_tokens:
                batches.append([])
            batches[-1].append(i)
        return batches

    def _prefill(self, batch: Sequence[int]) -> DynamicCache | None:
        """Keys and values of all but the last token of these requests' prompts, padded to the right; None if no token.

        A prompt that is too long for one pass is read in several. No mask: a token sees what is before it, and the
        padding's own keys and values are overwritten before anything sees them.
        """
        prompts = [self._requests[i].prompt_ids[:-1] for i in batch]
        width = max(len(ids) for ids in prompts)
        if width == 0:
            return None
        padded = np.zeros((len(prompts), width), np.int64)
        for row, ids in enumerate(prompts):
            padded[row, : len(ids)] = ids
        input_ids = torch.from_numpy(padded).to(self._model.device)
        cache = DynamicCache()
        size = max(1, self._settings.prefill_tokens // len(prompts))
        for start in range(0, width, size):
            end = min(width, start + size)
            positions = torch.arange(start, end, device=input_ids.device).expand(len(prompts), -1)
            self._model.read(input_ids[:, start:end], positions, cache)
        return cache

    def _step(self) -> None:
        """One token of every row in use."""
        width, columns = self._seating.width, self._columns_at_start + len(self._versions)
        if self._recorded is None:
            self._decode(width, columns)
        else:
            columns = min(self._cache.columns, -(-columns // GPU_COLUMNS) * GPU_COLUMNS)
            kind = (width, columns, self._sampling.temperature, self._sampling.truncation)
            self._recorded.run(kind, lambda: self._decode(width, columns))
        self._versions.append(self._version())

    def _decode(self, width: int, columns: int) -> None:
        positions = self._rows.positions[:width]
        self._cache.look_at(width, columns, positions.squeeze(-1))
        seen = self._column_numbers[:columns] <= positions
        logits = self._model.next_logits(self._rows.tokens[:width], seen, positions, self._cache)
        sampling = self._sampling
        self._rows.draw(logits, sampling.temperature, sampling.truncation, self._settings.end_tokens)

    def _measure(self) -> None:
        """Note how many columns the rows in use need, less the steps taken, and when the oldest of them began."""
        seated = [self._samples[n] for n in self._seating.sample_of_row[self._seating.alive]]
        if seated:
            self._columns_at_start = max(len(self._requests[s.request].prompt_ids) - s.first_step for s in seated)
            self._oldest_start = min(s.first_step for s in seated)

    def _steps_until_look(self) -> int:
        left = self._sampling.max_new_tokens - (len(self._versions) - self._oldest_start)
        return min(self._settings.look_every, left)

    def _look(self) -> bool:
        """Take out what has ended; whether something has."""
        alive = self._seating.alive
        done = self._rows.done[:, 0].cpu().numpy()[alive]
        if self._stop is None:
            alive, done = alive[done], done[done]
        if not len(alive):
            return False
        rows = self._on_device(alive)
        counts = self._rows.counts[rows, 0].tolist()
        drawn = self._rows.drawn[rows].cpu().numpy().astype(np.int32)
        logprobs = self._rows.logprobs[rows].cpu().numpy()
        ended = []
        for i, row in enumerate(alive):
            sample, length = self._samples[self._seating.sample_of_row[row]], counts[i]
            stopped = None
            if self._stop is not None:
                prompt = self._requests[sample.request].prompt_ids.tolist()
                stopped = self._stop.length(prompt, drawn[i, :length].tolist(), sample.looked_at)
            sample.looked_at = length
            if done[i] or stopped is not None:
                length = stopped or length
                sample.rollout = self._rollout(sample, drawn[i, :length], logprobs[i, :length], stopped is not None)
                ended.append(row)
        # A row that a stop string has ended does not know it yet.
        self._rows.done[self._on_device(ended)] = True
        self._seating.leave(ended)
        return bool(ended)

    def _rollout(self, sample: _Sample, tokens: Int32Array, logprobs: Float32Array, stopped: bool) -> Rollout:
        request = self._requests[sample.request]
        versions = self._versions[sample.first_step : sample.first_step + len(tokens)]
        return Rollout(
            prompt_index=request.prompt_index,
            sample=sample.number,
            prompt_ids=np.asarray(request.prompt_ids, np.int32),
            completion_ids=tokens.copy(),
            logprobs=logprobs.copy(),
            versions=np.array(versions, np.int32),
            truncated=not stopped and int(tokens[-1]) not in self._settings.end_ids,
        )

    def _on_device(self, numbers: Any) -> Tensor:
        return torch.as_tensor(numbers, dtype=torch.int64, device=self._model.device)


def _halved(rows: int) -> list[int]:
    """`rows`, a half of it, a quarter ..., ascending."""
    widths = [rows]
    while widths[0] > _GPU_ROWS:
        widths.insert(0, -(-widths[0] // 2))
    return widths
