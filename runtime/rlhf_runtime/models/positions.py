"""How long a text a model can read, as its config.json says it."""

from collections.abc import Mapping
from typing import Any

#: Where model families keep the number of positions they have.
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
#: Rotary embeddings with one set of factors for short texts and another for long ones; "su" is an older name.
_SWITCHING = ("longrope", "su")


def positions(config: Mapping[str, Any]) -> tuple[int | None, str]:
    """Most tokens that a text may have, and why it is fewer than the model has positions ("" where it is not).

    transformers takes the factors of such rotary embeddings by the longest text of a batch, and keeps what it has read
    by other factors. Up to the switch a text has one answer, whatever shares its batch; beyond it, several. None where
    the configuration does not say.
    """
    context = next((config[key] for key in _CONTEXT_KEYS if isinstance(config.get(key), int)), None)
    switches = [limit for limit in (_switch(rope, config) for rope in _ropes(config)) if limit is not None]
    if not switches or (context is not None and min(switches) >= context):
        return context, ""
    why = (
        f", as its rotary factors (longrope) switch beyond them: a text would get other log-probs by what shares its "
        f"batch (the model has {context} positions)"
    )
    return min(switches), why


def _ropes(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The settings of rotary embeddings: one, or one for each kind of layer."""
    found = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(found, dict):
        return []
    return [found, *(each for each in found.values() if isinstance(each, dict))]


def _switch(rope: Mapping[str, Any], config: Mapping[str, Any]) -> int | None:
    """The longest text that is read with the factors of short texts; None if there is one set only."""
    if rope.get("rope_type", rope.get("type")) not in _SWITCHING:
        return None
    key = "original_max_position_embeddings"
    limit = config.get(key, rope.get(key))
    return limit if isinstance(limit, int) else None
