"""Strategies that divide weights, gradients and optimiser state over the ranks, by FSDP2; and tensor parallelism.

What each rank keeps of a model, and when the whole layer is there:

ZeRO3  a shard of everything; a layer's weights come together for its forward, and again for its backward
ZeRO2  the same at rest, but within a step the weights stay together from their first forward on
DDP    beside tensor parallelism only: every data rank has all that its tensor-parallel rank has

Gradients are summed and divided after every micro-batch, so that no rank ever holds the whole gradient. The ranks'
order: tensor-parallel peers are neighbours, for they talk most.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from rlhf_runtime.distributed.devices import accelerator
from rlhf_runtime.distributed.process_group import gathered_objects
from rlhf_runtime.models.blocks import recompute_in_backward, transformer_blocks
from rlhf_runtime.models.policy_weights import model_weights
from rlhf_runtime.training.optimizer_states import load_whole_optimizer_state, whole_optimizer_state
from rlhf_runtime.training.tensor_parallel import divide

_REPLICAS, _SHARDS, _TENSOR = "replicas", "shards", "tensor"


class Sharded:
    """A `Strategy` over the default process group's ranks.

    kind        what data ranks divide
    offload     shards of weights, gradients and optimiser state rest on the CPU, where the optimiser steps
    tensor      tensor-parallel ranks; the ranks are a multiple of it
    checkpoint  blocks are computed anew in the backward
    seconds     longest that one collective may take
    """

    def __init__(
        self,
        kind: Literal["DDP", "ZeRO2", "ZeRO3"],
        *,
        offload: bool = False,
        tensor: int = 1,
        checkpoint: bool = False,
        seconds: float = 300.0,
    ) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        if self.ranks % tensor:
            raise ValueError(f"{self.ranks} ranks: expected a multiple of tensorParallel, {tensor}")
        self.data_rank, self.data_ranks = self.rank // tensor, self.ranks // tensor
        self.device = accelerator()
        # FSDP averages gradients over the data ranks.
        self.loss_scale = float(self.data_ranks)
        self._kind = kind
        self._offload = offload
        self._checkpoint = checkpoint
        mesh = _mesh(self.device.type, self.data_ranks, tensor, seconds, replicas=kind == "DDP")
        self._data_mesh = mesh[_REPLICAS, _SHARDS] if kind == "DDP" else mesh[_SHARDS]
        self._data_group = mesh.get_group(_REPLICAS if kind == "DDP" else _SHARDS)
        self._tensor_mesh = mesh[_TENSOR] if tensor > 1 else None

    def prepare(self, module: nn.Module, compute_dtype: torch.dtype = torch.float32) -> nn.Module:
        # Layer by layer to where it is computed: a device need not have room for the whole model.
        module.cpu()
        if self._tensor_mesh is not None:
            divide(module.to(self.device), self._tensor_mesh)
        if self._checkpoint:
            recompute_in_backward(module)
        pinned = self.device.type != "cpu"
        options: dict[str, Any] = {
            "mesh": self._data_mesh,
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=None if compute_dtype == torch.float32 else compute_dtype, reduce_dtype=torch.float32
            ),
            "offload_policy": CPUOffloadPolicy(pin_memory=pinned) if self._offload else OffloadPolicy(),
        }
        for block in transformer_blocks(module):
            fully_shard(block, reshard_after_forward=self._kind == "ZeRO3", **options)
        # What is outside the blocks is used at both ends of a forward, and first in the backward.
        fully_shard(module, reshard_after_forward=False, **options)
        return module

    @contextmanager
    def accumulate(self, module: nn.Module, *, last: bool) -> Iterator[None]:
        assert isinstance(module, FSDPModule)
        module.set_reshard_after_backward(last or self._kind == "ZeRO3")
        yield

    def clip_gradients(self, module: nn.Module, max_norm: float) -> float:
        parameters = [parameter for parameter in module.parameters() if parameter.grad is not None]
        norm = nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        whole = norm.full_tensor() if isinstance(norm, DTensor) else norm
        nn.utils.clip_grads_with_norm_(parameters, max_norm, whole)
        return float(whole)

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        dist.all_reduce(values, group=self._data_group)
        return values

    def gather_objects(self, value: Any) -> list[Any]:
        return gathered_objects(value, self._data_group)

    def full_weights(self, module: nn.Module) -> dict[str, Tensor]:
        whole = {}
        for name, tensor in model_weights(module).items():
            # On the device: between devices it comes together much faster than between CPUs.
            moved = tensor.to(self.device)
            gathered = moved.full_tensor() if isinstance(moved, DTensor) else moved
            if self.rank == 0:
                whole[name] = gathered.cpu()
        return whole

    def optimizer_state(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return whole_optimizer_state(module, optimizer)

    def load_optimizer_state(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
    ) -> None:
        load_whole_optimizer_state(module, optimizer, state)


def _mesh(device: str, data: int, tensor: int, seconds: float, *, replicas: bool) -> DeviceMesh:
    """[data, tensor] ranks, with the dimension that FSDP shards over: all data ranks, or with `replicas` one each."""
    names = (_REPLICAS, _SHARDS, _TENSOR) if replicas else (_SHARDS, _TENSOR)
    ranks = torch.arange(data * tensor).view((data, 1, tensor) if replicas else (data, tensor))
    groups = [_own_group(ranks.movedim(axis, -1).reshape(-1, size), seconds) for axis, size in enumerate(ranks.shape)]
    return DeviceMesh.from_group(groups, device, mesh=ranks, mesh_dim_names=names)


def _own_group(rows: Tensor, seconds: float) -> dist.ProcessGroup:
    """Of the groups that `rows` name, the one with this rank; every rank helps to make all."""
    own = None
    for row in rows.tolist():
        group = dist.new_group(row, timeout=timedelta(seconds=seconds))
        if dist.get_rank() in row:
            own = group
    assert isinstance(own, dist.ProcessGroup)
    return own
