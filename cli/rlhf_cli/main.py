"""The `rlhfjob` command: options and help. Each command loads what it needs when it runs, so that help is instant."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rlhf_cli.exits import BAD_INPUT, EXIT_CODES_HELP, INTERRUPTED, UNAVAILABLE, BadInput, Unavailable

app = typer.Typer(
    name="rlhfjob",
    help="Check, run and read RLHFJobs: on this machine with `run`, in a cluster with kubectl.",
    epilog=EXIT_CODES_HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class HistoryFormat(StrEnum):
    """How `history` prints."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


class SamplesFormat(StrEnum):
    """How `samples` prints."""

    TEXT = "text"
    JSON = "json"


#: One line a paragraph: typer keeps the line breaks of a docstring.
_RUN_HELP = (
    "Run a job on this machine: the same runtime as in a cluster, on a Ray of its own.\n\n"
    "ConfigMaps are read from the same files. Every other reference to the cluster is refused, by its path.\n\n"
    "The run's folder is STORAGE/NAMESPACE/NAME-ID, the same every time: the command again resumes an unfinished "
    "run from its newest checkpoint, and says where the results of a finished one are.\n\n"
    "Ctrl-C stops after the episode in training, with a checkpoint; a second Ctrl-C ends everything at once."
)


@app.command(epilog=EXIT_CODES_HELP)
def validate(
    file: Annotated[list[Path], typer.Option("--file", "-f", help="A YAML file with RLHFJobs; may be repeated.")],
    files: Annotated[
        bool,
        typer.Option(
            "--files",
            help="Also check what the jobs name, as an attempt would before it loads weights: model folder, "
            "tokenizer, prompts, reward functions. They must be reachable from here.",
        ),
    ] = False,
    storage: Annotated[
        Path | None, typer.Option("--storage", help="With --files: a folder in place of the jobs' checkpoint storage.")
    ] = None,
) -> None:
    """Check files by the rules of the API server, offline: schema, defaults, cross-field rules, by line."""
    from rlhf_cli.validation.command import validate as validate_files

    with _errors_told():
        code = validate_files(file)
        if code == 0 and files:
            from rlhf_cli.running.file_checks import check

            code = check(file, storage)
        raise typer.Exit(code)


@app.command(help=_RUN_HELP, epilog=EXIT_CODES_HELP)
def run(
    file: Annotated[list[Path], typer.Option("--file", "-f", help="A YAML file with an RLHFJob; may be repeated.")],
    storage: Annotated[
        Path,
        typer.Option(
            "--storage", help="A folder that takes the place of the job's checkpoint storage; made if absent."
        ),
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="Which RLHFJob to run, when the files hold several.")
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Begin a new run in a folder of its own, beside earlier ones of the same job."),
    ] = False,
) -> None:
    from rlhf_cli.reading.installed import require_runtime

    with _errors_told():
        require_runtime()
        from rlhf_cli.running.command import run as run_locally

        raise typer.Exit(run_locally(file, storage, name, fresh=fresh))


@app.command(epilog=EXIT_CODES_HELP)
def history(
    name: Annotated[
        str | None, typer.Argument(help="Name of the job: in the cluster, or among the runs in --storage.")
    ] = None,
    storage: Annotated[
        Path | None, typer.Option("--storage", "-s", help="A run's folder, or the storage that holds runs.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace of NAME. Default: kubectl's current one.")
    ] = None,
    output: Annotated[HistoryFormat, typer.Option("--output", "-o", help="Format.")] = HistoryFormat.TABLE,
) -> None:
    """What each episode did: from a run's folder (all episodes) or from the cluster (the last 10, in status)."""
    from rlhf_cli.reading.command import show_history

    with _errors_told():
        show_history(name, storage, namespace, output.value)


@app.command(epilog=EXIT_CODES_HELP)
def samples(
    path: Annotated[Path, typer.Argument(help="A run's folder, or the storage that holds one run.")],
    episode: Annotated[int | None, typer.Option("--episode", help="Which episode. Default: the last.", min=1)] = None,
    most: Annotated[int, typer.Option("--most", "-m", help="Samples to print, at most.", min=1)] = 8,
    output: Annotated[SamplesFormat, typer.Option("--output", "-o", help="Format.")] = SamplesFormat.TEXT,
) -> None:
    """Sample rollouts to read: prompt, completion, reward, advantage, policy versions."""
    from rlhf_cli.reading.command import show_samples

    with _errors_told():
        show_samples(path, episode, most, output.value)


@contextmanager
def _errors_told() -> Iterator[None]:
    """The errors that are the user's to mend, on stderr without a traceback, as exit codes."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BadInput as error:
        for problem in error.problems:
            sys.stderr.write(f"error: {problem}\n")
        raise typer.Exit(BAD_INPUT) from error
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"error: {place}{error.strerror or error}\n")
        raise typer.Exit(BAD_INPUT) from error
    except Unavailable as error:
        sys.stderr.write(f"error: {error}\n")
        raise typer.Exit(UNAVAILABLE) from error


if __name__ == "__main__":
    app()
