"""Model factories as users write them, right and wrong."""

import sys

import torch
from torch import nn
from transformers import AutoModelForCausalLM


def doubled(path: str, dtype: str, role: str) -> nn.Module:
    """The model in the folder, with logits twice as large."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
    model.lm_head.register_forward_hook(lambda module, inputs, output: 2 * output)
    module: nn.Module = model
    return module


class FromScratch(nn.Module):
    """Values or scores of a module that transformers does not know."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self.role = role
        self.embedding = nn.Embedding(14, 1)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor
    ) -> torch.Tensor:
        values = torch.where(attention_mask.bool(), self.embedding(input_ids).squeeze(-1), 0)
        return values if self.role == "critic" else values.sum(-1)


def from_scratch(path: str, dtype: str, role: str) -> nn.Module:
    torch.manual_seed(0)
    return FromScratch(role).to(getattr(torch, dtype))


def raises(path: str, dtype: str, role: str) -> nn.Module:
    raise KeyError(f"no {role} in {path}")


def exits(path: str, dtype: str, role: str) -> nn.Module:
    sys.exit("no GPU")


def returns_text(path: str, dtype: str, role: str) -> str:
    return path


def ignores_dtype(path: str, dtype: str, role: str) -> nn.Module:
    return nn.Linear(1, 1)


def positions_from_columns(path: str, dtype: str, role: str) -> nn.Module:
    """A policy that takes a token's column for its position, so that padding moves it."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
    columns = model.forward

    def forward(position_ids: torch.Tensor | None = None, **inputs: object) -> object:
        return columns(**{**inputs, "attention_mask": None})

    model.forward = forward
    module: nn.Module = model
    return module
