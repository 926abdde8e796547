"""An engine over several processes samples what one alone samples, and ends as a whole."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from engine_ranks import REQUESTS, SAMPLING, Model, Said, of_one, of_two, rollouts
from rlhf_api.run import RunConfig
from rlhf_runtime.engines.engine import Sampling
from rlhf_runtime.engines.tensor_parallel.engine import TensorParallelEngine
from rlhf_runtime.engines.tensor_parallel.loading import start_engine
from rlhf_runtime.engines.tensor_parallel.parts import Cut, part_of
from rlhf_runtime.engines.transformers_engine import TransformersEngine
from rlhf_runtime.experience.rollout import Group
from rlhf_runtime.models.policy_weights import model_weights
from tiny_run import run_config, write_policy
from torch import nn
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.timeout(600)

MODELS = {
    "llama": Model(),
    "qwen2, tied": Model(family="qwen2"),
    "qwen3, heads of their own size, tied": Model(family="qwen3"),
    "opt": Model(family="opt"),
    "llama in int8": Model(int8=True),
    "qwen2 in bfloat16": Model(family="qwen2", dtype=torch.bfloat16),
}


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Said]]:
    """All models by the same two processes."""
    return dict(zip(MODELS, of_two(list(MODELS.values()), tmp_path_factory.mktemp("ranks")), strict=True))


def tokens(groups: list[Group]) -> list[list[int]]:
    return [rollout.completion_ids.tolist() for rollout in rollouts(groups)]


def logprobs(groups: list[Group]) -> Any:
    return np.concatenate([rollout.logprobs for rollout in rollouts(groups)])


@pytest.mark.parametrize("name", MODELS)
def test_two_ranks_say_what_one_process_says(name: str, of_ranks: dict[str, list[Said]]) -> None:
    ranks, (one, engine) = of_ranks[name], of_one(MODELS[name])
    exact = MODELS[name].dtype == torch.float32 and not MODELS[name].int8
    for said in ranks:
        assert said.version == 4
        if exact:
            assert (tokens(said.first), tokens(said.then)) == (tokens(one.first), tokens(one.then))
            for mine, its in ((said.first, one.first), (said.then, one.then)):
                np.testing.assert_allclose(logprobs(mine), logprobs(its), atol=1e-5)
        expected = np.concatenate(engine.logprobs(rollouts(said.first), SAMPLING))
        np.testing.assert_allclose(np.concatenate(said.logprobs), expected, atol=1e-5 if exact else 0.03)
        assert said.heads == one.heads // 2
        # What every rank has whole is not small here.
        assert one.memory / 2 < said.memory < 0.62 * one.memory
    assert tokens(ranks[0].then) == tokens(ranks[1].then)
    assert (logprobs(ranks[0].then) == logprobs(ranks[1].then)).all()
    assert tokens(one.first) != tokens(one.then)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    folder = tmp_path_factory.mktemp("policy")
    write_policy(folder)
    rollout = {"promptsPerEpisode": 4, "samplesPerPrompt": 4, "maxNewTokens": 10}
    return run_config(tmp_path_factory.mktemp("run"), folder, makers={"tensorParallel": 2}, rollout=rollout)


@pytest.fixture(scope="module")
def engine(config: RunConfig) -> Iterator[TensorParallelEngine]:
    started = start_engine(config)
    yield started
    started.close()


def policy_of(config: RunConfig, seed: int | None = None) -> nn.Module:
    model: nn.Module = AutoModelForCausalLM.from_pretrained(config.models.actor.uri)
    if seed is not None:
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0, 0.2)
    return model


def assert_same(found: list[Group], expected: list[Group]) -> None:
    assert tokens(found) == tokens(expected)
    np.testing.assert_allclose(logprobs(found), logprobs(expected), atol=1e-5)
    assert [r.versions.tolist() for r in rollouts(found)] == [r.versions.tolist() for r in rollouts(expected)]


def test_weights_loaded_between_steps_are_used_from_the_next_token_on(
    engine: TensorParallelEngine, config: RunConfig
) -> None:
    """Continue: by the leader's decision, on all ranks before the same step."""
    # A sample that waits for a row begins when the one before it is seen to have ended: on GPUs that is later.
    look_every = engine._own._settings.look_every
    alone = TransformersEngine(
        policy_of(config), end_ids=(1,), max_rows=config.max_batch_samples, look_every=look_every
    )
    both: list[TensorParallelEngine | TransformersEngine] = [engine, alone]
    state = model_weights(policy_of(config, seed=7))
    made = []
    for each in both:
        steps = 0

        def load_after_three_steps(each: Any = each) -> None:
            nonlocal steps
            steps += 1
            if steps == 3:
                each.load(state, each.version + 1)

        each.load(model_weights(policy_of(config)), 5)
        made.append([each.generate(REQUESTS, SAMPLING, load_after_three_steps), each.generate(REQUESTS, SAMPLING)])
        assert each.version == 6
    for found, expected in zip(*made, strict=True):
        assert_same(found, expected)
    assert {version for r in rollouts(made[0][0]) for version in r.versions} == {5, 6}


class StoppedByTestError(Exception):
    pass


def test_what_a_hook_raises_cancels_on_all_ranks_and_leaves_them_usable(engine: TensorParallelEngine) -> None:
    expected, steps = engine.generate(REQUESTS, SAMPLING), 0

    def cancel() -> None:
        nonlocal steps
        steps += 1
        if steps == 2:
            raise StoppedByTestError

    for _ in range(2):
        with pytest.raises(StoppedByTestError):
            engine.generate(REQUESTS, SAMPLING, cancel)
        steps = 0
    assert_same(engine.generate(REQUESTS, SAMPLING), expected)


def test_weights_that_do_not_fit_reach_no_rank(engine: TensorParallelEngine) -> None:
    expected = engine.generate(REQUESTS, SAMPLING)
    with pytest.raises(ValueError, match="weights do not fit this model: missing"):
        engine.load({}, 9)
    assert_same(engine.generate(REQUESTS, SAMPLING), expected)


def test_all_ranks_stop_where_the_text_has_a_stop_string(engine: TensorParallelEngine) -> None:
    free = tokens(engine.generate(REQUESTS, SAMPLING))
    stopping = Sampling(temperature=0.8, max_new_tokens=10, seed=3, stop=tuple("0123456789"))
    # Digits are tokens 2 to 11.
    ends = [next((end for end, token in enumerate(ids, 1) if 2 <= token < 12), len(ids)) for ids in free]
    assert tokens(engine.generate(REQUESTS, stopping)) == [ids[:end] for ids, end in zip(free, ends, strict=True)]
    assert sum(ends) < sum(map(len, free))


FOUR, NINE = torch.arange(8.0).view(4, 2), torch.arange(9.0)


@pytest.mark.parametrize(
    ("whole", "cut", "rank", "expected"),
    [
        (FOUR, "outputs", 1, [[4, 5], [6, 7]]),
        (FOUR, "inputs", 1, [[1], [3], [5], [7]]),
        (FOUR, None, 1, FOUR.tolist()),
        (NINE, "tokens", 0, [0, 1, 2, 3, 4]),
        (NINE, "tokens", 1, [5, 6, 7, 8, 0]),
        (NINE[:2], "once", 0, [0, 1]),
        (NINE[1:3], "once", 1, [0, 0]),
    ],
)
def test_a_rank_s_part_of_a_tensor(whole: torch.Tensor, cut: Cut | None, rank: int, expected: list[Any]) -> None:
    part = part_of(whole, cut, rank, 2)
    assert part.tolist() == expected
    assert part.is_contiguous()


def test_a_piece_of_a_small_vocabulary_may_be_all_padding() -> None:
    assert [part_of(NINE[:3], "tokens", rank, 4).tolist() for rank in range(4)] == [[0], [1], [2], [0]]
