"""Every family: padding changes nothing, what is saved loads in plain transformers, what is published arrives."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rlhf_api.models import Model
from rlhf_runtime.engines.engine import Request, Sampling
from rlhf_runtime.engines.transformers_engine import TransformersEngine
from rlhf_runtime.models.critic import load_critic, save_critic
from rlhf_runtime.models.policy import load_policy, save_policy
from rlhf_runtime.models.policy_weights import load_weights, published_weights
from rlhf_runtime.models.reward_model import load_reward_model
from tiny_models import FAMILIES, padded, write_model
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

#: Prompt and response of very unequal length, with the end token in the middle of one.
ROWS = [[5], [7, 3, 1, 9, 4, 8, 2], [6, 2, 3]]


def spec(folder: Path) -> Model:
    return Model(uri=str(folder))


def logprobs(policy: nn.Module, rows: list[list[int]], width: int, side: str) -> list[Tensor]:
    """Log-probabilities over the vocabulary at each row's real tokens."""
    batch = padded(rows, width, side)
    found = policy(**batch, use_cache=False).logits.float().log_softmax(-1)
    assert found.isfinite().all()
    return [found[i][batch["attention_mask"][i].bool()] for i in range(len(rows))]


def values(critic: nn.Module, rows: list[list[int]], width: int, side: str) -> list[Tensor]:
    batch = padded(rows, width, side)
    found = critic(**batch)
    assert found.shape == batch["input_ids"].shape
    assert found.dtype == torch.float32
    return [found[i][batch["attention_mask"][i].bool()] for i in range(len(rows))]


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_padding_changes_no_log_probability_value_or_score(family: str, tmp_path: Path) -> None:
    policy_folder = write_model(tmp_path / "policy", family)
    scored_folder = write_model(tmp_path / "scored", family, head="score")
    policy = load_policy(spec(policy_folder), policy_folder, "float32")
    critic = load_critic(spec(scored_folder), scored_folder, "float32")
    reward = load_reward_model(spec(scored_folder), scored_folder, "float32")
    alone = [
        (
            logprobs(policy, [row], len(row), "left")[0],
            values(critic, [row], len(row), "left")[0],
            reward(**padded([row], len(row), "left"))[0],
        )
        for row in ROWS
    ]
    longest = max(map(len, ROWS))
    for extra in (2, 7):
        for side in ("left", "right"):
            width = longest + extra
            scores = reward(**padded(ROWS, width, side))
            batch = zip(logprobs(policy, ROWS, width, side), values(critic, ROWS, width, side), scores, strict=True)
            for (own_logprobs, own_values, own_score), (found_logprobs, found_values, found_score) in zip(
                alone, batch, strict=True
            ):
                assert float((found_logprobs - own_logprobs).abs().max()) < 1e-5
                assert float((found_values - own_values).abs().max()) < 1e-5
                assert float((found_score - own_score).abs()) < 1e-5
                # The score is the value at the last real token, so its head has no second definition.
                assert float(own_score) == pytest.approx(float(own_values[-1]), abs=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_what_is_saved_loads_in_plain_transformers_and_here(family: str, tmp_path: Path) -> None:
    policy_folder = write_model(tmp_path / "policy", family)
    scored_folder = write_model(tmp_path / "scored", family, head="score", seed=1)
    tokenizer = AutoTokenizer.from_pretrained(policy_folder)
    policy = load_policy(spec(policy_folder), policy_folder, "float32")
    critic = load_critic(spec(scored_folder), scored_folder, "float32")
    for name in ("saved policy", "saved critic"):
        (tmp_path / name).mkdir()
    save_policy(policy, tokenizer, tmp_path / "saved policy")
    save_critic(critic, tokenizer, tmp_path / "saved critic")
    batch = padded(ROWS, 8, "left")
    expected = policy(**batch).logits
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "saved policy").eval()
    again = load_policy(spec(policy_folder), tmp_path / "saved policy", "float32")
    assert torch.equal(plain(**batch).logits, expected)
    assert torch.equal(again(**batch).logits, expected)
    plain_critic = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved critic").eval()
    again_critic = load_critic(spec(scored_folder), tmp_path / "saved critic", "float32")
    assert torch.equal(again_critic(**batch), critic(**batch))
    # Its own pooling takes the last token that is not the pad token: here the last.
    assert torch.equal(plain_critic(**batch).logits[:, 0], critic(**batch)[:, -1])
    assert AutoTokenizer.from_pretrained(tmp_path / "saved critic").eos_token == "<eos>"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_a_published_policy_arrives_and_its_head_stays_tied(family: str, tied: bool, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "policy", family, tie_word_embeddings=tied)
    trained, maker = (load_policy(spec(folder), folder, "float32") for _ in range(2))
    for parameter in trained.parameters():
        parameter.add_(0.05 * torch.randn(parameter.shape))
    published = published_weights(trained)
    load_weights(maker, published)
    batch = padded(ROWS, 8, "left")
    moved: Any = maker(**batch).logits
    assert torch.equal(moved, trained(**batch).logits)
    assert float((moved - load_policy(spec(folder), folder, "float32")(**batch).logits).abs().max()) > 1e-3
    own: Any = maker
    assert (own.get_input_embeddings().weight is own.lm_head.weight) == tied
    assert ("lm_head.weight" in published) == (not tied)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_policy_reads_only_as_many_logits_as_asked_and_has_no_dropout(family: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "policy", family)
    policy = load_policy(spec(folder), folder, "bfloat16")
    assert {p.dtype for p in policy.parameters()} == {torch.bfloat16}
    batch = padded(ROWS, 8, "left")
    assert policy(**batch, logits_to_keep=3).logits.shape[1] == 3
    # Gradient checkpointing needs training mode; log-probabilities must not become random by it.
    policy.train()
    assert torch.equal(policy(**batch).logits, policy(**batch).logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_maker_samples_has_the_trainers_log_probabilities(family: str, tmp_path: Path) -> None:
    """Prompts of unequal length share a batch of two rows, so that places are taken over and rows stop early."""
    folder = write_model(tmp_path, family)
    policy = load_policy(spec(folder), folder, "float32")
    engine = TransformersEngine(policy, end_ids=(1, 2, 3), max_rows=2)
    requests = [Request(prompt_index=i, prompt_ids=np.array(row, np.int32), samples=2) for i, row in enumerate(ROWS)]
    groups = engine.generate(requests, Sampling(temperature=1.0, max_new_tokens=9, seed=0))
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    assert len({len(rollout.completion_ids) for rollout in rollouts}) > 1
    for rollout in rollouts:
        whole = [*rollout.prompt_ids.tolist(), *rollout.completion_ids.tolist()]
        with torch.no_grad():
            found = logprobs(policy, [whole], len(whole) + 7, "left")[0][len(rollout.prompt_ids) - 1 : -1]
        chosen = found.gather(1, torch.from_numpy(rollout.completion_ids).long().unsqueeze(1)).squeeze(1)
        assert float((chosen - torch.from_numpy(rollout.logprobs)).abs().max()) < 1e-5
