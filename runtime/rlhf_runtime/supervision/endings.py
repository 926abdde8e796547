"""What the end of a coordinator means for its attempt."""

from dataclasses import dataclass

from rlhf_api.conditions import Reason
from rlhf_api.run import Failure

from rlhf_runtime.channel.messages import Finished
from rlhf_runtime.lifeline import describe_exit


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the coordinator ended.

    finished    its last word, None if it said none
    returncode  as ``Popen.returncode``; None if it had to be killed
    given_up    why the supervisor ended it, None if it did not
    tail        the end of its standard error
    """

    finished: Finished | None
    returncode: int | None
    given_up: Failure | None
    tail: str


def failure_of(ending: Ending) -> Failure | None:
    """Why the attempt failed; None if it succeeded. What the coordinator said itself counts most.

    A permanent failure says all there is to say; with any other goes the end of the log, which has the last words
    of user code that hung or died.
    """
    if ending.finished is not None:
        failure = ending.finished.failure
    elif ending.given_up is not None:
        failure = ending.given_up
    else:
        how = "closed its channel" if ending.returncode is None else f"ended with {describe_exit(ending.returncode)}"
        last = ending.tail.strip().rpartition("\n")[2].strip()[:300]
        failure = Failure(
            reason=Reason.COORDINATOR_CRASHED,
            message=f"the coordinator {how} and did not say why" + (f"; its last line: {last}" if last else ""),
            permanent=False,
        )
    if failure is None or failure.tail or failure.permanent:
        return failure
    return failure.model_copy(update={"tail": ending.tail})
