"""Letting a supervisor go: it serves its last report until that is acknowledged. Pure."""

from rlhf_operator.decisions.plan import Acknowledge, Action
from rlhf_operator.decisions.situation import Situation


def acknowledgements(s: Situation) -> list[Action]:
    """A last report whose content the status has taken over: its supervisor may go."""
    report = s.view.report
    if report is None or not report.ended:
        return []
    if s.status.completion_time is None and report.attempt >= s.status.attempt:
        return []
    return [Acknowledge(report.attempt, s.status.reports, report.revision)]
