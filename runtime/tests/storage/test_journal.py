"""The journal: what is durable, what a crash leaves, what counts, what readers get."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rlhf_api.status import EpisodeReport
from rlhf_runtime.storage.journal import Journal, episodes_after, episodes_trained, history
from rlhf_runtime.storage.run_directory import DamagedFile, RunDirectory


def report(episode: int, reward: float = 0.5) -> EpisodeReport:
    return EpisodeReport(
        attempt=0,
        seq=0,
        episode=episode,
        policy_version=episode,
        reward=reward,
        reward_std=0.1,
        kl=0.01,
        loss=0.2,
        entropy=1.0,
        clip_fraction=0.0,
        gradient_norm=1.0,
        staleness_mean=0.0,
        staleness_max=0,
        samples=8,
        tokens=64,
        tokens_per_second=100.0,
        truncated_fraction=0.0,
        dropped=0,
        seconds=1.0,
        train_seconds=0.5,
        wait_seconds=0.1,
        sync_seconds=0.1,
        time=datetime(2026, 1, 1, tzinfo=UTC),
    )


def write_attempt(directory: RunDirectory, attempt: int, resumed_from: int, episodes: int) -> Journal:
    directory.claim(attempt)
    journal = Journal(directory, attempt)
    journal.begin(resumed_from)
    for episode in range(resumed_from + 1, resumed_from + episodes + 1):
        journal.append(report(episode))
    return journal


def found(directory: RunDirectory) -> list[tuple[int, int, int]]:
    return [(each.attempt, each.seq, each.episode) for each in history(directory)]


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        pytest.param([], [], id="a run that never began has no episodes"),
        pytest.param([(0, 3)], [(1, 1, 1), (1, 2, 2), (1, 3, 3)], id="one attempt counts whole"),
        pytest.param(
            [(0, 3), (2, 2)],
            [(1, 1, 1), (1, 2, 2), (2, 1, 3), (2, 2, 4)],
            id="what the next attempt did not build on is superseded",
        ),
        pytest.param([(0, 3), (0, 1)], [(2, 1, 1)], id="an attempt from the start supersedes everything"),
        pytest.param(
            [(0, 3), (1, 0)], [(1, 1, 1)], id="an attempt that resumed and trained nothing supersedes all the same"
        ),
        pytest.param(
            [(0, 5), (4, 1), (2, 1)],
            [(1, 1, 1), (1, 2, 2), (3, 1, 3)],
            id="a third attempt that resumed before the second supersedes both",
        ),
        pytest.param(
            [(0, 2), (2, 2), (3, 1)],
            [(1, 1, 1), (1, 2, 2), (2, 1, 3), (3, 1, 4)],
            id="three attempts, each from the newest checkpoint",
        ),
    ],
)
def test_the_series(tmp_path: Path, attempts: list[tuple[int, int]], expected: list[tuple[int, int, int]]) -> None:
    directory = RunDirectory(tmp_path)
    for number, (resumed_from, episodes) in enumerate(attempts, 1):
        write_attempt(directory, number, resumed_from, episodes)
    assert found(directory) == expected
    assert episodes_trained(directory) == (expected[-1][2] if expected else 0)
    # Every cursor a reader can hold gives exactly what comes after it.
    for cut, (attempt, seq, _) in enumerate(expected, 1):
        assert [(e.attempt, e.seq, e.episode) for e in episodes_after(directory, attempt, seq)] == expected[cut:]
    assert [e.seq for e in episodes_after(directory, 0, 0, limit=2)] == [seq for _, seq, _ in expected[:2]]


def test_a_long_run_keeps_few_files_and_every_episode(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.claim(1)
    journal = Journal(directory, 1)
    journal.begin(0)
    most = 0
    for episode in range(1, 1101):
        assert journal.append(report(episode, reward=episode / 7)).seq == episode
        most = max(most, len(os.listdir(directory.attempt(1).journal)))
    # 31 singles, 31 of 32, one of 1024, the beginning, and the new one while it is put together.
    assert most <= 31 + 31 + 1 + 2 + 32
    assert [e.reward for e in history(directory)] == [episode / 7 for episode in range(1, 1101)]
    assert [e.seq for e in episodes_after(directory, 1, 1022, limit=4)] == [1023, 1024, 1025, 1026]


class StoppingDirectory(RunDirectory):
    """Dies before its n-th change of a file, as a process does that is killed there."""

    class Killed(Exception):
        pass

    def __init__(self, path: Path, changes: int) -> None:
        super().__init__(path)
        self.left = changes

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise StoppingDirectory.Killed

    def write(self, path: Path, content: bytes) -> None:
        self._count()
        super().write(path, content)

    def delete(self, path: Path) -> None:
        self._count()
        super().delete(path)


@pytest.mark.parametrize("changes", range(1, 72))
def test_killed_between_any_two_changes_it_holds_what_was_acknowledged(tmp_path: Path, changes: int) -> None:
    directory = StoppingDirectory(tmp_path, changes)
    directory.claim(1)
    journal = Journal(directory, 1)
    acknowledged = 0
    try:
        journal.begin(0)
        for episode in range(1, 100):
            acknowledged = journal.append(report(episode)).seq
    except StoppingDirectory.Killed:
        pass
    episodes = [each.episode for each in history(RunDirectory(tmp_path))]
    assert acknowledged < 99
    assert episodes in (list(range(1, acknowledged + 1)), list(range(1, acknowledged + 2)))


_WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from test_journal import report
from rlhf_runtime.storage.journal import Journal
from rlhf_runtime.storage.run_directory import RunDirectory
directory = RunDirectory(sys.argv[1])
directory.claim(1)
journal = Journal(directory, 1)
journal.begin(0)
for episode in range(1, 100000):
    print(journal.append(report(episode)).seq, flush=True)
"""


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_kill_9_of_a_writer_loses_nothing_that_was_acknowledged(tmp_path: Path, seed: int) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(tmp_path), str(Path(__file__).parent)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    enough = random.Random(seed).randint(40, 140)
    acknowledged = 0
    for line in writer.stdout:
        acknowledged = int(line)
        if acknowledged == enough:
            os.kill(writer.pid, signal.SIGKILL)
    writer.wait(timeout=30)
    episodes = [each.episode for each in history(RunDirectory(tmp_path))]
    assert acknowledged >= enough
    assert episodes in (list(range(1, acknowledged + 1)), list(range(1, acknowledged + 2)))


def test_a_reader_beside_a_live_writer_never_sees_a_gap(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.claim(1)
    journal = Journal(directory, 1)
    journal.begin(0)
    writer = threading.Thread(target=lambda: [journal.append(report(episode)) for episode in range(1, 401)])
    writer.start()
    seen = 0
    while writer.is_alive():
        episodes = [each.episode for each in history(directory)]
        assert episodes == list(range(1, len(episodes) + 1))
        assert len(episodes) >= seen
        seen = len(episodes)
    writer.join()
    assert len(history(directory)) == 400


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _lose_the_one_before(path: Path) -> None:
    path.with_name("00000002-00000002.jsonl").unlink()


def _swap(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"seq":2', b'"seq":7'))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        pytest.param("00000002-00000002.jsonl", _cut, id="a segment that is cut off"),
        pytest.param("00000002-00000002.jsonl", lambda path: path.write_bytes(b""), id="a segment that is empty"),
        pytest.param("00000002-00000002.jsonl", _swap, id="a segment that holds another episode"),
        pytest.param(
            "00000003-00000003.jsonl", lambda path: path.with_name("00000002-00000002.jsonl").unlink(), id="a gap"
        ),
        pytest.param("notes.txt", lambda path: path.write_text("?"), id="a file that no journal writes"),
        pytest.param("begin.json", lambda path: path.write_text("{}"), id="a beginning that says nothing"),
        pytest.param(
            "begin.json", lambda path: path.write_text(json.dumps({"resumedFrom": "x"})), id="a beginning with text"
        ),
    ],
)
def test_damage_is_an_error_that_names_the_file(tmp_path: Path, name: str, damage: object) -> None:
    directory = RunDirectory(tmp_path)
    write_attempt(directory, 1, 0, 3)
    assert callable(damage)
    damage(directory.attempt(1).journal / name)
    with pytest.raises(DamagedFile, match=name):
        history(directory)


def test_what_a_crash_left_unfinished_is_ignored(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    write_attempt(directory, 1, 0, 3)
    (directory.attempt(1).journal / ".unfinished-00000004-00000004.jsonl-ab").write_bytes(b'{"atte')
    (directory.attempt(1).journal / ".nfs000123").write_bytes(b"held open elsewhere")
    assert len(history(directory)) == 3


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        pytest.param(["append 1"], "before it was said", id="an episode before the beginning"),
        pytest.param(["begin 0", "append 2"], "found episode 2, expected 1", id="an episode too early"),
        pytest.param(["begin 3", "append 4", "append 4"], "found episode 4, expected 5", id="an episode twice"),
        pytest.param(["begin 0", "begin 0"], "has begun already", id="two beginnings"),
    ],
)
def test_calls_out_of_order_are_refused(tmp_path: Path, calls: list[str], message: str) -> None:
    directory = RunDirectory(tmp_path)
    directory.claim(1)
    journal = Journal(directory, 1)

    def call(text: str) -> None:
        what, number = text.split()
        if what == "begin":
            journal.begin(int(number))
        else:
            journal.append(report(int(number)))

    *before, last = calls
    for each in before:
        call(each)
    with pytest.raises(ValueError, match=message):
        call(last)


def test_two_supervisors_cannot_claim_one_attempt(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.claim(1)
    with pytest.raises(FileExistsError):
        RunDirectory(tmp_path).claim(1)
    directory.claim(2)
    assert directory.attempts() == [1, 2]


@pytest.mark.parametrize("path", ["relative/folder", "/tmp/../etc", "."])
def test_a_run_directory_is_absolute_and_does_not_climb(path: str) -> None:
    with pytest.raises(ValueError, match="expected an absolute path"):
        RunDirectory(path)


def test_no_file_is_written_outside_of_the_run_directory(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link").symlink_to(tmp_path)
    for path in (tmp_path / "other", tmp_path / "run" / ".." / "other", tmp_path / "run" / "link" / "other"):
        with pytest.raises(ValueError, match="outside of the run directory"):
            directory.write(path, b"x")
    assert not (tmp_path / "other").exists()


def test_reading_a_journal_needs_neither_torch_nor_ray() -> None:
    code = (
        "import sys, rlhf_runtime.storage.journal, rlhf_runtime.supervisor; "
        "sys.exit(str(sorted({'torch', 'ray', 'transformers', 'numpy'} & set(sys.modules)) or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip() == ""
