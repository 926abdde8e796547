"""How often the coordinator's loops look around, and how patient they are."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds, except for the two counts. The deadlines of the spec are in the RunConfig, not here."""

    look_every: float = 0.5
    """Between two looks at the live settings, the deadlines and the waits."""
    tell_every: float = 1.0
    """Least time between two states sent to the supervisor; the first running one is sent at once."""
    silent: float = 5.0
    """A shorter wait is not reported."""
    ping_every: float = 2.0
    ping: float = 60.0
    """A worker that leaves a ping unanswered for this long is lost. Its threads share one interpreter, so a busy one
    is slow to answer."""
    replace_after: float = 0.5
    """Pause before the first replacement of a maker; doubled for each further loss. A dead pod needs time to return."""
    max_losses: int = 5
    """How often the maker of one place may be lost in a row, without completing a batch, before the attempt fails."""
    sync_again_after: float = 1.0
    """Pause before a maker that did not receive a version in time tries again."""
    report_waits: float = 5.0
    """How long an episode's report waits for makers to take up the version, to say how long that took. A maker in a
    long batch takes it up later, and the trainers must not wait for it."""
    open_episodes: int = 2
    """How many trained episodes may lack a durable report; the trainers wait when there are more."""
