"""A rank of an engine that dies, hangs or cannot begin ends all of it, and is named; nothing waits for it."""

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest
from engine_ranks import REQUESTS, SAMPLING
from rlhf_api.run import RunConfig
from rlhf_runtime.engines.engine import EngineLost
from rlhf_runtime.engines.tensor_parallel.loading import start_engine
from rlhf_runtime.engines.tensor_parallel.orders import Generate
from rlhf_runtime.engines.tensor_parallel.progress import dead, lagging, state_of
from rlhf_runtime.failures import RunFailure
from tiny_run import python_path, run_config, write_policy

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    folder = tmp_path_factory.mktemp("policy")
    write_policy(folder)
    return run_config(tmp_path_factory.mktemp("run"), folder, makers={"tensorParallel": 2})


def again_and_again(call: Callable[[], object]) -> None:
    """For at most a minute."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        call()
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("number", "stall_seconds", "message"),
    [
        (signal.SIGKILL, 300.0, r"2 ranks: rank 1 ended with signal SIGKILL"),
        pytest.param(
            signal.SIGSTOP, 10.0, r"2 ranks: rank 1 \(process state T\) has not gone on for 1\d", marks=pytest.mark.full
        ),
    ],
)
def test_a_rank_that_dies_or_hangs_ends_the_engine_and_is_named(
    config: RunConfig, number: signal.Signals, stall_seconds: float, message: str
) -> None:
    engine = start_engine(config, stall_seconds)
    [pid] = engine._followers._pids
    try:
        assert len(engine.generate(REQUESTS, SAMPLING)) == len(REQUESTS)
        began = time.monotonic()
        threading.Timer(0.3, os.kill, (pid, number)).start()
        with pytest.raises(EngineLost, match=message):
            again_and_again(lambda: engine.generate(REQUESTS, SAMPLING))
        assert time.monotonic() < began + 30
        for call in (engine.check, lambda: engine.generate(REQUESTS, SAMPLING)):
            with pytest.raises(EngineLost, match=message):
                call()
    finally:
        engine.close()
    deadline = time.monotonic() + 10
    while (state := state_of(pid)) not in ("?", "Z"):
        assert time.monotonic() < deadline, state
        time.sleep(0.05)


@pytest.mark.full
def test_an_idle_engine_that_loses_a_rank_says_so_with_its_words_when_it_is_asked(config: RunConfig) -> None:
    """As the coordinator asks, every few seconds."""
    engine = start_engine(config)
    engine.check()
    # An order that the rank cannot obey.
    engine._followers.tell(Generate([], SAMPLING, asks=False))
    with pytest.raises(EngineLost, match="2 ranks: rank 1 raised ValueError: max"):
        again_and_again(engine.check)
    engine.close()


@pytest.mark.full
def test_what_a_rank_cannot_load_ends_the_others_with_its_own_words(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", python_path())
    monkeypatch.setenv("TINY_FACTORY_PID", str(os.getpid()))
    actor = config.models.actor.model_copy(update={"factory": "tiny_factories:in_one_process"})
    changed = config.model_copy(update={"models": config.models.model_copy(update={"actor": actor})})
    with pytest.raises(RunFailure, match="only one process may") as raised:
        start_engine(changed)
    assert (raised.value.reason, raised.value.permanent) == ("ModelInvalid", True)


@pytest.mark.parametrize(
    ("ends", "words", "expected"),
    [
        ({1: None, 2: None}, {}, None),
        ({1: None, 2: -9}, {}, "rank 2 ended with signal SIGKILL (often the kernel's out-of-memory killer)"),
        ({1: 0, 2: 1}, {2: "OSError: a"}, "rank 2 raised OSError: a, rank 1 ended with exit code 0"),
    ],
)
def test_who_is_dead_and_why(ends: dict[int, int | None], words: dict[int, str], expected: str | None) -> None:
    assert dead(ends, words) == expected


@pytest.mark.parametrize(
    ("counters", "named"),
    [
        ([5, 4, 5], "rank 1 (process state T)"),
        ([5, 5, 5], "rank 1 (process state T), 2 (process state S)"),
        ([4, 4, 5], "rank 1 (process state T)"),
        ([4, 5, 5], "rank 0"),
    ],
)
def test_who_keeps_the_others_waiting(counters: list[int], named: str) -> None:
    said = f"{named} has not gone on for 30 s: found {counters} steps of the ranks"
    assert lagging(counters, {1: "T", 2: "S"}, 30.0) == said
