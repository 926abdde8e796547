"""Whether padding changes what a model says: a small forward finds out, before it can be silently wrong.

Batches have rows of unequal length. A model that takes positions from columns, or lets real tokens see padding, gives
other log-probabilities to the same text in another batch: nothing fails, and the ratio of the first step is not 1.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_runtime.models.pretrained import invalid

#: Families of transformers whose padding the tests hold to 1e-5; any other is tried when it is loaded.
TESTED = ("gpt2", "bloom", "opt", "llama", "qwen2", "qwen3")
#: A forward: token ids, mask and positions [1, L] in; [1, L, ...] out, or [1] for a whole row.
Say = Callable[[Mapping[str, Tensor]], Tensor]

_TOKENS = (3, 1, 4, 2)
_PADDING = 3
#: Largest difference of two forwards of the same text, as a part of the largest number in them.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}


def check_padding(module: nn.Module, say: Say, field: str, what: str) -> None:
    """Raise RunFailure ModelInvalid (permanent) if padding on the left or right changes what the real tokens get.

    `say` is a forward of `module`, which `what` names in the error.
    """
    parameter = next(module.parameters())
    tolerance = _tolerance(parameter.dtype)
    alone = _real(say, _batch(0, 0, parameter.device))
    bad = alone[~alone.isfinite()]
    if len(bad):
        raise invalid(f"{field}: {what}: a text of {len(_TOKENS)} tokens gets {float(bad[0])}, expected finite numbers")
    for side, left, right in (("left", _PADDING, 0), ("right", 0, _PADDING)):
        found = _distance(_real(say, _batch(left, right, parameter.device)), alone)
        # The negation also catches what is not a number.
        if not found <= tolerance:
            raise invalid(
                f"{field}: {what}: padding on the {side} changes what the same tokens get by {found:.1e} of the "
                f"largest, expected at most {tolerance:.0e}: positions must come from position_ids, and no token may "
                "see what attention_mask hides"
            )


def check_policy(module: nn.Module, field: str, what: str) -> None:
    """`check_padding` of a causal language model, and that `logits_to_keep` gives the last logits."""

    def logits(inputs: Mapping[str, Any]) -> Tensor:
        found: Tensor = module(**inputs, use_cache=False).logits
        return found

    check_padding(module, logits, field, what)
    parameter = next(module.parameters())
    batch = _batch(0, 0, parameter.device)
    with torch.no_grad():
        last, whole = logits({**batch, "logits_to_keep": 2}).float(), logits(batch).float()
    if not _distance(last, whole[:, -2:]) <= _tolerance(parameter.dtype):
        raise invalid(f"{field}: {what}: logits_to_keep=2 does not give the last two positions' logits")


def _tolerance(dtype: torch.dtype) -> float:
    return _TOLERANCE.get(dtype, _TOLERANCE[torch.bfloat16])


def _distance(found: Tensor, expected: Tensor) -> float:
    """Largest difference as a part of the largest number expected; infinite between different shapes."""
    if found.shape != expected.shape:
        return math.inf
    return float((found - expected).abs().max()) / (1e-6 + float(expected.abs().max()))


@torch.no_grad()
def _real(say: Say, batch: Mapping[str, Tensor]) -> Tensor:
    """What the real tokens get, or the row, fp32."""
    said = say(batch).float()
    return said[0][batch["attention_mask"][0].bool()] if said.ndim > 1 else said


def _batch(left: int, right: int, device: torch.device) -> dict[str, Tensor]:
    """One row of the same tokens with so much padding on each side, [1, L]."""
    ids = torch.tensor([[0] * left + list(_TOKENS) + [0] * right], device=device)
    mask = torch.zeros_like(ids)
    mask[:, left : left + len(_TOKENS)] = 1
    return {"input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}
