"""The trainer's buffer holds whole groups, hands out only the try that was admitted, and is bounded."""

import pytest
from rlhf_runtime.experience.buffer import ExperienceBuffer, ExperienceGroup
from rlhf_runtime.scheduling.ledger import Dispatch


def group(cursor: int, number: int) -> ExperienceGroup:
    return ExperienceGroup(Dispatch(cursor, number, "maker-0"), ())


def test_groups_are_taken_once_in_the_order_asked_for() -> None:
    buffer = ExperienceBuffer(capacity=3)
    groups = [group(2, 1), group(0, 2), group(1, 3)]
    buffer.add(groups)
    assert buffer.take([groups[1].dispatch, groups[0].dispatch]) == [groups[1], groups[0]]
    assert len(buffer) == 1
    with pytest.raises(LookupError, match="prompt 0: found nothing, expected try 2"):
        buffer.take([groups[1].dispatch])


def test_a_later_try_takes_the_place_of_an_earlier_one_that_cannot_be_trained_any_more() -> None:
    buffer = ExperienceBuffer(capacity=1)
    buffer.add([group(0, 1)])
    buffer.add([group(0, 2)])
    with pytest.raises(LookupError, match="prompt 0: found try 2, expected try 1"):
        buffer.take([group(0, 1).dispatch])
    assert buffer.take([group(0, 2).dispatch])


def test_an_earlier_try_that_arrives_late_does_not_take_the_later_one_s_place() -> None:
    buffer = ExperienceBuffer(capacity=1)
    buffer.add([group(0, 2)])
    buffer.add([group(0, 1)])
    assert buffer.take([group(0, 2).dispatch])


def test_a_try_that_arrives_when_its_prompt_has_been_trained_takes_no_room() -> None:
    buffer = ExperienceBuffer(capacity=2)
    buffer.add([group(0, 3), group(1, 2)])
    buffer.take([group(1, 2).dispatch])
    buffer.trained(below=2)
    buffer.add([group(0, 1), group(1, 1), group(2, 4), group(3, 5)])
    assert buffer.take([group(2, 4).dispatch, group(3, 5).dispatch])
    assert len(buffer) == 0


def test_taking_is_all_or_nothing() -> None:
    buffer = ExperienceBuffer(capacity=2)
    buffer.add([group(0, 1)])
    with pytest.raises(LookupError, match="prompt 1"):
        buffer.take([group(0, 1).dispatch, group(1, 2).dispatch])
    assert len(buffer) == 1


def test_what_was_dropped_is_let_go_of_but_not_the_try_that_came_after_it() -> None:
    buffer = ExperienceBuffer(capacity=2)
    buffer.add([group(0, 3), group(1, 2)])
    buffer.forget([group(0, 1).dispatch, group(1, 2).dispatch, group(7, 9).dispatch])
    assert len(buffer) == 1
    assert buffer.take([group(0, 3).dispatch])


def test_more_than_the_ledger_may_admit_is_an_error() -> None:
    buffer = ExperienceBuffer(capacity=2)
    buffer.add([group(0, 1), group(1, 2)])
    with pytest.raises(OverflowError, match="found 3 groups, expected at most 2"):
        buffer.add([group(2, 3)])
