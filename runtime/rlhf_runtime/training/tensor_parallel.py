"""Dividing each layer's matrices over tensor-parallel ranks, by DTensor; Shoeybi et al. 2019, arXiv 1909.08053.

Queries, keys, values and the way up of the MLP by columns, so that each rank has whole heads; the ways back by rows,
whose products are summed over the ranks. Embedding and head are divided by vocabulary, unless padding has a row of
its own in the embedding; their logits come together again on every rank. Everything else every rank has whole.
Every parameter becomes a DTensor, so that an optimiser sees one kind.
"""

from collections.abc import Mapping
from typing import Any

from rlhf_api.conditions import MODEL_INVALID
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from rlhf_runtime.failures import RunFailure
from rlhf_runtime.training.blocks import transformer_blocks

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
#: What must be a multiple of the ranks, by the names that configurations have for it.
_DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "ffn_dim")
#: Layers that see one head at a time: [batch, tokens, heads, head size].
_OF_HEADS = ("self_attn.q_norm", "self_attn.k_norm")
_HEADS_DIMENSION = 2


def check_family(config: Mapping[str, Any], ranks: int, field: str) -> None:
    """Whether the model of a `config.json` can be divided over so many ranks; `field` is the model's in the spec.

    Raises RunFailure ModelInvalid (permanent) naming what was found and what divides.
    """
    found = config.get("model_type")
    if found not in FAMILIES:
        expected = ", ".join(sorted(FAMILIES))
        message = f"{field}: found model_type {found!r}, expected one of {expected}, which tensorParallel can divide"
        raise RunFailure(MODEL_INVALID, message, permanent=True)
    for name in _DIVIDED:
        value = config.get(name)
        if isinstance(value, int) and value % ranks:
            message = f"{field}: {name} is {value}, expected a multiple of tensorParallel, {ranks}"
            raise RunFailure(MODEL_INVALID, message, permanent=True)


def divide(module: nn.Module, mesh: DeviceMesh) -> None:
    """Divide a model of one of the FAMILIES over the ranks of a one-dimensional mesh, in place.

    All ranks hold the same whole weights before. Raises RunFailure ModelInvalid (permanent).
    """
    config = _config(module)
    check_family(config.to_dict(), mesh.size(), f"a {type(module).__name__}")
    columns, rows = FAMILIES[config.model_type]
    tied = _tied_names(module)
    for block in transformer_blocks(module):
        styles: dict[str, ParallelStyle] = {name: ColwiseParallel() for name in columns}
        parallelize_module(block, mesh, styles | {name: RowwiseParallel() for name in rows}, src_data_rank=None)
        for name in _OF_HEADS:
            if hasattr(block.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]):
                _keep_whole(block.get_submodule(name), mesh, Shard(_HEADS_DIMENSION))
        if config.model_type == "opt":
            block.self_attn.num_heads //= mesh.size()  # type: ignore[operator, union-attr]
    _divide_vocabulary(module, mesh)
    for part in module.modules():
        own = list(part.parameters(recurse=False))
        if own and not any(isinstance(parameter, DTensor) for parameter in own):
            _keep_whole(part, mesh, Replicate())
    for first, other in tied:
        path, _, name = other.rpartition(".")
        setattr(module.get_submodule(path), name, module.get_parameter(first))


def _config(module: nn.Module) -> Any:
    """transformers' configuration of the model, which may be inside another module."""
    for part in module.modules():
        if hasattr(config := getattr(part, "config", None), "model_type"):
            return config
    expected = ", ".join(sorted(FAMILIES))
    message = f"a {type(module).__name__}: found no transformers configuration, expected a model of {expected}"
    raise RunFailure(MODEL_INVALID, message, permanent=True)


def _tied_names(module: nn.Module) -> list[tuple[str, str]]:
    """(first name, other name) of parameters that have several."""
    firsts: dict[int, str] = {}
    tied = []
    for name, parameter in module.named_parameters(remove_duplicate=False):
        first = firsts.setdefault(id(parameter), name)
        if first != name:
            tied.append((first, name))
    return tied


def _divide_vocabulary(module: nn.Module, mesh: DeviceMesh) -> None:
    paths = {path.rpartition(".")[2]: path for path, _ in module.named_modules()}
    embedding = module.get_submodule(paths["embed_tokens"])
    # A row without gradient would be another row on each rank.
    if embedding.padding_idx is not None:
        return
    parallelize_module(
        module, mesh, {paths["embed_tokens"]: RowwiseParallel(input_layouts=Replicate())}, src_data_rank=None
    )
    if "lm_head" in paths:
        parallelize_module(
            module, mesh, {paths["lm_head"]: ColwiseParallel(output_layouts=Replicate())}, src_data_rank=None
        )


def _keep_whole(part: nn.Module, mesh: DeviceMesh, inputs: Placement) -> None:
    """Every rank has the layer's own parameters whole; plain tensors go in, placed as `inputs`, and come out."""
    for name, parameter in list(part.named_parameters(recurse=False)):
        whole = distribute_tensor(parameter.detach(), mesh, [Replicate()], src_data_rank=None)
        setattr(part, name, nn.Parameter(whole, requires_grad=parameter.requires_grad))

    def wrapped(value: Any) -> Any:
        return DTensor.from_local(value, mesh, [inputs], run_check=False) if isinstance(value, Tensor) else value

    def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(map(wrapped, args)), {name: wrapped(value) for name, value in kwargs.items()}

    def leave(_: nn.Module, args: tuple[Any, ...], output: DTensor) -> Tensor:
        local: Tensor = output.to_local()
        return local

    part.register_forward_pre_hook(enter, with_kwargs=True)
    part.register_forward_hook(leave)
