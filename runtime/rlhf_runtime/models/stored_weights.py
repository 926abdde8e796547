"""Whether the weights that a folder stores are those of its model: none missing, none of another shape, none left over.

Names in files are not always those of modules (families were renamed, a body may be stored without its head's prefix),
so transformers itself is asked, either while it loads or, before that, with tensors that have a shape only.
"""

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from rlhf_api.conditions import Reason
from safetensors import safe_open
from transformers.utils import logging as transformers_logging

from rlhf_runtime.failures import RunFailure

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
#: Heads of language models. A critic or reward model puts its own head in their place.
LANGUAGE_HEADS = ("lm_head", "embed_out")
_SHOWN = 4


def stored_shapes(folder: Path) -> dict[str, tuple[int, ...]] | None:
    """Shape of every stored tensor by name, from the headers of the safetensors files.

    None if these cannot be read: the weights are pickled, or lie elsewhere and have not been fetched. The files are
    those of a `ModelFolder`, so they are whole.
    """
    if (folder / _SINGLE).is_file():
        shards = [folder / _SINGLE]
    elif (folder / _INDEX).is_file():
        names = json.loads((folder / _INDEX).read_bytes())["weight_map"].values()
        shards = [folder / name for name in sorted(set(names))]
    else:
        return None
    if not all(shard.is_file() for shard in shards):
        return None
    shapes: dict[str, tuple[int, ...]] = {}
    for shard in shards:
        with safe_open(shard, "pt") as file:
            shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    return shapes


def compared(skeleton: Any, shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, Any]:
    """What transformers would report after it has loaded tensors of these shapes into a model like `skeleton`."""
    state = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    with _quiet():
        _, report = type(skeleton).from_pretrained(
            None,
            config=skeleton.config,
            state_dict=state,
            device_map="meta",
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    found: Mapping[str, Any] = report
    return found


def refuse_misfit(
    report: Mapping[str, Any],
    kind: str,
    folder: Path,
    field: str,
    *,
    fresh: Collection[str] = (),
    spare: Collection[str] = (),
) -> None:
    """Raise RunFailure ModelInvalid (permanent) for a weight that is missing, of another shape, or left over.

    report  transformers' loading info
    kind    the model's class, for the message
    fresh   weights that may be missing
    spare   top-level layers whose weights may be left over
    """
    for name, stored, expected in sorted(report["mismatched_keys"]):
        labels = f": {stored[0]} labels, expected 1" if name.startswith("score.") and stored else ""
        raise _invalid(
            f"{field}.uri: {name} in {folder} has shape {list(stored)}, expected {list(expected)} by its config.json"
            f"{labels}"
        )
    if missing := sorted(set(report["missing_keys"]) - set(fresh)):
        raise _invalid(
            f"{field}.uri: {folder} does not have all weights of a {kind}: missing {_listed(missing)}; "
            f"they would be random{_hint(missing)}"
        )
    if left := sorted(name for name in report["unexpected_keys"] if name.partition(".")[0] not in spare):
        raise _invalid(
            f"{field}.uri: {folder} has weights that a {kind} made from its config.json has no place for: "
            f"{_listed(left)}; without them it would be another model: config.json and the weights must belong together"
        )


def _invalid(message: str) -> RunFailure:
    return RunFailure(Reason.MODEL_INVALID, message, permanent=True)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _hint(missing: list[str]) -> str:
    if missing == ["score.weight"]:
        return " (a reward model is a sequence-classification model with one label)"
    return ""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' own table of what does not fit, and its progress bar."""
    level, bar = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bar:
            transformers_logging.enable_progress_bar()
