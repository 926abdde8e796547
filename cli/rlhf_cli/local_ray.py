"""A Ray of our own on this machine, with the custom resources that bind makers and trainers to their groups.

It runs in a process of its own (`python -m rlhf_cli.local_ray`), so that the command line never loads Ray, and it
dies with the command line, by SIGKILL too. It takes no job without the run's token.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from rlhf_api.names import MAKER_RESOURCE, TRAINER_RESOURCE

from rlhf_cli.exits import Unavailable

#: Longest start of Ray, seconds; two seconds on an idle machine.
START_SECONDS = 120.0


class LocalRay:
    """A running Ray. `address` is what RAY_ADDRESS takes."""

    def __init__(self, makers: int, trainers: int, folder: Path, environment: Mapping[str, str]) -> None:
        # Imported here: this module is also the child's main, which needs nothing of the runtime.
        from rlhf_runtime.lifeline import Tethered

        self.address = ""
        self._log = folder / "ray.log"
        command = [sys.executable, "-m", "rlhf_cli.local_ray", str(makers), str(trainers), str(folder)]
        with self._log.open("wb") as log:
            self._tethered = Tethered(command, stdout=subprocess.PIPE, stderr=log.fileno(), env=environment)

    async def start(self) -> None:
        """Wait until Ray takes jobs. Raises Unavailable with the end of its log."""
        assert self._tethered.process.stdout is not None
        reading = asyncio.to_thread(self._tethered.process.stdout.readline)
        try:
            line = await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(reading)), START_SECONDS)
        except TimeoutError:
            line = b""
        if not line:
            self.kill()
            tail = self._log.read_text(encoding="utf-8", errors="replace")[-2000:].strip()
            raise Unavailable(f"Ray did not start within {START_SECONDS:.0f} s; its log ends with:\n{tail}")
        self.address = json.loads(line)["address"]

    def kill(self) -> None:
        """End Ray and all it started. Nothing in it is worth a slower end: the run's state is in its directory."""
        self._tethered.kill()


def ray_environment(environment: Mapping[str, str], token: str) -> dict[str, str]:
    """The variables with which Ray, and whatever connects to it, must be started."""
    return {
        **environment,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        # A local run talks to nobody.
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("makers", type=int)
    parser.add_argument("trainers", type=int)
    parser.add_argument("folder")
    arguments = parser.parse_args()
    import ray

    context = ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        # Actors are bound by the custom resources; a machine with fewer cores than actors shares them.
        num_cpus=max(os.cpu_count() or 1, arguments.makers + arguments.trainers + 2),
        resources={MAKER_RESOURCE: arguments.makers, TRAINER_RESOURCE: arguments.trainers},
        _temp_dir=arguments.folder,
    )
    print(json.dumps({"address": context.address_info["gcs_address"]}), flush=True)
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    stopped.wait()
    ray.shutdown()


if __name__ == "__main__":
    _main()
