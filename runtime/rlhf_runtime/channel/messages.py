"""What the coordinator says to its supervisor, and hears from it: JSON lines over one socket pair."""

from typing import Annotated, Literal, Protocol

from pydantic import Field
from rlhf_api.run import Failure, LiveSettings, RoleReport, Wait
from rlhf_api.schema import ApiModel, Time
from rlhf_api.status import EpisodeReport, LedgerStatus, RepairsStatus, SourceStatus


class CoordinatorState(ApiModel):
    """All of a Report that only the coordinator knows; sent whole whenever something in it changes."""

    kind: Literal["state"] = "state"
    running: bool
    """False while actors are placed and models loaded, True from the first rollout on."""
    applied_generation: int
    waits: list[Wait] = []
    makers: RoleReport
    trainers: RoleReport
    ledger: LedgerStatus
    policy_version: int
    repairs: RepairsStatus
    resumed_from: int
    latest_checkpoint: str | None = None
    best_checkpoint: str | None = None
    final_model: str | None = None
    initial_score: float | None = None
    prompts: SourceStatus | None = None
    evaluation: SourceStatus | None = None
    last_progress: Time


class EpisodeDone(ApiModel):
    """An episode was trained and published. Its seq is given by the journal; the supervisor answers Journaled."""

    kind: Literal["episode"] = "episode"
    report: EpisodeReport


class Finished(ApiModel):
    """The coordinator's last word: success, or why not."""

    kind: Literal["finished"] = "finished"
    failure: Failure | None = None


class Journaled(ApiModel):
    """The supervisor's answer to EpisodeDone: it is durable."""

    kind: Literal["journaled"] = "journaled"
    episode: int


class Settings(ApiModel):
    """Live settings, pushed down whenever the operator puts them."""

    kind: Literal["settings"] = "settings"
    settings: LiveSettings


class Stop(ApiModel):
    """Finish what is being trained, save a checkpoint, and end with reason Stopped."""

    kind: Literal["stop"] = "stop"


FromCoordinator = Annotated[CoordinatorState | EpisodeDone | Finished, Field(discriminator="kind")]
FromSupervisor = Annotated[Journaled | Settings | Stop, Field(discriminator="kind")]


class SupervisorChannel(Protocol):
    """The coordinator's end of the channel."""

    settings: LiveSettings
    """The newest live settings."""

    def stop_requested(self) -> bool:
        """Whether the supervisor has asked to stop."""
        ...

    async def state(self, state: CoordinatorState) -> None:
        """Tell the state."""
        ...

    async def episode(self, report: EpisodeReport) -> None:
        """Tell an episode; returns when it is durable in the journal."""
        ...

    async def finished(self, failure: Failure | None) -> None:
        """Say the last word."""
        ...
