"""`rlhfjob run`: the whole of a local run, from the files to its results and exit code."""

import asyncio
import os
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rlhf_api.run import Failure, Report
from rlhf_api.status import ReportCursor
from rlhf_runtime.storage.attempt_result import earlier_success

from rlhf_cli.escaped import escaped
from rlhf_cli.exits import FAILED, INTERRUPTED, SUCCEEDED
from rlhf_cli.reading.command import samples_text
from rlhf_cli.reading.results import Results, write_results
from rlhf_cli.running.attempts import after
from rlhf_cli.running.local_gpus import warning
from rlhf_cli.running.local_run import LocalRun, choose_run, locked, read_jobs, the_job
from rlhf_cli.running.progress import Progress, advanced
from rlhf_cli.running.scratch import scratch_folder
from rlhf_cli.running.screen import Screen, screen_for
from rlhf_cli.running.supervised import Interrupts, run_attempt

#: Longest wait for the last processes of an attempt to let go of its temporary folder, seconds.
_REMOVE_SECONDS = 10.0


def run(files: Sequence[Path], storage: Path, name: str | None, *, fresh: bool) -> int:
    """Run the job of the files on this machine; returns the exit code. Raises BadInput."""
    jobs, config_maps = read_jobs(files)
    chosen = choose_run(the_job(jobs, name), config_maps, storage, fresh=fresh)
    console = Console()
    with locked(chosen):
        done = earlier_success(chosen.directory, chosen.local.job.spec.episodes)
        if done is not None:
            print(f"{chosen.local.job.name} is complete: {done.episodes} episodes were trained. Nothing to do.")
            print("A new run of the same job, beside this one: add --fresh.")
            _tell_results(write_results(chosen.folder))
            return SUCCEEDED
        again = _command(files, storage, name)
        return asyncio.run(_run(chosen, screen_for(console), again))


async def _run(chosen: LocalRun, screen: Screen, again: str) -> int:
    run = _Run(chosen, screen)
    try:
        with run.interrupts.listening(run.told_to_stop):
            failure, ending = await run.attempts()
    finally:
        screen.close()
    results = write_results(chosen.folder)
    if results.samples:
        print(f"\nSamples of episode {results.samples[0].episode}:\n")
        sys.stdout.write(samples_text(results.samples))
    _tell_results(results)
    if failure is None:
        return SUCCEEDED
    if ending == "Stopped":
        print(f"\nStopped: {failure.message}\nResume with:\n  {again}")
        return INTERRUPTED
    print(escaped(f"\nFailed: {failure.reason}: {failure.message}"))
    if failure.tail:
        print(escaped(f"\n{failure.tail.rstrip()}"))
    return FAILED


class _Run:
    """The attempts of one command."""

    def __init__(self, chosen: LocalRun, screen: Screen) -> None:
        self._chosen = chosen
        self._screen = screen
        self.interrupts = Interrupts()
        job = chosen.local.job
        self._progress = Progress(
            name=job.name,
            planned=job.spec.episodes,
            started=datetime.now(UTC),
            activity="starting",
            episodes=tuple(chosen.folder.episodes()),
        )

    def told_to_stop(self) -> None:
        """After the first Ctrl-C."""
        self._screen.say(
            "Stopping after the episode in training, with a checkpoint. Ctrl-C again ends everything at once."
        )

    async def attempts(self) -> tuple[Failure | None, str]:
        """Attempts until one succeeds, or no other follows; the last one's failure, and how it all ended."""
        job = self._chosen.local.job
        for note in self._chosen.local.notes:
            self._screen.say(note)
        slow = await asyncio.to_thread(warning, self._chosen.local.gpus, self._chosen.environment(os.environ))
        if slow is not None:
            self._screen.say(slow)
        self._screen.say(f"Run folder: {self._chosen.folder.path}")
        if self._progress.done:
            self._screen.say(f"Resuming: {self._progress.done} of {job.spec.episodes} episodes are in the journal.")
        failed = 0
        while True:
            attempt = self._chosen.next_attempt()
            self._show(replace(self._progress, report=None, activity=f"attempt {attempt}: starting"))
            failure = await self._attempt(attempt)
            ending = after(
                failure,
                failed_before=failed,
                backoff_limit=job.spec.backoff_limit,
                stop_requested=self.interrupts.first.is_set(),
            )
            if ending != "Retry":
                return failure, ending
            failed += 1
            self._screen.say(
                f"Attempt {attempt} failed, {job.spec.backoff_limit - failed} more retries; the next begins."
            )

    async def _attempt(self, attempt: int) -> Failure | None:
        scratch = scratch_folder()
        environment = self._chosen.environment(os.environ)
        failure = await run_attempt(self._chosen.config(attempt), environment, scratch, self.interrupts, self._take)
        if failure is None or self.interrupts.first.is_set():
            await self._remove(scratch)
        else:
            self._screen.say(f"Logs of attempt {attempt}: {scratch}")
        return failure

    async def _remove(self, scratch: Path) -> None:
        """Remove the folder; what was ended at once may still be writing into it for a moment."""
        deadline = time.monotonic() + _REMOVE_SECONDS
        while True:
            try:
                shutil.rmtree(scratch)
                return
            except OSError as error:
                if time.monotonic() >= deadline:
                    self._screen.say(f"Not removed: {scratch}: {error.strerror}")
                    return
            await asyncio.sleep(0.2)

    def _take(self, report: Report) -> ReportCursor:
        self._show(advanced(self._progress, report))
        return self._progress.cursor

    def _show(self, progress: Progress) -> None:
        self._progress = progress
        self._screen.show(progress)


def _tell_results(results: Results) -> None:
    lines = [
        ("Trained model", results.model),
        ("Checkpoint", results.checkpoint),
        ("Plot", results.plot),
        ("Report", results.report),
    ]
    told = [f"{label + ':':<15}{path}" for label, path in lines if path is not None]
    if told:
        print("\n" + "\n".join(told))


def _command(files: Sequence[Path], storage: Path, name: str | None) -> str:
    """The command that resumes this run: this one, without --fresh."""
    words = ["rlhfjob", "run", *(word for file in files for word in ("-f", str(file))), "--storage", str(storage)]
    return shlex.join([*words, *(["--name", name] if name else [])])
