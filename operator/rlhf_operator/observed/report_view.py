"""What the operator holds of a job's reports between two status writes."""

from dataclasses import dataclass
from datetime import datetime

from rlhf_api.run import Report
from rlhf_api.status import EpisodeReport, ReportCursor


@dataclass(frozen=True, kw_only=True)
class ReportView:
    """The newest report and the episodes received since the last status write; empty before the first answer."""

    report: Report | None = None
    episodes: tuple[EpisodeReport, ...] = ()
    drained: bool = False
    """Whether the last answer held all that the journal has: only then is a final report the last word."""
    silent_since: datetime | None = None
    """Since when every poll has failed; None while the supervisor answers, or before the first poll."""
    error: str = ""
    """Why the last poll failed."""

    def answers_for(self, attempt: int) -> bool:
        """Whether that attempt's supervisor answered the last poll."""
        return self.report is not None and self.report.attempt == attempt and self.silent_since is None


NOTHING_HEARD = ReportView()


@dataclass(frozen=True, kw_only=True)
class Follow:
    """Whose reports to follow: the link to one attempt's supervisor."""

    ip: str
    attempt: int
    cursor: ReportCursor
