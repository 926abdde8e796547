"""Whether a run on this machine computes on CPUs though its manifest asks for GPUs: it goes on, and says so once."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from rlhf_api.gpus import PodGpus
from rlhf_runtime.lifeline import PYTHON

#: Longest that torch may take to say what it finds, seconds.
ASK_SECONDS = 60


def warning(asked: Sequence[PodGpus], environment: Mapping[str, str]) -> str | None:
    """A sentence for the user, if GPUs are asked for and a run with these variables will find none here.

    Asked in a process of its own: this one lives as long as the run, and shall not hold torch.
    """
    if not asked:
        return None
    command = [*PYTHON, "-m", "rlhf_cli.running.local_gpus", json.dumps([str(gpus) for gpus in asked])]
    try:
        ended = subprocess.run(
            command, env=environment, timeout=ASK_SECONDS, check=True, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        why = f"no answer within {ASK_SECONDS} s"
    except subprocess.CalledProcessError as error:
        why = (error.stderr.strip().splitlines() or [f"exit code {error.returncode}"])[-1]
    else:
        return ended.stdout.strip() or None
    return f"Warning: the job asks for GPUs, and torch could not say whether this machine has any: {why}"


def _main() -> None:
    from rlhf_runtime.preflight.gpus import circumstances, count_gpus
    from rlhf_runtime.processors import unhide_gpus

    # As the actors do.
    unhide_gpus(os.environ)
    if count_gpus() == 0:
        said = ", ".join(json.loads(sys.argv[1]))
        print(f"Warning: {said}, but torch finds none here ({circumstances()}): it all runs on CPUs, far slower.")


if __name__ == "__main__":
    _main()
