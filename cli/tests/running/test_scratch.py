"""Logs and sockets go where a socket's path is not too long, whatever TMPDIR says."""

import os
import socket
from pathlib import Path

import pytest
from rlhf_cli.exits import BadInput
from rlhf_cli.running.scratch import MAX_PARENT, scratch_folder


def test_a_socket_of_ray_fits_into_the_folder_wherever_tmpdir_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("long" * 20)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    folder = scratch_folder()
    try:
        sockets = folder / "ray" / f"session_2026-12-01_03-18-35_996123_{2**22}" / "sockets"
        sockets.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(sockets / "plasma_store.1"))
            (sockets / "plasma_store.1").unlink()
    finally:
        os.removedirs(sockets)
    assert not folder.is_relative_to(long)


def test_a_short_folder_is_taken_first(tmp_path: Path) -> None:
    short = Path("/tmp") / f"r{os.getpid()}"
    short.mkdir()
    try:
        folder = scratch_folder([str(short), "/tmp"])
        assert folder.parent == short
        folder.rmdir()
    finally:
        short.rmdir()


def test_without_a_folder_the_user_reads_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match=rf"tried {tmp_path}/x+, /not/here; set TMPDIR .* at most {MAX_PARENT} characters"
    ):
        scratch_folder([str(tmp_path / ("x" * 90)), "/not/here"])
