"""A trainer: one rank that holds its share of the buffer, takes the optimiser steps of an episode, and saves."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path

import torch
from pydantic import ValidationError
from rlhf_api.schema import first_error
from rlhf_api.status import TrainingFigures

from rlhf_runtime.experience.batch import Batch, collate
from rlhf_runtime.experience.buffer import ExperienceBuffer, ExperienceGroup
from rlhf_runtime.experience.messages import Trained, TrainedGroup
from rlhf_runtime.experience.rollout import Experience
from rlhf_runtime.scheduling.ledger import Dispatch
from rlhf_runtime.scheduling.topology import optimizer_steps, share_of_rank
from rlhf_runtime.storage.checkpoints import TRAINING_STATE, StagedFile, staged_files
from rlhf_runtime.training.learner import Learner, NonFiniteError, StepFigures
from rlhf_runtime.training.merge import whitened
from rlhf_runtime.training.step_batches import PassBound, exchanged, step_batches
from rlhf_runtime.training.strategy import Strategy
from rlhf_runtime.weight_sync.probe import PROBE_ROLLOUTS, Probe

#: Writes the models into a folder, all ranks together: rank 0's files count. The flag: what a resume needs, or what
#: people load.
SaveModels = Callable[[Path, bool], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """`bound` of a forward and backward pass, and `dynamic`, groups dealt anew by tokens, change no results.

    whiten     advantages are whitened over the episode
    recompute  old log-probs are those of the policy that the episode's training begins with
    """

    epochs: int
    minibatches: int
    bound: PassBound
    pad_id: int
    dynamic: bool = False
    whiten: bool = False
    recompute: bool = False


class Trainer:
    """One rank. All ranks call `train` and `save` together, with the same arguments."""

    def __init__(
        self,
        learner: Learner,
        buffer: ExperienceBuffer,
        strategy: Strategy,
        save_models: SaveModels,
        settings: TrainerSettings,
    ) -> None:
        self._learner = learner
        self._buffer = buffer
        self._strategy = strategy
        self._save_models = save_models
        self._settings = settings
        self._probed: list[Experience] = []
        # Of tensor-parallel peers, which train the same groups, the first says so.
        self._speaks = strategy.rank % (strategy.ranks // strategy.data_ranks) == 0

    def receive(self, groups: Iterable[ExperienceGroup], admitted: Sequence[Dispatch]) -> None:
        """Keep those groups of a batch that the ledger has admitted."""
        kept = set(admitted)
        self._buffer.add(group for group in groups if group.dispatch in kept)

    def forget(self, dispatches: Sequence[Dispatch]) -> None:
        self._buffer.forget(dispatches)

    def train(self, dispatches: Sequence[Dispatch], version: int) -> Trained:
        """Train an episode: all its groups once per epoch, in `minibatches` optimiser steps each; makes `version`.

        Raises learner.NonFiniteError on all ranks.
        """
        groups_of_steps = self._take(dispatches)
        self._probed = [e for group in groups_of_steps[0] for e in group.experiences][:PROBE_ROLLOUTS]
        steps = self._merged([[e for group in groups for e in group.experiences] for groups in groups_of_steps])
        results = [
            self._learner.step(micro_batches, version) for _ in range(self._settings.epochs) for micro_batches in steps
        ]
        return Trained(
            figures=training_figures(results),
            moved=any(r.learning_rate > 0 and r.gradient_norm > 0 for r in results),
            optimizer_steps=self._learner.steps,
            groups=tuple(
                TrainedGroup(group.dispatch.cursor, len(group.experiences))
                for groups in groups_of_steps
                for group in groups
                if self._speaks
            ),
        )

    def probe(self) -> Probe | None:
        """What the weights as they are say of some rollouts trained last; None before the first episode.

        All ranks call it together, and each answers for rollouts of its own.
        """
        if not self._probed:
            return None
        logprobs = self._learner.logprobs(collate(self._probed, self._settings.pad_id)).numpy()
        rollouts = tuple(experience.rollout for experience in self._probed)
        return Probe(
            rollouts, tuple(row[: len(r.completion_ids)].copy() for row, r in zip(logprobs, rollouts, strict=True))
        )

    def save(self, folder: Path, *, resumable: bool) -> list[StagedFile]:
        """Write the models, and with `resumable` the optimisers, into a new folder; its files on rank 0, else none.

        There is no random state to keep: draws are functions of (seed, prompt, sample, token), and nothing else
        is random in a trainer.
        """
        first = self._strategy.rank == 0
        if first:
            folder.mkdir(parents=True)
        self._save_models(folder, resumable)
        # A collective where the state is divided: all ranks take part.
        state = self._learner.state_dict() if resumable else None
        if not first:
            return []
        if state is not None:
            # The models are beside it, in their own format.
            torch.save(state, folder / TRAINING_STATE)
        return staged_files(folder)

    def resume(self, folder: Path) -> None:
        """Go on from what `save` wrote; the models themselves have been loaded from there."""
        self._learner.load_state_dict(torch.load(folder / TRAINING_STATE, weights_only=True, map_location="cpu"))

    def _take(self, dispatches: Sequence[Dispatch]) -> list[list[ExperienceGroup]]:
        """This rank's groups of each optimiser step."""
        by_cursor = {dispatch.cursor: dispatch for dispatch in dispatches}
        rank, ranks = self._strategy.data_rank, self._strategy.data_ranks
        steps = [
            self._buffer.take([by_cursor[cursor] for cursor in share_of_rank(step, rank, ranks)])
            for step in optimizer_steps(list(by_cursor), self._settings.minibatches)
        ]
        self._buffer.trained(max(by_cursor) + 1)
        return [exchanged(groups, self._strategy) for groups in steps] if self._settings.dynamic else steps

    def _merged(self, steps: Sequence[Sequence[Experience]]) -> list[list[Batch]]:
        """The micro-batches of each optimiser step, with what is over the whole episode put into the experiences."""
        experiences = [experience for step in steps for experience in step]
        if self._settings.whiten:
            experiences = whitened(experiences, self._strategy.sum_over_ranks, self._learner.actor.device)
        ends = list(accumulate(map(len, steps), initial=0))
        whole = [experiences[start:end] for start, end in pairwise(ends)]
        merged = step_batches(whole, self._settings.bound, self._settings.pad_id, self._strategy)
        # With one step the update begins with the very policy that the step computes.
        if self._settings.recompute and self._settings.epochs * len(steps) > 1:
            merged = [[replace(b, old_logprobs=self._learner.logprobs(b)) for b in batches] for batches in merged]
        return merged


def training_figures(steps: Sequence[StepFigures]) -> TrainingFigures:
    """Means over an episode's steps, under the same names; None where the steps have none. Raises NonFiniteError."""
    values = {name: [getattr(step, name) for step in steps] for name in TrainingFigures.model_fields}
    means = {name: None if None in of else statistics.fmean(of) for name, of in values.items()}
    try:
        return TrainingFigures.model_validate(means, extra="forbid")
    except ValidationError as error:
        raise NonFiniteError(f"the figures of an episode: {first_error(error)}") from error
