"""Of two coordinators in one federation the second one ends, and none is its own rival."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from covey.coordinator.run.run import Run
from covey.coordinator.serve import exclusive
from covey.coordinator.serve.service import Service, last_will
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.wire.topics import Topics
from tests import clock
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import Fleet
from tests.kit.small_run import begun, clients, fingerprint, in_process, rules, scenario, setup

ROUNDS = 20
SCENE = scenario("fedavg", rounds={"count": ROUNDS})


def fleet(folder: Path) -> Fleet:
    return Fleet(folder, SCENE, rules(SCENE), MemoryBroker(), clients(scene=SCENE))


async def second(folder: Path, broker: MemoryBroker) -> None:
    """Another run in the same federation, begun later."""
    run = begun(folder, SCENE, name="r2", now=asyncio.get_running_loop().time())
    async with broker.link("second", last_will(Topics(SCENE.federation))) as link:
        await Service(run, link, session="z-younger").serve()


def test_the_second_of_two_that_meet_ends_with_an_error_and_the_first_one_finishes(
    tmp_path: Path,
) -> None:
    async def story() -> Run:
        these = fleet(tmp_path)
        async with these:
            first = asyncio.create_task(these.serve())
            await asyncio.sleep(1)
            with pytest.raises(
                UserError, match="another coordinator is at work in federation 'default'"
            ):
                await second(tmp_path / "other", these.broker)
            assert not first.done()
            return await first

    assert clock.run(story(), within_s=36_000).engine.round == ROUNDS


def test_a_coordinator_whose_connection_breaks_again_and_again_is_not_its_own_rival(
    tmp_path: Path,
) -> None:
    async def story() -> Run:
        these = fleet(tmp_path)
        async with these:
            run = asyncio.create_task(these.serve())
            for _ in range(8):
                await asyncio.sleep(2)
                these.broker.restart(away_s=0.5)
            return await run

    assert clock.run(story(), within_s=36_000).engine.round == ROUNDS


async def resumed(folder: Path, broker: MemoryBroker, name: str) -> Run:
    """A coordinator of the run in this folder, from its resume to its end."""
    now = asyncio.get_running_loop().time()
    run, first = Run.resume(folder, SCENE, setup(SCENE), rules=rules(SCENE), now=now)
    async with broker.link(name, last_will(Topics(SCENE.federation))) as link:
        assert await Service(run, link).serve(list(first)) == ""
    return run


def test_of_two_coordinators_of_one_run_the_one_that_took_it_up_last_continues(
    tmp_path: Path,
) -> None:
    """The folder is copied while the first one has no network; the copy is resumed, then the first one comes back."""

    async def story() -> Run:
        these = fleet(tmp_path)
        async with these:
            first = asyncio.create_task(these.serve())
            await asyncio.sleep(3)
            these.broker.part("coordinator", 3.0)
            shutil.copytree(tmp_path / "run", tmp_path / "copy")
            copy = asyncio.create_task(resumed(tmp_path / "copy", these.broker, "copy"))
            with pytest.raises(UserError, match=r"has taken up this run .* do not resume it"):
                await first
            return await copy

    calm = in_process(tmp_path / "calm", SCENE)
    ended = clock.run(story(), within_s=36_000)
    assert ended.engine.round == ROUNDS
    assert fingerprint(ended) == fingerprint(calm)


def test_a_coordinator_that_is_at_work_answers_one_that_asks_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A status that a broker retained from a coordinator that is gone is no answer."""
    url, federation = BrokerUrl.parse("mqtt://localhost"), SCENE.federation

    async def story() -> None:
        these = fleet(tmp_path)

        def link(_: BrokerUrl, client_id: str) -> object:
            return these.broker.link(client_id)

        monkeypatch.setattr(exclusive, "MqttLink", link)
        async with these:
            first = asyncio.create_task(these.serve())
            await asyncio.sleep(1)
            with pytest.raises(UserError, match="another coordinator is at work"):
                await exclusive.ensure_single_coordinator(url, federation)
            first.cancel()
            await asyncio.sleep(10)
            await exclusive.ensure_single_coordinator(url, federation)

    clock.run(story(), within_s=1_000)
