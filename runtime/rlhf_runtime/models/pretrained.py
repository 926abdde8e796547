"""A transformers model from a folder, complete or not at all."""

import contextlib
import json
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from rlhf_api.conditions import Reason
from torch import nn
from transformers import AutoConfig

from rlhf_runtime.failures import RunFailure, first_words
from rlhf_runtime.models.model_folder import ADAPTER_CONFIG
from rlhf_runtime.models.stored_weights import refuse_misfit

#: Nothing from a network, and no code out of a folder: asked whether to, transformers would wait for a keyboard.
FROM_FILES = {"local_files_only": True, "trust_remote_code": False}


def load_pretrained(
    auto_class: Any,
    folder: Path,
    dtype: str,
    field: str,
    *,
    fresh: Collection[str] = (),
    spare: Collection[str] = (),
    **config_changes: Any,
) -> nn.Module:
    """The model in `folder` as `auto_class` builds it, parameters in `dtype` ("float32", "bfloat16"), on the CPU.

    Dropout is off in its configuration: a log-probability must be the same in every forward with the same weights.
    Attention is sdpa where transformers has it for the family, eager otherwise. Nothing is fetched from a network, and
    an adapter that lies beside the weights is left alone.

    `fresh` names weights that may be missing and are then zero, `spare` top-level layers whose weights may be left
    over. Raises RunFailure ModelInvalid (permanent) for any other weight that is missing (transformers would fill it
    with random numbers), left over (it would drop it) or of another shape than the configuration says, and for one
    with numbers that are not finite.
    """
    try:
        config = without_dropout(AutoConfig.from_pretrained(str(folder), **FROM_FILES, **config_changes))
        with _without_adapter(folder) as path:
            model, report = auto_class.from_pretrained(
                str(path),
                config=config,
                dtype=getattr(torch, dtype),
                **FROM_FILES,
                output_loading_info=True,
                # Refused below, by name and shapes: transformers says it in a table of its log only.
                ignore_mismatched_sizes=True,
            )
    except Exception as error:
        # transformers says what is wrong with a folder by many kinds of exception.
        raise invalid(f"{field}.uri: {folder} cannot be loaded: {refusal(folder, error)}") from error
    model.name_or_path = model.config.name_or_path = str(folder)
    refuse_misfit(report, type(model).__name__, folder, field, fresh=fresh, spare=spare)
    for name in set(report["missing_keys"]) & set(fresh):
        nn.init.zeros_(model.get_parameter(name))
    bad = next((name for name, parameter in model.named_parameters() if not _finite(parameter)), None)
    if bad is not None:
        raise invalid(f"{field}.uri: {bad} in {folder} has numbers that are not finite: the model cannot say anything")
    loaded: nn.Module = model
    return loaded


@contextlib.contextmanager
def _without_adapter(folder: Path) -> Iterator[Path]:
    """The folder without an adapter's configuration, which transformers would follow, putting the adapter's weights
    upon the model's."""
    if not (folder / ADAPTER_CONFIG).is_file():
        yield folder
        return
    with tempfile.TemporaryDirectory() as links:
        for entry in folder.iterdir():
            if entry.name != ADAPTER_CONFIG:
                (Path(links) / entry.name).symlink_to(entry.absolute())
        yield Path(links)


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
    return RunFailure(Reason.MODEL_INVALID, message, permanent=True, tail=tail)


def refusal(folder: Path, error: Exception) -> str:
    """What transformers says of a folder in one line, with the way out where the folder brings code of its own."""
    first = first_words(error)
    try:
        own_code = "auto_map" in json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        own_code = False
    return f"{first} (a folder's own code is not run; a factory may build such a model)" if own_code else first
