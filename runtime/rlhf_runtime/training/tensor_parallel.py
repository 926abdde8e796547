"""Dividing each layer's matrices over tensor-parallel trainers, by DTensor and the plan of `models.tensor_parallel`.

Embedding and head are divided by vocabulary, unless padding has a row of its own in the embedding; their logits come
together again on every rank. Everything else every rank has whole. Every parameter becomes a DTensor, so that an
optimiser sees one kind.
"""

from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from rlhf_runtime.models.blocks import transformer_blocks
from rlhf_runtime.models.division import EMBEDDING, FAMILIES, HEAD, checked_config

#: Layers that see one head at a time: [batch, tokens, heads, head size].
_OF_HEADS = ("self_attn.q_norm", "self_attn.k_norm")
_HEADS_DIMENSION = 2


def divide(module: nn.Module, mesh: DeviceMesh) -> None:
    """Divide a model of one of the FAMILIES over the ranks of a one-dimensional mesh, in place.

    All ranks hold the same whole weights before. Raises RunFailure ModelInvalid (permanent).
    """
    config = checked_config(module, mesh.size(), "trainers.tensorParallel")
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
    embedding = module.get_submodule(paths[EMBEDDING])
    # A row without gradient would be another row on each rank.
    if embedding.padding_idx is not None:
        return
    parallelize_module(module, mesh, {paths[EMBEDDING]: RowwiseParallel(input_layouts=Replicate())}, src_data_rank=None)
    if HEAD in paths:
        parallelize_module(module, mesh, {paths[HEAD]: ColwiseParallel(output_layouts=Replicate())}, src_data_rank=None)


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
