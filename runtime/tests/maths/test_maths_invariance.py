"""The step is the same for any split into sub-batches, micro-batches and ranks, and for any padding.

A whole PPO step of a small GPT-2 (absolute positions, so that padding would show): advantages from values,
whitened over all ranks, policy, value, KL and entropy terms, and their gradients.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rlhf_runtime.maths.advantages import gae, global_moments, whiten
from rlhf_runtime.maths.aggregation import loss_denominator, share
from rlhf_runtime.maths.kl import kl_loss, token_rewards
from rlhf_runtime.maths.logprobs import token_logprobs_and_entropy
from rlhf_runtime.maths.masks import position_ids
from rlhf_runtime.maths.off_policy import Correction, off_policy_weights
from rlhf_runtime.maths.policy_loss import Clip, policy_loss
from rlhf_runtime.maths.statistics import policy_sums, reference_sums, value_sums
from rlhf_runtime.maths.value_loss import value_loss
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

ROWS, VOCABULARY = 8, 13


@dataclass(frozen=True)
class Row:
    """A sample: prompt, completion, and per token sampled and reference log-probs and the old value."""

    prompt: list[int]
    completion: list[int]
    sampled: list[float]
    reference: list[float]
    values: list[float]
    score: float
    bootstrap: float


@dataclass(frozen=True)
class Options:
    aggregation: str = "Token"
    ratio_level: str = "Token"
    correction: Correction = "TIS"


def make_rows() -> list[Row]:
    random = np.random.default_rng(0)

    def one() -> Row:
        length = int(random.integers(1, 6))
        sampled, reference, values = (random.normal(size=(3, length)) * 0.3 + [[-2.5], [-2.5], [0.0]]).tolist()
        prompt = random.integers(0, VOCABULARY, random.integers(1, 5)).tolist()
        completion = random.integers(0, VOCABULARY, length).tolist()
        score, bootstrap = random.normal(size=2).tolist()
        return Row(prompt, completion, sampled, reference, values, score, bootstrap * (length == 5))

    return [one() for _ in range(ROWS)]


ALL_ROWS = make_rows()


class Policy(nn.Module):
    """A GPT-2 with a value head on its last hidden state."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=VOCABULARY, n_positions=32, n_embd=16, n_layer=1, n_head=2)
        self.model = GPT2LMHeadModel(config).eval()
        self.value = nn.Linear(16, 1)

    def forward(self, ids: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.model.transformer(ids, attention_mask=attention, position_ids=position_ids(attention))[0]
        return self.model.lm_head(hidden), self.value(hidden).squeeze(-1)


POLICY = Policy()


@dataclass(frozen=True)
class Laid:
    """Rows as tensors, padded with what must not be read."""

    ids: Tensor
    attention: Tensor
    mask: Tensor
    sampled: Tensor
    reference: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor


def lay_out(rows: Sequence[Row], left: int, right: int, garbage: float) -> Laid:
    prompt = max(len(row.prompt) for row in rows) + left
    width = max(len(row.completion) for row in rows) + right
    lengths = torch.tensor([len(row.completion) for row in rows])
    mask = torch.arange(width) < lengths.unsqueeze(1)
    ids = torch.full((len(rows), prompt + width), 1)
    attention = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        start, end = prompt - len(row.prompt), prompt + len(row.completion)
        ids[i, start:end] = torch.tensor(row.prompt + row.completion)
        attention[i, start:end] = 1

    def padded(name: str) -> Tensor:
        return torch.tensor([getattr(row, name) + [garbage] * (width - len(row.completion)) for row in rows])

    sampled, reference, values = padded("sampled"), padded("reference"), padded("values")
    scores = torch.tensor([row.score for row in rows])
    rewards = token_rewards(scores, sampled, reference, mask, estimator="K1", coefficient=0.1)
    bootstrap = torch.tensor([row.bootstrap for row in rows])
    advantages, returns = gae(rewards, values, mask, bootstrap, gamma=0.99, lambda_=0.95)
    return Laid(ids, attention, mask, sampled, reference, values, advantages, returns)


def share_of(batch: Laid, options: Options, denominator: float) -> Tensor:
    logits, values = POLICY(batch.ids, batch.attention)
    width, mask = batch.mask.shape[1], batch.mask
    logprobs, entropy = token_logprobs_and_entropy(logits[:, -width - 1 : -1], batch.ids[:, -width:], 0.9)
    old = torch.where(mask, logprobs.detach() - 0.05, batch.sampled)
    weights = off_policy_weights(old, batch.sampled, mask, correction=options.correction, cap=1.3)
    how = {"aggregation": options.aggregation, "denominator": denominator}
    policy = policy_loss(
        logprobs, old, batch.advantages, mask, clip=Clip(low=0.2, high=0.3, dual=2.0),
        ratio_level=options.ratio_level, weights_bt=weights, **how,
    )  # type: ignore[arg-type]  # fmt: skip
    value = value_loss(values[:, -width - 1 : -1], batch.values, batch.returns, mask, clip=0.5, **how)  # type: ignore[arg-type]
    kl = kl_loss(logprobs, batch.reference, mask, estimator="K2", **how)  # type: ignore[arg-type]
    return policy + 0.5 * value + 0.1 * kl - 0.01 * share(entropy, mask, **how)  # type: ignore[arg-type]


def step(ranks: Sequence[Sequence[Laid]], options: Options) -> tuple[float, Tensor]:
    """Loss, and all gradients as one vector, of the micro-batches of all ranks; each rank is a thread as it whitens."""
    batches = [batch for rank in ranks for batch in rank]
    tokens, samples = sum(int(b.mask.sum()) for b in batches), sum(len(b.mask) for b in batches)
    denominator = loss_denominator(options.aggregation, tokens=tokens, samples=samples, max_tokens=5)  # type: ignore[arg-type]
    barrier = threading.Barrier(len(ranks), timeout=20)
    offered: list[Tensor] = [torch.zeros(())] * len(ranks)
    whitened: list[list[Laid]] = [[] for _ in ranks]

    def run(rank: int) -> None:
        def sum_over_ranks(mine: Tensor) -> Tensor:
            offered[rank] = mine
            barrier.wait()
            total = torch.stack(offered).sum(0)
            barrier.wait()
            return total

        moments = global_moments([b.advantages for b in ranks[rank]], [b.mask for b in ranks[rank]], sum_over_ranks)
        whitened[rank] = [replace(b, advantages=whiten(b.advantages, b.mask, moments)) for b in ranks[rank]]

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    POLICY.zero_grad()
    total = 0.0
    for batch in (batch for rank in whitened for batch in rank):
        loss = share_of(batch, options, denominator)
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total, torch.cat([p.grad.flatten() for p in POLICY.parameters() if p.grad is not None])


@st.composite
def splits(draw: st.DrawFn) -> list[list[list[Row]]]:
    """The rows, in any order, over 1 to 3 ranks, and each rank's over micro-batches of any size."""
    rows = draw(st.permutations(ALL_ROWS))
    cuts = sorted(draw(st.sets(st.integers(1, ROWS - 1), max_size=2)))
    ranks = []
    for start, end in zip([0, *cuts], [*cuts, ROWS], strict=True):
        inner = sorted(draw(st.sets(st.integers(start + 1, end - 1)))) if end - start > 1 else []
        ranks.append([rows[a:b] for a, b in zip([start, *inner], [*inner, end], strict=True)])
    return ranks


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    split=splits(),
    options=st.builds(
        Options,
        aggregation=st.sampled_from(["Token", "Sequence", "Fixed"]),
        ratio_level=st.sampled_from(["Token", "Sequence", "GeometricMean"]),
        correction=st.sampled_from(["TIS", "Decoupled"]),
    ),
    left=st.integers(0, 4),
    right=st.integers(0, 4),
    garbage=st.sampled_from([0.0, 100.0, float("nan"), float("inf")]),
)
def test_the_step_is_the_same_however_it_is_split_and_padded(
    split: list[list[list[Row]]], options: Options, left: int, right: int, garbage: float
) -> None:
    loss, gradient = step([[lay_out(ALL_ROWS, 0, 0, 0.0)]], options)
    found_loss, found = step([[lay_out(rows, left, right, garbage) for rows in rank] for rank in split], options)
    assert float(gradient.abs().max()) > 1e-2
    assert abs(found_loss - loss) <= 1e-6
    assert float((found - gradient).abs().max()) <= 1e-6


def test_one_two_four_and_eight_sub_batches_are_one() -> None:
    options = Options()
    loss, gradient = step([[lay_out(ALL_ROWS, 0, 0, 0.0)]], options)
    for count in (1, 2, 4, 8):
        size = ROWS // count
        parts = [lay_out(ALL_ROWS[i * size : (i + 1) * size], 0, 0, 0.0) for i in range(count)]
        found_loss, found = step([parts], options)
        assert abs(found_loss - loss) <= 1e-6
        assert float((found - gradient).abs().max()) <= 1e-6


#: Of each row and its tokens: what the terms of a loss are computed from.
TOKENS = {
    name: [torch.randn(len(row.completion), generator=torch.Generator().manual_seed(7 * i + j)) for j, row in
           enumerate(ALL_ROWS)]
    for i, name in enumerate(("trained", "old", "sampled", "reference", "entropy", "advantages", "values", "returns"))
}  # fmt: skip


def terms(lefts: Sequence[int], width: int, garbage: float, options: Options) -> dict[str, Tensor]:
    """Every term of a loss and every number of its report, and the gradients of the tokens, without their padding.

    Row i has `lefts[i]` positions of padding on the left, and on the right what is missing to `width`.
    """
    leaves = {name: [row.clone().requires_grad_() for row in rows] for name, rows in TOKENS.items()}
    place = [slice(left, left + len(row)) for left, row in zip(lefts, TOKENS["trained"], strict=True)]
    laid = {
        name: torch.stack(
            [
                nn.functional.pad(row, (at.start, width - at.stop), value=garbage)
                for row, at in zip(rows, place, strict=True)
            ]
        )
        for name, rows in leaves.items()
    }
    mask = torch.zeros(len(place), width, dtype=torch.bool)
    for i, at in enumerate(place):
        mask[i, at] = True
    how: Any = {"aggregation": options.aggregation, "denominator": 7.0}
    level: Any = options.ratio_level
    clip = Clip(low=0.2, high=0.3, dual=2.0)
    trained, old, sampled = laid["trained"], laid["old"], laid["sampled"]
    weights = off_policy_weights(old, sampled, mask, correction=options.correction, cap=1.3)
    scores = torch.arange(len(place)) / 10
    rewards = token_rewards(scores, sampled, laid["reference"], mask, estimator="K3", coefficient=0.1)
    advantages, returns = gae(rewards, laid["values"].detach(), mask, scores, gamma=0.9, lambda_=0.8)
    found = {
        "policy": policy_loss(
            trained, old, laid["advantages"], mask, clip=clip, ratio_level=level, weights_bt=weights, **how
        ),
        "K2": kl_loss(trained, laid["reference"], mask, estimator="K2", **how),
        "K3": kl_loss(trained, laid["reference"], mask, estimator="K3", **how),
        "entropy": share(laid["entropy"], mask, **how),
        "value": value_loss(laid["values"], old.detach(), laid["returns"].detach(), mask, clip=0.5, **how),
    }
    sum(found.values()).backward()  # type: ignore[union-attr]
    detached = {name: tensor.detach() for name, tensor in laid.items()}
    sums = policy_sums(
        trained, detached["old"], detached["sampled"], laid["entropy"], detached["advantages"], mask, clip=clip,
        ratio_level=level, weights_bt=weights,
    ) | value_sums(
        detached["values"], detached["old"], detached["returns"], mask, clip=0.5
    ) | reference_sums(trained, detached["reference"], mask, "reference_kl")  # fmt: skip
    gradients = {
        f"gradient of {name}": torch.cat([row.grad for row in leaves[name] if row.grad is not None])
        for name in ("trained", "entropy", "values")
    }
    by_token = {"rewards": rewards, "gae": advantages, "gae returns": returns, "weights": weights}
    assert all((tensor[~mask] == 0).all() for tensor in by_token.values())
    return found | sums | gradients | {name: tensor[mask] for name, tensor in by_token.items()}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    lefts=st.lists(st.integers(0, 5), min_size=ROWS, max_size=ROWS),
    right=st.integers(0, 5),
    garbage=st.sampled_from([0.0, 100.0, float("nan"), float("-inf")]),
    options=st.builds(
        Options,
        aggregation=st.sampled_from(["Token", "Sequence", "Fixed"]),
        ratio_level=st.sampled_from(["Token", "Sequence", "GeometricMean"]),
        correction=st.sampled_from(["TIS", "Decoupled"]),
    ),
)
def test_no_term_sees_on_which_side_padding_is_or_how_much(
    lefts: list[int], right: int, garbage: float, options: Options
) -> None:
    longest = max(len(row.completion) for row in ALL_ROWS)
    expected = terms([0] * ROWS, longest, 0.0, options)
    assert min(float(tensor.detach().abs().max()) for tensor in expected.values()) > 1e-3, "each says something"
    found = terms(lefts, longest + max(lefts) + right, garbage, options)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-6, rtol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
