"""Every strategy over every pretend broker ends with the very bytes of the run without a network."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from covey.broker.testing.memory_broker import MemoryBroker
from tests import clock
from tests.small_fleet import Fleet
from tests.small_run import METHODS, clients, fingerprint, in_process, rules, scenario

HABITS = {
    "calm": {},
    "duplicating": {"duplicate": 0.5},
    "reordering": {"reorder": 0.5},
    "losing sessions": {"drop_session": 0.01},
    "everything": {"duplicate": 0.2, "reorder": 0.2, "drop_session": 0.005},
}
PATIENT = {
    "absence_s": 3600.0,
    "rollcall_s": 3600.0,
    "deadline_s": 36_000.0,
}  # so that nobody counts as gone
WIRE = {"part_bytes": 1024}


@cache
def reference(method: str, folder: Path) -> list[bytes]:
    return fingerprint(in_process(folder / method, scenario(method, wire=WIRE)))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reference")


@pytest.mark.parametrize("habit", HABITS)
@pytest.mark.parametrize("method", METHODS)
def test_the_wire_gives_the_bytes_of_the_run_without_a_network(
    tmp_path: Path, folder: Path, method: str, habit: str
) -> None:
    scene = scenario(method, wire=WIRE)

    async def whole() -> list[bytes]:
        broker = MemoryBroker(seed=5, **HABITS[habit])
        async with Fleet(
            tmp_path, scene, rules(scene, **PATIENT), broker, clients(scene=scene)
        ) as fleet:
            return fingerprint(await fleet.serve())

    assert clock.run(whole()) == reference(method, folder)
