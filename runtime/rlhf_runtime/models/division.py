"""Which models tensor-parallel ranks can divide, and how; Shoeybi et al. 2019, arXiv 1909.08053.

Queries, keys, values and the way up of the MLP by columns, so that each rank has whole heads; the ways back by rows,
whose products are summed over the ranks. Trainers and makers divide by the same plan, each in its own way.
"""

from collections.abc import Mapping
from typing import Any

from rlhf_api.conditions import Reason
from torch import nn

from rlhf_runtime.failures import RunFailure

_GATED_COLUMNS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
_GATED_ROWS = ("self_attn.o_proj", "mlp.down_proj")
_GATED = (_GATED_COLUMNS, _GATED_ROWS)
#: Which layers of a block are divided by columns, and which by rows, by transformers' `model_type`.
FAMILIES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "llama": _GATED,
    "qwen2": _GATED,
    "qwen3": _GATED,
    "opt": (
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "fc1"),
        ("self_attn.out_proj", "fc2"),
    ),
}
#: Names of the two layers that a family's vocabulary is in.
EMBEDDING, HEAD = "embed_tokens", "lm_head"
#: What must be a multiple of the ranks, by the names that configurations have for it.
_DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "ffn_dim")


def check_family(config: Mapping[str, Any], ranks: int, model: str, by: str) -> None:
    """Whether the model of a `config.json` can be divided over `ranks` ranks; `model` and `by` are, for messages, the
    model's field in the spec and that of the ranks.

    Raises RunFailure ModelInvalid (permanent) naming what was found and what divides.
    """
    found = config.get("model_type")
    if found not in FAMILIES:
        expected = ", ".join(sorted(FAMILIES))
        message = f"{model}: found model_type {found!r}, expected one of {expected}, which {by} can divide"
        raise RunFailure(Reason.MODEL_INVALID, message, permanent=True)
    for name in _DIVIDED:
        value = config.get(name)
        if isinstance(value, int) and value % ranks:
            message = f"{model}: {name} is {value}, expected a multiple of {by}, {ranks}"
            raise RunFailure(Reason.MODEL_INVALID, message, permanent=True)


def checked_config(module: nn.Module, ranks: int, by: str) -> Any:
    """transformers' configuration of a model, which may be inside another module, if `ranks` ranks can divide it.

    Raises RunFailure ModelInvalid (permanent).
    """
    name = f"a {type(module).__name__}"
    for part in module.modules():
        config: Any = getattr(part, "config", None)
        if hasattr(config, "model_type"):
            check_family(config.to_dict(), ranks, name, by)
            return config
    expected = ", ".join(sorted(FAMILIES))
    message = f"{name}: found no transformers configuration, expected a model of {expected}"
    raise RunFailure(Reason.MODEL_INVALID, message, permanent=True)
