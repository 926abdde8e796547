"""A rank's part of a model that is only sampled from: plain tensors, and sums and gathers between the layers.

Not DTensor, by which trainers divide: without gradients a part is an ordinary, smaller layer, which costs the host
nothing, can be recorded as a CUDA graph, and held in int8. The vocabulary is divided in equal pieces, the last of
which may be filled with rows of zeros; every rank sees the same logits, bit for bit.

All ranks call the model together, as ranks of the default process group; tensors that are sent between them are on
the ranks' devices.
"""

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlhf_runtime.engines.transformers_engine import AsHeld
from rlhf_runtime.models.division import EMBEDDING, FAMILIES, HEAD, checked_config
from rlhf_runtime.models.policy_weights import model_weights

#: How a tensor is divided: by its outputs, by its inputs, by tokens, or as a bias that one rank must add.
Cut = Literal["outputs", "inputs", "tokens", "once"]
FIELD = "makers.tensorParallel"


def part_of(whole: Tensor, cut: Cut | None, rank: int, ranks: int) -> Tensor:
    """A rank's part of a tensor, a copy unless it is the whole (None); of equal shape on all ranks."""
    if cut is None:
        return whole
    if cut == "once":
        return whole.clone() if rank == 0 else torch.zeros_like(whole)
    dimension = 1 if cut == "inputs" else 0
    size = -(-whole.shape[dimension] // ranks)
    start = min(rank * size, whole.shape[dimension])
    part = whole.narrow(dimension, start, min(size, whole.shape[dimension] - start))
    if part.shape[dimension] < size:
        part = torch.cat([part, part.new_zeros(size - part.shape[dimension], *part.shape[1:])])
    return part.clone(memory_format=torch.contiguous_format)


class DividedModel:
    """Divides `module`, whole and on the CPU, in place; `whole` is what it was, without its numbers.

    Raises RunFailure ModelInvalid (permanent) for a model that cannot be divided.
    """

    def __init__(self, module: nn.Module, rank: int, ranks: int) -> None:
        columns, rows = FAMILIES[checked_config(module, ranks, FIELD).model_type]
        self.module = module
        self.whole = _without_numbers(module)
        self.ranks, self._rank = ranks, rank
        self._cuts: dict[str, Cut] = {}
        for path, layer in list(module.named_modules()):
            if _ends(path, columns):
                self._cut(path, weight="outputs", bias="outputs")
            elif _ends(path, rows):
                self._cut(path, weight="inputs", bias="once")
                layer.register_forward_hook(_summed)
            elif isinstance(layer, nn.Embedding) and _ends(path, (EMBEDDING,)):
                self._cut(path, weight="tokens")
                module.set_submodule(path, _DividedEmbedding(module.get_parameter(f"{path}.weight"), rank))
            elif isinstance(layer, nn.Linear) and _ends(path, (HEAD,)):
                self._cut(path, weight="tokens", bias="tokens")
                layer.register_forward_hook(_Gathered(ranks, layer.out_features))
            if isinstance(heads := getattr(layer, "num_heads", None), int):
                layer.num_heads = heads // ranks
        for name, parameter in module.named_parameters():
            # In place, so that a tied weight is one tensor still.
            parameter.data = part_of(parameter.data, self._cuts.get(name), rank, ranks)

    @torch.no_grad()
    def put(self, state: Mapping[str, Tensor], as_held: AsHeld) -> None:
        """Bring weights to all ranks: rank 0 has them whole, and they fit `whole`; the others give {}.

        Tensor by tensor, so that no second copy of a part is held. `as_held` as an engine has it.
        """
        for name, own in model_weights(self.module).items():
            part = torch.empty(own.shape, dtype=own.dtype, device=own.device)
            parts = None
            if self._rank == 0:
                whole = state[name].to(own.device).contiguous()
                parts = [part_of(whole, self._cuts.get(name), rank, self.ranks) for rank in range(self.ranks)]
            dist.scatter(part, parts, src=0)
            own.copy_(as_held(self.module, {name: part})[name])

    def _cut(self, path: str, **cuts: Cut) -> None:
        self._cuts.update({f"{path}.{name}": cut for name, cut in cuts.items()})


class _DividedEmbedding(nn.Module):
    """Embedding of the tokens whose rows this rank has; together with the others', of all."""

    def __init__(self, weight: nn.Parameter, rank: int) -> None:
        super().__init__()
        self.weight = weight
        self._rank = rank

    def forward(self, ids: Tensor) -> Tensor:
        own = ids - self._rank * len(self.weight)
        elsewhere = (own < 0) | (own >= len(self.weight))
        found = nn.functional.embedding(own.masked_fill(elsewhere, 0), self.weight)
        found = found.masked_fill(elsewhere.unsqueeze(-1), 0.0)
        dist.all_reduce(found)
        return found


def _summed(_: nn.Module, inputs: Any, product: Tensor) -> Tensor:
    dist.all_reduce(product)
    return product


class _Gathered:
    """Puts the ranks' logits [..., piece] beside each other: [..., vocabulary]."""

    def __init__(self, ranks: int, vocabulary: int) -> None:
        self._ranks = ranks
        self._vocabulary = vocabulary

    def __call__(self, _: nn.Module, inputs: Any, logits: Tensor) -> Tensor:
        pieces = logits.new_empty(self._ranks, *logits.shape)
        dist.all_gather_into_tensor(pieces.flatten(0, 1), logits.contiguous())
        return pieces.movedim(0, -2).flatten(-2)[..., : self._vocabulary]


def _ends(path: str, names: Iterable[str]) -> bool:
    return any(path == name or path.endswith(f".{name}") for name in names)


def _without_numbers(module: nn.Module) -> nn.Module:
    """A copy of the module whose tensors have shape and dtype only; tied weights are one tensor there too."""
    known: dict[int, Any] = {
        id(parameter): nn.Parameter(parameter.detach().to("meta"), requires_grad=False)
        for parameter in module.parameters()
    }
    known.update({id(buffer): buffer.to("meta") for buffer in module.buffers()})
    return copy.deepcopy(module, known)
