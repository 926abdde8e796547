"""An optimiser's state as every strategy can load it: whole tensors by the model's own names."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def whole_optimizer_state(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """As `Strategy.optimizer_state`; a collective where the state is divided."""
    # Without a state torch would take a step to get one, which counts.
    return get_optimizer_state_dict(module, optimizer, options=_WHOLE) if optimizer.state else {}


def load_whole_optimizer_state(module: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """As `Strategy.load_optimizer_state`."""
    if state:
        set_optimizer_state_dict(module, optimizer, dict(state), options=_WHOLE)
