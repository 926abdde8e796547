"""The engine's other processes, ranks 1 to k - 1, as the leader has them: started, told what to do, watched, ended."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any

import torch.distributed as dist

from rlhf_runtime.engines.engine import EngineLost
from rlhf_runtime.engines.tensor_parallel.orders import Begin, Done, Failed, Ready
from rlhf_runtime.engines.tensor_parallel.progress import Progress, dead, lagging, state_of
from rlhf_runtime.lifeline import PYTHON, Tethered

log = logging.getLogger(__name__)

#: File descriptor of standard error, where followers print.
_STDERR = 2
#: Between two looks at the followers.
_LOOK_SECONDS = 0.2
#: From the end of a connection, or of a collective, to the end of the process that had it.
_EXIT_SECONDS = 3.0
#: From a follower's end to the end of the call that waits for it, before the leader's own process is ended.
_GRACE_SECONDS = 20.0


class Followers:
    """Processes that live as long as this object, or this process.

    Every method raises EngineLost, saying which rank is gone, or hangs, and how it is known. A call in which no rank
    goes on for `seconds` has failed.
    """

    def __init__(self, begin: Sequence[Begin], seconds: float) -> None:
        self.progress = Progress.shared(len(begin) + 1)
        self._seconds = seconds
        self._processes: list[Tethered] = []
        self._connections: list[Connection] = []
        self._pids: list[int] = []
        self._last_words: dict[int, Failed] = {}
        self._lost: str | None = None
        self._lock = threading.RLock()
        self._busy, self._closed = threading.Event(), threading.Event()
        try:
            for each in begin:
                self._start(each)
        except BaseException:
            self.close()
            raise
        self._watcher = threading.Thread(target=self._watch, name="followers", daemon=True)
        self._watcher.start()

    def until_ready(self, seconds: float) -> None:
        """Wait until all have loaded their parts. Raises RunFailure too: what a follower raised."""
        deadline = time.monotonic() + seconds
        self._pids = [answer.pid for answer in self._answers(Ready, deadline)]

    def check(self) -> None:
        if self._lost is not None:
            raise EngineLost(self._lost)

    def tell(self, order: Any) -> None:
        """Send all of them one order."""
        for connection in self._connections:
            try:
                connection.send(order)
            except OSError as error:
                raise self.lost(f"rank 0 cannot reach another: {error}") from error

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Around what the ranks do together."""
        self.check()
        self.progress.beat()
        self._busy.set()
        try:
            yield
        finally:
            self._busy.clear()

    def answered(self, digest: str = "") -> None:
        """Wait until all have done what they were told, with the same outcome."""
        # The watch ends it where no rank goes on.
        for rank, done in enumerate(self._answers(Done, None), start=1):
            if done.digest != digest:
                raise self.lost(f"rank {rank} has other samples than rank 0: found {done.digest}, not {digest}")

    def lost(self, seen: str) -> EngineLost:
        """The engine cannot be used again: ends all followers, and says why, at least what rank 0 has `seen` of it."""
        what, deadline = None, time.monotonic() + _EXIT_SECONDS
        # A follower that has ended, or raised, knows more.
        while self._lost is None and (what := self._dead()) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        self._give_up(what or seen)
        return EngineLost(self._lost)

    def close(self) -> None:
        """End them all; again does nothing."""
        self._closed.set()
        with self._lock:
            for process in self._processes:
                process.kill()

    def _start(self, begin: Begin) -> None:
        ours, theirs = Pipe()
        with theirs:
            descriptors = (theirs.fileno(), self.progress.descriptor)
            module = "rlhf_runtime.engines.tensor_parallel.follower"
            process = Tethered([*PYTHON, "-m", module, *map(str, descriptors)], pass_fds=descriptors, stdout=_STDERR)
        self._processes.append(process)
        self._connections.append(ours)
        ours.send(begin)

    def _answers(self, kind: type[Any], deadline: float | None) -> list[Any]:
        found = []
        for rank, connection in enumerate(self._connections, start=1):
            while not connection.poll(_LOOK_SECONDS):
                self.check()
                if deadline is not None and time.monotonic() > deadline:
                    raise self.lost(f"rank {rank} has not come in time")
            answer = self._heard(rank)
            if isinstance(answer, Failed) and answer.failure is not None:
                self.close()
                raise answer.failure
            if not isinstance(answer, kind):
                raise self.lost(f"rank {rank} has closed its connection")
            found.append(answer)
        return found

    def _heard(self, rank: int) -> Any:
        """What a follower has said, its last word again and again; None if it has said nothing."""
        connection = self._connections[rank - 1]
        with self._lock:
            if rank not in self._last_words:
                try:
                    answer = connection.recv() if connection.poll(0) else None
                except (EOFError, OSError):
                    return None
                if not isinstance(answer, Failed):
                    return answer
                self._last_words[rank] = answer
            return self._last_words[rank]

    def _dead(self) -> str | None:
        """Which followers have ended, and why."""
        with self._lock:
            if self._lost is not None or self._closed.is_set():
                return None
            ends = {rank: process.wait(0) for rank, process in enumerate(self._processes, start=1)}
            words = {
                rank: word.summary
                for rank, end in ends.items()
                if end is not None and isinstance(word := self._heard(rank), Failed)
            }
        return dead(ends, words)

    def _watch(self) -> None:
        """In a thread of its own: sees what ends while the leader is in a collective, or idle."""
        since, seen = time.monotonic(), self.progress.counters()
        while not self._closed.wait(_LOOK_SECONDS):
            counters = self.progress.counters()
            if counters != seen or not self._busy.is_set():
                since, seen = time.monotonic(), counters
            silent = time.monotonic() - since
            what = self._dead()
            if what is None and silent > self._seconds:
                states = {rank: state_of(pid) for rank, pid in enumerate(self._pids, start=1)}
                what = lagging(counters, states, silent)
            if what is not None:
                self._give_up(what)
            if self._lost is not None:
                self._end_collectives()
                return

    def _give_up(self, what: str) -> None:
        with self._lock:
            if self._lost is None:
                self._lost = f"tensor-parallel engine of {len(self._processes) + 1} ranks: {what}"
                log.error("%s", self._lost)
            for process in self._processes:
                # A collective over sockets ends with the peer.
                process.kill()

    def _end_collectives(self) -> None:
        """A kernel that waits for a peer on another GPU does not end by itself."""
        if dist.is_initialized() and self._busy.is_set() and dist.group.WORLD is not None:
            # Beside the watch: it may wait itself.
            threading.Thread(target=dist.group.WORLD.abort, name="abort", daemon=True).start()
        deadline = time.monotonic() + _GRACE_SECONDS
        while self._busy.is_set() and not self._closed.wait(_LOOK_SECONDS):
            if time.monotonic() > deadline:
                log.critical("the call in progress does not end; this process does")
                os._exit(1)


def leave_group() -> None:
    """End this process's part of the group whose peers are gone; waits for it for a bounded time only."""
    if not dist.is_initialized():
        return
    leaving = threading.Thread(target=_abort_and_destroy, name="leave", daemon=True)
    leaving.start()
    leaving.join(_GRACE_SECONDS)
    if leaving.is_alive():
        log.warning("the process group has not ended after %.0f s; it ends with this process", _GRACE_SECONDS)


def _abort_and_destroy() -> None:
    # An end in peace would wait for the peers.
    if dist.group.WORLD is not None:
        dist.group.WORLD.abort()
    dist.destroy_process_group()
