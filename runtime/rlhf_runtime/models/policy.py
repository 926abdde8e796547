"""Loading a policy and its tokenizer from a folder, and writing them so that plain transformers loads them."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM


def load_policy(folder: Path, dtype: str) -> nn.Module:
    """The causal language model in `folder`, with its parameters in `dtype` ("float32", "bfloat16").

    On a GPU where there is one. Nothing is fetched from a network.
    """
    model: nn.Module = AutoModelForCausalLM.from_pretrained(
        str(folder), dtype=getattr(torch, dtype), local_files_only=True
    )
    return model.to(torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def save_policy(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write model (safetensors) and tokenizer into `folder`, which exists."""
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
