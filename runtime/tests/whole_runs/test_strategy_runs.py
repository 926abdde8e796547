"""Real runs on a local Ray whose trainers divide weights, publish and save them together, and resume otherwise."""

from pathlib import Path
from typing import Any

import pytest
import torch
from local_runs import StopsAfter, assert_the_plan_was_trained, attempt, cluster, policy, ppo, weights
from rlhf_api.run import RunConfig

__all__ = ["cluster", "policy"]
pytestmark = [pytest.mark.timeout(900), pytest.mark.full]

DIVIDED: dict[str, Any] = {
    "replicas": 2,
    "perPod": 2,
    "strategy": "ZeRO3",
    "balance": "Dynamic",
    "maxTokensPerMicroBatch": 40,
}


async def test_a_run_divided_by_zero3_goes_on_over_tensor_parallel_ranks_to_the_weights_of_one_trainer(
    tmp_path: Path, policy: Path
) -> None:
    def config(name: str, **changes: Any) -> RunConfig:
        return ppo(tmp_path / name, policy, episodes=4, **changes)

    alone = config("alone")
    assert (await attempt(alone)).last_word == [None]

    divided = config("divided", trainers=DIVIDED)
    [stopped] = (await attempt(divided, StopsAfter(divided, 2))).last_word
    assert stopped is not None
    assert stopped.reason == "Stopped"
    second = config("divided", attempt=2, trainers={"replicas": 2, "tensorParallel": 2})
    channel = await attempt(second)
    assert channel.last_word == [None]
    resumed = channel.states[0].resumed_from
    # The stop may come when another episode is under way.
    assert resumed in (2, 3)
    assert channel.states[-1].trainers.ready == 2
    assert [report.episode for report in channel.episodes] == list(range(resumed + 1, 5))

    found, expected = weights(f"{divided.run_directory}/model"), weights(f"{alone.run_directory}/model")
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-3)
    assert any(not torch.allclose(found[name], tensor, atol=1e-2) for name, tensor in weights(policy).items())


async def test_what_a_strategy_factory_raises_ends_the_attempt_with_its_own_words(tmp_path: Path, policy: Path) -> None:
    config = ppo(tmp_path, policy, trainers={"replicas": 1, "strategyFactory": "tiny_strategies:broken"})
    [failure] = (await attempt(config)).last_word
    assert failure is not None
    assert (failure.reason, failure.permanent) == ("StrategyInvalid", True)
    assert failure.message.startswith("trainers.strategyFactory: tiny_strategies:broken: RuntimeError: no such fabric")
    assert failure.tail.splitlines()[1].endswith(", in broken")


async def test_a_strategy_of_ones_own_trains(tmp_path: Path, policy: Path) -> None:
    config = ppo(tmp_path, policy, episodes=2, trainers={"replicas": 2, "strategyFactory": "tiny_strategies:own"})
    channel = await attempt(config)
    assert channel.last_word == [None]
    assert_the_plan_was_trained(config, channel)
