"""Model factories as users write them, right and wrong."""

import os
import sys
from collections.abc import Callable

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM


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


def small_vocabulary(path: str, dtype: str, role: str) -> nn.Module:
    """Logits of five tokens, whatever the folder has."""
    config = AutoConfig.from_pretrained(path)
    config.vocab_size = 5
    module: nn.Module = AutoModelForCausalLM.from_config(config).to(getattr(torch, dtype))
    return module


class Made(nn.Module):
    """Gives whatever it is made to give."""

    def __init__(self, give: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.give = give

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor) -> object:
        return self.give(attention_mask.float() + self.weight)


def one_score(path: str, dtype: str, role: str) -> nn.Module:
    return Made(lambda real: real.sum(-1)[:1])


def one_a_row(path: str, dtype: str, role: str) -> nn.Module:
    return Made(lambda real: real.sum(-1))


def one_a_token(path: str, dtype: str, role: str) -> nn.Module:
    return Made(lambda real: real)


def not_numbers(path: str, dtype: str, role: str) -> nn.Module:
    return Made(lambda real: real.sum(-1) / 0)


def nothing(path: str, dtype: str, role: str) -> nn.Module:
    return Made(lambda real: None)


def no_parameters(path: str, dtype: str, role: str) -> nn.Module:
    return nn.Identity()


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


def in_one_process(path: str, dtype: str, role: str) -> nn.Module:
    if os.environ["TINY_FACTORY_PID"] != str(os.getpid()):
        raise RuntimeError("only one process may")
    return doubled(path, dtype, role)
