"""What a model's folder stores is the model: nothing of it is dropped, and nothing that lies beside it is added."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rlhf_api.models import Lora, Model
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.models.critic import load_critic, save_critic
from rlhf_runtime.models.policy import load_policy, save_policy
from rlhf_runtime.models.reward_model import load_reward_model
from tiny_models import add_weights, write_adapter, write_model
from torch import nn
from transformers import AutoTokenizer

Load = Callable[[Path], nn.Module]
BIAS = {"model.layers.0.self_attn.q_proj.bias": torch.ones(32)}


def policy(folder: Path) -> nn.Module:
    return load_policy(Model(uri=str(folder)), folder, "float32", role="reference")


def policy_with_adapters(folder: Path) -> nn.Module:
    return load_policy(Model(uri=str(folder)), folder, "float32", lora=Lora(rank=2, alpha=4))


def critic(folder: Path) -> nn.Module:
    return load_critic(Model(uri=str(folder)), folder, "float32")


def critic_with_adapters(folder: Path) -> nn.Module:
    return load_critic(Model(uri=str(folder)), folder, "float32", lora=Lora(rank=2, alpha=4))


def reward(folder: Path) -> nn.Module:
    return load_reward_model(Model(uri=str(folder)), folder, "float32")


def resumed_policy(folder: Path) -> nn.Module:
    """From a checkpoint that has a tensor too many; `folder` is what the run began with."""
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    save_policy(policy(folder), AutoTokenizer.from_pretrained(folder), checkpoint)
    add_weights(checkpoint, BIAS)
    return load_policy(Model(uri=str(folder)), folder, "float32", resume=checkpoint)


def resumed_critic_without_head(folder: Path) -> nn.Module:
    """From a checkpoint that is a language model's."""
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    save_policy(policy(folder), AutoTokenizer.from_pretrained(folder), checkpoint)
    return load_critic(Model(uri=str(folder)), folder, "float32", resume=checkpoint)


@pytest.mark.parametrize(
    ("load", "head", "more", "named"),
    [
        pytest.param(policy, "lm", BIAS, "no place for: model.layers.0.self_attn.q_proj.bias;", id="policy: a bias"),
        pytest.param(policy, "lm", {"score.weight": torch.ones(1, 32)}, "no place for: score.weight;",
                     id="policy: the head of a reward model"),
        pytest.param(critic, "score", BIAS, "no place for: model.layers.0.self_attn.q_proj.bias;", id="critic: a bias"),
        pytest.param(critic, "score", {"score.bias": torch.ones(1)}, "no place for: score.bias;",
                     id="critic: a bias of its head"),
        pytest.param(reward, "score", {"score.bias": torch.ones(1)}, "no place for: score.bias;",
                     id="reward model: a bias of its head"),
        pytest.param(resumed_policy, "lm", {}, "no place for: model.layers.0.self_attn.q_proj.bias;",
                     id="policy: a checkpoint with a bias"),
        pytest.param(resumed_critic_without_head, "lm", {}, "missing score.weight;",
                     id="critic: a checkpoint without its head"),
    ],
)  # fmt: skip
def test_a_weight_that_the_model_has_no_place_for_is_named(
    load: Load, head: str, more: dict[str, Any], named: str, tmp_path: Path
) -> None:
    write_model(tmp_path, head=head)
    add_weights(tmp_path, more)
    with pytest.raises(RunFailure) as error:
        load(tmp_path)
    assert (error.value.reason, error.value.permanent) == ("ModelInvalid", True)
    assert named in error.value.message


@pytest.mark.parametrize(
    ("load", "head", "more"),
    [
        pytest.param(critic, "lm", {}, id="critic: the head of the policy it begins as"),
        pytest.param(reward, "score", {"lm_head.weight": torch.ones(14, 32)}, id="reward model: a policy's head"),
        pytest.param(policy, "lm", {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)},
                     id="policy: a buffer that is computed"),
    ],
)  # fmt: skip
def test_what_a_role_has_no_use_for_may_be_there(load: Load, head: str, more: dict[str, Any], tmp_path: Path) -> None:
    add_weights(write_model(tmp_path, head=head), more)
    load(tmp_path)


@pytest.mark.parametrize("load", [policy, policy_with_adapters, critic, critic_with_adapters])
def test_an_adapter_beside_the_weights_is_no_part_of_the_model(load: Load, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "merged")
    plain = load(folder).state_dict()
    write_adapter(folder)
    found = load(folder).state_dict()
    assert found.keys() == plain.keys()
    assert all(torch.equal(found[name], plain[name]) for name in plain)


def test_what_is_saved_beside_such_an_adapter_names_the_folder(tmp_path: Path) -> None:
    """The adapter of a checkpoint is for the folder that the run began with, wherever it was read by way of."""
    folder = write_model(tmp_path / "merged")
    write_adapter(folder)
    trained = critic_with_adapters(folder)
    (tmp_path / "checkpoint").mkdir()
    save_critic(trained, AutoTokenizer.from_pretrained(folder), tmp_path / "checkpoint", adapter_only=True)
    assert f'"base_model_name_or_path": "{folder}"' in (tmp_path / "checkpoint" / "adapter_config.json").read_text()
