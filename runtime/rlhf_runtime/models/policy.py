"""Loading a policy from a folder, and writing it so that plain transformers and peft load it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlhf_api.models import Lora, Model
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from rlhf_runtime.models.factory import from_factory
from rlhf_runtime.models.lora import attach_adapters, has_adapters, load_adapter, save_adapter
from rlhf_runtime.models.padding import TESTED, check_policy
from rlhf_runtime.models.policy_weights import model_weights, published_weights
from rlhf_runtime.models.pretrained import load_pretrained, on_device


def load_policy(
    model: Model,
    folder: Path,
    dtype: str,
    *,
    role: str = "actor",
    lora: Lora | None = None,
    resume: Path | None = None,
    place: Callable[[nn.Module], nn.Module] = on_device,
) -> nn.Module:
    """The causal language model in `folder`, with its parameters in `dtype` ("float32", "bfloat16").

    `folder` is the local one of `model.uri`; `resume` is one that `save_policy` wrote for a resume, whose weights then
    take the place of the folder's. With `lora` only adapters are trained; makers load without it. `place` brings the
    model to where it computes: a GPU where there is one. Raises RunFailure ModelInvalid.
    """
    field = f"models.{role}"
    # A resume with adapters has these alone.
    whole = resume if lora is None else None
    if model.factory is not None:
        module = from_factory(model.factory, folder, dtype, role, whole)
    else:
        module = load_pretrained(AutoModelForCausalLM, whole or folder, dtype, field)
        family = str(getattr(module.config, "model_type", ""))
        if family not in TESTED:
            check_policy(module, f"{field}.uri", family)
    if lora is not None:
        attach_adapters(module, lora, field)
        if resume is not None:
            load_adapter(module, resume, field)
    return place(module)


def save_policy(
    module: nn.Module,
    tokenizer: Any,
    folder: Path,
    *,
    weights: Mapping[str, Tensor] | None = None,
    adapter_only: bool = False,
) -> None:
    """Write model (safetensors) and tokenizer into `folder`, which exists.

    `weights` are whole tensors by the module's own names, where its own are shards. A model with adapters is written
    merged, with the adapter in `adapter/`; with `adapter_only`, what a resume needs, the adapter alone.
    """
    whole = model_weights(module) if weights is None else weights
    tokenizer.save_pretrained(str(folder))
    if has_adapters(module):
        base = str(getattr(getattr(module, "config", None), "name_or_path", ""))
        save_adapter(module, whole, base, folder if adapter_only else folder / "adapter")
        if adapter_only:
            return
    save_plain(module, published_weights(module, whole), folder)


def save_plain(module: Any, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Write a model without its adapters: as transformers does, or where it is none of its models, its tensors."""
    if isinstance(module, PreTrainedModel):
        module.save_pretrained(str(folder), state_dict=dict(weights))
        return
    tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in weights.items()}
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
