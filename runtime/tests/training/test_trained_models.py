"""What is trained is what makers sample with next, what is saved, and what a resume goes on from: all weights, or LoRA.

A trainer and a maker as a run loads them, with a publish between them, in this process.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rlhf_api.run import RunConfig
from rlhf_runtime.data.prompts import Prompt
from rlhf_runtime.experience.messages import Task
from rlhf_runtime.making.loading import load_maker
from rlhf_runtime.making.maker import Maker
from rlhf_runtime.scheduling.ledger import Dispatch
from rlhf_runtime.training.loading import load_trainer
from rlhf_runtime.training.trainer import Trainer
from rlhf_runtime.weight_sync.manifest import Order
from rlhf_runtime.weight_sync.publisher import Publisher
from tiny_models import padded
from tiny_run import PROMPTS, python_path, run_config, write_policy
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

GRPO = {"type": "GRPO", "optimizer": {"learningRate": 1e-2}}
PPO = {"type": "PPO", "optimizer": {"learningRate": 1e-2}}
LORA = {"rank": 8, "alpha": 16}


def publish(publisher: Publisher, maker: Maker, version: int, *, moved: bool = True) -> None:
    order = Order(1, 0, version)
    manifest = publisher.prepare(order, must_differ=moved and version > 0)
    assert manifest is not None
    assert maker.prepare(manifest, 60)
    for index in range(len(manifest.buckets)):
        maker.stage(order, index, *publisher.shard(order, index))
    assert maker.commit(order, publisher.commit(order), 1)


def train_an_episode(trainer: Trainer, maker: Maker, version: int) -> None:
    texts = [f"{i}+{version}=" for i in range(PROMPTS)]
    tasks = [
        Task(
            Dispatch(cursor, cursor + 1, "maker-0"),
            Prompt(index=cursor, row=cursor, text=text, token_ids=ids(text), columns={"answer": "3"}),
            shown=False,
        )
        for cursor, text in enumerate(texts, start=PROMPTS * version)
    ]
    groups = [group for _, group in maker.make(tasks)]
    dispatches = [task.dispatch for task in tasks]
    trainer.receive(groups, dispatches)
    assert trainer.train(dispatches, version + 1).moved


def ids(text: str) -> tuple[int, ...]:
    return tuple(2 + "0123456789+=".index(character) for character in text)


def sampled(maker: Maker) -> tuple[list[list[int]], list[int], list[Any]]:
    """Rows, the length of their prompts, and the maker's log-probabilities of their completions."""
    prompt = Prompt(index=1000, row=0, text="1+2=", token_ids=ids("1+2="), columns={"answer": "3"})
    [(_, group)] = maker.make([Task(Dispatch(1000, 1, "maker-0"), prompt, shown=False)])
    rollouts = [experience.rollout for experience in group.experiences]
    rows = [[*rollout.prompt_ids.tolist(), *rollout.completion_ids.tolist()] for rollout in rollouts]
    return rows, [len(rollout.prompt_ids) for rollout in rollouts], [rollout.logprobs for rollout in rollouts]


@torch.no_grad()
def logprobs(policy: Any, rows: list[list[int]], prompts: list[int]) -> list[Any]:
    found = []
    for row, start in zip(rows, prompts, strict=True):
        logits = policy(**padded([row], len(row), "left")).logits[0].log_softmax(-1)
        found.append(logits[range(start - 1, len(row) - 1), row[start:]].numpy())
    return found


@pytest.mark.parametrize(
    ("algorithm", "models"),
    [
        pytest.param(GRPO, {}, id="all weights"),
        pytest.param(GRPO, {"actor": {"lora": LORA}}, id="adapters"),
        pytest.param(PPO, {"actor": {"lora": LORA}}, id="adapters, and a whole critic"),
        pytest.param(PPO, {"actor": {"lora": LORA}, "critic": {"lora": LORA}}, id="adapters of both"),
    ],
)
def test_makers_files_and_a_resume_have_what_was_trained(
    algorithm: dict[str, Any], models: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", python_path())
    policy = tmp_path / "policy"
    policy.mkdir()
    write_policy(policy)
    base = (policy / "model.safetensors").read_bytes()
    named = {role: {"uri": str(policy), **model} for role, model in ({"actor": {}} | models).items()}
    config: RunConfig = run_config(tmp_path, policy, algorithm=algorithm, models=named)
    maker = load_maker(config, ("answer",))
    try:
        trainer, publisher = load_trainer(config, 0, None)
        publish(publisher, maker, 0)
        for version in range(2):
            train_an_episode(trainer, maker, version)
            publish(publisher, maker, version + 1)
        rows, prompts, expected = sampled(maker)
        trainer.save(tmp_path / "model", resumable=False)
        trainer.save(tmp_path / "checkpoint", resumable=True)
        resumed, resumed_publisher = load_trainer(config, 0, tmp_path / "checkpoint")
        resumed.save(tmp_path / "again", resumable=False)
        publish(resumed_publisher, maker, 3, moved=False)
        resumed_rows, _, resumed_logprobs = sampled(maker)
    finally:
        maker.close()
    start = AutoModelForCausalLM.from_pretrained(policy)
    for folder in ("model", "again"):
        found = logprobs(AutoModelForCausalLM.from_pretrained(tmp_path / folder), rows, prompts)
        for own, plain in zip(expected, found, strict=True):
            assert np.abs(own - plain).max() < 1e-5
    assert max(np.abs(a - b).max() for a, b in zip(expected, logprobs(start, rows, prompts), strict=True)) > 1e-3
    assert resumed_rows == rows
    assert all(np.array_equal(a, b) for a, b in zip(resumed_logprobs, expected, strict=True))
    assert (policy / "model.safetensors").read_bytes() == base
    has_adapter = (tmp_path / "checkpoint" / "adapter_model.safetensors").exists()
    assert has_adapter == ("lora" in named["actor"]) != (tmp_path / "checkpoint" / "model.safetensors").exists()
    if algorithm["type"] == "PPO":
        critics = [
            AutoModelForSequenceClassification.from_pretrained(tmp_path / folder / "critic")
            for folder in ("model", "again")
        ]
        one, other = (critic(**padded([rows[0]], len(rows[0]), "left")).logits for critic in critics)
        assert float(one.abs()) > 0
        assert torch.equal(one, other)


def test_what_is_saved_has_the_chat_template_that_the_job_gave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", python_path())
    policy = tmp_path / "policy"
    policy.mkdir()
    write_policy(policy)
    prompts = {"uri": str(tmp_path / "prompts.jsonl"), "maxPromptTokens": 8}
    config = run_config(
        tmp_path,
        policy,
        algorithm=PPO,
        prompts=prompts | {"chatTemplate": "{% for m in messages %}<{{ m.content }}>{% endfor %}"},
    )
    trainer, _ = load_trainer(config, 0, None)
    for name, resumable in (("model", False), ("checkpoint", True)):
        trainer.save(tmp_path / name, resumable=resumable)
        for folder in (tmp_path / name, tmp_path / name / "critic"):
            tokenizer = AutoTokenizer.from_pretrained(folder)
            text = tokenizer.apply_chat_template([{"role": "user", "content": "1+2"}], tokenize=False)
            assert text == "<1+2>"
