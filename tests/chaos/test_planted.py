"""The campaign of planted faults: what counts as named, and that it fails where it planted nothing."""

from __future__ import annotations

from covey.coordinator.odd import KINDS, Odd
from tests.chaos import planted
from tests.chaos.planted import COPIED, FAULTS, Found, about, plan, table


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
    assert about(copied, "m01") == {("m01", "copy"), (COPIED["m01"], "copy")}


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
    assert len(COPIED) == planted.DEVICES
