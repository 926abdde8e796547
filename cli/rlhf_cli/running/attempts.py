"""What follows an attempt's end: the decision alone, by the same rules as under the operator."""

from typing import Literal

from rlhf_api.conditions import Reason
from rlhf_api.run import Failure

Next = Literal["Succeeded", "Failed", "Stopped", "Retry"]


def after(failure: Failure | None, *, failed_before: int, backoff_limit: int, stop_requested: bool) -> Next:
    """What to do after an attempt that ended with `failure`, or without one.

    `failed_before` counts attempts that this command saw fail before. Attempts of earlier commands are not
    counted: to run the command again is to ask for another try.
    """
    if failure is None:
        return "Succeeded"
    if stop_requested or failure.reason == Reason.STOPPED:
        return "Stopped"
    if failure.permanent or failed_before >= backoff_limit:
        return "Failed"
    return "Retry"
