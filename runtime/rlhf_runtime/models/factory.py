"""Models that the user's own code builds: `models.*.factory`, called as ``f(path, dtype, role) -> nn.Module``.

path    the local folder of `models.*.uri`
dtype   "float32" or "bfloat16": the number format of every floating-point parameter
role    "actor", "reference" and "teacher": forward(input_ids, attention_mask, position_ids, use_cache,
        logits_to_keep, cache) -> an object with `.logits` [B, logits_to_keep, vocabulary], as transformers'
        causal language models; "critic": forward(input_ids, attention_mask, position_ids) -> values [B, L];
        "reward": the same -> scores [B]. All inputs are [B, L] int64; padding may be on either side, and must
        not change what the real tokens get.
"""

import importlib
import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from rlhf_runtime.failures import RunFailure, first_words
from rlhf_runtime.models.padding import check_padding, check_policy
from rlhf_runtime.models.policy_weights import load_weights
from rlhf_runtime.models.pretrained import invalid
from rlhf_runtime.user_code import user_traceback

_SCORING = ("critic", "reward")
#: What a module is tried on.
_TOKENS = (3, 1, 4, 2)


def from_factory(factory: str, path: Path, dtype: str, role: str, saved: Path | None = None) -> nn.Module:
    """The role's module as the user's function makes it, with the weights in `saved` where a checkpoint is resumed.

    Raises RunFailure ModelInvalid (permanent) with the traceback if it can't be imported or raises, or if
    what it returns is no module with parameters of `dtype`, or one that padding makes say something else.
    """
    field = f"models.{role}.factory"
    module_name, _, function_name = factory.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
        module = function(str(path), dtype, role)
    except (Exception, SystemExit) as error:
        message = f"{field}: {factory}: {type(error).__name__}: {first_words(error)}"
        raise invalid(message, tail=user_traceback(error)) from error
    if not isinstance(module, nn.Module):
        raise invalid(f"{field}: {factory} returned a {type(module).__name__}, expected a torch.nn.Module")
    if next(module.parameters(), None) is None:
        raise invalid(f"{field}: {factory} returned a {type(module).__name__} without parameters, expected some")
    wanted = getattr(torch, dtype)
    for name, parameter in module.named_parameters():
        if parameter.is_floating_point() and parameter.dtype != wanted:
            raise invalid(f"{field}: {factory}: parameter {name} is {parameter.dtype}, expected {wanted}")
    try:
        _try(module.eval(), role, field, factory)
        if role not in _SCORING:
            _check_vocabulary(module, path, field, factory)
    except RunFailure:
        raise
    except Exception as error:
        message = f"{field}: {factory}: its forward raised {type(error).__name__}: {first_words(error)}"
        raise invalid(message, tail=user_traceback(error)) from error
    if saved is not None:
        _load_saved(module, saved, wanted, field)
    return module


def _try(module: nn.Module, role: str, field: str, factory: str) -> None:
    if role in _SCORING:
        _check_scores(module, role, field, factory)
        check_padding(module, lambda inputs: module(**inputs), field, factory)
    else:
        check_policy(module, field, factory)


@torch.no_grad()
def _check_scores(module: nn.Module, role: str, field: str, factory: str) -> None:
    """Two rows of four tokens must get a score each, or a value a token."""
    ids = torch.tensor([_TOKENS, _TOKENS], device=next(module.parameters()).device)
    places = torch.arange(len(_TOKENS), device=ids.device).expand_as(ids)
    found = module(input_ids=ids, attention_mask=torch.ones_like(ids), position_ids=places)
    shape = tuple(ids.shape) if role == "critic" else (len(ids),)
    if not isinstance(found, Tensor) or found.shape != shape:
        what = f"a tensor {list(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        each = "a value a token" if role == "critic" else "a score a row"
        raise invalid(
            f"{field}: {factory}: its forward gave {what} for token ids {list(ids.shape)}, expected {list(shape)}, "
            f"{each}"
        )


@torch.no_grad()
def _check_vocabulary(module: nn.Module, path: Path, field: str, factory: str) -> None:
    """Token ids are those of the folder, and every one of them must have its logit."""
    wanted = json.loads((path / "config.json").read_bytes()).get("vocab_size")
    ids = torch.tensor([_TOKENS], device=next(module.parameters()).device)
    places = torch.arange(len(_TOKENS), device=ids.device).unsqueeze(0)
    found = module(input_ids=ids, attention_mask=torch.ones_like(ids), position_ids=places, use_cache=False).logits
    if isinstance(wanted, int) and found.shape[-1] < wanted:
        raise invalid(
            f"{field}: {factory}: its logits are of {found.shape[-1]} tokens, expected at least {wanted} "
            f"(vocab_size in {path / 'config.json'})"
        )


def _load_saved(module: nn.Module, folder: Path, dtype: torch.dtype, field: str) -> None:
    weights: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= load_file(str(file))
    cast = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in weights.items()}
    try:
        load_weights(module, cast)
    except ValueError as error:
        raise invalid(f"{field}: what was saved in {folder} does not fit: {error}") from error
