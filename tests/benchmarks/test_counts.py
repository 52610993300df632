"""The way of an order is as short as its record: a tenth of air above each number, for the turns that chance joins."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks import counts
from tests.processes import free_port, listens, needs_mosquitto, until

ORDERS = 8  # that are counted
KEPT: Mapping[str, Any] = json.loads(counts.RECORD.read_text())
MORE_RUNS = 3  # where one has too many
LEAST = 2.0  # calls of air, where a tenth is less than one


def longer(found: Mapping[str, Any], kept: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Numbers that are more than a tenth above their record, with that."""
    too_many: dict[str, tuple[float, float]] = {}
    for name, number in found.items():
        if isinstance(number, Mapping):
            inner = longer(number, kept[name])
            too_many |= {f"{name}: {key}": value for key, value in inner.items()}
        elif number > max(kept[name] * counts.AIR, kept[name] + LEAST):
            too_many[name] = (number, kept[name])
    return too_many


def test_a_report_enters_no_more_files_and_calls_than_its_record() -> None:
    found = {name: vars(walk) for name, walk in counts.way().items()}
    assert longer(found, KEPT["way"]) == {}


@pytest.mark.processes
@needs_mosquitto
@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace is installed")
def test_an_order_takes_no_more_calls_of_each_kind_than_its_record() -> None:
    """All of them together are the benchmark's: how many only wait for something, other load decides. It also parts turns of the
    loop that came together in the record, so a kind is too many if it is so in each of some runs."""
    too_many = _too_many()
    for _ in range(MORE_RUNS):
        if not too_many:
            break
        again = _too_many()
        too_many = {name: number for name, number in again.items() if name in too_many}
    assert too_many == {}


def _too_many() -> dict[str, tuple[float, float]]:
    found = counts.system_calls("agents", ORDERS)
    by_kind = {name: {k: n for k, n in of.items() if k != counts.ALL} for name, of in found.items()}
    assert by_kind
    return longer(by_kind, KEPT["agents"])


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace is installed")
def test_a_traced_program_does_not_outlive_its_trace(tmp_path: Path) -> None:
    port = free_port()
    this, _ = counts.traced(["http.server", "--bind", "127.0.0.1", str(port)], tmp_path, "server")
    until(lambda: listens(port), of=this)
    counts.end(this)
    assert not listens(port)


def test_a_longer_way_is_seen() -> None:
    kept = {"agent": {counts.ALL: 100.0}}
    assert longer({"agent": {counts.ALL: 109.0}}, kept) == {}
    assert longer({"agent": {counts.ALL: 111.0}}, kept) == {"agent: system calls": (111.0, 100.0)}
