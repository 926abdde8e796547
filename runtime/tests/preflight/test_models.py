"""The models of a job beside each other: what does not fit is said as it is, before any weight is loaded."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from preflight_configs import config_of
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.models.role_models import resolved
from rlhf_runtime.models.tokenizer import load_tokenizer
from rlhf_runtime.preflight.models import Lengths, ModelFindings, check_models
from tiny_models import VOCABULARY, add_weights, tiny_config, write_adapter, write_model, write_tokenizer


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy and a reward model with the same tokenizer, 14 tokens and 64 positions."""
    root = tmp_path_factory.mktemp("models")
    write_model(root / "policy")
    write_model(root / "reward", head="score")
    return root


@pytest.fixture
def root(tmp_path: Path, models: Path) -> Path:
    """A copy to break."""
    shutil.copytree(models, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def spec(root: Path) -> dict[str, Any]:
    """PPO with every role: the actor, a reference and a teacher like it, a reward model, and the critic it gives."""
    policy, reward = str(root / "policy"), str(root / "reward")
    for name in ("reference", "teacher"):
        shutil.copytree(policy, root / name)
    return {
        "episodes": 2,
        "algorithm": {
            "type": "PPO",
            "optimizer": {"learningRate": 0.001},
            "kl": {"coefficient": 0.1, "appliesTo": "Reward"},
            "distillation": {"weight": 0.1},
        },
        "models": {
            "actor": {"uri": policy},
            "reference": {"uri": str(root / "reference")},
            "teacher": {"uri": str(root / "teacher")},
            "reward": {"uri": reward},
        },
        "rewards": [{"model": "reward"}],
        "prompts": {"uri": "/prompts.jsonl"},
        "rollout": {"promptsPerEpisode": 2, "samplesPerPrompt": 4, "maxNewTokens": 8},
        "checkpoint": {"storage": {"path": "/storage"}},
    }


def examine(spec: dict[str, Any], *, prompt: int = 4) -> ModelFindings:
    config = config_of(spec)
    roles = resolved(config, weights=False)
    tokenizer = load_tokenizer(config.models.actor.uri, roles.folders["actor"])
    return check_models(config, roles, tokenizer, Lengths(prompt=prompt, completion=config.rollout.max_new_tokens))


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_models_that_fit_say_what_they_need(spec: dict[str, Any]) -> None:
    spec["models"]["reward"]["uri"] += "/"
    found = examine(spec)
    assert [need.role for need in found.needs] == ["maker", "trainer"]
    assert found.notes == ()


def missing(spec: dict[str, Any], root: Path) -> None:
    spec["models"]["reward"]["uri"] = "/models/nope"


def space_behind(spec: dict[str, Any], root: Path) -> None:
    spec["models"]["reward"]["uri"] += " "


def no_head(spec: dict[str, Any], root: Path) -> None:
    spec["models"]["reward"]["uri"] = spec["models"]["actor"]["uri"]


def layers_of_another_config(spec: dict[str, Any], root: Path) -> None:
    edit_json(root / "teacher" / "config.json", num_hidden_layers=1)


def head_with_a_bias(spec: dict[str, Any], root: Path) -> None:
    add_weights(root / "reward", {"score.bias": torch.zeros(1)})


def two_labels(spec: dict[str, Any], root: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    config = tiny_config("llama", num_labels=2)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(root / "reward")


def other_size(spec: dict[str, Any], root: Path) -> None:
    write_model(root / "reward", head="score", vocab_size=20)
    write_tokenizer(root / "reward", {**VOCABULARY, "a": 14, "b": 15})


def other_tokens(spec: dict[str, Any], root: Path) -> None:
    swapped = {**VOCABULARY, "1": VOCABULARY["2"], "2": VOCABULARY["1"]}
    write_tokenizer(root / "reference", swapped)


def critic_of_other_tokens(spec: dict[str, Any], root: Path) -> None:
    write_tokenizer(root / "reward", {**VOCABULARY, "+": VOCABULARY["="], "=": VOCABULARY["+"]})


def write_merging_tokenizer(folder: Path, merges: list[tuple[str, str]]) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokens = ["<pad>", "<eos>", "a", "b", "c", "ab", "bc"]
    model = models.BPE({token: number for number, token in enumerate(tokens)}, merges, unk_token="<pad>")
    fast = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), pad_token="<pad>", eos_token="<eos>")
    fast.save_pretrained(folder)


def other_merges(spec: dict[str, Any], root: Path) -> None:
    for name in ("policy", "reference", "reward"):
        write_merging_tokenizer(root / name, [("a", "b"), ("b", "c")])
    write_merging_tokenizer(root / "teacher", [("b", "c"), ("a", "b")])


def small_embedding(spec: dict[str, Any], root: Path) -> None:
    write_model(root / "teacher", vocab_size=10)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (root / "teacher" / name).unlink()


def few_positions(spec: dict[str, Any], root: Path) -> None:
    edit_json(root / "teacher" / "config.json", max_position_embeddings=11)


def switching_rope(spec: dict[str, Any], root: Path, switch: int = 11) -> None:
    factors = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": switch, **factors}
    edit_json(root / "teacher" / "config.json", rope_parameters=rope)


def no_such_layers(spec: dict[str, Any], root: Path) -> None:
    spec["models"]["actor"]["lora"] = {"rank": 4, "alpha": 8, "targets": ["q_proj", "query_key_value"]}


def too_few_heads(spec: dict[str, Any], root: Path) -> None:
    spec["trainers"] = {"replicas": 2, "tensorParallel": 2}


def too_few_heads_to_sample(spec: dict[str, Any], root: Path) -> None:
    spec["makers"] = {"tensorParallel": 2}


def reward_model_as_actor(spec: dict[str, Any], root: Path) -> None:
    spec["models"]["actor"]["uri"] = str(root / "reward")


def unknown_family(spec: dict[str, Any], root: Path) -> None:
    edit_json(root / "teacher" / "config.json", model_type="nope")


def code_of_its_own(spec: dict[str, Any], root: Path) -> None:
    edit_json(root / "teacher" / "config.json", model_type="nope", auto_map={"AutoConfig": "a.B"})


def cut_weights(spec: dict[str, Any], root: Path) -> None:
    weights = root / "teacher" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def unreadable_ends(spec: dict[str, Any], root: Path) -> None:
    (root / "policy" / "generation_config.json").write_text("[1]")


def ends_that_are_no_tokens(spec: dict[str, Any], root: Path) -> None:
    edit_json(root / "policy" / "generation_config.json", eos_token_id=[1, "<end>"])


def heads_that_are_text(spec: dict[str, Any], root: Path) -> None:
    edit_json(root / "policy" / "config.json", num_attention_heads="two")


def broken_header(spec: dict[str, Any], root: Path) -> None:
    (root / "teacher" / "model.safetensors").write_bytes(struct.pack("<Q", 3) + b"{a}" + b"0" * 9)


@pytest.mark.parametrize(
    ("breaks", "reason", "parts"),
    [
        pytest.param(missing, "ModelInvalid", ["models.reward.uri: there is no folder", "/models/nope"],
                     id="a path that is not there"),
        pytest.param(space_behind, "ModelInvalid", ["there is no folder '/", "/reward ' (it ends with a space); "],
                     id="a path with a space behind it"),
        pytest.param(no_head, "ModelInvalid",
                     ["models.reward.uri: ", "missing score.weight", "a sequence-classification model with one label"],
                     id="a language model as reward model"),
        pytest.param(layers_of_another_config, "ModelInvalid",
                     ["models.teacher.uri: ", "weights that a LlamaForCausalLM", "has no place for: model.layers.1.",
                      " and 5 more; without them it would be another model"], id="more layers than config.json says"),
        pytest.param(head_with_a_bias, "ModelInvalid",
                     ["models.reward.uri: ", "a LlamaForSequenceClassification", "has no place for: score.bias;"],
                     id="a bias of the reward model's head"),
        pytest.param(two_labels, "ModelInvalid", ["models.reward.uri: score.weight", "2 labels, expected 1"],
                     id="a reward model of two labels"),
        pytest.param(other_size, "ModelInvalid",
                     ["models.reward.uri: the critic model", "has another tokenizer: it has 16 tokens, the actor's 14"],
                     id="a vocabulary of another size"),
        pytest.param(other_tokens, "ModelInvalid",
                     ["models.reference.uri: the reference model", "2 of 14 ids differ, such as 3: '2' there, '1' in"],
                     id="as many other tokens"),
        pytest.param(critic_of_other_tokens, "ModelInvalid",
                     ["models.reward.uri: the critic model", "set models.critic, which is read from models.reward by"],
                     id="a critic read from a reward model of other tokens"),
        pytest.param(other_merges, "ModelInvalid", ["models.teacher.uri: ", "but merges them in another order"],
                     id="the same tokens merged in another order"),
        pytest.param(small_embedding, "ModelInvalid",
                     ["models.teacher.uri: ", "go up to 13, but its embedding has 10 rows"],
                     id="too small an embedding"),
        pytest.param(few_positions, "PromptsInvalid", ["together 12", "the teacher model in", "has 11 positions"],
                     id="a model with fewer positions than the actor"),
        pytest.param(switching_rope, "PromptsInvalid",
                     ["together 12", "the teacher model in", "has 11 positions, as its rotary factors (longrope)",
                      "lower prompts.maxPromptTokens or rollout.maxNewTokens"],
                     id="rotary factors that switch within a text"),
        pytest.param(no_such_layers, "ModelInvalid",
                     ["models.actor.lora.targets: 'query_key_value' matches no linear layer; candidates: down_proj"],
                     id="LoRA targets that match nothing"),
        pytest.param(too_few_heads, "ModelInvalid",
                     ["models.actor: num_key_value_heads is 1, expected a multiple of trainers.tensorParallel, 2"],
                     id="heads that tensor-parallel trainers cannot divide"),
        pytest.param(too_few_heads_to_sample, "ModelInvalid",
                     ["models.actor: num_key_value_heads is 1, expected a multiple of makers.tensorParallel, 2"],
                     id="heads that a tensor-parallel maker cannot divide"),
        pytest.param(reward_model_as_actor, "ModelInvalid",
                     ["models.actor.uri: ", "all weights of a LlamaForCausalLM: missing lm_head.weight"],
                     id="a reward model as actor"),
        pytest.param(unknown_family, "ModelInvalid", ["models.teacher.uri: no model can be built from", "nope"],
                     id="a family that transformers does not know"),
        pytest.param(code_of_its_own, "ModelInvalid",
                     ["models.teacher.uri: ", "own code is not run; a factory may build such a model"],
                     id="a model that brings its own code"),
        pytest.param(cut_weights, "ModelInvalid", ["models.teacher.uri: ", " bytes) is not a whole safetensors file"],
                     id="weights that are cut off"),
        pytest.param(unreadable_ends, "ModelInvalid",
                     ["models.actor.uri: cannot read", "generation_config.json, expected a JSON object"],
                     id="a generation_config.json that is a list"),
        pytest.param(ends_that_are_no_tokens, "ModelInvalid",
                     ["eos_token_id in", "is [1, '<end>'], expected token ids"], id="an end that is text"),
        pytest.param(heads_that_are_text, "ModelInvalid",
                     ["models.actor.uri: ", "for field 'num_attention_heads': ", "two"], id="heads that are text"),
        pytest.param(broken_header, "ModelInvalid", ["models.teacher.uri: ", "not a whole safetensors file", "JSON"],
                     id="a header that is no JSON"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_and_permanent(
    spec: dict[str, Any],
    root: Path,
    breaks: Callable[[dict[str, Any], Path], None],
    reason: str,
    parts: list[str],
) -> None:
    breaks(spec, root)
    with pytest.raises(RunFailure) as error:
        examine(spec)
    assert (error.value.reason, error.value.permanent) == (reason, True)
    assert "\n" not in error.value.message
    for part in parts:
        assert part in error.value.message


def test_a_reward_model_of_other_tokens_reads_the_text(spec: dict[str, Any], root: Path) -> None:
    other_size(spec, root)
    edit_json(root / "reward" / "config.json", max_position_embeddings=11)
    spec["models"]["critic"] = {"uri": spec["models"]["actor"]["uri"]}
    assert examine(spec).notes == (
        "models.reward: samples are read anew with the reward model's own tokenizer: it has 16 tokens, the actor's 14",
    )


def test_an_adapter_beside_the_weights_is_ignored_and_noted(spec: dict[str, Any], root: Path) -> None:
    write_adapter(root / "reference")
    (note,) = examine(spec).notes
    assert note.startswith(f"models.reference: adapter_config.json in {root / 'reference'} is ignored: ")


def test_rotary_factors_that_switch_beyond_all_texts_are_no_obstacle(spec: dict[str, Any], root: Path) -> None:
    switching_rope(spec, root, switch=12)
    assert examine(spec).notes == ()


def test_a_critic_may_begin_without_a_head(spec: dict[str, Any]) -> None:
    spec["models"]["critic"] = {"uri": spec["models"]["actor"]["uri"]}
    assert examine(spec).notes == ()


def test_a_model_without_a_tokenizer_is_taken_to_have_the_actors_tokens(spec: dict[str, Any], root: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (root / "reference" / name).unlink()
    (note,) = examine(spec).notes
    assert note.startswith("models.reference: ")
    assert note.endswith("has no tokenizer: the reference model is taken to have the actor's tokens")


def test_what_may_surprise_of_end_and_pad_tokens_is_noted(spec: dict[str, Any], root: Path) -> None:
    for name in ("policy", "reference", "teacher", "reward"):
        edit_json(root / name / "tokenizer_config.json", pad_token=None)
    edit_json(root / "policy" / "generation_config.json", eos_token_id=[1, 5])
    assert examine(spec).notes == (
        "models.actor: the tokenizer has no pad token: batches are filled with the end token, id 1",
        "models.actor: generation_config.json also ends a text at token 5 ('3'); completions end there too, "
        "not only at 1 ('<eos>')",
    )


def test_pickled_weights_tell_nothing_unloaded(spec: dict[str, Any], root: Path) -> None:
    (root / "reward" / "model.safetensors").rename(root / "reward" / "pytorch_model.bin")
    assert examine(spec).notes == ()
