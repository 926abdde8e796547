"""Exit codes of `rlhfjob`, for scripts. `docs/cli.md` and `--help` list them."""

from collections.abc import Sequence

#: It did what was asked; for `run`: the job succeeded, now or in an earlier run.
SUCCEEDED = 0
#: `run`: the job failed. `validate`: the file is not valid.
FAILED = 1
#: What was given cannot be used: a file, a field, a reference, a folder, an option.
BAD_INPUT = 2
#: Something outside is missing: a package that is not installed, a Ray that does not start, a cluster out of reach.
UNAVAILABLE = 3
#: `run`: stopped by Ctrl-C or SIGTERM; the same command resumes it.
INTERRUPTED = 130

EXIT_CODES_HELP = (
    "Exit codes: 0 succeeded; 1 failed; 2 bad input (file, field, reference, folder or option); "
    "3 something outside is missing (package, Ray, cluster); 130 stopped by Ctrl-C, the same command resumes."
)


class BadInput(Exception):
    """What the user gave cannot be used. `problems` say what was found, what was expected, and where."""

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems: Sequence[str] = problems


class Unavailable(Exception):
    """Something that the command needs from outside is missing; the message says what, and what to do."""
