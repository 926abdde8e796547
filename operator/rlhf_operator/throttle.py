"""How often a job's status is written: at most once in 5 s; once in 20 s when only counters moved."""

import time
from collections.abc import Callable

from rlhf_api.status import RLHFJobStatus

from rlhf_operator.queue import Key

SECONDS = 5.0
COUNTERS_SECONDS = 20.0
#: What may wait longer: it changes all the time, or says the same in other words.
_COUNTERS = ("ledger", "message", "conditions", "last_progress_time", "makers", "trainers")


class Throttle:
    """Remembers when each job's status was last written. A restart forgets it, which costs one early write."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._written: dict[Key, float] = {}

    def wait(self, key: Key, old: RLHFJobStatus, new: RLHFJobStatus) -> float:
        """Seconds until this change may be written; 0 when it may be now."""
        interval = SECONDS if matters(old, new) else COUNTERS_SECONDS
        return max(0.0, self._written.get(key, float("-inf")) + interval - self._monotonic())

    def wrote(self, key: Key) -> None:
        self._written[key] = self._monotonic()

    def forget(self, key: Key) -> None:
        self._written.pop(key, None)


def matters(old: RLHFJobStatus, new: RLHFJobStatus) -> bool:
    """Whether more than counters and wording changed: a phase, an episode, a condition's status or reason."""
    if [(c.type, c.status, c.reason) for c in old.conditions] != [(c.type, c.status, c.reason) for c in new.conditions]:
        return True
    same = {name: getattr(old, name) for name in _COUNTERS}
    return new.model_copy(update=same) != old
