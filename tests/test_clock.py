import asyncio
import itertools
import time
from pathlib import Path

import pytest

from tests.clock import Deadlock, run, virtual


def test_an_hour_of_sleep_takes_no_time_and_moves_the_clock_by_an_hour() -> None:
    async def program() -> float:
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time() - began

    began = time.monotonic()
    assert run(program()) == pytest.approx(3600)
    assert time.monotonic() - began < 600


def test_timers_fire_in_order_of_their_time_whatever_order_they_were_set_in() -> None:
    async def program() -> list[int]:
        seen: list[int] = []

        async def after(delay_s: int) -> None:
            await asyncio.sleep(delay_s)
            seen.append(delay_s)

        await asyncio.gather(*(after(delay_s) for delay_s in (30, 10, 20)))
        return seen

    assert run(program()) == [10, 20, 30]


def test_a_deadlock_is_raised_and_names_the_waiting_task() -> None:
    async def stuck() -> None:
        await asyncio.Event().wait()

    async def program() -> None:
        await asyncio.create_task(stuck(), name="the stuck one")

    with pytest.raises(Deadlock, match="the stuck one"):
        run(program())


def test_a_program_that_never_ends_is_stopped_after_its_virtual_time() -> None:
    async def program() -> None:
        for _ in itertools.count():
            await asyncio.sleep(1)

    with pytest.raises(TimeoutError):
        run(program(), within_s=1000)


@virtual(within_s=10_000)
async def test_a_decorated_test_runs_on_a_virtual_clock_with_its_fixtures(tmp_path: Path) -> None:
    await asyncio.sleep(3600)
    assert asyncio.get_running_loop().time() == pytest.approx(3600)
    assert tmp_path.is_absolute()


def test_a_timeout_comes_before_a_deadlock() -> None:
    async def program() -> str:
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 5)
        except TimeoutError:
            return "timed out"
        return "came"

    assert run(program()) == "timed out"


def test_work_for_a_thread_runs_inline_and_its_errors_come_back() -> None:
    async def program() -> int:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return await asyncio.to_thread(sum, [1, 2])

    assert run(program()) == 3


def test_the_time_of_a_step_is_zero_however_many_tasks_run() -> None:
    async def program() -> float:
        await asyncio.gather(*(asyncio.sleep(0) for _ in range(1000)))
        return asyncio.get_running_loop().time()

    assert run(program()) == 0
