"""One rollout engine over k devices of one pod, behind the interface of all engines.

This process is rank 0, the leader; the others are its children. All run the same engine on their parts of the model
in lockstep: the same requests, the same draws, and logits that are the same bits on every rank, so the same tokens.
What the leader's caller decides between two steps reaches the followers before the next one.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from rlhf_runtime.engines.engine import EngineLost, Hook, Request, Sampling
from rlhf_runtime.engines.tensor_parallel.followers import Followers, leave_group
from rlhf_runtime.engines.tensor_parallel.orders import Cancel, Generate, GoOn, Load, Logprobs
from rlhf_runtime.engines.tensor_parallel.rank import RankEngine, digest, summary
from rlhf_runtime.experience.rollout import Float32Array, Group, Rollout
from rlhf_runtime.models.policy_weights import check_weights


class TensorParallelEngine:
    """An `engine.Engine`. An error of any rank, other than one that a hook raises, is the engine's end.

    Calls come one at a time, from whichever thread has the engine: collectives of two threads never meet.
    """

    def __init__(self, own: RankEngine, followers: Followers) -> None:
        self._own = own
        self._followers = followers
        self._between_steps = False
        self._raised: BaseException | None = None
        self.end_ids = own.end_ids
        #: The model before it was divided, without its numbers: what `load` wants.
        self.whole: nn.Module = own.whole

    @property
    def version(self) -> int:
        return self._own.version

    def check(self) -> None:
        self._followers.check()

    def close(self) -> None:
        self._followers.close()
        # NCCL waits until no recorded step knows a communicator before it lets it go.
        self._own.close()
        leave_group()

    def load(self, state: Mapping[str, Tensor], version: int) -> None:
        # Before anything is sent: a rank that refused would leave the others with half of a version.
        check_weights(self.whole, state)
        if self._between_steps:
            self._followers.tell(Load(version))
            self._own.load(state, version)
            return
        with self._together(Load(version)):
            self._own.load(state, version)
            self._followers.answered()

    def logprobs(self, rollouts: Sequence[Rollout], sampling: Sampling) -> list[Float32Array]:
        with self._together(Logprobs(rollouts, sampling)):
            found = self._own.logprobs(rollouts, sampling)
            self._followers.answered()
        return found

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, between_steps: Hook | None = None
    ) -> list[Group]:
        def ask() -> None:
            self._followers.progress.beat()
            if between_steps is not None:
                self._decide(between_steps)

        with self._together(Generate(requests, sampling, asks=between_steps is not None)):
            groups = self._own.generate(requests, sampling, ask)
            self._followers.answered(digest(groups))
        return groups

    def _decide(self, between_steps: Hook) -> None:
        """Let the caller decide, and tell the followers."""
        self._between_steps = True
        try:
            between_steps()
        except BaseException as error:
            self._followers.tell(Cancel())
            self._raised = error
            raise
        finally:
            self._between_steps = False
        self._followers.tell(GoOn())

    @contextlib.contextmanager
    def _together(self, order: Any) -> Iterator[None]:
        """Have the followers do the same as the leader does within."""
        self._raised = None
        with self._followers.watched():
            try:
                self._followers.tell(order)
                yield
            except EngineLost:
                raise
            except BaseException as error:
                if error is not self._raised:
                    raise self._followers.lost(f"rank 0 raised {summary(error)}") from error
                self._followers.answered()
                raise
