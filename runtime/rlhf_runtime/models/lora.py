"""Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) on a loaded model, by peft: W stays, W + alpha/rank B A acts.

The adapters are put into the model in place, so that its other modules keep their names; a layer ``n`` becomes
``n.base_layer`` with ``n.lora_A.default`` and ``n.lora_B.default`` beside it. B starts at zero, so that the model
starts as it was. Makers never see adapters: what is published is the merged weight.
"""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from rlhf_api.models import Lora
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from rlhf_runtime.models.pretrained import invalid

ADAPTER_WEIGHTS = "adapter_model.safetensors"
#: The heads are trained whole, or not at all: an adapter on a tied head would change the embedding.
HEADS = ("lm_head", "embed_out", "score", "classifier")
_PREFIX = "base_model.model."


def attach_adapters(module: nn.Module, lora: Lora, field: str, *, head: str | None = None) -> None:
    """Freeze `module` and put adapters into its target layers; the layer `head` is trained whole beside them.

    The same adapters for every rank and attempt: their first values come from a seed of their own. They are fp32
    whatever the model's dtype. Raises RunFailure ModelInvalid (permanent) for targets that match nothing, naming
    the candidates.
    """
    targets = target_modules(module, lora.targets, field)
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]
        target_modules=targets,
        lora_dropout=0.0,
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in module.modules()),
        task_type="SEQ_CLS" if head else "CAUSAL_LM",
    )
    module.requires_grad_(False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        inject_adapter_in_model(config, module)
    for name, parameter in module.named_parameters():
        if ".lora_" in name:
            parameter.data = parameter.data.float()
    if head:
        module.get_submodule(head).requires_grad_(True)


def target_modules(module: nn.Module, targets: Sequence[str] | None, field: str) -> list[str]:
    """The layer names that peft is to look for; all without `targets`.

    Raises RunFailure ModelInvalid (permanent) for a target that no candidate's path ends with.
    """
    paths = lora_candidates(module)
    last = sorted({path.rpartition(".")[2] for path in paths})
    if targets is None:
        return last
    for target in targets:
        if not any(path == target or path.endswith(f".{target}") for path in paths):
            raise invalid(f"{field}.lora.targets: {target!r} matches no linear layer; candidates: {', '.join(last)}")
    return sorted(set(targets))


def lora_candidates(module: nn.Module) -> list[str]:
    """Paths of all linear layers but the heads."""
    return [
        path
        for path, layer in module.named_modules()
        if isinstance(layer, nn.Linear | Conv1D) and path.rpartition(".")[2] not in HEADS
    ]


def has_adapters(module: nn.Module) -> bool:
    return any(isinstance(layer, LoraLayer) for layer in module.modules())


def merged_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`weights`, by the names of `module` with its adapters, as those of the plain model they act as.

    W + alpha/rank B A in fp32, not rounded to W's dtype: whoever casts, casts once. `module` tells where adapters
    are, so that its own tensors may be shards of `weights`.
    """
    layers = {path: layer for path, layer in module.named_modules() if isinstance(layer, LoraLayer)}
    merged = {}
    for name, tensor in weights.items():
        if ".lora_" in name:
            continue
        path, base, rest = name.rpartition(".base_layer.")
        if not base:
            merged[name] = tensor
        elif rest == "weight":
            layer: Any = layers[path]
            delta = weights[f"{path}.lora_B.default.weight"].float() @ weights[f"{path}.lora_A.default.weight"].float()
            # transformers' Conv1D holds its matrix transposed.
            delta = delta.T if isinstance(layer.get_base_layer(), Conv1D) else delta
            merged[f"{path}.{rest}"] = tensor.float() + layer.scaling["default"] * delta.to(tensor.device)
        else:
            merged[f"{path}.{rest}"] = tensor
    return merged


def save_adapter(module: nn.Module, weights: Mapping[str, Tensor], base: str, folder: Path) -> None:
    """Write the adapters (and the head trained beside them) as peft does; `base` is the folder of the model below."""
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    config: Any = copy.copy(module.peft_config["default"])  # type: ignore[index]
    config.base_model_name_or_path = base
    config.inference_mode = True
    # Not before: peft would wrap the head, and give its weights other names.
    config.modules_to_save = sorted({name.rpartition(".")[0] for name in trained if ".lora_" not in name}) or None
    kept = {_saved_name(name): weights[name].contiguous().cpu() for name in trained}
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(str(folder))
    save_file(kept, str(folder / ADAPTER_WEIGHTS), metadata={"format": "pt"})


def load_adapter(module: nn.Module, folder: Path, field: str) -> None:
    """Copy what `save_adapter` wrote into the adapters of `module`: all of them, or RunFailure ModelInvalid."""
    saved = load_file(str(folder / ADAPTER_WEIGHTS))
    own = {_saved_name(name): parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    wrong = sorted(set(saved) ^ set(own)) or [name for name in own if own[name].shape != saved[name].shape]
    if wrong:
        raise invalid(f"{field}.lora: the adapter in {folder} does not fit this model and spec, by {wrong[0]}")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(saved[name])


def _saved_name(name: str) -> str:
    return _PREFIX + name.replace(".default.", ".")
