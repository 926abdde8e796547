"""How the trainers' ranks share one optimiser step: what the learner asks of a strategy, and the two that keep
whole weights on every rank. Those that divide weights are in `sharded.py`.

Whatever the strategy, a step is the one that a single process with all samples would take.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
import torch.distributed as dist
from rlhf_api.roles import TrainerSettings
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rlhf_runtime.distributed.devices import accelerator
from rlhf_runtime.distributed.process_group import gathered_objects, join_alone
from rlhf_runtime.models.blocks import recompute_in_backward
from rlhf_runtime.models.policy_weights import model_weights
from rlhf_runtime.training.optimizer_states import load_whole_optimizer_state, whole_optimizer_state
from rlhf_runtime.training.sharded import Sharded
from rlhf_runtime.training.strategy_factory import strategy_from_factory


class Strategy(Protocol):
    """One rank's part in every step; all ranks call the same methods in the same order, in one thread."""

    @property
    def rank(self) -> int:
        """Among all trainers."""
        ...

    @property
    def ranks(self) -> int: ...

    @property
    def data_rank(self) -> int:
        """Among the ranks that see different samples; tensor-parallel peers share one, and see the same."""
        ...

    @property
    def data_ranks(self) -> int: ...

    @property
    def device(self) -> torch.device:
        """Where batches go; parameters may rest elsewhere."""
        ...

    @property
    def loss_scale(self) -> float:
        """A rank's share of the loss is multiplied by it before its backward: so gradients are SUMMED over ranks."""
        ...

    def prepare(self, module: nn.Module, compute_dtype: torch.dtype = torch.float32) -> nn.Module:
        """Make a module with fp32 parameters ready, once, before its optimiser is made.

        What comes back is called, and its parameters are optimised: they stay fp32 whatever the forward computes in.
        The module is used up. Raises RunFailure for a family that the strategy cannot divide.
        """
        ...

    def accumulate(self, module: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Around one micro-batch's forward and backward; `last` in the step. All ranks have equally many."""
        ...

    def clip_gradients(self, module: nn.Module, max_norm: float) -> float:
        """2-norm of the whole gradient before it is scaled down to `max_norm`; the same on all ranks."""
        ...

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        """Sum over the data ranks; in place, and returned."""
        ...

    def gather_objects(self, value: Any) -> list[Any]:
        """Each data rank's value, picklable, by data rank."""
        ...

    def full_weights(self, module: nn.Module) -> dict[str, Tensor]:
        """Whole tensors by the model's own names, each once; where they are divided: on rank 0's CPU, {} elsewhere."""
        ...

    def optimizer_state(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Whole, by the model's own names, on rank 0's CPU: what any strategy can load. {} before the first step."""
        ...

    def load_optimizer_state(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
    ) -> None:
        """Go on from what `optimizer_state` gave, of whatever strategy; every rank passes all of it."""
        ...


class SingleProcess:
    """One rank: nothing is shared. With `checkpoint` blocks are computed anew in the backward."""

    rank = 0
    ranks = 1
    data_rank = 0
    data_ranks = 1
    loss_scale = 1.0

    def __init__(self, *, checkpoint: bool = False) -> None:
        self.device = accelerator()
        self._checkpoint = checkpoint

    def prepare(self, module: nn.Module, compute_dtype: torch.dtype = torch.float32) -> nn.Module:
        module.to(self.device)
        if self._checkpoint:
            recompute_in_backward(module)
        if compute_dtype != torch.float32:
            module.forward = torch.autocast(self.device.type, dtype=compute_dtype)(module.forward)
        return module

    def accumulate(self, module: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def clip_gradients(self, module: nn.Module, max_norm: float) -> float:
        return float(nn.utils.clip_grad_norm_(module.parameters(), max_norm))

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        return values

    def gather_objects(self, value: Any) -> list[Any]:
        return [value]

    def full_weights(self, module: nn.Module) -> dict[str, Tensor]:
        return model_weights(module)

    def optimizer_state(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return whole_optimizer_state(module, optimizer)

    def load_optimizer_state(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
    ) -> None:
        load_whole_optimizer_state(module, optimizer, state)


class DataParallel(SingleProcess):
    """DistributedDataParallel over the default process group: every rank has all weights, which start as rank 0's."""

    def __init__(self, *, checkpoint: bool = False) -> None:
        super().__init__(checkpoint=checkpoint)
        self.rank = self.data_rank = dist.get_rank()
        self.ranks = self.data_ranks = dist.get_world_size()
        # DDP averages gradients.
        self.loss_scale = float(self.ranks)

    def prepare(self, module: nn.Module, compute_dtype: torch.dtype = torch.float32) -> nn.Module:
        return DistributedDataParallel(super().prepare(module, compute_dtype))

    def accumulate(self, module: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        # Summed over ranks once, while the last micro-batch's backward still runs.
        assert isinstance(module, DistributedDataParallel)
        return nullcontext() if last else module.no_sync()

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        dist.all_reduce(values)
        return values

    def gather_objects(self, value: Any) -> list[Any]:
        return gathered_objects(value, None)

    def full_weights(self, module: nn.Module) -> dict[str, Tensor]:
        assert isinstance(module, DistributedDataParallel)
        return model_weights(module.module)


def make_strategy(settings: TrainerSettings, distributed: bool) -> Strategy:
    """The strategy of a rank; `distributed`: it has joined the trainers' process group, which has several.

    Raises RunFailure StrategyInvalid for what the user's own function gives.
    """
    if settings.strategy_factory is not None:
        rank, ranks = (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)
        made: Strategy = strategy_from_factory(settings.strategy_factory, rank, ranks)
        return made
    checkpoint = settings.gradient_checkpointing
    if settings.strategy == "DDP" and settings.tensor_parallel == 1:
        return DataParallel(checkpoint=checkpoint) if distributed else SingleProcess(checkpoint=checkpoint)
    if not distributed:
        join_alone()
    return Sharded(
        settings.strategy,
        offload=settings.offload == "All",
        tensor=settings.tensor_parallel,
        checkpoint=checkpoint,
    )
