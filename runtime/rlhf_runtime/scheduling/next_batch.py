"""What an idle maker does next, as a function of the ledger and of versions: the scheduler without its clock."""

from dataclasses import dataclass

from rlhf_runtime.scheduling.ledger import Dispatch, Ledger
from rlhf_runtime.scheduling.staleness import Policy, may_admit, may_start


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of a run; `capacity` and `batch` in groups, `episodes` in all, counted from the run's first."""

    policy: Policy
    max_staleness: int
    episodes: int
    capacity: int
    batch: int


def next_batch(ledger: Ledger, limits: Limits, *, maker_version: int, trainer_version: int) -> list[int]:
    """Cursors of the whole groups that a maker at this version should sample now; none if it has to wait.

    The lowest open cursors, as far as buffer, batch, plan and staleness allow.
    """
    room = limits.capacity - ledger.occupied
    cursors = ledger.next_cursors(max(0, min(room, limits.batch)))
    allowed = []
    for cursor in cursors:
        episode = ledger.episode_of(cursor)
        if episode >= limits.episodes or not may_start(
            limits.policy,
            episode=episode,
            maker_version=maker_version,
            trainer_version=trainer_version,
            max_staleness=limits.max_staleness,
        ):
            break
        allowed.append(cursor)
    return allowed


def waits_for_weights(ledger: Ledger, limits: Limits, *, maker_version: int, trainer_version: int) -> bool:
    """Whether staleness alone keeps a maker at this version from its next group."""
    room = limits.capacity - ledger.occupied
    if room < 1 or ledger.episode_of(ledger.next_cursors(1)[0]) >= limits.episodes:
        return False
    return not next_batch(ledger, limits, maker_version=maker_version, trainer_version=trainer_version)


def drop_stale(ledger: Ledger, *, trainer_version: int, max_staleness: int) -> list[Dispatch]:
    """Drop what is too stale before the episode of this version is trained; returns the tries dropped.

    Whatever is too stale for the coming episode is too stale for every later one as well.
    """
    dropped = [
        dispatch
        for dispatch, oldest_version in ledger.buffered()
        if not may_admit(trainer_version=trainer_version, oldest_version=oldest_version, max_staleness=max_staleness)
    ]
    for dispatch in dropped:
        ledger.drop(dispatch, "stale")
    return dropped
