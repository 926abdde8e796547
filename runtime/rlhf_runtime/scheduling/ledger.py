"""The ledger: where every group of the run is, and that none is lost or trained twice.

    planned -> in flight -> buffered -> trained
       ^          |            |
       +----------+------------+   dropped (stale, or lost): the same prompt is sampled again

One try at a group is a `Dispatch`; a group that is sampled again gets a new one, so what an earlier try still
delivers (a maker thought dead that answers after all) is told apart and refused. At every instant

    dispatched = trained + buffered + in flight + dropped(stale) + dropped(lost)

Episode e trains exactly the groups of prompt cursors [e * P, (e + 1) * P), whole episodes in order. So what is
trained needs one number, and the ledger's memory is bounded by the buffer's capacity.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

DropReason = Literal["stale", "lost"]


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One try at sampling the group of one prompt cursor, by one maker; `number` counts the tries of the run."""

    cursor: int
    number: int
    maker: str


@dataclass(frozen=True, slots=True)
class Totals:
    """Groups; `dispatched` is the sum of all others."""

    dispatched: int
    trained: int
    buffered: int
    in_flight: int
    dropped_stale: int
    dropped_lost: int


class LedgerError(AssertionError):
    """A step that would lose a group or count it twice: a fault of ours, never of the user."""


class Ledger:
    """Owner of the invariant above, in groups, for one attempt that starts at episode `first_episode`.

    >>> ledger = Ledger(prompts_per_episode=2, first_episode=0)
    >>> first, second = ledger.dispatch(0, "maker-0"), ledger.dispatch(1, "maker-0")
    >>> ledger.drop(first, "lost")
    >>> ledger.complete(second, oldest_version=0)
    >>> ledger.next_cursors(2)
    [0, 2]
    """

    def __init__(self, *, prompts_per_episode: int, first_episode: int) -> None:
        self._prompts_per_episode = prompts_per_episode
        self._first_episode = first_episode
        self._episode = first_episode
        self._frontier = first_episode * prompts_per_episode
        self._again: set[int] = set()
        self._in_flight: dict[int, Dispatch] = {}
        self._buffered: dict[int, tuple[Dispatch, int]] = {}
        self._number = 0
        self._dropped: dict[DropReason, int] = {"stale": 0, "lost": 0}

    @property
    def episode(self) -> int:
        """The episode to be trained next, from 0."""
        return self._episode

    @property
    def occupied(self) -> int:
        """Groups that take room: in flight or buffered (those being trained are buffered until they are trained)."""
        return len(self._in_flight) + len(self._buffered)

    @property
    def totals(self) -> Totals:
        return Totals(
            dispatched=self._number,
            trained=(self._episode - self._first_episode) * self._prompts_per_episode,
            buffered=len(self._buffered),
            in_flight=len(self._in_flight),
            dropped_stale=self._dropped["stale"],
            dropped_lost=self._dropped["lost"],
        )

    def episode_of(self, cursor: int) -> int:
        return cursor // self._prompts_per_episode

    def cursors_of(self, episode: int) -> range:
        return range(episode * self._prompts_per_episode, (episode + 1) * self._prompts_per_episode)

    def next_cursors(self, limit: int) -> list[int]:
        """The lowest cursors that are neither trained, buffered nor in flight: what is to be sampled next.

        Lowest first is what rules a deadlock out: a group that is sampled again comes before all later ones, so
        it takes the room that it gave back.
        """
        again = sorted(self._again)[:limit]
        return again + list(range(self._frontier, self._frontier + limit - len(again)))

    def dispatch(self, cursor: int, maker: str) -> Dispatch:
        """A maker begins this group."""
        lowest = self.next_cursors(1)[0]
        if cursor != lowest:
            raise LedgerError(f"dispatch of prompt {cursor}: expected the lowest one that is open, {lowest}")
        if cursor == self._frontier:
            self._frontier += 1
        else:
            self._again.remove(cursor)
        self._number += 1
        dispatch = Dispatch(cursor, self._number, maker)
        self._in_flight[cursor] = dispatch
        return dispatch

    def is_in_flight(self, dispatch: Dispatch) -> bool:
        """False for a try that was given up: what it delivers must not be used."""
        return self._in_flight.get(dispatch.cursor) == dispatch

    def in_flight_of(self, maker: str) -> list[Dispatch]:
        return [dispatch for dispatch in self._in_flight.values() if dispatch.maker == maker]

    def complete(self, dispatch: Dispatch, oldest_version: int) -> None:
        """The group has arrived whole in the buffer; `oldest_version` of any of its tokens."""
        self._take_from_flight(dispatch)
        self._buffered[dispatch.cursor] = (dispatch, oldest_version)

    def drop(self, dispatch: Dispatch, reason: DropReason) -> None:
        """Give this try up; the group is open again."""
        buffered = self._buffered.get(dispatch.cursor)
        if buffered is not None and buffered[0] == dispatch:
            del self._buffered[dispatch.cursor]
        else:
            self._take_from_flight(dispatch)
        self._again.add(dispatch.cursor)
        self._dropped[reason] += 1

    def buffered(self) -> Iterator[tuple[Dispatch, int]]:
        """Buffered tries with their oldest version, in no order."""
        return iter(tuple(self._buffered.values()))

    def ready(self, episode: int) -> list[tuple[Dispatch, int]]:
        """The buffered groups of this episode with their oldest version, in the order of the prompts."""
        return [self._buffered[cursor] for cursor in self.cursors_of(episode) if cursor in self._buffered]

    def is_ready(self, episode: int) -> bool:
        """Whether all groups of this episode are buffered."""
        return all(cursor in self._buffered for cursor in self.cursors_of(episode))

    def train(self, episode: int) -> None:
        """All groups of the episode have been trained, each once."""
        if episode != self._episode:
            raise LedgerError(f"training of episode {episode}: expected {self._episode}, each once and in order")
        missing = [cursor for cursor in self.cursors_of(episode) if cursor not in self._buffered]
        if missing:
            raise LedgerError(
                f"training of episode {episode}: {len(missing)} of {self._prompts_per_episode} groups are not "
                f"buffered, the first of prompt {missing[0]}"
            )
        for cursor in self.cursors_of(episode):
            del self._buffered[cursor]
        self._episode += 1

    def _take_from_flight(self, dispatch: Dispatch) -> None:
        if not self.is_in_flight(dispatch):
            current = self._in_flight.get(dispatch.cursor)
            raise LedgerError(
                f"prompt {dispatch.cursor}, try {dispatch.number}: not in flight "
                f"({'try ' + str(current.number) + ' is' if current else 'no try of it is'})"
            )
        del self._in_flight[dispatch.cursor]
