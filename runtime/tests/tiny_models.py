"""Random models of a few thousand parameters, of every family that is supported, and tokenizers for them."""

from pathlib import Path
from typing import Any

import torch

FAMILIES = ("gpt2", "bloom", "opt", "llama", "qwen2", "qwen3")
VOCABULARY = {token: i for i, token in enumerate(["<pad>", "<eos>", *"0123456789+="])}


def tiny_config(family: str, **changes: Any) -> Any:
    """Two layers, width 32, two heads, 64 positions; dropout as the family has it, embeddings tied as it has them."""
    from transformers import AutoConfig

    common = {"vocab_size": len(VOCABULARY), "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    widths = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    own: dict[str, Any] = {
        "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "initializer_range": 0.2},
        "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 2, "hidden_dropout": 0.1, "initializer_range": 0.2},
        # Projections in and out, as the 350M model of this family has them.
        "opt": {**widths, "ffn_dim": 64, "max_position_embeddings": 64, "word_embed_proj_dim": 16, "init_std": 0.2},
    }.get(family, {**widths, "intermediate_size": 64, "max_position_embeddings": 64, "initializer_range": 0.2})
    if family in ("llama", "qwen2", "qwen3"):
        own |= {"num_key_value_heads": 1}
    if family == "qwen3":
        own |= {"head_dim": 16}
    return AutoConfig.for_model(family, **{**common, **own, **changes})


def write_tokenizer(folder: Path, vocabulary: dict[str, int] = VOCABULARY, **special: str) -> Any:
    """One token a character; `special` are the tokenizer's special tokens, by default pad and eos."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **(special or {"pad_token": "<pad>", "eos_token": "<eos>"})
    )
    fast.save_pretrained(folder)
    return fast


def write_model(folder: Path, family: str = "llama", *, head: str = "lm", seed: int = 0, **changes: Any) -> Path:
    """A causal language model ("lm") or a sequence-classification model ("score") with a tokenizer, in `folder`."""
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    kind = {"lm": AutoModelForCausalLM, "score": AutoModelForSequenceClassification}[head]
    torch.manual_seed(seed)
    labels = {"num_labels": 1} if head == "score" else {}
    kind.from_config(tiny_config(family, **{**labels, **changes})).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def add_weights(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    """Store more tensors in the model's folder."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    save_file(load_file(file) | weights, file, metadata={"format": "pt"})


def write_adapter(folder: Path) -> None:
    """Put an adapter that changes much into the folder of a language model, beside its weights."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = get_peft_model(AutoModelForCausalLM.from_pretrained(folder), LoraConfig(r=2, target_modules="all-linear"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B" in name:
                parameter.fill_(0.5)
    model.save_pretrained(folder)


def padded(rows: list[list[int]], width: int, side: str, pad: int = 0) -> dict[str, torch.Tensor]:
    """input_ids, attention_mask and position_ids, all [rows, width], as batches have them."""
    ids = torch.full((len(rows), width), pad)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        place = slice(width - len(row), width) if side == "left" else slice(0, len(row))
        ids[i, place], mask[i, place] = torch.tensor(row), 1
    return {"input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}
