"""What is true of the run at this moment: where the coordinator's loops meet. They share one event loop, no locks.

::

    MakerLoop (one per slot)   sync     <- published            TrainingLoop   collect <- groups
                               make     -> groups, trainers                    train   -> groups, progress
                               evaluate -> evaluations                         publish -> published, evaluations
                                                                               episode -> EpisodeFinisher
    EpisodeFinisher            journal, checkpoints -> progress
    Watch                      live settings, stop, waits, deadlines; sends the state to the supervisor

Each part is one object, which alone writes its fields.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlhf_api.run import RunConfig
from rlhf_api.status import SourceStatus

from rlhf_runtime.channel.messages import SupervisorChannel
from rlhf_runtime.clock import Clock
from rlhf_runtime.data.prompts import Prompt
from rlhf_runtime.dataflow.evaluation import Evaluations
from rlhf_runtime.dataflow.groups import Groups
from rlhf_runtime.dataflow.pace import Pace
from rlhf_runtime.dataflow.progress import RunProgress
from rlhf_runtime.dataflow.published import Published
from rlhf_runtime.dataflow.pulse import Pulse
from rlhf_runtime.dataflow.slots import Slots, TrainersSlot
from rlhf_runtime.scheduling.ledger import Ledger
from rlhf_runtime.scheduling.next_batch import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The parts of a run's state, and what is asked of it: its config and the newest live settings."""

    config: RunConfig
    channel: SupervisorChannel
    clock: Clock
    pace: Pace
    sources: Mapping[str, SourceStatus]
    """Rows of each source of prompts, by its field of the spec."""
    pulse: Pulse
    groups: Groups
    slots: Slots
    published: Published
    evaluations: Evaluations
    progress: RunProgress
    trainers: TrainersSlot = field(default_factory=TrainersSlot)

    @property
    def version(self) -> int:
        """The trainers' policy version, which is the number of episodes trained."""
        return self.groups.version

    @property
    def limits(self) -> Limits:
        """With the newest live settings."""
        group = self.config.rollout.samples_per_prompt
        return Limits(
            policy=self.config.staleness_policy,
            max_staleness=self.max_staleness,
            episodes=self.episodes,
            capacity=self.config.buffer_capacity // group,
            batch=self.config.max_batch_samples // group,
        )

    @property
    def max_staleness(self) -> int:
        return self.channel.settings.max_staleness

    @property
    def episodes(self) -> int:
        return self.channel.settings.episodes

    @property
    def stopping(self) -> bool:
        return self.channel.stop_requested()


def start_flow(
    config: RunConfig,
    channel: SupervisorChannel,
    progress: RunProgress,
    *,
    held_out: Sequence[Prompt] = (),
    sources: Mapping[str, SourceStatus] | None = None,
    clock: Clock | None = None,
    pace: Pace | None = None,
) -> Flow:
    """The state of an attempt that begins where `progress` says."""
    pulse = Pulse()
    ledger = Ledger(prompts_per_episode=config.rollout.prompts_per_episode, first_episode=progress.resumed_from)
    return Flow(
        config=config,
        channel=channel,
        clock=clock or Clock(),
        pace=pace or Pace(),
        sources=sources or {},
        pulse=pulse,
        groups=Groups(pulse, ledger),
        slots=Slots(pulse, config.makers.replicas),
        published=Published(pulse),
        evaluations=Evaluations(pulse, held_out, config.max_batch_samples),
        progress=progress,
    )
