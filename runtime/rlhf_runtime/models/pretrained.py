"""A transformers model from a folder, complete or not at all."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from rlhf_api.conditions import MODEL_INVALID
from torch import nn
from transformers import AutoConfig

from rlhf_runtime.failures import RunFailure, first_words

#: Nothing from a network, and no code out of a folder: asked whether to, transformers would wait for a keyboard.
FROM_FILES = {"local_files_only": True, "trust_remote_code": False}


def load_pretrained(
    auto_class: Any, folder: Path, dtype: str, field: str, *, fresh: Collection[str] = (), **config_changes: Any
) -> nn.Module:
    """The model in `folder` as `auto_class` builds it, parameters in `dtype` ("float32", "bfloat16"), on the CPU.

    Dropout is off in its configuration: a log-probability must be the same in every forward with the same weights.
    Attention is sdpa where transformers has it for the family, eager otherwise. Nothing is fetched from a network.
    `fresh` names weights that may be missing and are then zero; any other that is missing, or has another shape than
    its configuration says, is RunFailure ModelInvalid (permanent): transformers would fill it with random numbers. So
    is one that is not finite.
    """
    try:
        config = without_dropout(AutoConfig.from_pretrained(str(folder), **FROM_FILES, **config_changes))
        model, found = auto_class.from_pretrained(
            str(folder),
            config=config,
            dtype=getattr(torch, dtype),
            **FROM_FILES,
            output_loading_info=True,
            # Told below, by name and shapes: transformers says it in a table of its log only.
            ignore_mismatched_sizes=True,
        )
    except Exception as error:
        # transformers says what is wrong with a folder by many kinds of exception.
        raise invalid(f"{field}.uri: {folder} cannot be loaded: {refusal(folder, error)}") from error
    for name, stored, expected in sorted(found["mismatched_keys"]):
        raise invalid(
            f"{field}.uri: {name} in {folder} has shape {list(stored)}, expected {list(expected)} by its config.json"
            f"{' with ' + str(config_changes) if config_changes else ''}"
        )
    missing = sorted(set(found["missing_keys"]) - set(fresh))
    if missing:
        shown = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
        raise invalid(
            f"{field}.uri: {folder} does not have all weights of a {type(model).__name__}: missing {shown}; "
            "they would be random"
        )
    for name in set(found["missing_keys"]) & set(fresh):
        nn.init.zeros_(model.get_parameter(name))
    bad = next((name for name, parameter in model.named_parameters() if not _finite(parameter)), None)
    if bad is not None:
        raise invalid(f"{field}.uri: {bad} in {folder} has numbers that are not finite: the model cannot say anything")
    loaded: nn.Module = model
    return loaded


def _finite(parameter: nn.Parameter) -> bool:
    # Both ends are NaN if any number is; no copy of the parameter is made.
    ends = parameter.detach().aminmax() if parameter.numel() else ()
    return all(bool(end.isfinite()) for end in ends)


def without_dropout(config: Any) -> Any:
    """The same configuration with every dropout probability 0, at any depth."""
    for name, value in vars(config).items():
        if ("dropout" in name or "pdrop" in name or name == "layerdrop") and isinstance(value, float):
            setattr(config, name, 0.0)
        elif hasattr(value, "model_type"):
            without_dropout(value)
    return config


def on_device(module: nn.Module) -> nn.Module:
    """On the GPU where there is one; evaluation mode."""
    return module.to(torch.device("cuda" if torch.cuda.is_available() else "cpu")).eval()


def invalid(message: str, tail: str = "") -> RunFailure:
    """A model that another attempt would find just as bad."""
    return RunFailure(MODEL_INVALID, message, permanent=True, tail=tail)


def refusal(folder: Path, error: Exception) -> str:
    """What transformers says of a folder in one line, with the way out where the folder brings code of its own."""
    first = first_words(error)
    try:
        own_code = "auto_map" in json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        own_code = False
    return f"{first} (a folder's own code is not run; a factory may build such a model)" if own_code else first
