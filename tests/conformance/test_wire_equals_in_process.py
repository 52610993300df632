"""A method of each kind over a broker that repeats, reorders and loses sessions ends with the very bytes of the run without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.small_fleet import over_the_wire
from tests.kit.small_run import fingerprint, in_process, scenario
from tests.methods import of_each_kind

HABITS = {"duplicate": 0.2, "reorder": 0.2, "drop_session": 0.01}
WIRE = {"part_bytes": 1024}


@pytest.mark.parametrize("method", of_each_kind("wire"))
def test_the_wire_gives_the_bytes_of_the_run_without_a_network(tmp_path: Path, method: str) -> None:
    scene = scenario(method, wire=WIRE, rounds={"count": 2})
    run = over_the_wire(tmp_path / "wire", scene, **HABITS)
    assert fingerprint(run) == fingerprint(in_process(tmp_path / "alone", scene))
