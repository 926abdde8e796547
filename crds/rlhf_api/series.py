"""The series of a run: the episodes that count, of all that its attempts have trained.

An attempt resumes from an episode of earlier attempts. What they trained after it is superseded, even before the
later attempt has trained anything. Journal, operator and command line decide by these functions what counts.
"""

from collections.abc import Iterable, Mapping, Sequence

from rlhf_api.status import EpisodeReport, ReportCursor


def unread(cursor: ReportCursor, episodes: Iterable[EpisodeReport]) -> list[EpisodeReport]:
    """The episodes after the cursor, in the given order."""
    return [entry for entry in episodes if cursor < entry.cursor]


def last_kept(attempt: int, resumed_from: Mapping[int, int]) -> int | None:
    """Number of the last episode of ``attempt`` that no later attempt supersedes; None: all of them count.

    ``resumed_from`` has, by attempt, the number of the episode that it builds on.
    """
    return min((episode for later, episode in resumed_from.items() if later > attempt), default=None)


def series(episodes: Sequence[EpisodeReport], resumed_from: Mapping[int, int]) -> list[EpisodeReport]:
    """Those of ``episodes`` that count. ``resumed_from`` may lack attempts of which an episode is given: an attempt
    numbers its episodes from the one it resumed from, so that each of them tells."""
    known = {**{entry.attempt: entry.episode - entry.seq for entry in episodes}, **resumed_from}
    last = {attempt: last_kept(attempt, known) for attempt in known}
    return [entry for entry in episodes if (end := last[entry.attempt]) is None or entry.episode <= end]
