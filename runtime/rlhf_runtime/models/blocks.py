"""The repeated layers of a transformer, found without knowing its family, and their recomputation in the backward."""

import functools

from torch import nn
from torch.utils.checkpoint import checkpoint

from rlhf_runtime.models.pretrained import invalid


def transformer_blocks(module: nn.Module) -> list[nn.Module]:
    """The layers that make most of a model, in the order of its modules.

    Those that transformers names as not to be split; for a module of the user's own, the longest list of layers.
    Raises RunFailure ModelInvalid (permanent) if there is neither.
    """
    names = {name for part in module.modules() for name in (getattr(part, "_no_split_modules", None) or ())}
    blocks = [part for part in module.modules() if type(part).__name__ in names]
    if not blocks:
        lists = [part for part in module.modules() if isinstance(part, nn.ModuleList)]
        blocks = max(map(list, lists), key=len, default=[])
    if not blocks:
        raise invalid(
            f"models.*.factory: a {type(module).__name__} has no torch.nn.ModuleList of layers, which the trainers' "
            "strategy, tensorParallel or gradientCheckpointing works on; expected one, or DDP without these"
        )
    return blocks


def recompute_in_backward(module: nn.Module) -> None:
    """Keep only each block's input for the backward pass, which computes the block again: less memory, more time."""
    for block in transformer_blocks(module):
        # The forward and not the call: what a strategy hooks around a call must not happen again. Nothing is random.
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)


def recomputes_in_backward(module: nn.Module) -> bool:
    """Whether `recompute_in_backward` has been there."""
    return any(isinstance(vars(part).get("forward"), functools.partial) for part in module.modules())
