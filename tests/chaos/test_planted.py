"""The campaign of planted faults: what counts as named, and that it fails where it planted nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from covey.coordinator.odd import KINDS, Odd
from covey.extras.doctor import columns, examine
from covey.extras.doctor.columns import Numbers, numbers_of
from covey.extras.doctor.examine import Facts
from tests import clock
from tests.chaos.planted import (
    FAULTS,
    HEADER,
    Fault,
    Floor,
    Found,
    Row,
    about,
    plan,
    rows_of,
    table,
    tried,
)


def test_each_fault_is_planted_alone_and_pairs_are_on_two_devices_that_are_no_neighbours() -> None:
    plantings = plan(seed=1, pairs=12)
    alone = [faults[0].name for faults, _ in plantings if len(faults) == 1]
    assert alone == [fault.name for fault in FAULTS]
    assert len(alone) >= 30
    assert len(plantings) == len(alone) + 12
    for faults, devices in plantings[len(alone) :]:
        assert not about(faults[0], devices[0]) & about(faults[1], devices[1])
        assert all(fault.twice for fault in faults)


def test_each_kind_that_a_fault_may_be_named_by_exists() -> None:
    assert {kind for fault in FAULTS for kind in fault.kinds} <= KINDS.keys()
    (copied,) = [fault for fault in FAULTS if fault.kinds == ("copy",)]
    assert about(copied, "m02") == {("m02", "copy"), ("m01", "copy")}


def test_a_planting_is_right_only_if_it_was_named_alone_and_is_over() -> None:
    right = Found(["kill -9"], ["m01"], "m01: offline", named_s=3.0, ended_s=2.0)
    assert right.is_right
    for wrong in (
        Found(["kill -9"], ["m01"], seen=["m02: offline"]),
        Found(["kill -9"], ["m01"], "m01: offline", 3.0),
        Found(["kill -9"], ["m01"], "m01: offline", 3.0, 2.0, false=["m02: slow"]),
    ):
        assert not wrong.is_right
    shown = table([right, Found(["kill -9"], ["m02"])])
    assert "2 plantings, 1 right" in shown
    assert "NOT NAMED" in shown


def test_lines_about_another_device_or_of_another_kind_name_nothing() -> None:
    (killed,) = [fault for fault in FAULTS if fault.name == "kill -9"]
    wanted = about(killed, "m03")
    for line in (Odd(("m02",), "offline", "", ""), Odd(("m03",), "slow", "", "")):
        assert not {(device, line.kind) for device in line.devices} & wanted


class OnPaper(Floor):
    """A floor without a process: doctor looks at the sums of the rows that each device has."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.sheets = {name: rows_of(number) for number, name in enumerate(self.names)}

    def write(self, name: str, rows: list[Row], header: Row = HEADER) -> None:  # type: ignore[override]
        self.sheets[name] = rows

    async def listed(self) -> list[Odd]:
        found: dict[str, dict[str, Numbers]] = {}
        for device, rows in self.sheets.items():
            for place, name in enumerate(HEADER[1:4], start=1):
                cells = [float(row[place]) for row in rows if row[place]]
                sums = (float(len(cells)), sum(cells), sum(cell**2 for cell in cells))
                if (one := numbers_of(*sums, len(rows))) is not None:
                    found.setdefault(name, {})[device] = one
        return examine.examine(Facts(columns=found))


IN_SUMS = [fault for fault in FAULTS if {*fault.kinds} & {"unit", "scale", "constant", "swap", "missing", "rows", "copy"}]  # fmt: skip


@pytest.mark.parametrize("fault", IN_SUMS, ids=lambda fault: fault.name)
@clock.virtual(within_s=3600)
async def test_a_fault_that_sums_show_is_named_first_and_over_when_it_is_fixed(
    tmp_path: Path, fault: Fault
) -> None:
    found = await tried(OnPaper(tmp_path), [fault], ["m04"])
    assert found.is_right, found


def nothing(*_: object, **__: object) -> list[Odd]:
    return []


def accuses(real: Callable[[Facts], list[Odd]]) -> Callable[[Facts], list[Odd]]:
    """Doctor that lists a healthy device once anything is wrong."""
    wrong = Odd(("m07",), "slow", "all wait for it", "")
    return lambda facts: [*found, wrong] if (found := real(facts)) else []


def remembers(real: Callable[[Facts], list[Odd]]) -> Callable[[Facts], list[Odd]]:
    """Doctor whose alarms never end."""
    known: dict[str, Odd] = {}

    def listed(facts: Facts) -> list[Odd]:
        known.update({one.sentence: one for one in real(facts)})
        return [*known.values()]

    return listed


def turned_round(real: Callable[[Facts], list[Odd]]) -> Callable[[Facts], list[Odd]]:
    """Doctor that lists what matters last."""
    version = Odd(("m02",), "version", "Covey 0.0.9", "")
    return lambda facts: [version, *found] if (found := real(facts)) else []


@pytest.mark.parametrize("broken", [accuses, remembers, turned_round, "_units"])
@clock.virtual(within_s=3600)
async def test_the_campaign_fails_on_a_doctor_that_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: object
) -> None:
    (fault,) = [fault for fault in FAULTS if fault.name == "°C as °F"]
    if isinstance(broken, str):
        monkeypatch.setattr(columns, broken, nothing)
        monkeypatch.setattr(columns, "_shifts", nothing)  # it would be named by another kind
    else:
        assert callable(broken)
        monkeypatch.setattr(examine, "examine", broken(examine.examine))
    found = await tried(OnPaper(tmp_path), [fault], ["m04"])
    assert not found.is_right, found
    assert "1 planting, 0 right" in table([found])
