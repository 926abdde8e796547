"""``rlhfjob validate``: prints what is wrong in the given files, by line."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from rlhf_cli.exits import BAD_INPUT, FAILED, SUCCEEDED
from rlhf_cli.validation import config_map
from rlhf_cli.validation.config_map import config_map_problems
from rlhf_cli.validation.manifest import Document, ManifestError, read_manifest
from rlhf_cli.validation.verdict import Problem, doubles, is_job
from rlhf_cli.validation.verdict import validate as job_problems


def validate(paths: Sequence[Path], console: Console | None = None) -> int:
    """Check every RLHFJob and ConfigMap of the files; of other objects only the kinds are printed.

    Returns the exit code: 0 when all are valid, 1 when one is not or no job is there, 2 when a file is not readable.
    """
    out = console or Console(soft_wrap=True, highlight=False)
    code = SUCCEEDED if paths else BAD_INPUT
    read: list[Document] = []
    for path in paths:
        try:
            documents = read_manifest(path)
        except ManifestError as error:
            out.print(str(error), style="red", markup=False)
            code = BAD_INPUT
            continue
        # The same object in an earlier file is a double too.
        checked = [document for document in documents if is_job(document) or document.kind == config_map.KIND]
        again = doubles([*read, *checked])[len(doubles(read)) :]
        code = max(code, _report(path, documents, again, out))
        read += checked
    return code


def _report(path: Path, documents: Sequence[Document], again: Sequence[Problem], out: Console) -> int:
    """Print the verdict on one file; `again` are its objects that are there before."""
    kinds = sorted({document.kind or "an object without a kind" for document in documents})
    jobs = [document for document in documents if is_job(document)]
    if not jobs:
        out.print(f"{path}: found no RLHFJob, only {', '.join(kinds) or 'no document'}", style="red", markup=False)
        return FAILED
    problems = sorted([*(problem for document in documents for problem in _problems(document)), *again])
    for problem in problems:
        out.print(f"{problem.file}:{problem.line}:", style="cyan", markup=False, end=" ")
        out.print(f"{problem.path}:", style="bold", markup=False, end=" ")
        out.print(problem.message, markup=False)
    if problems:
        return FAILED
    names = ", ".join(str(job.value["metadata"]["name"]) for job in jobs)
    others = [kind for kind in kinds if kind not in (jobs[0].kind, config_map.KIND)]
    skipped = f"; not checked: {', '.join(others)}" if others else ""
    out.print(f"{path}: {names}: valid{skipped}", style="green", markup=False)
    return SUCCEEDED


def _problems(document: Document) -> list[Problem]:
    if is_job(document):
        return job_problems(document)
    return config_map_problems(document) if document.kind == config_map.KIND else []
