"""What follows an attempt's end."""

import pytest
from rlhf_api.run import Failure
from rlhf_cli.running.attempts import after


def failure(reason: str = "TrainerLost", *, permanent: bool = False) -> Failure:
    return Failure(reason=reason, message="m", permanent=permanent)


@pytest.mark.parametrize(
    ("ended", "failed_before", "backoff_limit", "stop", "expected"),
    [
        pytest.param(None, 0, 0, False, "Succeeded", id="no failure is success"),
        pytest.param(None, 0, 0, True, "Succeeded", id="it finished although asked to stop"),
        pytest.param(failure(), 0, 0, False, "Failed", id="no retry allowed"),
        pytest.param(failure(), 0, 1, False, "Retry", id="the first of one retry"),
        pytest.param(failure(), 1, 1, False, "Failed", id="the retries are spent"),
        pytest.param(failure(permanent=True), 0, 9, False, "Failed", id="another attempt cannot help"),
        pytest.param(failure("Stopped"), 0, 9, True, "Stopped", id="stopped as asked"),
        pytest.param(failure("Stopped"), 0, 9, False, "Stopped", id="stopped by a signal to the supervisor"),
        pytest.param(failure(), 0, 9, True, "Stopped", id="it broke while stopping: no new attempt against the wish"),
    ],
)
def test_after(ended: Failure | None, failed_before: int, backoff_limit: int, stop: bool, expected: str) -> None:
    assert after(ended, failed_before=failed_before, backoff_limit=backoff_limit, stop_requested=stop) == expected
