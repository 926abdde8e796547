"""A maker and a trainer as a run loads them, in one process: what one says the other says, and a resume goes on."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from rlhf_api.run import RunConfig
from rlhf_runtime.data.prompts import Prompt
from rlhf_runtime.experience.batch import Batch, collate
from rlhf_runtime.experience.messages import Task, Trained
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.making.loading import load_maker
from rlhf_runtime.making.maker import Maker
from rlhf_runtime.maths.logprobs import token_logprobs
from rlhf_runtime.models.forwards import completion_logits, completion_values
from rlhf_runtime.models.policy import load_policy
from rlhf_runtime.scheduling.ledger import Dispatch
from rlhf_runtime.training.loading import load_trainer
from rlhf_runtime.training.trainer import Trainer
from rlhf_runtime.weight_sync.manifest import Order
from rlhf_runtime.weight_sync.publisher import Publisher
from tiny_models import VOCABULARY, write_model
from tiny_run import PROMPTS, python_path, run_config, write_policy

PPO: dict[str, Any] = {
    "type": "PPO",
    "optimizer": {"learningRate": 1e-2, "schedule": "Linear"},
    "critic": {"valueClip": 0.5},
    "kl": {"coefficient": 0.05, "appliesTo": "Reward", "refreshEveryEpisodes": 2},
    "oldLogProbs": "Recomputed",
    "epochs": 2,
    "minibatches": 2,
}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    write_policy(folder)
    return folder


@pytest.fixture(autouse=True)
def _rewards_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", python_path())


@dataclass
class Pair:
    """One maker and one trainer, led as the coordinator leads them with maxStaleness 0."""

    maker: Maker
    trainer: Trainer
    publisher: Publisher
    version: int = 0

    def sync(self) -> None:
        order = Order(1, 0, self.version)
        manifest = self.publisher.prepare(order, must_differ=False)
        assert manifest is not None
        self.maker.prepare(manifest, 60)
        for index in range(len(manifest.buckets)):
            self.maker.stage(order, index, *self.publisher.shard(order, index))
        assert self.maker.commit(order, self.publisher.commit(order), 60)

    def made(self, cursor: int) -> Any:
        [(_, group)] = self.maker.make([task(cursor)])
        return group

    def episode(self) -> Trained:
        first = self.version * PROMPTS
        groups = [self.made(cursor) for cursor in range(first, first + PROMPTS)]
        dispatches = [group.dispatch for group in groups]
        self.trainer.receive(groups, dispatches)
        self.version += 1
        trained = self.trainer.train(dispatches, self.version)
        self.sync()
        return trained

    def weights(self) -> dict[str, torch.Tensor]:
        learner = self.trainer._learner
        assert learner.critic is not None
        return learner.actor.weights() | learner.critic.weights()


def task(cursor: int) -> Task:
    text = f"{cursor % 10}+2="
    ids = (2 + cursor % 10, 12, 4, 13)
    return Task(
        Dispatch(cursor, cursor + 1, "maker-0"),
        Prompt(index=cursor, row=cursor, text=text, token_ids=ids, columns={"answer": "3"}),
        shown=False,
    )


@pytest.fixture
def pairs() -> Iterator[Any]:
    made: list[Pair] = []

    def load(config: RunConfig, resume: Path | None = None, version: int = 0) -> Pair:
        pair = Pair(load_maker(config, ("answer",)), *load_trainer(config, 0, resume), version)
        made.append(pair)
        pair.sync()
        return pair

    yield load
    for pair in made:
        pair.maker.close()


def batch_of(group: Any) -> Batch:
    return collate(group.experiences, 0)


def test_after_an_update_and_a_sync_maker_and_trainer_say_the_same(tmp_path: Path, policy: Path, pairs: Any) -> None:
    """Cases R4 and R5, for the critic and the refreshed reference too."""
    algorithm = PPO | {"kl": PPO["kl"] | {"refreshEveryEpisodes": 1}}
    pair = pairs(run_config(tmp_path, policy, algorithm=algorithm))
    before = batch_of(pair.made(99))
    assert before.values is not None
    assert not before.values.any(), "a critic without a head begins at exactly 0"
    pair.episode()
    batch, learner = batch_of(pair.made(99)), pair.trainer._learner
    assert learner.critic is not None
    with torch.no_grad():
        logits = completion_logits(learner.actor.call, batch)
        logprobs = token_logprobs(logits, batch.completion_ids, 1.0)[batch.mask]
        values = completion_values(learner.critic.call, batch)[:, :-1][batch.mask]
    assert batch.values is not None
    assert batch.reference_logprobs is not None
    torch.testing.assert_close(batch.sampled_logprobs[batch.mask], logprobs, atol=1e-5, rtol=0)
    torch.testing.assert_close(batch.reference_logprobs[batch.mask], logprobs, atol=1e-5, rtol=0)
    torch.testing.assert_close(batch.values[batch.mask], values, atol=1e-5, rtol=0)
    assert float(values.abs().max()) > 1e-3
    with torch.no_grad():
        stale = token_logprobs(completion_logits(learner.actor.call, before), before.completion_ids, 1.0)
    assert float((stale - before.sampled_logprobs)[before.mask].abs().max()) > 1e-3


def test_ids_without_a_token_are_never_drawn_and_have_no_part_in_what_is_trained(tmp_path: Path, pairs: Any) -> None:
    """An embedding padded from 14 tokens to 64 rows: maker, reference and trainer say what they would without."""
    folder = write_model(tmp_path / "padded", vocab_size=64)
    algorithm = {"type": "GRPO", "optimizer": {"learningRate": 1e-2}, "kl": {"coefficient": 0.1, "appliesTo": "Loss"}}
    rollout = {"promptsPerEpisode": PROMPTS, "samplesPerPrompt": 16, "maxNewTokens": 4}
    config = run_config(
        tmp_path, folder, algorithm=algorithm, rollout=rollout, maxBatchSamples=16, bufferCapacity=32 * PROMPTS
    )
    pair = pairs(config)
    batch = batch_of(pair.made(99))
    assert int(batch.completion_ids[batch.mask].max()) < len(VOCABULARY)
    plain = load_policy(config.models.actor, folder, "float32")
    with torch.no_grad():
        logits = completion_logits(plain, batch)[..., : len(VOCABULARY)]
    expected = token_logprobs(logits, batch.completion_ids, 1.0)
    assert batch.reference_logprobs is not None
    for found in (batch.sampled_logprobs, batch.reference_logprobs, pair.trainer._learner.logprobs(batch)):
        torch.testing.assert_close(found[batch.mask], expected[batch.mask], atol=1e-5, rtol=0)


def test_ppo_resumed_ends_with_the_weights_of_the_run_that_was_not_stopped(
    tmp_path: Path, policy: Path, pairs: Any
) -> None:
    """Case R16: actor, critic, both optimisers, the schedule and a reference between two refreshes go on."""
    config = run_config(tmp_path, policy, algorithm=PPO, episodes=6)
    straight = pairs(config)
    reports = [straight.episode() for _ in range(6)]
    broken = pairs(config)
    for _ in range(3):
        broken.episode()
    names = {file.name for file in broken.trainer.save(tmp_path / "checkpoint", resumable=True)}
    assert {"model.safetensors", "critic/model.safetensors", "reference/model.safetensors", "training.pt"} <= names
    resumed = pairs(config, tmp_path / "checkpoint", 3)
    again = [resumed.episode() for _ in range(3)]
    expected = straight.weights()
    for name, tensor in resumed.weights().items():
        torch.testing.assert_close(tensor, expected[name], atol=1e-6, rtol=0)
    assert [trained.optimizer_steps for trained in again] == [16, 20, 24]
    for found, wanted in zip(again, reports[3:], strict=True):
        assert found.figures.reference_kl == pytest.approx(wanted.figures.reference_kl, abs=1e-6)
        assert found.figures.value_loss == pytest.approx(wanted.figures.value_loss, abs=1e-6)


def test_a_replaced_maker_compares_with_the_refreshed_reference(tmp_path: Path, policy: Path, pairs: Any) -> None:
    pair = pairs(run_config(tmp_path, policy, algorithm=PPO))
    initial = batch_of(pair.made(99)).reference_logprobs
    for _ in range(3):
        pair.episode()
    kept = batch_of(pair.made(99))
    pair.maker.close()
    pair.maker = load_maker(run_config(tmp_path, policy, algorithm=PPO), ("answer",))
    pair.sync()
    replaced = batch_of(pair.made(99))
    assert kept.reference_logprobs is not None
    assert initial is not None
    torch.testing.assert_close(replaced.reference_logprobs, kept.reference_logprobs, atol=1e-6, rtol=0)
    assert kept.reference_logprobs.shape != initial.shape or not torch.allclose(
        kept.reference_logprobs, initial, atol=1e-3
    )


def test_a_reference_that_cannot_become_the_policy_is_refused_at_the_start(tmp_path: Path, policy: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    other = LlamaConfig(
        vocab_size=14, hidden_size=16, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, eos_token_id=1
    )
    LlamaForCausalLM(other).save_pretrained(tmp_path / "other")
    models = {"actor": {"uri": str(policy)}, "reference": {"uri": str(tmp_path / "other")}}
    with pytest.raises(RunFailure, match=r"models\.reference: .* must have the actor's architecture") as failure:
        load_trainer(run_config(tmp_path, policy, algorithm=PPO, models=models), 0, None)
    assert failure.value.permanent
