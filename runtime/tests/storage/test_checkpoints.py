"""A checkpoint is complete or does not count; the highest attempt's newest one wins; only what is too many goes."""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from rlhf_runtime.storage.checkpoints import Checkpoints, RunState, staged_files
from rlhf_runtime.storage.run_directory import RunDirectory


def checkpoints(folder: Path, attempt: int = 1, keep: int = 2) -> Checkpoints:
    directory = RunDirectory(folder)
    directory.attempt(attempt).path.mkdir(parents=True, exist_ok=True)
    return Checkpoints(directory, attempt, keep)


def written(folder: Path) -> Path:
    """As a trainer leaves it."""
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights" * 100)
    (folder / "training.pt").write_bytes(b"moments")
    return folder


def save(store: Checkpoints, episode: int, attempt: int = 1) -> Path:
    unfinished = written(store.unfinished(episode))
    state = RunState(
        attempt=attempt, episode=episode, policy_version=episode, prompt_cursor=8 * episode, optimizer_steps=episode
    )
    return store.complete(unfinished, staged_files(unfinished), state)


def test_what_was_saved_is_found_again_with_where_the_run_stood(tmp_path: Path) -> None:
    store = checkpoints(tmp_path)
    folder = save(store, 10)
    assert folder == tmp_path / "attempts" / "00001" / "checkpoints" / "episode-000010"
    found = store.newest()
    assert found is not None
    assert found[0] == folder
    assert (found[1].episode, found[1].prompt_cursor, found[1].optimizer_steps) == (10, 80, 10)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert [file["name"] for file in manifest["files"]] == ["model.safetensors", "training.pt", "state.json"]


def test_there_is_none_at_first(tmp_path: Path) -> None:
    assert checkpoints(tmp_path).newest() is None


def test_the_highest_attempt_wins_even_if_an_earlier_one_went_further(tmp_path: Path) -> None:
    save(checkpoints(tmp_path, attempt=1), 30)
    save(checkpoints(tmp_path, attempt=2), 20)
    found = checkpoints(tmp_path, attempt=3).newest()
    assert found is not None
    assert found[1].episode == 20


def test_an_attempt_does_not_look_at_later_ones(tmp_path: Path) -> None:
    save(checkpoints(tmp_path, attempt=2), 20)
    assert checkpoints(tmp_path, attempt=1).newest() is None


def cut(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"weights")


def flip(folder: Path) -> None:
    content = bytearray((folder / "training.pt").read_bytes())
    content[2] ^= 1
    (folder / "training.pt").write_bytes(content)


@pytest.mark.parametrize(
    ("situation", "damage", "reason"),
    [
        ("it was never completed", lambda f: (f / "manifest.json").unlink(), "it has no manifest.json"),
        ("a file is missing", lambda f: (f / "training.pt").unlink(), "training.pt is missing"),
        ("a file was cut", cut, "model.safetensors has 7 bytes, expected 700"),
        ("a bit has flipped", flip, "training.pt has digest"),
        ("the state was edited", lambda f: (f / "state.json").write_text("{}"), "state.json has 2 bytes"),
        ("the manifest is garbage", lambda f: (f / "manifest.json").write_text("?"), "its manifest.json is not valid"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_with_a_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, situation: str, damage: Callable[[Path], None], reason: str
) -> None:
    store = checkpoints(tmp_path)
    save(store, 10)
    damage(save(store, 20))
    with caplog.at_level(logging.WARNING):
        found = store.newest()
    assert found is not None
    assert found[1].episode == 10, situation
    assert reason in caplog.text


def test_a_trainer_that_dies_while_it_saves_leaves_nothing_that_counts_nor_stands_in_the_way(tmp_path: Path) -> None:
    store = checkpoints(tmp_path)
    written(store.unfinished(10))
    assert store.newest() is None
    save(store, 10)
    found = store.newest()
    assert found is not None
    assert found[1].episode == 10


def test_a_file_that_changed_after_it_was_staged_stops_the_checkpoint(tmp_path: Path) -> None:
    store = checkpoints(tmp_path)
    unfinished = written(store.unfinished(10))
    files = staged_files(unfinished)
    (unfinished / "training.pt").unlink()
    state = RunState(attempt=1, episode=10, policy_version=10, prompt_cursor=80, optimizer_steps=10)
    with pytest.raises(OSError, match=r"training\.pt is missing"):
        store.complete(unfinished, files, state)
    assert store.newest() is None


def test_the_newest_and_the_best_are_kept_over_all_attempts(tmp_path: Path) -> None:
    first = checkpoints(tmp_path, attempt=1)
    best, _, _ = (save(first, episode) for episode in (10, 20, 30))
    second = checkpoints(tmp_path, attempt=2)
    save(second, 40)
    removed = second.prune(str(best))
    assert [folder.name for folder in removed] == ["episode-000020"]
    folders = [path.name for path in (tmp_path / "attempts").glob("*/checkpoints/*")]
    assert sorted(folders) == ["episode-000010", "episode-000030", "episode-000040"]


def test_an_earlier_attempt_that_still_runs_removes_nothing_of_a_later_one(tmp_path: Path) -> None:
    save(checkpoints(tmp_path, attempt=2), 10)
    zombie = checkpoints(tmp_path, attempt=1, keep=1)
    save(zombie, 20)
    save(zombie, 30)
    zombie.prune(None)
    found = checkpoints(tmp_path, attempt=2).newest()
    assert found is not None
    assert found[1].episode == 10


def test_the_trained_model_counts_when_it_is_whole_and_has_all_episodes(tmp_path: Path) -> None:
    store = checkpoints(tmp_path)
    assert not store.finished(20)
    unfinished = written(store.unfinished_model())
    assert not store.finished(20)
    assert store.complete_model(unfinished, staged_files(unfinished), 20) == tmp_path / "model"
    assert store.finished(20)
    assert not store.finished(21)
    flip(tmp_path / "model")
    assert not store.finished(20)


def test_a_checkpoint_that_is_not_wanted_leaves_nothing(tmp_path: Path) -> None:
    store = checkpoints(tmp_path)
    unfinished = written(store.unfinished(10))
    store.discard(unfinished)
    assert not unfinished.exists()


def test_the_folder_is_durable_with_its_manifest_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only a loss of power shows the order for real: the calls are recorded on their way to the system.
    calls: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def recorded_fsync(descriptor: int) -> None:
        calls.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        fsync(descriptor)

    def recorded_rename(source: Path, target: Path) -> Path:
        calls.append(f"rename to {target.name}")
        return rename(source, target)

    store = checkpoints(tmp_path)
    unfinished = written(store.unfinished(1))
    files = staged_files(unfinished)
    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(Path, "rename", recorded_rename)
    state = RunState(attempt=1, episode=1, policy_version=1, prompt_cursor=8, optimizer_steps=1)
    store.complete(unfinished, files, state)
    assert calls == [
        "fsync state.json",
        "fsync manifest.json",
        f"fsync {unfinished.name}",
        "rename to episode-000001",
        "fsync checkpoints",
    ]
