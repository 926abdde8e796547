"""Where every group of the run is, and what is known of those that have arrived."""

from collections.abc import Sequence

from rlhf_runtime.dataflow.pulse import Pulse
from rlhf_runtime.experience.messages import GroupSummary
from rlhf_runtime.scheduling.ledger import Dispatch, DropReason, Ledger
from rlhf_runtime.scheduling.next_batch import drop_stale


class Groups:
    """The only writer of the ledger and of the summaries of the buffered groups."""

    def __init__(self, pulse: Pulse, ledger: Ledger) -> None:
        self._pulse = pulse
        self._summaries: dict[int, GroupSummary] = {}
        self.ledger = ledger
        """For reading."""

    @property
    def version(self) -> int:
        """The trainers' policy version, which is the number of episodes trained."""
        return self.ledger.episode

    @property
    def summarised(self) -> int:
        """Groups of which a summary is kept."""
        return len(self._summaries)

    @property
    def dropped(self) -> int:
        """Tries that were dropped, for any reason."""
        totals = self.ledger.totals
        return totals.dropped_stale + totals.dropped_lost

    def dispatch(self, cursor: int, maker: str) -> Dispatch:
        """A maker begins the group of this prompt."""
        return self.ledger.dispatch(cursor, maker)

    def arrived(self, groups: Sequence[GroupSummary]) -> None:
        """These are whole in the trainers' buffers."""
        for group in groups:
            self.ledger.complete(group.dispatch, group.oldest_version)
            self._summaries[group.dispatch.cursor] = group
        self._pulse.beat()

    def drop(self, dispatches: Sequence[Dispatch], reason: DropReason) -> None:
        """Abandon these tries, which are in flight; their prompts are sampled again."""
        for dispatch in dispatches:
            self.ledger.drop(dispatch, reason)
        self._pulse.beat()

    def drop_stale(self, max_staleness: int) -> list[Dispatch]:
        """Abandon the buffered groups that are too stale for the coming episode; returns them."""
        dropped = drop_stale(self.ledger, trainer_version=self.version, max_staleness=max_staleness)
        for dispatch in dropped:
            del self._summaries[dispatch.cursor]
        if dropped:
            self._pulse.beat()
        return dropped

    def ready(self) -> list[Dispatch] | None:
        """The groups of the coming episode, in the order of the prompts; None while some are missing."""
        if not self.ledger.is_ready(self.version):
            return None
        return [dispatch for dispatch, _ in self.ledger.ready(self.version)]

    def trained(self) -> list[GroupSummary]:
        """The coming episode has been trained, which makes the next version; returns what it was trained on."""
        version = self.version
        self.ledger.train(version)
        self._pulse.beat()
        return [self._summaries.pop(cursor) for cursor in self.ledger.cursors_of(version)]
