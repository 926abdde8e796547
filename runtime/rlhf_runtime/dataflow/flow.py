"""What is true of the run at this moment: where the coordinator's loops meet. They share one event loop, no locks.

::

    MakerLoop (one each)   sync  <- publication           TrainingLoop   collect <- ledger
                           make  -> ledger, trainers                     train   -> ledger, version
                           evaluate -> evaluation                        publish -> publication, evaluation
                                                                         episode -> EpisodeDesk: journal, checkpoint
    Watch                  settings, stop, waits, deadlines; tells the supervisor
"""

from dataclasses import dataclass, field

from rlhf_api.run import RunConfig
from rlhf_api.status import SourceStatus

from rlhf_runtime.channel.messages import SupervisorChannel
from rlhf_runtime.clock import Clock, Moment
from rlhf_runtime.dataflow.evaluation import EvaluationRound
from rlhf_runtime.dataflow.pace import Pace
from rlhf_runtime.dataflow.pulse import Pulse
from rlhf_runtime.dataflow.workers import TrainersHandle
from rlhf_runtime.experience.messages import GroupSummary
from rlhf_runtime.scheduling.ledger import Ledger
from rlhf_runtime.scheduling.next_batch import Limits
from rlhf_runtime.weight_sync.manifest import Publication


@dataclass(slots=True)
class MakerSlot:
    """One of the makers that the job wants, and who fills the place now.

    placed    on a pod, with its model loaded
    version   in use; None before its first sync
    losses    makers lost in this place since one last completed a batch
    """

    index: int
    name: str = ""
    pod: str = ""
    placed: bool = False
    version: int | None = None
    busy: bool = False
    syncing: bool = False
    losses: int = 0


@dataclass(slots=True)
class Flow:
    """The run's state. `version` is the trainers': the number of episodes trained."""

    config: RunConfig
    channel: SupervisorChannel
    ledger: Ledger
    version: int
    slots: list[MakerSlot]
    clock: Clock = field(default_factory=Clock)
    pace: Pace = field(default_factory=Pace)
    pulse: Pulse = field(default_factory=Pulse)
    sources: dict[str, SourceStatus] = field(default_factory=dict)
    """Rows of each source of prompts, by its field of the spec, once they are checked."""
    publication: Publication | None = None
    evaluation: EvaluationRound | None = None
    summaries: dict[int, GroupSummary] = field(default_factory=dict)
    """Of the buffered groups, by cursor."""
    trainers: TrainersHandle | None = None
    """Once all ranks are placed and loaded."""
    collecting: bool = False
    """The trainers wait for experiences."""
    running: bool = False
    """The first rollout has been started."""
    repairs: int = 0
    last_progress: Moment = field(init=False)
    """When an episode was trained, or before the first one, when the first rollout was started."""

    def __post_init__(self) -> None:
        self.progressed()

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

    def begun(self) -> None:
        """A rollout is being started."""
        if not self.running:
            self.running = True
            self.progressed()

    def progressed(self) -> None:
        """An episode was trained."""
        self.last_progress = self.clock.now()

    @property
    def evaluating(self) -> bool:
        """An evaluation is unfinished: makers stay at its version."""
        return self.evaluation is not None and self.evaluation.score is None
