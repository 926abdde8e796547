"""Which tokens count, and where they stand: from lengths and attention masks, never from token ids."""

import torch
from torch import Tensor


def position_ids(attention_mask_bl: Tensor) -> Tensor:
    """Position of each token counted from the row's first real token: [b, l] int64; padding before it gets 0."""
    mask_bl = attention_mask_bl.long()
    return (mask_bl.cumsum(-1) - mask_bl).long()


def completion_lengths(tokens_bt: Tensor, eos_id: int) -> Tensor:
    """Tokens of each completion up to and with its first end token: [b] int64; all t where there is none.

    The first end token is one that the policy chose and is trained on; what stands behind it is not looked at,
    so it may be padding, the end token again, or anything else.
    """
    is_end_bt = tokens_bt == eos_id
    first_end_b = is_end_bt.int().argmax(-1)
    return torch.where(is_end_bt.any(-1), first_end_b + 1, tokens_bt.shape[-1])


def completion_mask(lengths_b: Tensor, width: int) -> Tensor:
    """True at the first `lengths_b` positions of each row: [b, width] bool."""
    return torch.arange(width, device=lengths_b.device) < lengths_b.unsqueeze(-1)
