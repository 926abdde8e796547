"""A model's logits and values for rows that are there already, laid out and masked as in training.

The same weights therefore say the same of a token wherever they are asked.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from rlhf_runtime.experience.batch import Rows
from rlhf_runtime.models.shared_prompts import may_share_prompts, prompt_columns, read_prompts, worth_sharing

#: Tokens of one pass without gradient, padding counted: what bounds its logits and activations. One row may have more.
TOKENS_AT_ONCE = 8192


def completion_logits(model: nn.Module, rows: Rows) -> Tensor:
    """Logits that predict each completion token, [B, T, vocabulary].

    Rows that share prompts read each once, where the model allows it; the logits are the same but for rounding.
    """
    start, before = 0, {"use_cache": False}
    if worth_sharing(rows) and may_share_prompts(model):
        # A prompt's last token predicts a completion's first, so every row reads it.
        start = prompt_columns(rows) - 1
        before = read_prompts(model, rows, start)
    # The last token predicts nothing that is wanted.
    output: Any = model(
        input_ids=rows.input_ids[:, start:-1],
        attention_mask=rows.attention_mask[:, :-1],
        position_ids=rows.position_ids[:, start:-1],
        logits_to_keep=rows.mask.shape[1],
        **before,
    )
    logits: Tensor = output.logits
    return logits


def completion_values(critic: nn.Module, rows: Rows) -> Tensor:
    """Values of the state before each completion token, and after the last column: [B, T + 1] fp32."""
    values: Tensor = critic(
        input_ids=rows.input_ids, attention_mask=rows.attention_mask, position_ids=rows.position_ids
    )
    return values[:, -(rows.mask.shape[1] + 1) :]


def passes(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Indices of rows that share a pass, by length: rows x longest is at most `tokens`, or it is one row."""
    part: list[int] = []
    # The longest first: memory is at its peak at once, not after an hour.
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if part and (len(part) + 1) * lengths[part[0]] > tokens:
            yield part
            part = []
        part.append(i)
    if part:
        yield part
