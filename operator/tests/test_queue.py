"""The work queue on the real event loop: one pass a key at a time, nothing asked for is lost, failures back off."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from rlhf_operator.queue import Key, WorkQueue

Until = Callable[[Callable[[], bool]], Awaitable[None]]
A: Key = ("team", "a")
B: Key = ("team", "b")


@asynccontextmanager
async def working(process: Callable[[Key], Awaitable[float | None]], **options: float):  # type: ignore[no-untyped-def]
    queue = WorkQueue(process, **options)  # type: ignore[arg-type]
    task = asyncio.create_task(queue.run())
    try:
        yield queue
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_asked_often_before_its_turn_a_key_has_one_pass(until: Until) -> None:
    passes: list[Key] = []

    async def process(key: Key) -> None:
        passes.append(key)

    async with working(process) as queue:
        for _ in range(10):
            queue.add(A)
        queue.add(B)
        await until(lambda: len(passes) == 2)
        await asyncio.sleep(0.02)
    assert sorted(passes) == [A, B]


async def test_asked_during_its_pass_a_key_has_one_more_and_never_two_at_once(until: Until) -> None:
    running, most, passes = 0, 0, 0
    gate = asyncio.Event()

    async def process(key: Key) -> None:
        nonlocal running, most, passes
        running, passes = running + 1, passes + 1
        most = max(most, running)
        await gate.wait()
        running -= 1

    async with working(process, workers=4) as queue:
        queue.add(A)
        await until(lambda: running == 1)
        for _ in range(5):
            queue.add(A)
            await asyncio.sleep(0)
        gate.set()
        await until(lambda: passes == 2)
        await asyncio.sleep(0.02)
    assert (most, passes) == (1, 2)


async def test_different_keys_are_worked_at_the_same_time(until: Until) -> None:
    both, met = asyncio.Barrier(2), 0

    async def process(key: Key) -> None:
        nonlocal met
        await both.wait()
        met += 1

    async with working(process, workers=2) as queue:
        queue.add(A)
        queue.add(B)
        await until(lambda: met == 2)


async def test_a_pass_that_wants_to_come_back_does(until: Until) -> None:
    times: list[float] = []

    async def process(key: Key) -> float | None:
        times.append(asyncio.get_running_loop().time())
        return 0.05 if len(times) == 1 else None

    async with working(process) as queue:
        queue.add(A)
        await until(lambda: len(times) == 2)
        await asyncio.sleep(0.1)
    assert len(times) == 2
    assert times[1] - times[0] >= 0.05


async def test_an_event_comes_before_a_delay_and_cancels_it(until: Until) -> None:
    passes = 0

    async def process(key: Key) -> float | None:
        nonlocal passes
        passes += 1
        return 0.05 if passes == 1 else None

    async with working(process) as queue:
        queue.add(A)
        await until(lambda: passes == 1)
        queue.add(A)
        await until(lambda: passes == 2)
        await asyncio.sleep(0.1)
    assert passes == 2


async def test_of_two_delays_the_shorter_counts(until: Until) -> None:
    passes: list[float] = []
    loop = asyncio.get_running_loop()

    async def process(key: Key) -> None:
        passes.append(loop.time())

    async with working(process) as queue:
        start = loop.time()
        queue.add_after(A, 5)
        queue.add_after(A, 0.03)
        queue.add_after(A, 4)
        await until(lambda: len(passes) == 1)
    assert passes[0] - start < 1


async def test_failures_back_off_up_to_the_cap_and_a_success_forgets_them(until: Until) -> None:
    times: list[float] = []
    loop = asyncio.get_running_loop()

    async def process(key: Key) -> None:
        times.append(loop.time())
        if len(times) <= 5:
            raise RuntimeError("the API server is away")

    async with working(process, backoff=0.02, cap=0.06) as queue:
        queue.add(A)
        await until(lambda: len(times) == 6)
        pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
        for pause, least in zip(pauses, (0.016, 0.032, 0.048, 0.048, 0.048), strict=True):
            assert pause >= least
        assert not queue._failures


async def test_events_about_a_failing_key_do_not_make_it_spin() -> None:
    passes = 0

    async def process(key: Key) -> None:
        nonlocal passes
        passes += 1
        raise RuntimeError("no")

    async with working(process, backoff=30) as queue:
        queue.add(A)
        for _ in range(20):
            await asyncio.sleep(0.002)
            queue.add(A)
    assert passes == 1


async def test_one_failing_key_does_not_hold_up_the_others(until: Until) -> None:
    done: list[Key] = []

    async def process(key: Key) -> None:
        if key == A:
            raise RuntimeError("no")
        done.append(key)

    async with working(process, workers=1, backoff=10) as queue:
        queue.add(A)
        queue.add(B)
        await until(lambda: done == [B])


@pytest.mark.parametrize("workers", [1, 3])
async def test_its_depth_is_shown(workers: int, until: Until) -> None:
    class Shown:
        values: list[float] = []

        def set(self, value: float) -> None:
            self.values.append(value)

    shown = Shown()

    async def process(key: Key) -> None:
        return None

    queue = WorkQueue(process, workers=workers, depth=shown)
    queue.add(A)
    queue.add(B)
    assert shown.values[-1] == 2
    task = asyncio.create_task(queue.run())
    await until(lambda: shown.values[-1] == 0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
