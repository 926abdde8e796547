"""What an error of the storage means for the attempt, in simulated time."""

import asyncio
import errno
import os
from collections.abc import Callable
from typing import Any

import pytest
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.storage.calls import StorageCalls
from rlhf_runtime.storage.run_directory import DamagedFile
from virtual_time import VirtualTime, at_once


async def never(call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    await asyncio.sleep(1e9)


def raising(error: Exception) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call


def oserror(number: int) -> OSError:
    return OSError(number, os.strerror(number), "/storage/x")


@pytest.mark.parametrize(
    ("calls", "error", "reason", "message", "permanent"),
    [
        pytest.param(
            StorageCalls(120, never), None, "StorageFailed", "did not answer within 120 s", False, id="it hangs"
        ),
        pytest.param(
            StorageCalls(120, at_once), oserror(errno.ETIMEDOUT), "StorageFailed", "timed out (/storage/x)", False,
            id="the file system's own timeout is not ours",
        ),
        pytest.param(
            StorageCalls(None, at_once), oserror(errno.ENOSPC), "StorageFailed", "No space left", False, id="full"
        ),
        pytest.param(
            StorageCalls(None, at_once), oserror(errno.EROFS), "StorageReadOnly", "Read-only", True, id="read-only"
        ),
        pytest.param(
            StorageCalls(120, at_once), DamagedFile("journal/x: 2 lines"), "StorageFailed", "2 lines", True,
            id="a damaged file",
        ),
    ],
)  # fmt: skip
def test_an_error_of_the_storage(
    calls: StorageCalls, error: Exception | None, reason: str, message: str, permanent: bool
) -> None:
    time = VirtualTime()
    with pytest.raises(RunFailure) as raised:
        time.run(calls.do(raising(error) if error else int))
    assert (raised.value.reason, raised.value.permanent) == (reason, permanent)
    assert message in raised.value.message
    assert time.loop.time() == (120 if error is None else 0)
