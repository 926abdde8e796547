"""The rows of a decoding batch: what each is drawing, on the device, without a word to the host.

Shapes: R rows at most, T new tokens at most. All tensors keep their memory for a row's whole life, so that a
recorded step can be played again on them.
"""

import torch
from torch import Tensor

from rlhf_runtime.engines.sampling import pick, probabilities
from rlhf_runtime.maths.truncation import Truncation


class Rows:
    """State of R rows.

    tokens     [R, 1] int64: what the model reads next
    positions  [R, 1] int64: where it stands in the row's text, from 0
    counts     [R, 1] int64: tokens drawn so far
    done       [R, 1] bool: ended, or empty; such a row goes on being computed until it is replaced, and nothing of
               it is kept
    drawn, logprobs  [R, T + 1] int64, fp32: the tokens and their log-probabilities; what a row that is done draws
               lands behind its last token
    """

    def __init__(self, rows: int, max_new_tokens: int, device: torch.device) -> None:
        self.tokens = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self.positions = torch.zeros_like(self.tokens)
        self.counts = torch.zeros_like(self.tokens)
        self.done = torch.ones(rows, 1, dtype=torch.bool, device=device)
        self.uniforms = torch.zeros(rows, max_new_tokens, dtype=torch.float64, device=device)
        self.drawn = torch.zeros(rows, max_new_tokens + 1, dtype=torch.int64, device=device)
        self.logprobs = torch.zeros(rows, max_new_tokens + 1, device=device)

    def start(self, rows: Tensor, last_tokens: Tensor, last_positions: Tensor, uniforms: Tensor) -> None:
        """Begin samples in `rows` [n]: each reads its prompt's last token first; `uniforms` [n, T] are its draws."""
        self.tokens[rows] = last_tokens.unsqueeze(-1)
        self.positions[rows] = last_positions.unsqueeze(-1)
        self.counts[rows] = 0
        self.done[rows] = False
        self.uniforms[rows] = uniforms

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy whole rows onto others, both [n]; what they were is done."""
        for state in (self.tokens, self.positions, self.counts, self.done, self.uniforms, self.drawn, self.logprobs):
            state[targets] = state[sources]
        self.done[sources] = True

    def draw(self, logits_rv: Tensor, temperature: float, truncation: Truncation | None, end_ids: Tensor) -> None:
        """Draw the next token of each of the first r rows from the logits of the ids that may be drawn."""
        width, max_new_tokens = len(logits_rv), self.uniforms.shape[1]
        counts, done = self.counts[:width], self.done[:width]
        probs_rv = probabilities(logits_rv, temperature, truncation)
        uniforms_r = self.uniforms[:width].gather(1, counts.clamp(max=max_new_tokens - 1)).squeeze(1)
        tokens = pick(probs_rv, uniforms_r).unsqueeze(-1)
        self.drawn[:width].scatter_(1, counts, tokens)
        self.logprobs[:width].scatter_(1, counts, probs_rv.gather(1, tokens).log())
        counts += ~done
        done |= (counts >= max_new_tokens) | (tokens == end_ids).any(-1, keepdim=True)
        # A row that is done stays where it is: behind the last token there may be no column.
        self.positions[:width] += ~done
        self.tokens[:width] = tokens
