"""Named situations of a job, and what the operator decides: exact actions, reasons and messages."""

import pytest
from rlhf_operator.decisions.decide import decide
from rlhf_operator.decisions.plan import Plan
from rlhf_operator.observed.picture import Observed, Submission
from rlhf_operator.observed.report_view import NOTHING_HEARD, Follow
from situation import Case, G, cluster, ready, sid
from situations_at_start import AWAY, FIRST_STEPS, PODS
from situations_at_the_end import ENDS
from situations_of_a_run import RUNNING, SUBMISSION

CASES = FIRST_STEPS | AWAY | PODS | SUBMISSION | RUNNING | ENDS


def decided(given: G, case: Case) -> Plan:
    job = given.job(case.status(given), **case.spec or {})
    return decide(job, case.observed(given), case.view(given), given.at(case.at))


@pytest.mark.parametrize("name", CASES)
def test_a_situation_leads_to(given: G, name: str) -> None:
    case = CASES[name]
    plan = decided(given, case)
    status = plan.status
    ready_condition = {condition.type: condition for condition in status.conditions}.get("Ready")
    message = case.message.replace("{cluster}", cluster(given)).replace("{sid}", sid(given))

    assert list(plan.actions) == case.actions(given)
    assert (status.phase, ready_condition.reason if ready_condition else "") == (case.phase, case.reason)
    assert status.message == message
    assert plan.requeue_after == case.requeue
    assert status.attempt == (case.attempt if status.start_time else 0)
    assert (plan.follow is not None) == case.follows
    if case.over:
        assert status.completion_time == given.at(case.at)


def test_the_submission_is_recorded_with_the_head_that_it_is_for(given: G) -> None:
    observed = Observed(cluster=given.cluster(), pods=(given.pod("head", containers=(given.container(restarts=2),)),))
    status = decide(given.job(given.begun()), observed, NOTHING_HEARD, given.at(60)).status
    recorded = (status.submission_id, status.head_pod_uid, status.head_restarts)
    assert recorded == ("addition-0f1e2d3c-1-1", "head-1", 2)


def test_the_next_attempt_starts_its_own_clocks_and_forgets_the_head(given: G) -> None:
    view = given.view(given.failed_report("TrainerLost", "rank 0 died", permanent=False), given.episode(1))
    status = decide(given.job(given.running()), ready(given), view, given.at(130)).status
    assert (status.attempt_start_time, status.running_time, status.last_progress_time) == (given.at(130), None, None)
    assert (status.submission_id, status.head_pod_uid, status.incarnation) == ("", "", 1)
    assert (status.episode, status.reports.seq) == (1, 1), "the ended attempt's last episodes are taken over"
    assert status.failure is not None
    assert status.failure.reason == "TrainerLost"


def test_a_lost_cluster_gets_a_new_name(given: G) -> None:
    status = decide(given.job(given.running()), Observed(), NOTHING_HEARD, given.at(130)).status
    assert (status.incarnation, status.ray_cluster_name) == (2, cluster(given, 2))


def test_reports_are_followed_from_the_cursor_in_status(given: G) -> None:
    status = given.running(reports={"attempt": 1, "seq": 4})
    plan = decide(given.job(status), ready(given), given.view(given.report()), given.at(130))
    assert plan.follow == Follow(ip="10.0.0.1", attempt=1, cursor=given.job(status).status.reports)


def test_an_operator_that_reconnects_leaves_the_status_as_it_is(given: G) -> None:
    job = given.job(given.running(message="3 of 12 episodes trained", episode=3))
    plan = decide(job, ready(given, submission=Submission("Running")), NOTHING_HEARD, given.at(4000))
    assert plan.status == job.status
