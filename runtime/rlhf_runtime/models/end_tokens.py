"""Tokens by which a model's own folder ends a text."""

import json
from pathlib import Path

from rlhf_runtime.models.pretrained import invalid

_GENERATION, _MODEL = "generation_config.json", "config.json"


def model_end_ids(folder: Path) -> tuple[list[int], str]:
    """Token ids, as transformers' `generate` finds them, and the name of the file that has them.

    That is generation_config.json, or config.json if there is no such file. Raises RunFailure ModelInvalid (permanent).
    """
    from transformers import GenerationConfig

    name = _GENERATION if (folder / _GENERATION).is_file() else _MODEL
    path = folder / name
    try:
        values = json.loads(path.read_bytes())
        if not isinstance(values, dict):
            raise TypeError(f"found a {type(values).__name__}")
        make = GenerationConfig.from_dict if name == _GENERATION else GenerationConfig.from_model_config
        named = make(values).eos_token_id
    except Exception as error:
        # transformers says what is wrong with a file by many kinds of exception.
        raise invalid(f"models.actor.uri: cannot read {path}, expected a JSON object: {error}") from error
    ends = named if isinstance(named, list) else [] if named is None else [named]
    if any(type(number) is not int or number < 0 for number in ends):
        raise invalid(f"models.actor.uri: eos_token_id in {path} is {named!r}, expected token ids")
    return ends, name
