"""Random models of each family."""

from typing import Any

import torch
from tiny_models import tiny_config
from transformers import AutoModelForCausalLM


def make_model(family: str, seed: int = 0, **changes: Any) -> Any:
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(tiny_config(family, **changes)).eval()
