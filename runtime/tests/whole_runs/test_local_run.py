"""Real actors on a local Ray: a tiny policy is sampled, scored, trained, synced, killed and resumed.

One Ray serves all tests of this module. It is a process of its own that the runs connect to, as they do to a
cluster; `rlhfjob run` covers the Ray that the coordinator starts itself.
"""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
import torch
from local_runs import KillsAfter, assert_the_plan_was_trained, attempt, cluster, policy, weights
from rlhf_api.run import RunConfig
from rlhf_runtime.actors.cluster import RayWorkers, connect, disconnect
from rlhf_runtime.data.prompts import Prompt
from rlhf_runtime.experience.messages import Task
from rlhf_runtime.scheduling.ledger import Dispatch
from rlhf_runtime.storage.run_directory import RunDirectory
from rlhf_runtime.weight_sync.manifest import Order
from tiny_judge import Judge
from tiny_run import PROMPTS, SAMPLES, run_config, write_reward_model
from transformers import AutoTokenizer

__all__ = ["cluster", "policy"]
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def judge() -> Iterator[Judge]:
    server = Judge()
    yield server
    server.stop()


def checkpoints(config: RunConfig) -> list[str]:
    folder = RunDirectory(config.run_directory).attempt(config.attempt).checkpoints
    return sorted(path.name for path in folder.iterdir())


async def test_a_run_whose_trainer_dies_goes_on_from_its_checkpoint_and_ends_in_a_model_that_loads(
    tmp_path: Path, policy: Path
) -> None:
    config = run_config(tmp_path, policy, episodes=5)
    first = await attempt(config, KillsAfter(config, 3, "trainers"))
    [failure] = first.last_word
    assert failure is not None
    assert (failure.reason, failure.permanent) == ("TrainerLost", False)
    assert "episode-000002" in checkpoints(config)

    resumed = max(name for name in checkpoints(config) if name.startswith("episode"))
    episode = int(resumed.removeprefix("episode-"))
    config = run_config(tmp_path, policy, episodes=5, attempt=2)
    second = await attempt(config)
    assert second.last_word == [None]
    assert second.states[0].resumed_from == episode
    assert [report.episode for report in second.episodes] == list(range(episode + 1, 6))
    last = Path(second.states[-1].latest_checkpoint or "")
    assert json.loads((last / "state.json").read_text())["optimizerSteps"] == 5
    # The moments went on too: Adam's own count is that of the whole run.
    [optimizer] = torch.load(last / "training.pt", weights_only=True)["optimizers"]
    assert {int(state["step"]) for state in optimizer["state"].values()} == {5}

    model = second.states[-1].final_model
    assert model == f"{config.run_directory}/model"
    assert all(torch.equal(tensor, weights(last)[name]) for name, tensor in weights(model).items())
    assert not all(torch.equal(tensor, weights(policy)[name]) for name, tensor in weights(model).items())
    assert AutoTokenizer.from_pretrained(model)("1+2=")["input_ids"] == [3, 12, 4, 13]
    samples = RunDirectory(config.run_directory).attempt(2).samples / "episode-000005.jsonl"
    shown = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len(shown) == PROMPTS * SAMPLES
    assert {"cursor", "prompt", "completion", "reward", "advantage", "versions"} == set(shown[0])

    third = await attempt(run_config(tmp_path, policy, episodes=5, attempt=3))
    assert third.last_word == [None], "a finished model makes a restarted attempt a success"
    assert third.episodes == []


async def test_two_trainers_at_learning_rate_0_keep_every_weight_bit_for_bit(tmp_path: Path, policy: Path) -> None:
    algorithm = {"type": "GRPO", "minibatches": 2, "optimizer": {"learningRate": 0.0}}
    config = run_config(tmp_path, policy, trainers={"replicas": 2}, episodes=2, algorithm=algorithm)
    channel = await attempt(config)
    assert channel.last_word == [None]
    assert_the_plan_was_trained(config, channel)
    before, after = weights(policy), weights(f"{config.run_directory}/model")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


async def test_two_makers_on_policy_with_drops_train_the_plan(tmp_path: Path, policy: Path) -> None:
    config = run_config(tmp_path, policy, makers={"replicas": 2}, maxStaleness=0, stalenessPolicy="DropAndRefill")
    channel = await attempt(config)
    assert channel.last_word == [None]
    assert_the_plan_was_trained(config, channel)
    assert all(abs(report.kl) < 1e-6 for report in channel.episodes), "on-policy: the sampled policy is the trained one"


async def test_a_maker_killed_in_a_run_of_two_and_two_is_replaced_and_no_prompt_is_lost(
    tmp_path: Path, policy: Path, judge: Judge
) -> None:
    held_out = {
        "uri": str(tmp_path / "held-out.jsonl"),
        "everyEpisodes": 3,
        "rewards": [{"function": "tiny_rewards:sevens"}],
    }
    write_reward_model(tmp_path / "reward", policy)
    endpoint = {"url": judge.url, "tokenEnv": "JUDGE_TOKEN", "maxBatchSamples": 3}
    rewards = [
        {"function": "tiny_rewards:ones"},
        {"name": "even", "function": "tiny_rewards:even", "weight": 0},
        {"model": "reward", "weight": 0.5},
        {"name": "judge", "http": endpoint, "weight": -0.01},
    ]
    config = run_config(
        tmp_path,
        policy,
        makers={"replicas": 2},
        trainers={"replicas": 2},
        episodes=12,
        evaluation=held_out,
        rewards=rewards,
        models={"actor": {"uri": str(policy)}, "reward": {"uri": str(tmp_path / "reward")}},
    )
    channel = await attempt(config, KillsAfter(config, 2, "makers"))
    assert channel.last_word == [None]
    assert_the_plan_was_trained(config, channel)
    last = channel.states[-1]
    assert last.repairs.makers == 1
    assert last.ledger.dispatched == last.ledger.trained + last.ledger.dropped_lost
    scored = [report.episode for report in channel.episodes if report.score is not None]
    assert scored == [3, 6, 9, 12]
    assert {last.initial_score, *(channel.episodes[episode - 1].score for episode in scored)} == {7.0}
    for report in channel.episodes:
        each = report.rewards
        assert each.keys() <= {"tiny_rewards:ones", "even", "models.reward", "judge"}
        parts = each["tiny_rewards:ones"] + 0.5 * each["models.reward"] - 0.01 * each["judge"]
        assert report.reward == pytest.approx(parts)
        assert each.get("even", 1.0) == 1.0, "a mean over those that it applies to"
    assert {headers["Authorization"] for headers in judge.headers} == {"Bearer s3cret"}
    assert max(len(request["completions"]) for request in judge.requests) == 3


async def test_a_reward_function_that_raises_ends_the_attempt_with_its_own_words(tmp_path: Path, policy: Path) -> None:
    config = run_config(tmp_path, policy, rewards=[{"function": "tiny_rewards:raises"}])
    channel = await attempt(config)
    [failure] = channel.last_word
    assert failure is not None
    assert (failure.reason, failure.permanent) == ("RewardFunctionFailed", False)
    assert "no answer today" in failure.message
    assert "tiny_rewards.py" in failure.tail


async def test_a_trainer_killed_in_the_middle_of_a_publish_leaves_the_maker_free_and_on_the_old_version(
    tmp_path: Path, policy: Path
) -> None:
    config = run_config(tmp_path, policy)
    directory = RunDirectory(config.run_directory)
    probe = directory.write_probe()
    await asyncio.to_thread(connect, config)
    try:
        workers = RayWorkers(config, probe, 1, ("answer",))
        trainers, maker = await asyncio.gather(workers.trainers(None), workers.maker("maker-0"))
        first = await trainers.publish(Order(1, 0, 0), must_differ=False, seconds=60)
        await maker.receive(first, 60)

        [trainer] = trainers._actors
        order = Order(1, 0, 1)
        manifest = await trainer.prepare.remote(order, False)
        await maker._actor.prepare.remote(manifest, 2.0)
        digest, payload = trainer.shard.options(num_returns=2).remote(order, 0)
        await maker._actor.stage.remote(order, 0, await digest, payload)
        os.kill(trainers.pids[0], signal.SIGKILL)
        with pytest.raises(ray.exceptions.RayActorError):
            await trainer.commit.remote(order)

        made = await maker.make([task(0)])
        assert made.groups[0].oldest_version == 0
        await maker.ping(5)
        await asyncio.sleep(2.5)
        await maker.ping(5)
        with pytest.raises(Exception, match="its lease has ended"):
            await maker._actor.commit.remote(order, "", 1.0, None)
        assert (await maker.make([task(1)])).groups[0].oldest_version == 0
    finally:
        await asyncio.to_thread(disconnect)


def task(cursor: int) -> Task:
    prompt = Prompt(index=cursor, row=cursor, text="1+2=", token_ids=(3, 12, 4, 13), columns={"answer": "3"})
    return Task(Dispatch(cursor, cursor + 1, "maker-0"), prompt, shown=False)
