"""How an attempt ended: ``result.json`` in its folder, and the supervisor's exit code."""

from pydantic import ValidationError
from rlhf_api.conditions import Reason
from rlhf_api.run import ExitCode, Failure, Report
from rlhf_api.schema import ApiModel, Time, first_error

from rlhf_runtime.storage.run_directory import DamagedFile, RunDirectory


class AttemptResult(ApiModel):
    """How an attempt ended."""

    report: Report
    """Its last report, without episodes."""
    episodes: int
    """Number of the last episode of the run's series."""
    ended: Time


def exit_code(failure: Failure | None) -> ExitCode:
    """The supervisor's exit code for an attempt that ended with ``failure``."""
    if failure is None:
        return ExitCode.SUCCEEDED
    if failure.reason == Reason.STOPPED:
        return ExitCode.STOPPED
    return ExitCode.PERMANENT if failure.permanent else ExitCode.RETRYABLE


def write_result(directory: RunDirectory, attempt: int, result: AttemptResult) -> None:
    """Put ``result.json`` in place. Raises OSError."""
    directory.write(directory.attempt(attempt).result, result.to_json().encode())


def read_result(directory: RunDirectory, attempt: int) -> AttemptResult | None:
    """How the attempt ended, None if it did not say. Raises DamagedFile."""
    path = directory.attempt(attempt).result
    try:
        return AttemptResult.read_json(directory.read(path))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise DamagedFile(f"{path}: {first_error(error)}") from error


def earlier_success(directory: RunDirectory, episodes: int) -> AttemptResult | None:
    """The result of the newest attempt that trained all ``episodes``, if there is one. Raises DamagedFile."""
    for attempt in reversed(directory.attempts()):
        result = read_result(directory, attempt)
        if result is not None and result.report.state == "Succeeded" and result.episodes >= episodes:
            return result
    return None
