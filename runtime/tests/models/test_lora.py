"""LoRA: only adapters are trained and saved, makers get plain merged weights, and peft and transformers read it all."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from rlhf_api.models import Lora, Model
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.models.critic import load_critic, save_critic
from rlhf_runtime.models.lora import merged_weights
from rlhf_runtime.models.policy import load_policy, save_policy
from rlhf_runtime.models.policy_weights import load_weights, model_weights, published_weights
from safetensors.torch import load_file
from tiny_models import FAMILIES, padded, write_model
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

LORA = Lora(rank=8, alpha=16)
BATCH = padded([[5, 6, 7], [7, 3, 1, 9, 4]], 6, "left")


def train_one_step(module: nn.Module, out: Any) -> None:
    """One AdamW step of a large rate on what is trained."""
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=1e-2)
    out(module).square().mean().backward()
    optimizer.step()


def logits(policy: nn.Module) -> Tensor:
    found: Tensor = policy(**BATCH).logits
    return found


def values(critic: nn.Module) -> Tensor:
    found: Tensor = critic(**BATCH)
    return found - 1


@pytest.mark.parametrize("family", FAMILIES)
def test_a_maker_gets_the_merged_weights_and_the_base_stays(family: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path, family)
    model = Model(uri=str(folder))
    trained = load_policy(model, folder, "float32", lora=LORA)
    maker = load_policy(model, folder, "float32")
    with torch.no_grad():
        start = logits(maker)
        assert torch.allclose(logits(trained), start, atol=1e-6)
    base = {name: tensor.clone() for name, tensor in model_weights(trained).items() if ".lora_" not in name}
    train_one_step(trained, logits)
    assert all(torch.equal(tensor, base[n]) for n, tensor in model_weights(trained).items() if n in base)
    assert {name.split(".")[-3] for name, p in trained.named_parameters() if p.requires_grad} == {"lora_A", "lora_B"}
    with torch.no_grad():
        for _ in range(2):
            # Twice: a publish replaces, it does not add.
            published = published_weights(trained)
            assert set(published) == set(model_weights(maker))
            load_weights(maker, published)
            found = logits(maker)
            assert float((found - logits(trained)).abs().max()) < 1e-5
        assert float((found - start).abs().max()) > 1e-3
    own: Any = maker
    assert own.get_input_embeddings().weight is own.lm_head.weight or not own.config.tie_word_embeddings


@pytest.mark.parametrize("family", ["gpt2", "qwen3"])
def test_what_is_saved_loads_in_plain_transformers_in_peft_and_here(family: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "base", family)
    model = Model(uri=str(folder))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    trained = load_policy(model, folder, "float32", lora=LORA)
    train_one_step(trained, logits)
    final, checkpoint = tmp_path / "final", tmp_path / "checkpoint"
    final.mkdir()
    checkpoint.mkdir()
    save_policy(trained, tokenizer, final)
    save_policy(trained, tokenizer, checkpoint, adapter_only=True)
    assert not (checkpoint / "model.safetensors").exists()
    assert all(".lora_" in name for name in load_file(checkpoint / "adapter_model.safetensors"))
    with torch.no_grad():
        expected = logits(trained)
        base = AutoModelForCausalLM.from_pretrained(folder)
        readers = {
            "merged, plain transformers": AutoModelForCausalLM.from_pretrained(final),
            "adapter, peft": PeftModel.from_pretrained(base, final / "adapter"),
            "checkpoint, plain transformers": AutoModelForCausalLM.from_pretrained(checkpoint),
            "checkpoint, here": load_policy(model, folder, "float32", lora=LORA, resume=checkpoint),
        }
        for name, reader in readers.items():
            assert float((logits(reader.eval()) - expected).abs().max()) < 1e-5, name
    assert AutoTokenizer.from_pretrained(final).eos_token == "<eos>"


def test_a_critic_trains_adapters_and_its_head(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "base")
    model = Model(uri=str(folder))
    critic = load_critic(model, folder, "float32", lora=LORA)
    for _ in range(2):
        # The first step moves the head only: below a head of zeros there is no gradient.
        train_one_step(critic, values)
    final, checkpoint = tmp_path / "final", tmp_path / "checkpoint"
    final.mkdir()
    checkpoint.mkdir()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    save_critic(critic, tokenizer, final)
    save_critic(critic, tokenizer, checkpoint, adapter_only=True)
    maker = load_critic(model, folder, "float32")
    load_weights(maker, published_weights(critic))
    plain = AutoModelForSequenceClassification.from_pretrained(final).eval()
    bare = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1)
    adapted = PeftModel.from_pretrained(bare, checkpoint).eval()
    with torch.no_grad():
        expected = critic(**BATCH)
        assert float(expected.abs().max()) > 1e-3
        assert float((maker(**BATCH) - expected).abs().max()) < 1e-5
        again = load_critic(model, folder, "float32", lora=LORA, resume=checkpoint)
        assert float((again(**BATCH) - expected).abs().max()) < 1e-6
        for reader in (plain, adapted):
            assert float((reader(**BATCH).logits[:, 0] - expected[:, -1]).abs().max()) < 1e-5


def test_a_merge_is_rounded_once() -> None:
    """In bf16, W + scale B A: hand-computed, with a sum that bf16 cannot hold before it is added to W."""
    base = nn.Sequential(nn.Linear(1, 1, bias=False, dtype=torch.bfloat16))
    from rlhf_runtime.models.lora import attach_adapters

    attach_adapters(base, Lora(rank=1, alpha=2), "models.actor")
    layer: Any = base[0]
    with torch.no_grad():
        layer.base_layer.weight.fill_(1.0)
        layer.lora_A.default.weight.fill_(0.0625)
        layer.lora_B.default.weight.fill_(0.03125)
    merged = merged_weights(base, model_weights(base))
    assert merged["0.weight"].dtype == torch.float32
    assert float(merged["0.weight"]) == 1.0 + 2 * 0.0625 * 0.03125


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (["q_proj", "layers.1.mlp.up_proj"], {"0.self_attn.q_proj", "1.self_attn.q_proj", "1.mlp.up_proj"}),
        (["down_proj"], {"0.mlp.down_proj", "1.mlp.down_proj"}),
    ],
)
def test_targets_are_ends_of_paths(targets: list[str], expected: set[str], tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    policy = load_policy(Model(uri=str(folder)), folder, "float32", lora=Lora(rank=2, alpha=1, targets=targets))
    adapted = {name.removeprefix("model.layers.").partition(".lora_A")[0] for name, p in policy.named_parameters()
               if ".lora_A." in name}  # fmt: skip
    assert adapted == expected


@pytest.mark.parametrize("target", ["lm_head", "proj", "embed_tokens", "c_attn"])
def test_a_target_that_matches_nothing_names_the_candidates(target: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    with pytest.raises(RunFailure) as error:
        load_policy(Model(uri=str(folder)), folder, "float32", lora=Lora(rank=2, alpha=1, targets=["q_proj", target]))
    assert error.value.permanent
    assert error.value.message == (
        f"models.actor.lora.targets: '{target}' matches no linear layer; candidates: "
        "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"
    )


def test_an_adapter_of_another_rank_does_not_resume(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "base")
    model = Model(uri=str(folder))
    trained = load_policy(model, folder, "float32", lora=LORA)
    (tmp_path / "checkpoint").mkdir()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    save_policy(trained, tokenizer, tmp_path / "checkpoint", adapter_only=True)
    with pytest.raises(RunFailure, match="does not fit this model and spec, by base_model"):
        load_policy(model, folder, "float32", lora=Lora(rank=4, alpha=16), resume=tmp_path / "checkpoint")
