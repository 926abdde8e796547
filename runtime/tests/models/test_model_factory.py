"""Models that the user's own code builds, and families that no test has met: right, or refused with the reason."""

from pathlib import Path
from typing import Any

import pytest
import torch
from learners import adamw
from rlhf_api.models import Lora, Model
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.models.critic import load_critic, save_critic
from rlhf_runtime.models.factory import from_factory
from rlhf_runtime.models.padding import check_policy
from rlhf_runtime.models.policy import load_policy, save_policy
from rlhf_runtime.models.policy_weights import load_weights, published_weights
from rlhf_runtime.models.reward_model import load_reward_model
from rlhf_runtime.models.role_models import role_models
from rlhf_runtime.training.optimized import OptimizedModel
from rlhf_runtime.training.strategy import SingleProcess
from tiny_factories import positions_from_columns
from tiny_models import padded, write_model
from tiny_run import run_config
from transformers import AutoTokenizer

BATCH = padded([[5, 6, 7], [7, 3, 1, 9, 4]], 6, "left")


def made_by(function: str, folder: Path) -> Model:
    return Model(uri=str(folder), factory=f"tiny_factories:{function}")


@pytest.mark.parametrize("lora", [None, Lora(rank=2, alpha=4)])
def test_a_policy_of_a_factory_is_trained_published_saved_and_resumed(lora: Lora | None, tmp_path: Path) -> None:
    folder, checkpoint = write_model(tmp_path / "base"), tmp_path / "checkpoint"
    model = made_by("doubled", folder)
    trained = load_policy(model, folder, "float32", lora=lora)
    with torch.no_grad():
        plain: Any = load_policy(Model(uri=str(folder)), folder, "float32")(**BATCH)
        assert torch.allclose(trained(**BATCH).logits, 2 * plain.logits)
        for parameter in trained.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape))
    maker = load_policy(model, folder, "float32")
    load_weights(maker, published_weights(trained))
    checkpoint.mkdir()
    save_policy(trained, AutoTokenizer.from_pretrained(folder), checkpoint, adapter_only=True)
    resumed = load_policy(model, folder, "float32", lora=lora, resume=checkpoint)
    with torch.no_grad():
        expected = trained(**BATCH).logits
        assert float((expected - 2 * plain.logits).abs().max()) > 1e-3
        for other in (maker, resumed):
            assert float((other(**BATCH).logits - expected).abs().max()) < 1e-5


def test_a_critic_and_a_reward_model_of_a_factory_are_no_models_of_transformers(tmp_path: Path) -> None:
    folder, checkpoint = write_model(tmp_path / "base"), tmp_path / "checkpoint"
    model = made_by("from_scratch", folder)
    critic = load_critic(model, folder, "float32")
    with torch.no_grad():
        critic.get_parameter("embedding.weight").add_(1)
    checkpoint.mkdir()
    save_critic(critic, AutoTokenizer.from_pretrained(folder), checkpoint)
    resumed = load_critic(model, folder, "float32", resume=checkpoint)
    assert torch.equal(resumed(**BATCH), critic(**BATCH))
    assert resumed(**BATCH).shape == (2, 6)
    assert load_reward_model(model, folder, "bfloat16")(**BATCH).shape == (2,)


@pytest.mark.parametrize(
    ("function", "part", "tail"),
    [
        ("raises", "tiny_factories:raises: KeyError: 'no actor in ", "raise KeyError("),
        ("exits", "tiny_factories:exits: SystemExit: no GPU", "sys.exit("),
        ("missing", "AttributeError: module 'tiny_factories' has no attribute 'missing'", ""),
        ("returns_text", "tiny_factories:returns_text returned a str, expected a torch.nn.Module", ""),
        ("ignores_dtype", "parameter weight is torch.float32, expected torch.bfloat16", ""),
        ("from_scratch", "its forward raised TypeError: ", ""),
        ("no_parameters", "tiny_factories:no_parameters returned a Identity without parameters, expected some", ""),
        ("small_vocabulary", "its logits are of 5 tokens, expected at least 14 (vocab_size in ", ""),
        ("positions_from_columns", "padding on the left changes what the same tokens get by ", ""),
    ],
)
def test_what_is_wrong_with_a_factory_is_said(function: str, part: str, tail: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path, "gpt2")
    with pytest.raises(RunFailure) as error:
        load_policy(made_by(function, folder), folder, "bfloat16")
    assert (error.value.reason, error.value.permanent) == ("ModelInvalid", True)
    assert error.value.message.startswith("models.actor.factory: ")
    assert part in error.value.message
    assert tail in error.value.tail
    assert bool(error.value.tail) == bool(tail), "without a frame of the user's there is nothing to show"
    assert "rlhf_runtime" not in error.value.tail


@pytest.mark.parametrize(
    ("role", "function", "part"),
    [
        ("reward", "one_score", "gave a tensor [1] for token ids [2, 4], expected [2], a score a row"),
        ("reward", "one_a_token", "gave a tensor [2, 4] for token ids [2, 4], expected [2], a score a row"),
        ("critic", "one_a_row", "gave a tensor [2] for token ids [2, 4], expected [2, 4], a value a token"),
        ("reward", "nothing", "gave a NoneType for token ids [2, 4], expected [2], a score a row"),
        ("reward", "not_numbers", "a text of 4 tokens gets inf, expected finite numbers"),
    ],
)
def test_what_scores_gives_one_number_a_row_and_a_critic_one_a_token(
    role: str, function: str, part: str, tmp_path: Path
) -> None:
    folder = write_model(tmp_path)
    with pytest.raises(RunFailure) as error:
        from_factory(f"tiny_factories:{function}", folder, "float32", role)
    assert (error.value.reason, error.value.permanent) == ("ModelInvalid", True)
    assert error.value.message.startswith(f"models.{role}.factory: tiny_factories:{function}")
    assert part in error.value.message


def test_a_policy_of_frozen_parameters_is_not_trained(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    frozen = load_policy(Model(uri=str(folder)), folder, "float32").requires_grad_(False)
    with pytest.raises(RunFailure, match="the trained LlamaForCausalLM has no parameter with requires_grad") as error:
        OptimizedModel(frozen, adamw(), SingleProcess(), torch.float32)
    assert error.value.permanent


def test_a_module_without_a_list_of_layers_is_not_recomputed(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    critic = load_critic(made_by("from_scratch", folder), folder, "float32")
    with pytest.raises(RunFailure, match=r"a FromScratch has no torch\.nn\.ModuleList of layers") as error:
        OptimizedModel(critic, adamw(), SingleProcess(checkpoint=True), torch.float32)
    assert error.value.permanent


def test_a_critic_of_a_factory_has_no_adapters(tmp_path: Path) -> None:
    critic = {"uri": "/models/critic", "factory": "a:b", "lora": {"rank": 1, "alpha": 1}}
    algorithm = {"type": "PPO", "optimizer": {"learningRate": 1e-3}}
    models = {"actor": {"uri": "/models/policy"}, "critic": critic}
    with pytest.raises(RunFailure, match=r"models\.critic\.lora: not with models\.critic\.factory"):
        role_models(run_config(tmp_path, tmp_path, algorithm=algorithm, models=models))


def test_a_module_that_cannot_be_imported_is_said(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    with pytest.raises(RunFailure, match="ModuleNotFoundError: No module named 'nowhere'"):
        load_policy(Model(uri=str(folder), factory="nowhere.at_all:make"), folder, "float32")


@pytest.mark.parametrize("family", ["mistral", "gpt_neox"])
def test_a_family_that_no_test_has_met_is_tried_when_it_is_loaded(family: str, tmp_path: Path) -> None:
    own = {"intermediate_size": 64, "num_key_value_heads": 1}
    folder = write_model(tmp_path / "lm", family, **own)
    load_policy(Model(uri=str(folder)), folder, "float32")
    scored = write_model(tmp_path / "scored", family, head="score", **own)
    load_critic(Model(uri=str(scored)), scored, "float32")


def test_a_family_that_padding_moves_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "gpt2")
    moved = positions_from_columns(str(folder), "float32", "actor").eval()
    with pytest.raises(RunFailure, match="positions must come from position_ids"):
        check_policy(moved, "models.actor.uri", "other")
