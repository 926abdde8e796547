"""The Ray job's entry point: runs one attempt and answers for it over HTTP. Also ``python -m rlhf_runtime.supervisor``.

It keeps the journal while the coordinator, its child, trains. Nothing that it imports needs torch or Ray, so
that it outlives whatever happens to them: a crash of the coordinator, by the out-of-memory killer too, becomes a
report that says so. It runs the same under the operator and under `rlhfjob run`.

The RunConfig is JSON in RLHF_RUN_CONFIG, the endpoint's token is in RAY_AUTH_TOKEN. SIGTERM or SIGINT asks to stop
after the episode in training; a second one stops at once.
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError
from rlhf_api.run import REPORT_PORT, RUN_CONFIG_ENV, TOKEN_ENV, ExitCode, RunConfig

from rlhf_runtime.storage.attempt_result import exit_code
from rlhf_runtime.supervision.attempt import Supervisor
from rlhf_runtime.supervision.coordinator_process import COORDINATOR
from rlhf_runtime.supervision.deadlines import Patience
from rlhf_runtime.supervision.report_server import LOOPBACK, CannotListen, ReportServer

_EXIT_CODES = (
    "Exit codes: 0 succeeded; 75 failed, another attempt may help; 78 failed, no attempt can help; "
    "130 stopped, another attempt resumes; 1 or 2 the supervisor could not run."
)
#: Seconds that the last report waits to be read.
_LINGER_SECONDS = 600.0


async def serve(
    config: RunConfig,
    *,
    token: str | None,
    host: str | None,
    port: int,
    port_file: Path | None = None,
    linger_seconds: float = _LINGER_SECONDS,
    command: Sequence[str] = COORDINATOR,
    patience: Patience | None = None,
) -> ExitCode:
    """Run one attempt, with the report endpoint beside it, until its end is acknowledged or ``linger_seconds`` after.

    ``host`` None listens on every interface, ``port`` 0 on a free port, which is written to ``port_file``.
    Raises CannotListen if there is no token and ``host`` is not the loopback, or if the port is taken.
    """
    supervisor = Supervisor(config, command=command, patience=patience)
    async with ReportServer(supervisor, token).listening(host, port) as bound:
        if port_file is not None:
            _write_port(port_file, bound)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, supervisor.request_stop)
        failure = await supervisor.run()
        await supervisor.until_acknowledged(linger_seconds)
    return exit_code(failure)


def main() -> None:
    """The console script."""
    token = os.environ.get(TOKEN_ENV) or None
    arguments = _arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    config = _config()
    serving = serve(
        config,
        token=token,
        host=arguments.host or (None if token else LOOPBACK),
        port=arguments.port,
        port_file=arguments.port_file,
        linger_seconds=arguments.linger_seconds,
    )
    try:
        sys.exit(asyncio.run(serving))
    except CannotListen as error:
        sys.exit(f"rlhf-supervisor: {error}")


def _config() -> RunConfig:
    text = os.environ.get(RUN_CONFIG_ENV)
    if text is None:
        sys.exit(f"rlhf-supervisor: the environment has no {RUN_CONFIG_ENV}, expected a RunConfig as JSON")
    try:
        return RunConfig.read_json(text)
    except ValidationError as error:
        sys.exit(f"rlhf-supervisor: {RUN_CONFIG_ENV}: {error}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rlhf-supervisor", description="Runs one attempt.", epilog=_EXIT_CODES)
    parser.add_argument("--host", help=f"address to listen on; default all with a token, {LOOPBACK} without")
    parser.add_argument("--port", type=int, default=REPORT_PORT, help="default %(default)s; 0 is a free one")
    parser.add_argument("--port-file", type=Path, help="where the port is written once it listens")
    parser.add_argument(
        "--linger-seconds",
        type=float,
        default=_LINGER_SECONDS,
        help="how long the last report waits to be read; default %(default)s",
    )
    return parser.parse_args()


def _write_port(path: Path, port: int) -> None:
    # Renamed into place: who waits for the file never reads half of it.
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    temporary.write_text(f"{port}\n")
    os.replace(temporary, path)


if __name__ == "__main__":
    main()
