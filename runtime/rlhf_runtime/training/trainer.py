"""A trainer: one rank that holds its share of the buffer, takes the optimiser steps of an episode, and saves."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rlhf_runtime.buffer import ExperienceBuffer, ExperienceGroup
from rlhf_runtime.checkpoint import TRAINING_STATE, staged_files
from rlhf_runtime.ledger import Dispatch
from rlhf_runtime.models.policy import save_policy
from rlhf_runtime.rollout import collate
from rlhf_runtime.topology import optimizer_steps, share_of_rank
from rlhf_runtime.training.learner import Learner
from rlhf_runtime.workers import StagedFile, Trained, TrainedGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """`micro_batch_samples` bounds one forward and backward pass; it changes memory, not results."""

    rank: int
    ranks: int
    epochs: int
    minibatches: int
    micro_batch_samples: int
    pad_id: int


class Trainer:
    """One rank. All ranks call `train` together, with the same dispatches."""

    def __init__(self, learner: Learner, buffer: ExperienceBuffer, tokenizer: Any, settings: TrainerSettings) -> None:
        self._learner = learner
        self._buffer = buffer
        self._tokenizer = tokenizer
        self._settings = settings

    def receive(self, groups: Iterable[ExperienceGroup], admitted: Sequence[Dispatch]) -> None:
        """Keep those groups of a batch that the ledger has admitted."""
        kept = set(admitted)
        self._buffer.add(group for group in groups if group.dispatch in kept)

    def forget(self, dispatches: Sequence[Dispatch]) -> None:
        self._buffer.forget(dispatches)

    def train(self, dispatches: Sequence[Dispatch]) -> Trained:
        """Train an episode: all its groups once per epoch, in `minibatches` optimiser steps each.

        Raises optimization.NonFiniteError on all ranks.
        """
        settings = self._settings
        by_cursor = {dispatch.cursor: dispatch for dispatch in dispatches}
        steps = [
            self._buffer.take([by_cursor[cursor] for cursor in share_of_rank(step, settings.rank, settings.ranks)])
            for step in optimizer_steps(list(by_cursor), settings.minibatches)
        ]
        self._buffer.trained(max(by_cursor) + 1)
        results = [self._learner.step(self._micro_batches(step)) for _ in range(settings.epochs) for step in steps]
        return Trained(
            loss=_mean(results, "loss"),
            kl=_mean(results, "kl"),
            entropy=_mean(results, "entropy"),
            clip_fraction=_mean(results, "clip_fraction"),
            gradient_norm=_mean(results, "grad_norm"),
            moved=any(r["learning_rate"] > 0 and r["grad_norm"] > 0 for r in results),
            optimizer_steps=self._learner.steps,
            groups=tuple(
                TrainedGroup(group.dispatch.cursor, len(group.experiences)) for step in steps for group in step
            ),
        )

    def save(self, folder: Path, *, resumable: bool) -> list[StagedFile]:
        """Write model and tokenizer, and with `resumable` the optimiser, into a new folder.

        There is no random state to keep: draws are functions of (seed, prompt, sample, token), and nothing else
        is random in a trainer.
        """
        folder.mkdir(parents=True)
        save_policy(self._learner.model, self._tokenizer, folder)
        if resumable:
            state = self._learner.state_dict()
            # The model is beside it, in its own format.
            torch.save({"optimizer": state["optimizer"], "steps": state["steps"]}, folder / TRAINING_STATE)
        return staged_files(folder)

    def resume(self, folder: Path) -> None:
        """Go on from what `save` wrote; the model itself has been loaded from there."""
        state = torch.load(folder / TRAINING_STATE, weights_only=True, map_location="cpu")
        self._learner.load_state_dict({**state, "model": self._learner.model.state_dict()})

    def _micro_batches(self, groups: Sequence[ExperienceGroup]) -> list[Any]:
        experiences = [experience for group in groups for experience in group.experiences]
        size = self._settings.micro_batch_samples
        count = math.ceil(len(experiences) / size)
        return [collate(experiences[i * size : (i + 1) * size], self._settings.pad_id) for i in range(count)]


def _mean(results: Sequence[dict[str, float]], name: str) -> float:
    return sum(result[name] for result in results) / len(results)
