"""What the engine's leader, rank 0, and its followers say to each other; pickled, between processes of one engine."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_runtime.engines.engine import Request, Sampling
from rlhf_runtime.experience.rollout import Rollout
from rlhf_runtime.failures import RunFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Leader to a follower, first: the RunConfig, which rank it is, and how many threads it computes with."""

    config_json: str
    rank: int
    threads: int


@dataclass(frozen=True, slots=True)
class Meet:
    """Leader to followers when all are ready: join the process group at this port, with this deadline, seconds."""

    port: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Load:
    """Leader to followers, also between two steps: weights come, as this version."""

    version: int


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Leader to followers."""

    rollouts: Sequence[Rollout]
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Generate:
    """Leader to followers; `asks` between two steps whether to go on."""

    requests: Sequence[Request]
    sampling: Sampling
    asks: bool


@dataclass(frozen=True, slots=True)
class GoOn:
    """Leader to followers, between two steps."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Leader to followers, between two steps."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A follower to its leader: its part of the model is loaded, in the process `pid`."""

    pid: int


@dataclass(frozen=True, slots=True)
class Done:
    """A follower to its leader, after an order; `digest` is of what came out, and must be the leader's own."""

    digest: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """A follower's last word; `failure` is what ends the run, where it was that."""

    summary: str
    failure: RunFailure | None
