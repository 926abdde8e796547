"""The newest published version."""

from rlhf_runtime.dataflow.pulse import Pulse
from rlhf_runtime.weight_sync.manifest import Order, Publication


class Published:
    """The only writer of the newest publication; the TrainingLoop puts it."""

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
        self.newest: Publication | None = None
        """Kept for makers that come later."""

    def put(self, publication: Publication) -> None:
        """Makers may receive this one. Raises AssertionError if it isn't newer than the one before."""
        order = publication.manifest.order
        if self.newest is not None and order <= self.newest.manifest.order:
            raise AssertionError(f"published {order} after {self.newest.manifest.order}")
        self.newest = publication
        self._pulse.beat()

    def newer_than(self, held: Order | None) -> Publication | None:
        """The newest publication, if it comes after `held`: by its order, since versions go back after a rollback."""
        if self.newest is None or (held is not None and self.newest.manifest.order <= held):
            return None
        return self.newest
