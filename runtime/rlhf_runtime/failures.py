"""The one error that ends an attempt with a reason a user can act on."""

from typing import Any

from rlhf_api.conditions import Reason
from rlhf_api.run import Failure


class RunFailure(Exception):
    """Ends the attempt. ``permanent`` says that another attempt cannot help: the job fails at once.

    ``message`` is one sentence; the traceback of user code that belongs to it is ``tail``. Where it was raised in ours
    is of no use to a user, and shown nowhere but in the log.
    Raised anywhere in the runtime, also inside Ray actors: it pickles with all its fields.
    """

    def __init__(self, reason: Reason, message: str, *, permanent: bool, tail: str = "") -> None:
        super().__init__(reason, message, permanent)
        self.reason = reason
        self.message = message
        self.permanent = permanent
        self.tail = tail

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.reason, self.message, self.permanent, self.tail)

    def report(self) -> Failure:
        """As it goes to the operator."""
        return Failure(reason=self.reason, message=self.message, permanent=self.permanent, tail=self.tail)


def first_words(error: BaseException) -> str:
    """The first line of what somebody else's exception says, and the next where the first only announces it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def _rebuild(reason: Reason, message: str, permanent: bool, tail: str) -> RunFailure:
    return RunFailure(reason, message, permanent=permanent, tail=tail)
