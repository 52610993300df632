"""The campaign of drawn faults turns red: each thing that it promises, broken in a record by itself."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.chaos.drawn import Planting, judged

GREEN: dict[str, Any] = {
    "seconds": 400.0,
    "patience": 300.0,
    "plantings": [
        {"fault": "kill -9", "who": "m02", "began": 0.0, "named": 8.0, "fixed": 9.0, "over": 20.0},
        {"fault": "slow", "who": "m03", "began": 60.0, "named": None, "fixed": None, "over": None},
    ],
    "false": [],
    "published": [{"at": 240.0, "word": "may", "code": 0, "seconds": 9.0}],
    "processes": [{"name": "coordinator", "flat": True}],
    "sizes": [[20.0 * look, 1e6 + 3e4 * look, 1e5 + 2e4 * look] for look in range(20)],
}


def test_a_record_in_which_all_went_well_is_green() -> None:
    assert judged(GREEN) == [], "the fault at its end was not fixed yet"
    late = {**GREEN["plantings"][0], "fixed": 390.0, "over": None}
    assert judged({**GREEN, "plantings": [late]}) == [], "nobody waited for its end"


@pytest.mark.parametrize(
    ("what", "changed", "said"),
    [
        ("plantings", [], "no fault was planted and fixed"),
        ("plantings", [{**GREEN["plantings"][0], "named": None}], "kill -9 (m02): nobody named it"),
        ("plantings", [{**GREEN["plantings"][0], "over": None}], "kill -9 (m02): its alarm did not end"),
        ("false", [["m07", "slow", 3.0, 9.0, "m07: all wait for it"]], "false alarm: m07: all wait for it"),
        ("published", [{**GREEN["published"][0], "code": 2}], "may ended with 2"),
        ("processes", [{"name": "coordinator", "flat": False}], "coordinator grew"),
        ("sizes", [[20.0 * look, 1e6 + 4e3 * look**2, 1e5] for look in range(20)], "disk: "),
        ("sizes", [[20.0 * look, 1e6, 1e5 + 4e3 * look**2] for look in range(20)], "logs: "),
    ],
)  # fmt: skip
def test_each_promise_that_is_broken_makes_it_red(what: str, changed: Any, said: str) -> None:
    record = copy.deepcopy(GREEN) | {what: changed}
    [wrong] = judged(record)
    assert wrong.startswith(said)


def test_a_fault_explains_lines_about_its_device_until_a_while_after_it() -> None:
    one = Planting("kill -9", "m02", 0.0, fixed=10.0, over=20.0, keys={("m02", "offline")})
    assert one.explains(("m02", "slow"), 79.0)
    assert not one.explains(("m02", "slow"), 81.0)
    assert not one.explains(("m03", "offline"), 30.0)
    assert Planting("no broker", "broker", 0.0).explains(("m03", "offline"), 30.0)
