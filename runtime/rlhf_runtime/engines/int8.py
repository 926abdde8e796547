"""Makers whose linear layers hold their weights in int8: half the memory of bfloat16, a quarter of fp32.

torchao's weight-only quantisation, symmetric, one scale for each output: w ~ int8 * max|w of the output| / 127.5.
Embeddings and the head keep their numbers, since the head's error would go straight into the log-probs, and a tied
head is the embedding. Activations keep their dtype.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torchao.quantization import Int8Tensor, Int8WeightOnlyConfig, quantize_
from torchao.quantization.granularity import PerRow


def quantize(model: nn.Module) -> list[str]:
    """Put the weights of the model's linear layers into int8, in place; returns the layers' names.

    Raises ValueError if there is none (gpt2's layers are convolutions): a maker that is not what was asked for would
    be found out by its memory only.
    """
    transformers_model: Any = model
    head = transformers_model.get_output_embeddings()
    chosen = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head]
    if not chosen:
        raise ValueError(
            f"makers.quantization: {type(model).__name__} has no linear layer besides its head, so nothing would be in "
            "int8; expected at least one"
        )
    names = set(chosen)
    quantize_(model, Int8WeightOnlyConfig(set_inductor_config=False), filter_fn=lambda _, name: name in names)
    return chosen


def quantized_like(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`state` with those weights in int8 that the model has in int8: what can be copied into it."""
    own = model.state_dict()
    return {
        name: Int8Tensor.from_hp(tensor.to(own[name].device), PerRow())
        if isinstance(own.get(name), Int8Tensor) and tensor.shape == own[name].shape and tensor.dtype == own[name].dtype
        else tensor
        for name, tensor in state.items()
    }


def weight_bytes(model: nn.Module) -> int:
    """Memory of all parameters and buffers, each once."""
    seen: dict[int, int] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        parts = (tensor.qdata, tensor.scale) if isinstance(tensor, Int8Tensor) else (tensor,)
        seen.update({part.data_ptr(): part.numel() * part.element_size() for part in parts})
    return sum(seen.values())
