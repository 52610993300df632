"""Every strategy over every pretend broker ends with the very bytes of the run without a network."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.kit.small_fleet import over_the_wire
from tests.kit.small_run import fingerprint, in_process, scenario
from tests.methods import METHODS

HABITS: dict[str, dict[str, float]] = {
    "calm": {},
    "duplicating": {"duplicate": 0.5},
    "reordering": {"reorder": 0.5},
    "losing sessions": {"drop_session": 0.01},
    "everything": {"duplicate": 0.2, "reorder": 0.2, "drop_session": 0.005},
}
# an averaging method, one that looks at single reports and asks newcomers, and one that sends several models
KINDS = ("fedavg", "fedclust", "ifca")
CASES = [
    (method, habit) for habit in HABITS for method in (METHODS if habit == "everything" else KINDS)
]
WIRE = {"part_bytes": 1024}


@cache
def reference(method: str, folder: Path) -> list[bytes]:
    return fingerprint(in_process(folder / method, scenario(method, wire=WIRE)))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reference")


@pytest.mark.parametrize(("method", "habit"), CASES)
def test_the_wire_gives_the_bytes_of_the_run_without_a_network(
    tmp_path: Path, folder: Path, method: str, habit: str
) -> None:
    run = over_the_wire(tmp_path, scenario(method, wire=WIRE), **HABITS[habit])
    assert fingerprint(run) == reference(method, folder)
