"""Tensors as a weight sync describes and carries them."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rlhf_runtime.weight_sync.manifest import TensorSpec

Bytes = npt.NDArray[np.uint8]


def spec_of(name: str, tensor: Tensor, dtype: torch.dtype) -> TensorSpec:
    """What a tensor is announced as when it travels as `dtype`."""
    return TensorSpec(name, tuple(tensor.shape), str(dtype).removeprefix("torch."), tensor.numel() * dtype.itemsize)
