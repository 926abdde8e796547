"""``rlhfjob validate``: prints what is wrong in the given files, by line."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from rlhf_cli.exits import BAD_INPUT, FAILED, SUCCEEDED
from rlhf_cli.validation.manifest import ManifestError, read_manifest
from rlhf_cli.validation.verdict import is_job
from rlhf_cli.validation.verdict import validate as problems_of


def validate(paths: Sequence[Path], console: Console | None = None) -> int:
    """Check every RLHFJob of the files; of other objects only the kinds are told.

    Returns the exit code: 0 when all are valid, 1 when one is not or none is there, 2 when a file is not readable.
    """
    out = console or Console(soft_wrap=True, highlight=False)
    return max((_validate_file(path, out) for path in paths), default=BAD_INPUT)


def _validate_file(path: Path, out: Console) -> int:
    try:
        documents = read_manifest(path)
    except ManifestError as error:
        out.print(str(error), style="red", markup=False)
        return BAD_INPUT
    jobs = [document for document in documents if is_job(document)]
    if not jobs:
        kinds = ", ".join(sorted({str(document.value.get("kind")) for document in documents})) or "no document"
        out.print(f"{path}: found no RLHFJob, only {kinds}", style="red", markup=False)
        return FAILED
    problems = [problem for job in jobs for problem in problems_of(job)]
    for problem in problems:
        out.print(f"{problem.file}:{problem.line}:", style="cyan", markup=False, end=" ")
        out.print(f"{problem.path}:", style="bold", markup=False, end=" ")
        out.print(problem.message, markup=False)
    if problems:
        return FAILED
    names = ", ".join(str(job.value["metadata"]["name"]) for job in jobs)
    others = sorted({str(document.value.get("kind")) for document in documents if not is_job(document)})
    skipped = f"; not checked: {', '.join(others)}" if others else ""
    out.print(f"{path}: {names}: valid{skipped}", style="green", markup=False)
    return SUCCEEDED
