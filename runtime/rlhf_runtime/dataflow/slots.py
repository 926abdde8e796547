"""The workers' places: which makers the run wants and how each stands, and how the trainers stand."""

from collections.abc import Iterator
from dataclasses import dataclass

from rlhf_runtime.dataflow.pulse import Pulse
from rlhf_runtime.dataflow.workers import TrainersHandle
from rlhf_runtime.weight_sync.manifest import Order


@dataclass(slots=True)
class MakerSlot:
    """One of the makers that the run wants, and who fills the place now.

    Its MakerLoop is the only writer, except for `leaving`, which only Slots writes.

    placed    on a pod, with its model loaded
    held      the publish in use; None before the first
    losses    makers lost in this place since one last completed a batch
    leaving   not wanted any more: the maker completes its batch and is not replaced
    """

    index: int
    """Of all places that the run has ever had: never used again."""
    name: str = ""
    pod: str = ""
    placed: bool = False
    held: Order | None = None
    busy: bool = False
    syncing: bool = False
    losses: int = 0
    leaving: bool = False

    @property
    def version(self) -> int | None:
        """The policy version in use; None before the first."""
        return None if self.held is None else self.held.version


class Slots:
    """Which makers the run has: the only writer of the set of slots, and of the count of repairs.

    >>> slots = Slots(Pulse(), makers=2)
    >>> slots.resize(1)
    >>> slots.resize(2)
    >>> [(slot.index, slot.leaving) for slot in slots], slots.desired
    ([(0, False), (1, True), (2, False)], 2)
    """

    def __init__(self, pulse: Pulse, makers: int) -> None:
        self._pulse = pulse
        self._slots: list[MakerSlot] = []
        self._next_index = 0
        self.repairs = 0
        """Makers that were lost and replaced."""
        self.resize(makers)

    def __iter__(self) -> Iterator[MakerSlot]:
        return iter(tuple(self._slots))

    @property
    def desired(self) -> int:
        """How many makers the run wants."""
        return sum(not slot.leaving for slot in self._slots)

    def resize(self, makers: int) -> None:
        """Want this many makers: new slots are filled, and of the present ones the last leave."""
        staying = [slot for slot in self._slots if not slot.leaving]
        for slot in staying[makers:]:
            slot.leaving = True
        for _ in range(makers - len(staying)):
            self._slots.append(MakerSlot(self._next_index))
            self._next_index += 1
        self._pulse.beat()

    def left(self, slot: MakerSlot) -> None:
        """The maker of a leaving slot has ended."""
        self._slots.remove(slot)
        self._pulse.beat()

    def repaired(self) -> None:
        """A lost maker is about to be replaced."""
        self.repairs += 1
        self._pulse.beat()


@dataclass(slots=True)
class TrainersSlot:
    """The place of all trainer ranks."""

    handle: TrainersHandle | None = None
    """Once all ranks are placed and loaded. Only the TrainersLoop writes it."""
    collecting: bool = False
    """The trainers wait for experiences. Only the TrainingLoop writes it."""
