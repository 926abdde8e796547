"""A process without the GPUs that it shall compute on ends before it loads anything."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rlhf_api.gpus import PodGpus
from rlhf_runtime.actors.trainer_actor import TrainerActor
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.making.loading import load_maker
from rlhf_runtime.preflight.gpus import check_own_gpus, shortage
from rlhf_runtime.processors import unhide_gpus
from tiny_run import run_config

ONE = PodGpus(count=1, resource="nvidia.com/gpu", field="trainers.resources")
FOUR = PodGpus(count=4, resource="amd.com/gpu", field="makers.resources")


@pytest.mark.parametrize(
    ("asked", "taken", "found", "expected"),
    [
        pytest.param(None, 1, 0, None, id="none asked for, none there: CPUs"),
        pytest.param(None, 1, 1, None, id="none asked for, one there: it is taken"),
        pytest.param(None, 4, 0, None, id="four processes, none there: they share the CPUs"),
        pytest.param(None, 4, 2, "BY takes a GPU, but torch finds 2", id="four processes, two there"),
        pytest.param(ONE, 1, 1, None, id="one asked for, one there"),
        pytest.param(ONE, 1, 0, "trainers.resources asks for 1 nvidia.com/gpu, but torch finds 0", id="one is missing"),
        pytest.param(
            ONE, 2, 1, "BY takes a GPU, but torch finds 1", id="one asked for, by two ranks that take one each"
        ),
        pytest.param(FOUR, 4, 4, None, id="all four are there"),
        pytest.param(
            FOUR, 4, 3, "makers.resources asks for 4 amd.com/gpu, but torch finds 3", id="one of four is missing"
        ),
        pytest.param(FOUR, 1, 3, "makers.resources asks for 4 amd.com/gpu, but torch finds 3", id="and would be idle"),
        pytest.param(FOUR, 4, 8, None, id="more than asked for"),
    ],
)
def test_which_gpus_are_missing(asked: PodGpus | None, taken: int, found: int, expected: str | None) -> None:
    assert shortage(asked, taken, "BY", found) == expected


def has(monkeypatch: pytest.MonkeyPatch, count: int, *, usable: bool = True) -> None:
    """This process, in a pod, has so many GPUs by torch's count."""

    def init() -> None:
        if not usable:
            raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nMore words")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: usable)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setenv("RLHF_POD_NAME", "tiny-0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")


def refused(call: Callable[..., object], *arguments: object) -> str:
    with pytest.raises(RunFailure) as raised:
        call(*arguments)
    assert (raised.value.reason, raised.value.permanent) == ("DevicesMissing", True)
    return raised.value.message


def test_maker_and_trainer_that_cannot_use_their_gpu_end_before_they_look_for_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Counted by NVIDIA's library: the driver is there, and too old for this torch.
    has(monkeypatch, 1, usable=False)
    asked = ONE.to_dict()
    config = run_config(tmp_path, tmp_path / "no-model", makerGpus=asked, trainerGpus=asked)
    trainer = TrainerActor(config.to_json())
    for message in (refused(load_maker, config, ()), refused(trainer.load, 0, 0, None, None)):
        assert message == (
            f"trainers.resources asks for 1 nvidia.com/gpu, but torch finds 0 in tiny-0 (torch {torch.__version__}, "
            "The NVIDIA driver on your system is too old (found version 11040), CUDA_VISIBLE_DEVICES='0'): check the "
            "image's torch, the node's driver and the pod's runtime class, or ask for fewer GPUs; where none are asked "
            "for, CPUs compute"
        )


def test_more_processes_than_gpus_are_refused_before_any_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has(monkeypatch, 1)
    divided = run_config(tmp_path, tmp_path / "no-model", makers={"tensorParallel": 2})
    assert refused(load_maker, divided, ()).startswith(
        "each of the 2 processes of a maker (makers.tensorParallel) takes a GPU, but torch finds 1 in tiny-0 ("
    )
    # Of a local run, whose ranks share this machine, and its first has what it takes.
    config = run_config(tmp_path, tmp_path / "no-model", trainers={"replicas": 2})
    check_own_gpus(config, "trainer", 0)
    second = TrainerActor(config.to_json())
    assert refused(second.load, 1, 1, None, None).startswith("each of the 2 trainers that share a pod ")
    sharing = run_config(tmp_path, tmp_path, trainers={"replicas": 2, "perPod": 2}, trainerGpus=ONE.to_dict())
    assert refused(check_own_gpus, sharing, "trainer", 0).startswith("each of the 2 trainers that share a pod ")


def test_gpus_that_ray_hides_from_an_actor_are_seen_and_those_that_the_user_hides_are_not() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}
    unhide_gpus(environment)
    assert environment == {"ROCR_VISIBLE_DEVICES": ""}
    environment = {"CUDA_VISIBLE_DEVICES": "-1"}
    unhide_gpus(environment)
    assert environment == {"CUDA_VISIBLE_DEVICES": "-1"}
