"""A model without its weights: the same modules and shapes on torch's meta device, made from its configuration.

transformers itself builds a model so before it fills it: what fails here would fail there.
"""

from typing import Any

import torch
from rlhf_api.models import Lora
from torch import nn
from transformers.pytorch_utils import Conv1D

from rlhf_runtime.models.lora import lora_candidates, target_modules
from rlhf_runtime.models.model_folder import ModelFolder
from rlhf_runtime.models.pretrained import FROM_FILES, invalid, refusal
from rlhf_runtime.models.role_models import RoleModel
from rlhf_runtime.preflight.memory import ModelSize
from rlhf_runtime.preflight.weight_headers import stored_shapes


def model_size(found: RoleModel, folder: ModelFolder) -> ModelSize | None:
    """Build the role's model without weights, and check its head and LoRA targets against it.

    None for a model that the user's own factory builds. Raises RunFailure ModelInvalid (permanent).
    """
    if found.model.factory is not None:
        return None
    scores = found.role in ("reward", "critic")
    module = _build(found.field, folder, scores=scores)
    _check_head(found, folder, module)
    whole = sum(parameter.numel() for parameter in module.parameters())
    head = module.get_output_embeddings()
    linear = sum(m.weight.numel() for m in module.modules() if isinstance(m, nn.Linear) and m is not head)
    if found.lora is None:
        return ModelSize(whole=whole, trained=whole if found.role in ("actor", "critic") else 0, linear=linear)
    adapters = _adapter_parameters(module, found.lora, found.field)
    trained = adapters + (_head_parameters(module) if scores else 0)
    return ModelSize(whole=whole, trained=trained, adapters=adapters, linear=linear)


def _build(field: str, folder: ModelFolder, *, scores: bool) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    try:
        changes = {"num_labels": 1} if scores else {}
        config = AutoConfig.from_pretrained(str(folder.path), **FROM_FILES, **changes)
        auto: Any = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
        with torch.device("meta"):
            module = auto.from_config(config, trust_remote_code=False)
        module.tie_weights()
    except Exception as error:
        # transformers says what is wrong with a configuration by many kinds of exception.
        said = refusal(folder.path, error)
        raise invalid(f"{field}.uri: no model can be built from {folder.path}/config.json: {said}") from error
    return module


def _check_head(found: RoleModel, folder: ModelFolder, module: Any) -> None:
    """The weights above the body must be stored: transformers would make them random, and warn only."""
    try:
        shapes = stored_shapes(folder.path)
    except ValueError as error:
        raise invalid(f"{found.field}.uri: {error}") from error
    if shapes is None:
        return
    head = _head(module)
    missing = sorted(name for name in head if name not in shapes)
    if missing and found.role != "critic":
        kind = type(module).__name__
        also = " (a reward model is a sequence-classification model with one label)" if found.role == "reward" else ""
        other = sorted({name.split(".")[0] for name in shapes})
        raise invalid(
            f"{found.field}.uri: {folder.path} has no {', '.join(missing)}, which a {kind} needs{also}; its weights "
            f"are below {', '.join(other)}"
        )
    for name, parameter in head.items():
        if name in shapes and shapes[name] != tuple(parameter.shape):
            scores = found.role in ("reward", "critic")
            labels = f": {shapes[name][0]} labels, expected 1" if scores and shapes[name] else ""
            raise invalid(
                f"{found.field}.uri: {name} in {folder.path} has shape {list(shapes[name])}, expected "
                f"{list(parameter.shape)}{labels}"
            )


def _head(module: Any) -> dict[str, nn.Parameter]:
    """Parameters above the body, by name; a head tied to the embedding is part of the body."""
    below = f"{module.base_model_prefix}."
    return {name: parameter for name, parameter in module.named_parameters() if not name.startswith(below)}


def _head_parameters(module: Any) -> int:
    return sum(parameter.numel() for parameter in _head(module).values())


def _adapter_parameters(module: nn.Module, lora: Lora, field: str) -> int:
    """rank x (inputs + outputs) of every layer that gets an adapter. Raises RunFailure for a target without layers."""
    targets = target_modules(module, lora.targets, field)
    total = 0
    for path in lora_candidates(module):
        if any(path == target or path.endswith(f".{target}") for target in targets):
            layer = module.get_submodule(path)
            assert isinstance(layer, nn.Linear | Conv1D)
            total += lora.rank * sum(layer.weight.shape)
    return total
