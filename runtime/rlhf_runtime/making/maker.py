"""A maker: samples whole groups with a policy at a known version, and completes the experience.

The engine is held by one lock: a batch, and putting a new version into use, exclude each other (`onNewWeights:
Finish`). Receiving a version happens beside, in another thread. Scoring does not hold the engine.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rlhf_api.algorithm import Algorithm

from rlhf_runtime.completing.completion import ModelViews, completed
from rlhf_runtime.completing.frozen_models import FrozenModels
from rlhf_runtime.data.prompts import Prompt, columns_of
from rlhf_runtime.engines.engine import Engine, Request, Sampling
from rlhf_runtime.experience.buffer import ExperienceGroup
from rlhf_runtime.experience.messages import GroupSummary, LogprobGap, ShownRollout, Task
from rlhf_runtime.experience.rollout import Group, Rollout
from rlhf_runtime.models.tokenizer import decoder_of, text_after
from rlhf_runtime.rewards.batch import RewardScores, Tokens
from rlhf_runtime.rewards.runner import RewardRunner
from rlhf_runtime.weight_sync.manifest import Manifest, Order
from rlhf_runtime.weight_sync.probe import Probe
from rlhf_runtime.weight_sync.receiver import Receiver
from rlhf_runtime.weight_sync.tensors import Bytes

#: Characters of a text that is shown to people.
SHOWN_CHARACTERS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class MakerSettings:
    """How a group is sampled, and how its rewards become advantages. `end_ids` end a completion and are not text."""

    samples_per_prompt: int
    sampling: Sampling
    end_ids: frozenset[int]
    algorithm: Algorithm


class Maker:
    """One engine with its rewards, and the models that complete experiences.

    `make` and `evaluate` are called from one thread, the rest from another. Raises EngineLost where it uses the engine.
    """

    def __init__(
        self,
        engine: Engine,
        receiver: Receiver,
        rewards: RewardRunner,
        tokenizer: Any,
        settings: MakerSettings,
        models: FrozenModels,
        evaluation_rewards: RewardRunner | None = None,
    ) -> None:
        self._engine = engine
        self._receiver = receiver
        self._rewards = rewards
        self._evaluation_rewards = evaluation_rewards or rewards
        self._decode = decoder_of(tokenizer)
        self._settings = settings
        self._models = models
        self._engine_lock = threading.Lock()
        self._probe: Probe | None = None
        self._gap: LogprobGap | None = None

    def make(self, tasks: Sequence[Task]) -> list[tuple[GroupSummary, ExperienceGroup]]:
        """Sample and score one whole group for each task."""
        prompts = [task.prompt for task in tasks]
        with self._engine_lock:
            groups = self._generate(prompts, self._settings.samples_per_prompt)
            # Before another version is put into use: values are those of the critic that the policy came with.
            views = self._models.views([rollout for group in groups for rollout in group.rollouts])
            gap = self._gap
        scores = self._score(self._rewards, prompts, groups)
        return [
            self._completed(task, group, group_scores, views.of(part), texts, gap)
            for task, group, part, (group_scores, texts) in zip(tasks, groups, _parts(groups), scores, strict=True)
        ]

    def evaluate(self, prompts: Sequence[Prompt], version: int) -> list[float]:
        """Reward of one sample of each prompt; raises ValueError if another version is in use."""
        with self._engine_lock:
            groups = self._generate(prompts, 1)
        found = {int(v) for group in groups for rollout in group.rollouts for v in np.unique(rollout.versions)}
        if found != {version}:
            raise ValueError(f"evaluation: found version {sorted(found)} in use, expected {version}")
        return [scores.total[0] for scores, _ in self._score(self._evaluation_rewards, prompts, groups)]

    def prepare(self, manifest: Manifest, lease_seconds: float) -> bool:
        return self._receiver.prepare(manifest, lease_seconds)

    def stage(self, order: Order, index: int, digest: str, content: Bytes) -> None:
        self._receiver.stage(order, index, digest, content)

    def commit(self, order: Order, digest: str, seconds: float, probe: Probe | None = None) -> bool:
        """Accept a version, and put it into use when the batch in progress has ended: wait `seconds` at most for that.

        False if the batch took longer: the version is put into use when it has ended. `probe` is of this version.
        """
        self._receiver.commit(order, digest)
        self._probe = probe
        if not self._engine_lock.acquire(timeout=max(0.0, seconds)):
            return False
        try:
            self._apply_pending()
        finally:
            self._engine_lock.release()
        return True

    def tend(self) -> None:
        """Free what a publisher that died has left behind; called every few seconds. Raises EngineLost."""
        self._receiver.expire()
        self._engine.check()

    def close(self) -> None:
        self._engine.close()
        self._rewards.close()
        self._evaluation_rewards.close()

    def _apply_pending(self) -> None:
        """Put an accepted version into use, and measure how far its log-probs are from the trainers'."""
        if self._receiver.apply_pending():
            probe = self._probe
            sampling = self._settings.sampling
            self._gap = None if probe is None else probe.gap(self._engine.logprobs(probe.rollouts, sampling))

    def _generate(self, prompts: Sequence[Prompt], samples: int) -> list[Group]:
        requests = [
            Request(prompt_index=p.index, prompt_ids=np.array(p.token_ids, np.int32), samples=samples) for p in prompts
        ]
        self._apply_pending()
        if self._receiver.committed is None:
            raise ValueError("a maker without a synced version was asked to sample")
        return self._engine.generate(requests, self._settings.sampling)

    def _score(
        self, rewards: RewardRunner, prompts: Sequence[Prompt], groups: Sequence[Group]
    ) -> list[tuple[RewardScores, list[str]]]:
        """Rewards and completion texts of each group."""
        repeated = [prompt for prompt, group in zip(prompts, groups, strict=True) for _ in group.rollouts]
        texts = [self._text(rollout) for group in groups for rollout in group.rollouts]
        completions = [prompt.completion(text) for prompt, text in zip(repeated, texts, strict=True)]
        tokens = Tokens(
            [prompt.token_ids for prompt in repeated],
            [rollout.completion_ids.tolist() for group in groups for rollout in group.rollouts],
        )
        scores = rewards.score(
            [prompt.value for prompt in repeated],
            completions,
            columns_of(repeated),
            tokens,
            rows=[prompt.row for prompt in repeated],
        )
        return [(scores.of(part), texts[part]) for part in _parts(groups)]

    def _text(self, rollout: Rollout) -> str:
        """What the completion says after its prompt."""
        # The chosen end token is not text; any other special token is something the policy has said.
        ids = rollout.completion_ids
        ids = ids[:-1] if int(ids[-1]) in self._settings.end_ids else ids
        return text_after(self._decode, rollout.prompt_ids.tolist(), ids.tolist())

    def _completed(
        self,
        task: Task,
        group: Group,
        scores: RewardScores,
        views: ModelViews,
        texts: Sequence[str],
        gap: LogprobGap | None,
    ) -> tuple[GroupSummary, ExperienceGroup]:
        rewards = scores.total
        experiences = completed(group.rollouts, rewards, views, self._settings.algorithm)
        shown = [
            ShownRollout(
                prompt=task.prompt.text[:SHOWN_CHARACTERS],
                completion=text[:SHOWN_CHARACTERS],
                reward=e.reward,
                advantage=float(e.advantages.mean()),
                versions=(e.rollout.oldest_version, int(e.rollout.versions.max())),
            )
            for e, text in zip(experiences, texts, strict=True)
        ]
        summary = GroupSummary(
            dispatch=task.dispatch,
            oldest_version=group.oldest_version,
            rewards=tuple(rewards),
            rewards_each={name: tuple(values) for name, values in scores.each.items()},
            tokens=sum(len(rollout.completion_ids) for rollout in group.rollouts),
            truncated=sum(rollout.truncated for rollout in group.rollouts),
            shown=tuple(shown) if task.shown else (),
            logprob_gap=gap,
        )
        return summary, ExperienceGroup(task.dispatch, experiences)


def _parts(groups: Sequence[Group]) -> list[slice]:
    """Where each group's rollouts are in the list of all."""
    ends = np.cumsum([len(group.rollouts) for group in groups])
    return [slice(end - len(group.rollouts), end) for group, end in zip(groups, ends, strict=True)]
