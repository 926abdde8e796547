"""Rollout engines: prompts and a policy in, groups of rollouts out.

`Engine` is what a maker needs; `TransformersEngine` gives it with transformers and a decode loop of its own,
on CPU or GPU. An engine is used from one thread, and `load` is only called when `generate` is not between two
forwards: before it, after it, or from its `between_steps` hook.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from rlhf_runtime.engines.draws import uniforms
from rlhf_runtime.maths.logprobs import token_logprobs
from rlhf_runtime.maths.masks import position_ids
from rlhf_runtime.models.policy_weights import load_weights
from rlhf_runtime.rollout import Group, Int32Array, Rollout

Hook = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """One group to generate: `prompt_ids` [P] int32 without padding, `samples` completions of it."""

    prompt_index: int
    prompt_ids: Int32Array
    samples: int

    def __post_init__(self) -> None:
        if self.samples < 1 or len(self.prompt_ids) < 1:
            raise ValueError(
                f"request of prompt {self.prompt_index}: found {self.samples} samples and "
                f"{len(self.prompt_ids)} prompt tokens, expected at least one of each"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn; `seed` with a token's prompt, sample and position fixes its draw."""

    temperature: float
    max_new_tokens: int
    seed: int

    def __post_init__(self) -> None:
        if not self.temperature > 0 or self.max_new_tokens < 1:
            raise ValueError(
                f"sampling: found temperature {self.temperature} and max_new_tokens {self.max_new_tokens}, "
                "expected a temperature above 0 and at least one token"
            )


class Engine(Protocol):
    """A policy at a known version that generates groups."""

    @property
    def version(self) -> int:
        """Policy version of the weights in use."""
        ...

    def load(self, state: Mapping[str, Tensor], version: int) -> None:
        """Replace all weights, or raise ValueError and keep them all."""
        ...

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, between_steps: Hook | None = None
    ) -> list[Group]:
        """One group per request, in the order of the requests.

        `between_steps` is called between decode steps: it may raise to cancel, and may call `load`.
        """
        ...


class TransformersEngine:
    """Batched sampling with a key-value cache.

    Prompts of like length share a left-padded batch of at most `max_rows` samples (more only for one larger
    group). Each prompt is read once, whatever its number of samples, and a finished sample leaves the batch.
    Draws depend on the sample's own keys alone, so what is sampled does not depend on what shares its batch (up
    to the rounding of the logits). Weights loaded between steps are used from the next token on, with the
    cached keys and values of earlier tokens kept; every token records the version that drew it.
    """

    def __init__(self, model: nn.Module, *, eos_id: int, pad_id: int, version: int = 0, max_rows: int = 512) -> None:
        self._model = model
        self._eos_id = eos_id
        self._pad_id = pad_id
        self._version = version
        self._max_rows = max_rows

    @property
    def version(self) -> int:
        return self._version

    def load(self, state: Mapping[str, Tensor], version: int) -> None:
        load_weights(self._model, state)
        self._version = version

    @torch.no_grad()
    def generate(
        self, requests: Sequence[Request], sampling: Sampling, between_steps: Hook | None = None
    ) -> list[Group]:
        self._model.eval()
        groups: dict[int, Group] = {}
        for chunk in _chunks(requests, self._max_rows):
            if groups and between_steps is not None:
                between_steps()
            made = self._generate_chunk([requests[i] for i in chunk], sampling, between_steps)
            groups.update(zip(chunk, made, strict=True))
        return [groups[i] for i in range(len(requests))]

    def _generate_chunk(
        self, requests: Sequence[Request], sampling: Sampling, between_steps: Hook | None
    ) -> list[Group]:
        device = next(self._model.parameters()).device
        input_ids, attention = self._left_padded(requests, device)
        request_of_row = np.repeat(np.arange(len(requests)), [r.samples for r in requests])
        samples = np.concatenate([np.arange(r.samples) for r in requests])
        prompts = np.array([r.prompt_index for r in requests])[request_of_row]
        rows, steps = len(samples), sampling.max_new_tokens
        tokens_out = np.zeros((rows, steps), np.int32)
        logprobs_out = np.zeros((rows, steps), np.float32)
        versions_out = np.zeros((rows, steps), np.int32)
        lengths = np.full(rows, steps)
        truncated = np.ones(rows, bool)

        # Read every prompt once, then give each sample its copy of the prompt's keys and values.
        cache = DynamicCache()
        logits = self._forward(input_ids, attention, position_ids(attention), cache)
        version = self._version
        copies = torch.from_numpy(request_of_row).to(device)
        cache.batch_select_indices(copies)
        logits, attention = logits[copies], attention[copies]

        alive = np.arange(rows)
        for step in range(steps):
            draws = torch.from_numpy(uniforms(sampling.seed, prompts[alive], samples[alive], step))
            tokens = _pick(logits, draws.to(device), sampling.temperature)
            chosen = token_logprobs(logits.unsqueeze(1), tokens.unsqueeze(1), sampling.temperature).squeeze(1)
            tokens_out[alive, step] = tokens.cpu().numpy()
            logprobs_out[alive, step] = chosen.cpu().numpy()
            versions_out[alive, step] = version
            finished = tokens_out[alive, step] == self._eos_id
            lengths[alive[finished]] = step + 1
            truncated[alive[finished]] = False
            if step + 1 == steps or finished.all():
                break
            if between_steps is not None:
                between_steps()
            if finished.any():
                alive = alive[~finished]
                kept = torch.from_numpy(np.flatnonzero(~finished)).to(device)
                cache.batch_select_indices(kept)
                tokens, attention = tokens[kept], attention[kept]
            attention = torch.cat([attention, attention.new_ones(len(alive), 1)], dim=1)
            positions = attention.sum(-1, keepdim=True) - 1
            logits = self._forward(tokens.unsqueeze(1), attention, positions, cache)
            version = self._version

        rollouts = [
            Rollout(
                prompt_index=int(prompts[row]),
                sample=int(samples[row]),
                prompt_ids=np.asarray(requests[request_of_row[row]].prompt_ids, np.int32),
                completion_ids=tokens_out[row, : lengths[row]].copy(),
                logprobs=logprobs_out[row, : lengths[row]].copy(),
                versions=versions_out[row, : lengths[row]].copy(),
                truncated=bool(truncated[row]),
            )
            for row in range(rows)
        ]
        ends = np.cumsum([r.samples for r in requests])
        return [
            Group(prompt_index=r.prompt_index, rollouts=tuple(rollouts[end - r.samples : end]))
            for r, end in zip(requests, ends, strict=True)
        ]

    def _left_padded(self, requests: Sequence[Request], device: torch.device) -> tuple[Tensor, Tensor]:
        """Prompt tokens and attention mask, both [requests, longest prompt] int64."""
        width = max(len(r.prompt_ids) for r in requests)
        input_ids = np.full((len(requests), width), self._pad_id, np.int64)
        attention = np.zeros_like(input_ids)
        for row, request in enumerate(requests):
            input_ids[row, width - len(request.prompt_ids) :] = request.prompt_ids
            attention[row, width - len(request.prompt_ids) :] = 1
        return torch.from_numpy(input_ids).to(device), torch.from_numpy(attention).to(device)

    def _forward(self, input_ids: Tensor, attention: Tensor, positions: Tensor, cache: DynamicCache) -> Tensor:
        """Logits that predict the token after the last one, [rows, vocabulary]; extends the cache."""
        output: Any = self._model(
            input_ids=input_ids,
            attention_mask=attention,
            position_ids=positions,
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits[:, -1]
        return logits


def _pick(logits_rv: Tensor, uniforms_r: Tensor, temperature: float) -> Tensor:
    """Token of each row by inverse CDF of softmax(logits / temperature), [r] int64; uniforms in [0, 1) fp64."""
    cdf_rv = (logits_rv.float() / temperature).softmax(-1).double().cumsum(-1)
    # Scaled by the last entry, which rounding leaves near 1, a draw stays below it; searching to the right of
    # equal entries never picks a token of probability 0.
    targets_r1 = uniforms_r.unsqueeze(-1) * cdf_rv[:, -1:]
    return torch.searchsorted(cdf_rv, targets_r1, right=True).squeeze(-1)


def _chunks(requests: Sequence[Request], max_rows: int) -> Iterator[list[int]]:
    """Indices of requests that share a batch: by prompt length, at most `max_rows` samples, at least one group."""
    chunk: list[int] = []
    rows = 0
    for i in sorted(range(len(requests)), key=lambda i: len(requests[i].prompt_ids)):
        if chunk and rows + requests[i].samples > max_rows:
            yield chunk
            chunk, rows = [], 0
        chunk.append(i)
        rows += requests[i].samples
    if chunk:
        yield chunk
