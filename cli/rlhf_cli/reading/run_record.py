"""What is known of a run when its report is written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlhf_api.run import RunConfig
from rlhf_api.status import EpisodeReport

from rlhf_cli.reading.samples import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run, as far as it came. `episodes` are those that count (none superseded), oldest first."""

    config: RunConfig
    """Of the newest attempt."""
    outcome: str
    """One sentence: how it ended, or where it stands."""
    succeeded: bool
    episodes: Sequence[EpisodeReport]
    initial_score: float | None = None
    """Score of the starting policy, where it was measured."""
    samples: Sequence[Sample] = ()
    """Rollouts to read, grouped by episode, oldest first."""
    results: Mapping[str, str] = field(default_factory=dict)
    """What the run left behind: name to path."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of the software on this machine: name to version."""

    def scores(self) -> list[tuple[float, float]]:
        """(episode, score) of every evaluation, the starting policy's at episode 0."""
        first = [] if self.initial_score is None else [(0.0, self.initial_score)]
        return first + [(float(e.episode), e.score) for e in self.episodes if e.score is not None]


def reward_names(episodes: Sequence[EpisodeReport]) -> list[str]:
    """Names of the rewards that some episode has a mean of, in the order in which they first appear."""
    return list(dict.fromkeys(name for e in episodes for name in e.rewards))


def parts_of_the_reward(episodes: Sequence[EpisodeReport]) -> list[str]:
    """Names of the rewards, where there are several: one alone is, but for its weight, the reward itself."""
    names = reward_names(episodes)
    return names if len(names) > 1 else []
