"""What is known of a model's folder without loading its weights."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from rlhf_api.conditions import Reason
from safetensors import SafetensorError, safe_open

from rlhf_runtime.data.locations import LocationError, file_sizes, local_path
from rlhf_runtime.data.nearest_name import did_you_mean
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.models.positions import positions

_CONFIG = "config.json"
#: What peft writes for adapters. Beside a model's whole weights it is no part of the model.
ADAPTER_CONFIG = "adapter_config.json"
_SINGLE = ("model.safetensors", "pytorch_model.bin")
_INDEX = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
#: What a folder has beside its weights: config, tokenizer, chat template, a model's own code.
_SMALL = ("*.json", "*.txt", "*.model", "*.tiktoken", "*.jinja", "*.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A folder as ``save_pretrained`` writes it, found complete.

    context     most tokens that a text may have, None if its config does not say
    limited     why these are fewer than the model has positions, for messages; "" where they are not
    vocabulary  rows of its embedding, None if its config does not say
    """

    path: Path
    context: int | None
    limited: str = ""
    vocabulary: int | None


def model_folder(uri: str, field: str, *, weights: bool = True) -> ModelFolder:
    """Check that a model's folder has a config and all its weights; ``field`` is its name in the spec.

    A folder that lies elsewhere is fetched: without ``weights`` all but these, of which then only the names are
    checked. Raises RunFailure: ModelInvalid (permanent) naming what was looked for and what is there;
    SourceUnreachable.
    """
    path = _fetched(uri, field, _SMALL)
    if not path.is_dir():
        shown = f"{str(path)!r} (it ends with a space)" if str(path).endswith(" ") else path
        _invalid(f"{field}.uri: there is no folder {shown}; {_what_is_there(path)}")
    config = _json(path / _CONFIG, field)
    shards = _weight_files(uri, path, field)
    if weights:
        _fetched(uri, field, shards)
    for shard in shards:
        if shard.endswith(".safetensors") and (path / shard).exists():
            _check_safetensors(path / shard, field)
    # A model with several parts keeps its language model's numbers one level down.
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    assert text is not None
    context, limited = positions(text)
    return ModelFolder(
        path=path,
        context=context,
        limited=limited,
        vocabulary=text["vocab_size"] if isinstance(text.get("vocab_size"), int) else None,
    )


def _fetched(uri: str, field: str, only: Sequence[str]) -> Path:
    try:
        return local_path(uri, only)
    except LocationError as error:
        reason = Reason.MODEL_INVALID if error.permanent else Reason.SOURCE_UNREACHABLE
        raise RunFailure(reason, f"{field}.uri: {error}", permanent=error.permanent) from error


def _weight_files(uri: str, path: Path, field: str) -> list[str]:
    """Names of the files that hold the weights; all are there, here or where the URI leads."""
    try:
        there = file_sizes(uri)
    except LocationError as error:
        raise RunFailure(Reason.SOURCE_UNREACHABLE, f"{field}.uri: {error}", permanent=False) from error
    single = next((name for name in _SINGLE if name in there), None)
    if single is not None:
        return [single]
    index = next((path / name for name in _INDEX if (path / name).is_file()), None)
    if index is None:
        _invalid(f"{field}.uri: no weights in {path}: expected {_SINGLE[0]} or {_INDEX[0]}; {_what_is_there(path)}")
    names = _json(index, field).get("weight_map")
    if not isinstance(names, dict) or not names:
        _invalid(f"{field}.uri: {index} has no weight_map")
    shards = sorted({str(name) for name in names.values()})
    for shard in shards:
        if shard not in there:
            _invalid(f"{field}.uri: {path / shard} is missing, which {index} names")
    return shards


def _check_safetensors(shard: Path, field: str) -> None:
    try:
        with safe_open(shard, "np"):
            return
    except (OSError, SafetensorError) as error:
        with shard.open("rb") as file:
            is_pointer = file.read(8) == b"version "
        pointer = " (it looks like a Git LFS pointer: fetch the file itself)" if is_pointer else ""
        size = shard.stat().st_size
        _invalid(f"{field}.uri: {shard} ({size} bytes) is not a whole safetensors file: {error}{pointer}", error)


def _json(path: Path, field: str) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        _invalid(f"{field}.uri: there is no {path.name} in {path.parent}; {_what_is_there(path.parent)}", error)
    except (OSError, ValueError) as error:
        _invalid(f"{field}.uri: cannot read {path}: {error}", error)
    if not isinstance(value, dict):
        _invalid(f"{field}.uri: {path} holds a {type(value).__name__}, expected an object")
    return value


def _what_is_there(path: Path) -> str:
    """The names at the deepest part of a path that exists, few of them."""
    there = next(folder for folder in (path, *path.parents) if folder.is_dir())
    names = sorted(entry.name for entry in there.iterdir())
    listed = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    # The first name of the path that is not there; no name where all of it is.
    absent = path.relative_to(there).parts[:1]
    return f"{there} has {listed or 'nothing in it'}{did_you_mean(absent[0], names) if absent else ''}"


def _invalid(message: str, cause: BaseException | None = None) -> NoReturn:
    raise RunFailure(Reason.MODEL_INVALID, message, permanent=True) from cause
