"""What share of a policy's weights an episode's training has changed, as makers hold them.

A step below half of what a weight's precision tells apart is lost when the weight is rounded. Trainers keep masters in
float32, so that small steps add up there; how much of them arrives at bfloat16 makers is seen here.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

#: Weights that are compared, about: a few MiB of the host's memory, whatever the model's size.
_WEIGHTS = 1 << 20


class ChangedWeights:
    """Compares the weights of a version with those of the version before, at places that stay the same."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._seen: Tensor | None = None
        self._share: float | None = None

    def share(self, version: int, weights: Mapping[str, Tensor], dtype: torch.dtype) -> float | None:
        """Of the floating-point weights, rounded to `dtype`, how many are others; None for the first version.

        Asked again for the same version it gives the same, since nothing has been trained between.
        """
        if version == self._version:
            return self._share
        found = _at_places(weights, dtype)
        self._share = None if self._seen is None else float((found != self._seen).float().mean())
        self._version, self._seen = version, found
        return self._share


def _at_places(weights: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """Every nth weight of each tensor, [about `_WEIGHTS` at most] on the CPU."""
    floats = [tensor.detach().flatten() for tensor in weights.values() if tensor.is_floating_point()]
    step = -(-sum(tensor.numel() for tensor in floats) // _WEIGHTS)
    return torch.cat([tensor[::step].to("cpu", dtype) for tensor in floats])
