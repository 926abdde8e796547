"""An optimiser's state as every strategy can load it: whole tensors by the model's own names."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor, distribute_tensor


def whole_optimizer_state(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """As `Strategy.optimizer_state`; a collective where the state is divided."""
    # Without a state torch would take a step to get one, which counts.
    if not optimizer.state:
        return {}
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_optimizer_state_dict(module, optimizer, options=whole)


def load_whole_optimizer_state(module: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """As `Strategy.load_optimizer_state`."""
    if not state:
        return
    parameters = dict(module.named_parameters())
    # Each rank cuts its own part: torch's loading of whole states scatters them, which it can't for uneven parts.
    divided: Any = {
        name: {key: _placed_as(parameters.get(name), value) for key, value in values.items()}
        for name, values in state["state"].items()
    }
    set_optimizer_state_dict(module, optimizer, {**state, "state": divided}, options=StateDictOptions())


def _placed_as(parameter: Tensor | None, value: Any) -> Any:
    """A whole tensor divided as its parameter is; anything else, such as the count of steps, as it is."""
    if not isinstance(parameter, DTensor) or not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
