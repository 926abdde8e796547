"""The checks of `rlhfjob validate --files`: what a job names is there, as an attempt would find it.

They are the runtime's own (`rlhf_runtime.preflight.checks`), in a process with the job's environment and code.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rlhf_api.conditions import Reason
from rlhf_api.gpus import pod_gpus, template_resources
from rlhf_api.job import RLHFJob
from rlhf_api.names import RAY_CONTAINER
from rlhf_api.quantities import in_bytes
from rlhf_api.run import RUN_CONFIG_ENV, RunConfig
from rlhf_runtime.lifeline import PYTHON

from rlhf_cli.exits import FAILED, SUCCEEDED, BadInput
from rlhf_cli.reading.run_folder import RunFolder
from rlhf_cli.running.local_job import local_uid, localize
from rlhf_cli.running.local_run import LocalRun, read_jobs

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
            config = run.config(1).to_json()
            environment = {**run.environment(os.environ), RUN_CONFIG_ENV: config}
            # Not what the libraries' own sources are warned of.
            command = [*PYTHON, "-W", "ignore::SyntaxWarning", "-m", "rlhf_cli.running.file_checks"]
            command.append(json.dumps(_limits(job)))
            try:
                ended = subprocess.run(command, env=environment, timeout=CHECK_SECONDS, check=False)
            except subprocess.TimeoutExpired as error:
                raise BadInput(f"{job.name}: the files were not checked within {CHECK_SECONDS} s") from error
        if ended.returncode != 0:
            code = FAILED
    return code


def _limits(job: RLHFJob) -> dict[str, tuple[str, int, bool]]:
    """Of each role whose pods have a memory limit: the field that sets it, the bytes, and whether the pod has a GPU.

    Raises BadInput for a limit that is not an amount of memory.
    """
    found = {}
    for name, role in (("maker", job.spec.makers), ("trainer", job.spec.trainers)):
        # As the operator lays them over each other.
        limits = {**template_resources(role.template).get("limits", {}), **role.resources.limits}
        if "memory" in limits:
            ours = "memory" in role.resources.limits
            place = "resources" if ours else f"template.spec.containers[{RAY_CONTAINER}].resources"
            gpu = pod_gpus(f"{name}s", role) is not None
            field = f"spec.{name}s.{place}.limits.memory"
            try:
                found[name] = (field, in_bytes(limits["memory"]), gpu)
            except ValueError as error:
                raise BadInput(f"{job.name}: {field}: {error}") from error
    return found


def _main() -> None:
    from rlhf_runtime.failures import RunFailure
    from rlhf_runtime.preflight.checks import check_files
    from rlhf_runtime.preflight.memory import check_limit

    config = RunConfig.read_json(os.environ[RUN_CONFIG_ENV])
    limits = json.loads(sys.argv[1])
    try:
        found = check_files(config)
        for need in found.needs:
            if need.role in limits:
                field, limit, gpu = limits[need.role]
                check_limit(need.role, need.in_pod(gpu=gpu), limit, field, processes=need.processes)
    except RunFailure as failure:
        if failure.reason == Reason.SOURCE_UNREACHABLE:
            # Where this command runs is not where the job will: a cluster may reach what a laptop cannot.
            print(f"{config.name}: files: not looked at any further: {failure.message}")
            return
        sys.exit(f"{config.name}: {failure}")
    prompts = f"{len(found.training)} training prompts, {len(found.held_out)} held out"
    print(f"{config.name}: files: models, tokenizer, {prompts}, reward functions: found")
    for note in (*found.notes, *found.needs):
        print(f"{config.name}: {note}")


if __name__ == "__main__":
    _main()
