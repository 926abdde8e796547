"""The status that people and programs read: kstatus, bounds, rounding, and nothing written twice."""

from typing import Any

import pytest
from rlhf_api.conditions import Phase
from rlhf_api.status import RLHFJobStatus
from rlhf_operator.decisions.decide import decide
from rlhf_operator.observed.picture import Observed
from rlhf_operator.observed.report_view import NOTHING_HEARD
from rlhf_operator.status.build import bounded, build, failure
from rlhf_operator.status.stages import Stage

G = Any


def kstatus(status: RLHFJobStatus, generation: int = 1) -> str:
    """The verdict of `kstatus` (cli-utils pkg/kstatus/status/generic.go), in its order."""
    if status.observed_generation != generation:
        return "InProgress"
    for condition in status.conditions:
        if condition.type == "Reconciling" and condition.status == "True":
            return "InProgress"
        if condition.type == "Stalled" and condition.status == "True":
            return "Failed"
    ready = next((condition for condition in status.conditions if condition.type == "Ready"), None)
    return "Current" if ready is None or ready.status == "True" else "InProgress"


def truths(status: RLHFJobStatus) -> dict[str, str]:
    return {condition.type: condition.status for condition in status.conditions}


@pytest.mark.parametrize(
    ("stage", "ready", "reconciling", "stalled", "succeeded", "verdict"),
    [
        (Stage(Phase.PENDING, "Pending", ""), "False", "True", "False", "Unknown", "InProgress"),
        (Stage(Phase.PROVISIONING, "Provisioning", ""), "False", "True", "False", "Unknown", "InProgress"),
        (Stage(Phase.STARTING, "Starting", ""), "False", "True", "False", "Unknown", "InProgress"),
        (Stage(Phase.RUNNING, "Running", ""), "True", "False", "False", "Unknown", "Current"),
        (Stage(Phase.RUNNING, "Unreachable", ""), "Unknown", "True", "False", "Unknown", "InProgress"),
        (Stage(Phase.RECOVERING, "Recovering", ""), "False", "True", "False", "Unknown", "InProgress"),
        (Stage(Phase.SUCCEEDED, "Completed", ""), "True", "False", "False", "True", "Current"),
        (Stage(Phase.FAILED, "TemplateInvalid", ""), "False", "False", "True", "False", "Failed"),
    ],
)
def test_kstatus_reads_each_stage_as_it_is_meant(
    given: G, stage: Stage, ready: str, reconciling: str, stalled: str, succeeded: str, verdict: str
) -> None:
    job = given.job(given.running())
    view = given.view(given.report()) if stage.phase == Phase.RUNNING else NOTHING_HEARD
    status = build(job, job.status, stage, Observed(cluster=given.cluster(), pods=given.pods()), view, given.at(130))
    found = truths(status)
    assert (found["Ready"], found["Reconciling"], found["Stalled"], found["Succeeded"]) == (
        ready,
        reconciling,
        stalled,
        succeeded,
    )
    assert kstatus(status) == verdict


def test_all_condition_types_are_there_from_the_first_write(given: G) -> None:
    status = decide(given.job(), Observed(), NOTHING_HEARD, given.at(0)).status
    assert truths(status) == {
        "Ready": "False",
        "Reconciling": "True",
        "Stalled": "False",
        "Succeeded": "Unknown",
        "ClusterReady": "False",
        "RuntimeReady": "False",
        "StalenessWithinBounds": "Unknown",
    }
    assert kstatus(status) == "InProgress"


def test_transition_times_move_only_when_the_status_of_a_condition_does(given: G) -> None:
    first = decide(given.job(), Observed(), NOTHING_HEARD, given.at(0)).status
    job = given.job(first.to_dict())
    second = decide(job, Observed(ray_cluster={"kind": "RayCluster"}), NOTHING_HEARD, given.at(60)).status
    times = {condition.type: condition.last_transition_time for condition in second.conditions}
    assert set(times.values()) == {given.at(0)}, "Pending and Provisioning differ in no condition's status"
    assert second.phase == "Provisioning"

    view = given.view(given.report())
    running = given.job({**given.submitted(), "conditions": [c.to_dict() for c in second.conditions]})
    third = decide(running, Observed(cluster=given.cluster(), pods=given.pods()), view, given.at(101)).status
    times = {condition.type: condition.last_transition_time for condition in third.conditions}
    assert times["Ready"] == times["ClusterReady"] == given.at(101)
    assert times["Stalled"] == given.at(0)


def test_the_same_observation_again_changes_nothing_so_nothing_is_written(given: G) -> None:
    observed = Observed(cluster=given.cluster(), pods=given.pods())
    view = given.view(given.report(), given.episode(1), given.episode(2))
    written = decide(given.job(given.submitted()), observed, view, given.at(110)).status
    stored = given.job(written.to_dict())
    assert stored.status == written, "what is written is what is read back"
    assert decide(stored, observed, view, given.at(115)).status == written


def test_a_cluster_is_ready_only_with_all_its_workers(given: G) -> None:
    job = given.job(given.running())
    view = given.view(given.report())
    head, maker, trainer = given.pods()
    for pods, expected, message in (
        ((head, maker, trainer), "True", "head and 2 workers are ready"),
        ((head, maker), "False", "head ready, 1 of 2 workers ready"),
        ((given.pod("head", ready=False), maker, trainer), "False", "head not ready, 2 of 2 workers ready"),
    ):
        status = decide(job, Observed(cluster=given.cluster(), pods=pods), view, given.at(130)).status
        [condition] = [condition for condition in status.conditions if condition.type == "ClusterReady"]
        assert (condition.status, condition.message) == (expected, message)


def test_staleness_over_its_bound_is_a_condition(given: G) -> None:
    job = given.job(given.running(), maxStaleness=1)
    observed = Observed(cluster=given.cluster(), pods=given.pods())
    for measured, expected in ((1, ("True", "WithinBound")), (2, ("False", "Exceeded"))):
        view = given.view(given.report(), given.episode(1, staleness_max=measured))
        status = decide(job, observed, view, given.at(130)).status
        [condition] = [condition for condition in status.conditions if condition.type == "StalenessWithinBounds"]
        assert (condition.status, condition.reason) == expected
        assert condition.message == f"staleness {measured} of at most 1 in episode 1"


def test_columns_are_rounded_and_episodes_are_exact(given: G) -> None:
    episode = given.episode(1, reward=0.123456789, score=0.987654321)
    view = given.view(given.report(initial_score=0.333333333), episode)
    observed = Observed(cluster=given.cluster(), pods=given.pods())
    status = decide(given.job(given.running()), observed, view, given.at(130)).status
    assert status.reward is not None
    assert status.score is not None
    assert (status.reward.last, status.score.best, status.initial_score) == (0.123457, 0.987654, 0.333333)
    assert (status.kl, status.tokens_per_second, status.progress) == (0.00123457, 123.457, "1/12")
    assert status.episodes == [episode]
    assert (status.makers.summary, status.trainers.summary) == ("1/1", "1/1")


def test_the_observed_generation_moves_when_the_runtime_echoes_it_and_at_the_end(given: G) -> None:
    observed = Observed(cluster=given.cluster(), pods=given.pods())
    submitted = given.job(given.submitted())
    assert decide(submitted, observed, NOTHING_HEARD, given.at(60)).status.observed_generation == -1
    assert decide(submitted, observed, given.view(given.report()), given.at(60)).status.observed_generation == 1
    lost = decide(given.job(given.begun()), Observed(cluster=given.cluster()), NOTHING_HEARD, given.at(700)).status
    assert (lost.phase, lost.observed_generation) == ("Failed", 1)


def test_a_long_message_is_cut_and_points_to_the_logs() -> None:
    message = bounded("x" * 200_000, "addition")
    assert len(message) == 1024
    assert message.endswith("xx ... (cut; the rest is in the logs: kubectl logs -l rlhf.dev/job=addition)")
    assert bounded("y" * 1024, "addition") == "y" * 1024


def test_a_huge_traceback_leaves_a_small_status_with_the_tracebacks_end(given: G) -> None:
    report = given.failed_report(
        "RewardFunctionFailed", "m" * 200_000, permanent=True, tail="t" * 9000 + "  t\n" * 2000 + "KeyError"
    )
    status = decide(
        given.job(given.running()), Observed(cluster=given.cluster()), given.view(report), given.at(130)
    ).status
    assert status.failure is not None
    assert status.failure.tail.startswith("  t\n")
    assert status.failure.tail.endswith("\nKeyError")
    assert 4090 < len(status.failure.tail) <= 4096
    assert len(status.to_json()) < 16 * 1024
    assert RLHFJobStatus.model_validate(status.to_dict()) == status


def test_a_failure_is_bounded_by_the_api_s_own_limits(given: G) -> None:
    why = failure(given.job(), 3, "R" * 500, "m" * 5000, "t" * 9999)
    assert (len(why.reason), len(why.message), len(why.tail), why.attempt) == (256, 1024, 4096, 3)


def test_five_thousand_episodes_keep_the_status_small(given: G) -> None:
    observed = Observed(cluster=given.cluster(), pods=given.pods())
    status = given.running()
    for first in range(1, 5001, 100):
        entries = [given.episode(number) for number in range(first, first + 100)]
        view = given.view(given.report(), *entries)
        status = decide(given.job(status, episodes=5000), observed, view, given.at(130)).status.to_dict()
    final = RLHFJobStatus.model_validate(status)
    assert (final.episode, final.progress, final.reports.seq) == (5000, "5000/5000", 5000)
    assert [entry.episode for entry in final.episodes] == list(range(4991, 5001))
    assert len(final.to_json()) < 32 * 1024
