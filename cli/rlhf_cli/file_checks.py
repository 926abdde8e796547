"""The checks of `rlhfjob validate --files`: what a job names is there, as an attempt would find it.

They are the runtime's own (`rlhf_runtime.preflight`), in a process with the job's environment and code.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rlhf_api.run import RUN_CONFIG_ENV, RunConfig
from rlhf_runtime.lifeline import PYTHON

from rlhf_cli.exits import FAILED, SUCCEEDED, BadInput
from rlhf_cli.local_job import local_uid, localize
from rlhf_cli.local_run import LocalRun, read_jobs
from rlhf_cli.run_folder import RunFolder

#: Longest check of one job's files, seconds.
CHECK_SECONDS = 600


def check(files: Sequence[Path], storage: Path | None) -> int:
    """Check what every job of the files names; prints a line for each, returns the exit code. Raises BadInput.

    `storage` takes the place of the jobs' checkpoint storage, for the files that are in it; nothing is written there.
    """
    jobs, config_maps = read_jobs(files)
    code = SUCCEEDED
    for job in jobs:
        with tempfile.TemporaryDirectory(prefix="rlhf-") as scratch:
            place = storage.resolve() if storage is not None else Path(scratch)
            local = localize(job, config_maps, place, local_uid(job.namespace, job.name, 0))
            run = LocalRun(local=local, storage=place, folder=RunFolder(Path(scratch)))
            config = run.config(1).model_dump_json(by_alias=True, exclude_none=True)
            environment = {**run.environment(os.environ), RUN_CONFIG_ENV: config}
            # Not what the libraries' own sources are warned of.
            command = [*PYTHON, "-W", "ignore::SyntaxWarning", "-m", "rlhf_cli.file_checks"]
            try:
                ended = subprocess.run(command, env=environment, timeout=CHECK_SECONDS, check=False)
            except subprocess.TimeoutExpired as error:
                raise BadInput(f"{job.name}: the files were not checked within {CHECK_SECONDS} s") from error
        if ended.returncode != 0:
            code = FAILED
    return code


def _main() -> None:
    from rlhf_runtime.failures import RunFailure
    from rlhf_runtime.preflight import check_files

    config = RunConfig.model_validate_json(os.environ[RUN_CONFIG_ENV])
    try:
        found = check_files(config)
    except RunFailure as failure:
        sys.exit(f"{config.name}: {failure}")
    prompts = f"{len(found.training)} training prompts, {len(found.held_out)} held out"
    print(f"{config.name}: files: model, tokenizer, {prompts}, reward functions: found")


if __name__ == "__main__":
    _main()
