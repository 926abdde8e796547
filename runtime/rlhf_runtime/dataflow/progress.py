"""How far the run has come, and what its storage holds of it."""

from pathlib import Path

from rlhf_api.run import RunConfig

from rlhf_runtime.clock import Clock
from rlhf_runtime.storage.checkpoints import RunState


class RunProgress:
    """The only writer of its fields: whoever brings the run further says so by a method.

    `found` is the checkpoint that the attempt resumes from, with its folder.
    """

    def __init__(self, clock: Clock, found: tuple[Path, RunState] | None) -> None:
        folder, state = found or (None, None)
        self._clock = clock
        self.started = clock.now()
        self.running = False
        """The first rollout has been started."""
        self.last = self.started
        """When an episode was last trained; before the first one, when the first rollout was started."""
        self.resumed_from = state.episode if state else 0
        """Episodes of earlier attempts that this one builds on."""
        self.latest_folder = folder
        self.latest_episode = self.resumed_from
        """Episodes that the newest checkpoint holds."""
        self.optimizer_steps = state.optimizer_steps if state else 0
        """Of the episodes whose report is durable."""
        self.initial_score = state.initial_score if state else None
        self.best_score = state.best_score if state else None
        self.best_checkpoint = state.best_checkpoint if state else None
        self.final_model: str | None = None

    def rollout_started(self) -> None:
        """A maker begins a batch."""
        if not self.running:
            self.running = True
            self.last = self._clock.now()

    def episode_trained(self) -> None:
        """The trainers have made a new version."""
        self.last = self._clock.now()

    def scored_at_start(self, score: float | None) -> None:
        """The starting model has its score; None if a stop came first."""
        self.initial_score = score

    def episode_reported(self, optimizer_steps: int) -> None:
        """An episode's report is durable; it ends after this many optimiser steps of the run."""
        self.optimizer_steps = optimizer_steps

    def is_best(self, score: float | None) -> bool:
        """Whether this score beats that of every checkpoint so far."""
        return score is not None and (self.best_score is None or score > self.best_score)

    def state_at(self, config: RunConfig, version: int, score: float | None, folder: Path) -> RunState:
        """What a checkpoint of this version, kept in `folder`, says of the run."""
        best = self.is_best(score)
        return RunState(
            attempt=config.attempt,
            episode=version,
            policy_version=version,
            prompt_cursor=version * config.rollout.prompts_per_episode,
            optimizer_steps=self.optimizer_steps,
            score=score,
            initial_score=self.initial_score,
            best_score=score if best else self.best_score,
            best_checkpoint=str(folder) if best else self.best_checkpoint,
        )

    def checkpointed(self, folder: Path, state: RunState) -> None:
        """This checkpoint is complete."""
        self.best_score, self.best_checkpoint = state.best_score, state.best_checkpoint
        self.latest_folder, self.latest_episode = folder, state.episode

    def exported(self, model: Path) -> None:
        """The trained model is complete."""
        self.final_model = str(model)
