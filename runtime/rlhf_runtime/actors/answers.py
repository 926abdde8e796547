"""What an actor's answer or error means to the run."""

import traceback
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from ray.exceptions import ObjectLostError, RayActorError, RayTaskError
from rlhf_api.conditions import Reason
from rlhf_api.tails import last_lines

from rlhf_runtime.dataflow.workers import MakerLost, PayloadLost
from rlhf_runtime.failures import RunFailure

T = TypeVar("T")


async def of_maker(name: str, answer: Awaitable[T]) -> T:
    try:
        return await awaited(answer)
    except (RayActorError, MakerLost) as error:
        raise MakerLost(f"{name}: {first_line(error)}") from error


async def awaited(answer: Awaitable[T]) -> T:
    """An actor's answer, or the error that the actor raised itself. Raises RayActorError, PayloadLost."""
    try:
        return await answer
    except ObjectLostError as error:
        raise PayloadLost(first_line(error)) from error
    except RayTaskError as error:
        if isinstance(error.cause, ObjectLostError):
            raise PayloadLost(first_line(error.cause)) from error
        raise error.cause from error


def best_reason(errors: Sequence[BaseException], pods: Sequence[str]) -> BaseException:
    for error in errors:
        if isinstance(error, RunFailure):
            return error
    for error in errors:
        if isinstance(error, RayActorError):
            return RunFailure(
                Reason.TRAINER_LOST, f"a trainer of {list(pods)} died: {first_line(error)}", permanent=False
            )
    if isinstance(errors[0], PayloadLost):
        return errors[0]
    tail = last_lines("".join(traceback.format_exception(errors[0])))
    what = f"a trainer failed: {type(errors[0]).__name__}: {first_line(errors[0])}"
    return RunFailure(Reason.TRAINER_LOST, what, permanent=False, tail=tail)


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
