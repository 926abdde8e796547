"""A model without its weights: the same modules and shapes on torch's meta device, made from its configuration.

transformers itself builds a model so before it fills it: what fails here would fail there.
"""

import logging
from typing import Any

import torch
from rlhf_api.models import Lora
from torch import nn
from transformers.pytorch_utils import Conv1D

from rlhf_runtime.models.critic import FRESH
from rlhf_runtime.models.lora import lora_candidates, target_modules
from rlhf_runtime.models.model_folder import ModelFolder
from rlhf_runtime.models.pretrained import FROM_FILES, invalid, refusal
from rlhf_runtime.models.role_models import RoleModel
from rlhf_runtime.models.stored_weights import LANGUAGE_HEADS, compared, refuse_misfit, stored_shapes
from rlhf_runtime.preflight.memory import ModelSize

log = logging.getLogger(__name__)


def model_size(found: RoleModel, folder: ModelFolder) -> ModelSize | None:
    """Build the role's model without weights, and check the stored weights and LoRA targets against it.

    None for a model that the user's own factory builds. Raises RunFailure ModelInvalid (permanent).
    """
    if found.model.factory is not None:
        return None
    scores = found.role in ("reward", "critic")
    module = _build(found.field, folder, scores=scores)
    _check_weights(found, folder, module)
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


def _check_weights(found: RoleModel, folder: ModelFolder, module: Any) -> None:
    """The stored weights are the module's; nothing where they cannot be told without loading them."""
    shapes = stored_shapes(folder.path)
    if shapes is None:
        return
    try:
        report = compared(module, shapes)
    except Exception as error:
        # What transformers cannot tell of a family without its weights, it says when these are loaded.
        log.info("%s: the stored weights are compared when they are loaded, not before: %r", found.field, error)
        return
    refuse_misfit(
        report,
        type(module).__name__,
        folder.path,
        found.field,
        fresh=FRESH if found.role == "critic" else (),
        spare=LANGUAGE_HEADS if found.role in ("reward", "critic") else (),
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
