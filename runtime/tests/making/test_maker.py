"""A maker samples whole groups with one version a batch, and takes a new one up between two batches."""

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from rlhf_api.algorithm import Algorithm, Optimizer
from rlhf_api.algorithm import Group as GroupSettings
from rlhf_runtime.completing.frozen_models import FrozenModels
from rlhf_runtime.data.prompts import Prompt
from rlhf_runtime.engines.engine import Hook, Request, Sampling
from rlhf_runtime.experience.messages import LogprobGap, Task
from rlhf_runtime.experience.rollout import Float32Array, Group, Rollout
from rlhf_runtime.making.maker import Maker, MakerSettings
from rlhf_runtime.models.policy_weights import model_weights
from rlhf_runtime.rewards.batch import RewardScores, Tokens
from rlhf_runtime.scheduling.ledger import Dispatch
from rlhf_runtime.weight_sync.manifest import Order
from rlhf_runtime.weight_sync.parts import LoadsParts, expected_weights
from rlhf_runtime.weight_sync.probe import Probe
from rlhf_runtime.weight_sync.publisher import PublishedPart, Publisher
from rlhf_runtime.weight_sync.receiver import Receiver
from spaced_tokenizers import spaced_tokenizer
from torch import nn

EOS = 9


class SlowEngine:
    """Two samples a prompt: [5, EOS], and [6, 7] cut at the limit. A batch takes as long as the test wants."""

    def __init__(self) -> None:
        self.version = -1
        self.end_ids = frozenset({EOS})
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.may_end.set()

    def load(self, state: Mapping[str, torch.Tensor], version: int) -> None:
        self.version = version

    def check(self) -> None: ...

    def close(self) -> None: ...

    def logprobs(self, rollouts: Sequence[Rollout], sampling: Sampling) -> list[Float32Array]:
        """A quarter of a nat less than was sampled with, at the last token half a nat."""
        return [rollout.logprobs - np.array([0.25, 0.5], np.float32) for rollout in rollouts]

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, between_steps: Hook | None = None
    ) -> list[Group]:
        version = self.version
        self.begun.set()
        assert self.may_end.wait(10)
        assert version == self.version, "a version came into use in the middle of a batch"
        return [
            Group(
                prompt_index=request.prompt_index,
                rollouts=tuple(
                    Rollout(
                        prompt_index=request.prompt_index,
                        sample=sample,
                        prompt_ids=request.prompt_ids,
                        completion_ids=np.array([[5, EOS], [6, 7]][sample], np.int32),
                        logprobs=np.array([-1, -1], np.float32),
                        versions=np.array([version, version], np.int32),
                        truncated=sample == 1,
                    )
                    for sample in range(request.samples)
                ),
            )
            for request in requests
        ]


class Letters:
    def decode(self, ids: list[int], **options: Any) -> str:
        return "".join(chr(ord("a") + i) for i in ids)


class Recorder:
    """Rewards that count: 0, 1, 2, ... within a batch; keeps what it was given."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def score(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        columns: dict[str, list[Any]],
        tokens: Tokens,
        rows: Sequence[int],
    ) -> RewardScores:
        self.calls.append((list(prompts), list(completions), columns))
        self.tokens, self.rows = tokens, rows
        values = [float(i) for i in range(len(completions))]
        return RewardScores(values, {"half": [value / 2 for value in values]})

    def close(self) -> None: ...


class Bench:
    def __init__(self, tokenizer: Any = None) -> None:
        self.engine, self.rewards, model = SlowEngine(), Recorder(), nn.Linear(2, 2)
        self.publisher = Publisher(
            [PublishedPart(prefix="actor", dtype=torch.float32, weights=lambda version: model_weights(model))]
        )
        self.maker = Maker(
            self.engine,
            Receiver(expected_weights({"actor": model}), LoadsParts(self.engine, {})),
            self.rewards,  # type: ignore[arg-type]
            tokenizer or Letters(),
            MakerSettings(
                samples_per_prompt=2,
                sampling=Sampling(temperature=1.0, max_new_tokens=2, seed=0),
                end_ids=frozenset({EOS}),
                algorithm=Algorithm(
                    type="GRPO", optimizer=Optimizer(learning_rate=0.0), group=GroupSettings(normalization="None")
                ),
            ),
            FrozenModels(pad_id=0, temperature=1.0),
        )

    def stage(self, version: int) -> tuple[Order, str]:
        order = Order(1, 0, version)
        manifest = self.publisher.prepare(order, must_differ=False)
        self.maker.prepare(manifest, 10)
        for index in range(len(manifest.buckets)):
            self.maker.stage(order, index, *self.publisher.shard(order, index))
        return order, self.publisher.commit(order)

    def sync(self, version: int) -> None:
        assert self.maker.commit(*self.stage(version), 1.0)


def prompt(cursor: int) -> Prompt:
    return Prompt(index=cursor, row=cursor, text=f"q{cursor}", token_ids=(1, 2), columns={"answer": cursor})


def task(cursor: int, shown: bool = False) -> Task:
    return Task(Dispatch(cursor, cursor, "maker-0"), prompt(cursor), shown)


def test_a_maker_without_a_synced_version_does_not_sample() -> None:
    with pytest.raises(ValueError, match="without a synced version"):
        Bench().maker.make([task(0)])


def test_rewards_get_text_without_the_end_token_and_one_prompt_and_column_value_a_sample() -> None:
    bench = Bench()
    bench.sync(0)
    bench.maker.make([task(3), task(4)])
    [(prompts, completions, columns)] = bench.rewards.calls
    assert prompts == ["q3", "q3", "q4", "q4"]
    assert completions == ["f", "gh", "f", "gh"]
    assert columns == {"answer": [3, 3, 4, 4]}
    assert bench.rewards.tokens == Tokens([(1, 2)] * 4, [[5, EOS], [6, 7]] * 2)
    assert bench.rewards.rows == [3, 3, 4, 4]


def test_rewards_get_the_space_that_a_completion_begins_with() -> None:
    bench = Bench(spaced_tokenizer())
    bench.sync(0)
    bench.maker.make([task(3)])
    [(_, completions, _)] = bench.rewards.calls
    assert completions == ["no", " no "]


def test_after_messages_rewards_get_a_completion_as_a_message() -> None:
    bench = Bench()
    bench.sync(0)
    messages = [{"role": "user", "content": "q"}]
    conversation = Prompt(index=3, row=3, text="user: q", token_ids=(1, 2), columns={}, messages=messages)
    [(summary, _)] = bench.maker.make([Task(Dispatch(3, 3, "maker-0"), conversation, True)])
    [(prompts, completions, _)] = bench.rewards.calls
    assert prompts == [messages, messages]
    assert completions == [[{"role": "assistant", "content": "f"}], [{"role": "assistant", "content": "gh"}]]
    # People read what the policy read and said.
    assert [(shown.prompt, shown.completion) for shown in summary.shown] == [("user: q", "f"), ("user: q", "gh")]


def test_a_group_comes_back_whole_with_its_rewards_advantages_counts_and_version() -> None:
    bench = Bench()
    bench.sync(7)
    [_, (summary, group)] = bench.maker.make([task(3), task(4, shown=True)])
    assert summary.dispatch == group.dispatch == Dispatch(4, 4, "maker-0")
    assert (summary.oldest_version, summary.tokens, summary.truncated) == (7, 4, 1)
    assert summary.rewards == (2.0, 3.0)
    assert summary.rewards_each == {"half": (1.0, 1.5)}
    assert [experience.reward for experience in group.experiences] == [2.0, 3.0]
    assert [experience.advantages.tolist() for experience in group.experiences] == [[-0.5, -0.5], [0.5, 0.5]]
    assert [(shown.completion, shown.versions) for shown in summary.shown] == [("f", (7, 7)), ("gh", (7, 7))]


def test_groups_say_how_far_the_makers_logprobs_are_from_the_trainers_under_their_version() -> None:
    bench = Bench()
    bench.sync(7)
    [(before, group)] = bench.maker.make([task(4)])
    rollouts = tuple(experience.rollout for experience in group.experiences)
    probe = Probe(rollouts, tuple(rollout.logprobs for rollout in rollouts))
    assert bench.maker.commit(*bench.stage(8), 1.0, probe)
    [(after, _)] = bench.maker.make([task(5)])
    bench.sync(9)
    [(unmeasured, _)] = bench.maker.make([task(6)])
    assert before.logprob_gap is None
    assert after.logprob_gap == LogprobGap(mean=0.375, max=0.5)
    assert unmeasured.logprob_gap is None


def test_an_evaluation_by_another_version_than_asked_for_is_an_error() -> None:
    bench = Bench()
    bench.sync(1)
    assert bench.maker.evaluate([prompt(0), prompt(1)], 1) == [0.0, 1.0]
    with pytest.raises(ValueError, match=r"found version \[1\] in use, expected 2"):
        bench.maker.evaluate([prompt(0)], 2)


def test_a_version_that_arrives_in_a_batch_is_taken_up_when_the_batch_has_ended() -> None:
    bench = Bench()
    bench.sync(0)
    bench.engine.begun.clear()
    bench.engine.may_end.clear()
    made: list[Any] = []
    batch = threading.Thread(target=lambda: made.extend(bench.maker.make([task(0)])))
    batch.start()
    assert bench.engine.begun.wait(10)
    order, digest = bench.stage(1)
    started = time.monotonic()
    assert not bench.maker.commit(order, digest, 0.1), "the batch is still going on"
    bench.maker.tend()
    assert time.monotonic() - started < 2
    bench.engine.may_end.set()
    batch.join(10)
    assert made[0][0].oldest_version == 0
    assert bench.maker.make([task(1)])[0][0].oldest_version == 1
    assert bench.maker.commit(order, digest, 0.1), "a second commit of what is in use is no error"


@pytest.mark.timeout(60)
def test_a_hundred_syncs_beside_sampling_of_which_some_are_given_up_half_way_lock_nothing_up() -> None:
    """Case R6."""
    bench, seen, stop = Bench(), list[int](), threading.Event()
    bench.sync(0)

    def sample() -> None:
        while not stop.is_set():
            seen.append(bench.maker.make([task(0)])[0][0].oldest_version)

    sampling = threading.Thread(target=sample)
    sampling.start()
    try:
        for version in range(1, 101):
            if version % 5 == 0:
                given_up = bench.publisher.prepare(Order(1, 0, version), must_differ=False)
                assert given_up is not None
                bench.maker.prepare(given_up, 10)
            assert bench.maker.commit(*bench.stage(version), 10)
            bench.maker.tend()
    finally:
        stop.set()
        sampling.join(10)
    assert not sampling.is_alive()
    assert seen == sorted(seen)
    assert bench.maker.make([task(1)])[0][0].oldest_version == 100
