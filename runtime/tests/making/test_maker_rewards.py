"""A maker with a real policy, scored by a function, an endpoint and a reward model beside each other."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rlhf_runtime.data.prompts import Prompt
from rlhf_runtime.experience.messages import Task
from rlhf_runtime.making.loading import load_maker
from rlhf_runtime.making.maker import Maker
from rlhf_runtime.scheduling.ledger import Dispatch
from rlhf_runtime.training.loading import load_trainer
from rlhf_runtime.weight_sync.manifest import Order
from rlhf_runtime.weight_sync.publisher import Publisher
from tiny_judge import Judge
from tiny_run import run_config, write_policy, write_reward_model
from transformers import AutoModelForSequenceClassification

TESTS = Path(__file__).parents[1]
#: Two problems in the tiny policy's tokens.
PROMPTS = [
    Prompt(index=i, row=i, text=text, token_ids=ids, columns={"answer": answer})
    for i, (text, ids, answer) in enumerate([("1+2=", (3, 12, 4, 13), "3"), ("3+5=", (5, 12, 7, 13), "8")])
]


@pytest.fixture
def judge() -> Iterator[Judge]:
    server = Judge()
    yield server
    server.stop()


def sync(maker: Maker, publisher: Publisher) -> None:
    order = Order(1, 0, 0)
    manifest = publisher.prepare(order, must_differ=False)
    assert manifest is not None
    maker.prepare(manifest, 60)
    for index in range(len(manifest.buckets)):
        maker.stage(order, index, *publisher.shard(order, index))
    assert maker.commit(order, publisher.commit(order), 60)


def test_each_scores_what_was_sampled_and_the_evaluation_has_rewards_of_its_own(
    tmp_path: Path, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("JUDGE_TOKEN", "s3cret")
    policy, reward = tmp_path / "policy", tmp_path / "reward"
    write_policy(policy)
    write_reward_model(reward, policy)
    endpoint = {"url": judge.url, "tokenEnv": "JUDGE_TOKEN", "maxBatchSamples": 3}
    config = run_config(
        tmp_path,
        policy,
        models={"actor": {"uri": str(policy)}, "reward": {"uri": str(reward)}},
        rewards=[
            {"function": "tiny_rewards:ones"},
            {"name": "even", "function": "tiny_rewards:even", "weight": 10},
            {"model": "reward", "weight": 0.5},
            {"name": "judge", "http": endpoint, "weight": -0.01},
        ],
        evaluation={
            "uri": str(tmp_path / "held-out.jsonl"),
            "rewards": [{"function": "tiny_rewards:sevens", "weight": 2}, {"model": "reward", "weight": 0}],
        },
    )
    maker = load_maker(config, ("answer",))
    try:
        sync(maker, load_trainer(config, 0, None)[1])
        made = maker.make([Task(Dispatch(prompt.index, prompt.index, "maker-0"), prompt, True) for prompt in PROMPTS])
        assert maker.evaluate(PROMPTS, 0) == [14.0, 14.0]
    finally:
        maker.close()
    plain = AutoModelForSequenceClassification.from_pretrained(reward).eval()
    for (summary, group), applies in zip(made, (False, True), strict=True):
        each = summary.rewards_each
        texts = [shown.completion for shown in summary.shown]
        assert each["tiny_rewards:ones"] == tuple(text.count("1") / max(len(text), 1) for text in texts)
        assert each["even"] == (1.0 if applies else None,) * len(texts)
        assert each["judge"] == tuple(map(len, texts))
        for i, experience in enumerate(group.experiences):
            ids = [*experience.rollout.prompt_ids.tolist(), *experience.rollout.completion_ids.tolist()]
            with torch.no_grad():
                score = plain(input_ids=torch.tensor([ids])).logits.item()
            assert each["models.reward"][i] == pytest.approx(score, abs=1e-5)
            total = each["tiny_rewards:ones"][i] + (10 if applies else 0) + 0.5 * score - 0.01 * len(texts[i])
            assert experience.reward == summary.rewards[i] == pytest.approx(total, abs=1e-5)
    rollouts = [experience.rollout for _, group in made for experience in group.experiences]
    assert {rollout.truncated for rollout in rollouts} == {True, False}, "some chose their end, which is scored too"
    assert sorted(len(request["completions"]) for request in judge.requests) == [2, 3, 3]
    assert {headers["Authorization"] for headers in judge.headers} == {"Bearer s3cret"}
