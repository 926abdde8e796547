"""The engine on transformers' models, with a decode loop of its own, on CPU or GPU.

Each prompt is read once, whatever its number of samples, all but its last token, in passes of bounded size. Then
all samples decode together, one token a step, each from its prompt's last token on. A sample that has ended gives
its row to one that waits; when none waits, the batch gets narrower.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from rlhf_runtime.engines.draws import uniforms
from rlhf_runtime.engines.ends import StopStrings
from rlhf_runtime.engines.engine import Hook, Request, Sampling
from rlhf_runtime.engines.recorded_steps import RecordedSteps
from rlhf_runtime.engines.row_cache import RowCache
from rlhf_runtime.engines.rows import Rows
from rlhf_runtime.engines.seating import Placement, Seating
from rlhf_runtime.experience.batch import rows_of
from rlhf_runtime.experience.rollout import Float32Array, Group, Int32Array, Rollout
from rlhf_runtime.maths.logprobs import token_logprobs
from rlhf_runtime.maths.vocabulary import Vocabulary
from rlhf_runtime.models.forwards import completion_logits
from rlhf_runtime.models.policy_weights import load_weights
from rlhf_runtime.models.shared_prompts import cache_parameter
from rlhf_runtime.models.tokenizer import Decode

AsHeld = Callable[[nn.Module, Mapping[str, Tensor]], Mapping[str, Tensor]]

#: Prompt tokens in one forward pass, padding included: bounds its memory.
PREFILL_TOKENS = 16_384
#: Steps between two looks at who has ended; a look waits for the GPU, and on CPU costs nothing.
_GPU_STEPS = 16
#: Recorded steps are of few sizes: columns in blocks of so many, and rows halved, but not below so many.
_GPU_COLUMNS, _GPU_ROWS = 64, 8


@dataclass(frozen=True, slots=True)
class _Memory:
    """What decoding works in; on GPU it is kept between calls, with the steps recorded on it."""

    rows: Rows
    cache: RowCache
    column_numbers: Tensor
    recorded: RecordedSteps | None


@dataclass(slots=True)
class _Sample:
    """One completion to make: the request it is of, its number there, and the step that draws its first token.

    `looked_at`: so many of its tokens are known to hold no stop string.
    """

    request: int
    number: int
    first_step: int = 0
    looked_at: int = 0
    rollout: Rollout | None = None


class TransformersEngine:
    """Batched sampling with preallocated keys and values; at most `max_rows` samples at a time.

    `end_ids` are the tokens that end a completion. Draws depend on the sample's own keys alone, so what is sampled
    does not depend on what shares its batch (up to the rounding of the logits). Weights loaded between steps are
    used from the next token on, with the cached keys and values of earlier tokens kept; every token records the
    version that drew it. `as_held` turns weights that come into the form that the model holds them in (int8).
    `decode` gives the text of tokens, where stop strings are wanted. Ids that the `vocabulary` does not have are never
    drawn; without one, every row of the embedding may be. `look_every`: steps between two looks at who has
    ended, by default 1 on CPU and more on GPU; it changes no sample, unless weights are loaded between steps: a sample
    that waits for a row begins later.

    Raises ValueError for a model with sliding-window or recurrent layers: rows of different lengths share a batch
    as full attention alone allows.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        end_ids: Sequence[int],
        version: int = 0,
        max_rows: int = 512,
        prefill_tokens: int = PREFILL_TOKENS,
        as_held: AsHeld = lambda model, state: state,
        decode: Decode | None = None,
        vocabulary: Vocabulary | None = None,
        look_every: int | None = None,
    ) -> None:
        _refuse_other_attention(model)
        self._model = model
        self._device = next(model.parameters()).device
        self._end_tokens = torch.tensor(list(end_ids), device=self._device)
        self.end_ids = frozenset(end_ids)
        self._version = version
        self._max_rows = max_rows
        self._prefill_tokens = prefill_tokens
        self._as_held = as_held
        self._decode = decode
        self._vocabulary = None if vocabulary is None else vocabulary.to(self._device)
        self._look_every = look_every or (_GPU_STEPS if self._device.type == "cuda" else 1)
        config: Any = model.config
        self._layers = int(config.get_text_config().num_hidden_layers)
        # A mask of all four dimensions is taken as it is; other attention code than sdpa's wants it in its own form.
        self._is_sdpa = config._attn_implementation == "sdpa"
        # In the dtype of the embedding, which attention computes in too.
        self._zero = torch.zeros((), dtype=next(model.parameters()).dtype, device=self._device)
        self._cache_parameter = cache_parameter(model)
        self._memory: _Memory | None = None

    @property
    def version(self) -> int:
        return self._version

    def load(self, state: Mapping[str, Tensor], version: int) -> None:
        load_weights(self._model, self._as_held(self._model, state))
        self._version = version

    @torch.no_grad()
    def logprobs(self, rollouts: Sequence[Rollout], sampling: Sampling) -> list[Float32Array]:
        self._model.eval()
        found = []
        # One at a time: they are few, and need no memory beside a batch's.
        for rollout in rollouts:
            rows = rows_of([rollout], pad_id=0).to(self._device)
            logits = completion_logits(self._model, rows)
            of_row = token_logprobs(
                logits, rows.completion_ids, sampling.temperature, sampling.truncation, self._vocabulary
            )
            found.append(of_row[0])
        return [logprobs.cpu().numpy() for logprobs in found]

    @torch.inference_mode()
    def generate(
        self, requests: Sequence[Request], sampling: Sampling, between_steps: Hook | None = None
    ) -> list[Group]:
        self._model.eval()
        return _Generation(self, requests, sampling).run(between_steps)

    def check(self) -> None:
        """It is this process."""

    def close(self) -> None:
        """It has started nothing; recorded steps and what they work on are freed."""
        self._memory = None

    def _memory_for(self, rows: int, columns: int, max_new_tokens: int) -> _Memory:
        kept = self._memory
        if (
            kept is not None
            and (kept.cache.rows, kept.rows.uniforms.shape[1]) == (rows, max_new_tokens)
            and kept.cache.columns >= columns
        ):
            return kept
        is_gpu = self._device.type == "cuda"
        # Freed before the new one is made.
        kept = self._memory = None
        if is_gpu:
            columns = -(-columns // _GPU_COLUMNS) * _GPU_COLUMNS
        made = _Memory(
            Rows(rows, max_new_tokens, self._device),
            RowCache(layers=self._layers, rows=rows, columns=columns, device=self._device),
            torch.arange(columns, device=self._device),
            RecordedSteps() if is_gpu else None,
        )
        self._memory = made if is_gpu else None
        return made


class _Generation:
    """One call of `generate`."""

    def __init__(self, engine: TransformersEngine, requests: Sequence[Request], sampling: Sampling) -> None:
        self._engine = engine
        self._requests = requests
        self._sampling = sampling
        # Longest first: prompts of like length are read together, and the longest texts do not come last.
        order = sorted(range(len(requests)), key=lambda i: -len(requests[i].prompt_ids))
        self._samples = [_Sample(i, number) for i in order for number in range(requests[i].samples)]
        self._seating = Seating(range(len(self._samples)), engine._max_rows)
        longest = max(len(r.prompt_ids) for r in requests)
        # The last token drawn is never read.
        columns = longest + sampling.max_new_tokens - 1
        memory = engine._memory_for(self._seating.rows, columns, sampling.max_new_tokens)
        self._rows, self._cache, self._recorded = memory.rows, memory.cache, memory.recorded
        self._column_numbers = memory.column_numbers
        # Widths of the batch, ascending; any on CPU.
        self._widths = None if memory.recorded is None else _halved(self._seating.rows)
        self._columns_at_start = self._oldest_start = 0
        self._stop = None
        if sampling.stop:
            if engine._decode is None:
                raise ValueError(f"sampling: found stop strings {sampling.stop}, but no tokenizer to find them with")
            self._stop = StopStrings(sampling.stop, engine._decode)
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
            on_device = [torch.from_numpy(rows).to(self._engine._device) for rows in (sources, targets)]
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
            torch.from_numpy(draws).to(self._engine._device),
        )

    def _prefill_batches(self, prompts: Sequence[int]) -> list[list[int]]:
        """Requests, longest first, in batches of which each is bounded with its padding, or of one alone."""
        batches: list[list[int]] = []
        for i in prompts:
            longest = len(self._requests[batches[-1][0]].prompt_ids) if batches else 0
            if not batches or (len(batches[-1]) + 1) * longest > self._engine._prefill_tokens:
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
        input_ids = torch.from_numpy(padded).to(self._engine._device)
        cache = DynamicCache()
        size = max(1, self._engine._prefill_tokens // len(prompts))
        for start in range(0, width, size):
            end = min(width, start + size)
            positions = torch.arange(start, end, device=input_ids.device).expand(len(prompts), -1)
            self._forward(input_ids[:, start:end], None, positions, cache)
        return cache

    def _step(self) -> None:
        """One token of every row in use."""
        width, columns = self._seating.width, self._columns_at_start + len(self._versions)
        if self._recorded is None:
            self._decode(width, columns)
        else:
            columns = min(self._cache.columns, -(-columns // _GPU_COLUMNS) * _GPU_COLUMNS)
            kind = (width, columns, self._sampling.temperature, self._sampling.truncation)
            self._recorded.run(kind, lambda: self._decode(width, columns))
        self._versions.append(self._engine._version)

    def _decode(self, width: int, columns: int) -> None:
        positions = self._rows.positions[:width]
        mask = self._column_numbers[:columns] <= positions
        if self._engine._is_sdpa:
            # As numbers to add: every layer would make them of it.
            mask = torch.where(mask, self._engine._zero, -torch.inf)[:, None, None, :]
        self._cache.look_at(width, columns, positions.squeeze(-1))
        logits = self._forward(self._rows.tokens[:width], mask, positions, self._cache)
        if self._engine._vocabulary is not None:
            logits = self._engine._vocabulary.known(logits)
        sampling = self._sampling
        self._rows.draw(logits, sampling.temperature, sampling.truncation, self._engine._end_tokens)

    def _measure(self) -> None:
        """Note how many columns the rows in use need, less the steps taken, and when the oldest of them began."""
        seated = [self._samples[n] for n in self._seating.sample_of_row[self._seating.alive]]
        if seated:
            self._columns_at_start = max(len(self._requests[s.request].prompt_ids) - s.first_step for s in seated)
            self._oldest_start = min(s.first_step for s in seated)

    def _steps_until_look(self) -> int:
        left = self._sampling.max_new_tokens - (len(self._versions) - self._oldest_start)
        return min(self._engine._look_every, left)

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
            truncated=not stopped and int(tokens[-1]) not in self._engine.end_ids,
        )

    def _forward(self, input_ids: Tensor, mask: Tensor | None, positions: Tensor, cache: Any) -> Tensor:
        """Logits that predict the token after the last one, [rows, vocabulary]; extends the cache."""
        output: Any = self._engine._model(
            input_ids=input_ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._engine._cache_parameter: cache},
        )
        logits: Tensor = output.logits[:, -1]
        return logits

    def _on_device(self, numbers: Any) -> Tensor:
        return torch.as_tensor(numbers, dtype=torch.int64, device=self._engine._device)


def _halved(rows: int) -> list[int]:
    """`rows`, a half of it, a quarter ..., ascending."""
    widths = [rows]
    while widths[0] > _GPU_ROWS:
        widths.insert(0, -(-widths[0] // 2))
    return widths


def _refuse_other_attention(model: nn.Module) -> None:
    config: Any = model.config
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    window = None if getattr(text, "layer_types", None) else getattr(text, "sliding_window", None)
    if kinds != {"full_attention"} or window:
        found = f"layers of {sorted(kinds)}" if not window else f"a sliding window of {window} tokens"
        raise ValueError(f"{type(model).__name__}: found {found}, expected full attention in all layers")
