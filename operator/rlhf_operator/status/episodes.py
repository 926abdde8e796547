"""Episodes of the journal folded into the bounded part that status keeps: pure."""

from collections.abc import Sequence

from rlhf_api.run import Report
from rlhf_api.series import series, unread
from rlhf_api.status import EPISODES_IN_STATUS, EpisodeReport, RLHFJobStatus, ValueSummary

_DIGITS = 6


def rounded(value: float) -> float:
    """Six significant digits: what a column shows. The entries in ``status.episodes`` stay exact."""
    return float(f"{value:.{_DIGITS}g}")


def fold(status: RLHFJobStatus, report: Report | None, received: Sequence[EpisodeReport]) -> RLHFJobStatus:
    """Status with the received episodes in it; the same episodes received again change nothing.

    An attempt that resumed from episode R replaces what earlier attempts trained after R. Only a running one has
    said so: before and after, ``resumedFrom`` may be that of nothing or of the attempt that finished the job.
    """
    base = report.resumed_from if report is not None and report.state == "Running" else None
    fresh = unread(status.reports, received)
    known = [*status.episodes, *fresh]
    kept = series(known, {} if report is None or base is None else {report.attempt: base})
    episode = max(kept[-1].episode if kept else 0, base or 0)
    if kept == list(status.episodes) and not fresh and (base is None or episode == status.episode):
        return status
    rewards = [entry.reward for entry in kept]
    scores = [entry.score for entry in kept if entry.score is not None]
    dropped = [entry for entry in known if entry not in kept]
    last = kept[-1] if kept else None
    return status.model_copy(
        update={
            "episode": episode,
            "reward": _summary(status.reward, rewards, [entry.reward for entry in dropped]),
            "score": _summary(status.score, scores, [e.score for e in dropped if e.score is not None]),
            "kl": rounded(last.kl) if last else None,
            "staleness": last.staleness_max if last else None,
            "tokens_per_second": rounded(last.tokens_per_second) if last else None,
            "episodes": kept[-EPISODES_IN_STATUS:],
            "reports": fresh[-1].cursor if fresh else status.reports,
        }
    )


def _summary(old: ValueSummary | None, kept: list[float], dropped: list[float]) -> ValueSummary | None:
    """Newest and best; the best of episodes older than those in status is remembered unless it was superseded."""
    if not kept:
        return None if dropped else old
    values = [rounded(value) for value in kept]
    lost_best = old is not None and old.best in {rounded(value) for value in dropped}
    remembered = [] if old is None or lost_best else [old.best]
    return ValueSummary(last=values[-1], best=max([*values, *remembered]))
