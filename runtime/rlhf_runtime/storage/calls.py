"""Storage calls beside the event loop, and what their errors mean for the attempt."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, Protocol, TypeVar

from rlhf_api.conditions import Reason

from rlhf_runtime.failures import RunFailure
from rlhf_runtime.storage.run_directory import DamagedFile, storage_failure

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class Beside(Protocol):
    """Runs a blocking call while the event loop goes on, as `asyncio.to_thread` does."""

    async def __call__(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...


@dataclass(frozen=True, slots=True)
class StorageCalls:
    """How this process calls its storage: `seconds` is how long one call may take, None for no limit.

    A thread cannot be interrupted: a call that took too long goes on, and its result is not used.
    """

    seconds: int | None = None
    beside: Beside = asyncio.to_thread

    async def do(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `call`. Raises RunFailure for OSError, DamagedFile and a timeout, else what `call` raises."""
        limit = asyncio.timeout(self.seconds)
        try:
            async with limit:
                return await self.beside(call, *args, **kwargs)
        except OSError as error:
            # TimeoutError is an OSError: the file system may raise one as well.
            if limit.expired():
                message = f"the storage did not answer within {self.seconds} s"
                raise RunFailure(Reason.STORAGE_FAILED, message, permanent=False) from error
            raise storage_failure(error, "the run directory cannot be used") from error
        except DamagedFile as error:
            raise RunFailure(Reason.STORAGE_FAILED, str(error), permanent=True) from error

    async def tidy(self, call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Remove what nobody needs any more. An error is logged: it must not end a run that has lost nothing."""
        try:
            await self.do(call, *args, **kwargs)
        except RunFailure as error:
            log.warning("files that are not needed any more stay: %s", error.message)
