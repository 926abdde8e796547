"""The tensors that make a policy: listed once each, and replaced all or none."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rlhf_runtime.models.lora import has_adapters, merged_weights


def model_weights(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and persistent buffer once: a tied weight comes under its first name only.

    Detached views of the live weights, not copies.
    """
    tensors = model.state_dict(keep_vars=True)
    return {name: tensors[name].detach() for name in _first_names(tensors).values()}


def published_weights(model: nn.Module, weights: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """What makers load: the plain model's names, each tied weight once, adapters merged (in fp32, never cast).

    `weights` are whole tensors by the model's own names, where its own are shards. Merged weights are new tensors,
    computed on every call; the rest are views.
    """
    whole = model_weights(model) if weights is None else dict(weights)
    return merged_weights(model, whole) if has_adapters(model) else whole


def load_weights(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy `state` into the model in place, so that tied weights stay tied.

    Raises ValueError for what `check_weights` refuses, and no weight has changed.
    """
    check_weights(model, state)
    own = model.state_dict(keep_vars=True)
    with torch.no_grad():
        for name in _first_names(own).values():
            own[name].copy_(state[name])


def check_weights(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless `state` has all of the model's tensors and no others, of the model's shapes and dtypes.

    A tied weight may also come under its other names, with equal values.
    """
    own = model.state_dict(keep_vars=True)
    first_names = _first_names(own)
    problems = [f"missing {name}" for name in first_names.values() if name not in state]
    for name, tensor in state.items():
        if name not in own:
            problems.append(f"unknown {name}")
            continue
        if tensor.shape != own[name].shape or tensor.dtype != own[name].dtype:
            found = f"{tensor.dtype}{list(tensor.shape)}"
            problems.append(f"{name}: found {found}, expected {own[name].dtype}{list(own[name].shape)}")
            continue
        first = first_names[id(own[name])]
        if first != name and first in state and not torch.equal(tensor, state[first]):
            problems.append(f"{name}: differs from {first}, with which it is tied")
    if problems:
        raise ValueError(f"weights do not fit this model: {'; '.join(problems)}")


def _first_names(tensors: Mapping[str, Tensor]) -> dict[int, str]:
    """First name of each distinct tensor object, by its id, in the order of `tensors`."""
    names: dict[int, str] = {}
    for name, tensor in tensors.items():
        names.setdefault(id(tensor), name)
    return names
