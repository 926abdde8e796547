"""A run on this machine whose manifest asks for GPUs says so once if it computes on CPUs."""

import os
from pathlib import Path

import torch
from rlhf_api.gpus import PodGpus
from rlhf_cli.running.local_gpus import warning

ASKED = [
    PodGpus(count=2, resource="amd.com/gpu", field="makers.resources"),
    PodGpus(count=1, resource="amd.com/gpu", field="trainers.resources"),
]


def test_where_torch_finds_no_gpu_the_user_is_told_what_was_asked_for_and_why_there_is_none() -> None:
    said = warning(ASKED, {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"})
    assert said is not None
    assert said.startswith(
        "Warning: makers.resources asks for 2 amd.com/gpu, trainers.resources asks for 1 amd.com/gpu, but torch finds "
        f"none here (torch {torch.__version__}, "
    )
    assert said.endswith("CUDA_VISIBLE_DEVICES='-1', HIP_VISIBLE_DEVICES='-1'): it all runs on CPUs, far slower.")


def test_a_job_that_asks_for_none_is_no_cause_to_ask_torch() -> None:
    assert warning([], {}) is None


def test_a_torch_that_cannot_be_asked_is_said_in_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart is not here')")
    said = warning(ASKED, {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *_paths()])})
    assert said is not None
    assert said.endswith("could not say whether this machine has any: ImportError: libcudart is not here")


def _paths() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
