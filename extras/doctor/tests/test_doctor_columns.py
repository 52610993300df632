"""The rules about columns, each just beyond its limit and just within it. Numbers alone: no file, no run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from covey.coordinator.odd import Odd
from covey.extras.doctor import columns, moments
from covey.extras.doctor.columns import Numbers, numbers_of, odd_columns
from covey.extras.doctor.tests.odd_words import kinds, named
from covey.extras.proposals.description import ColumnFacts, DataDescription
from covey.shared.scenario.task import Task

GOOD = Numbers(100.0, 50.0, 5.0)

# -- numbers of a column ---------------------------------------------------------------------------------------------


def test_numbers_come_from_sums() -> None:
    assert numbers_of(0.0, 8.0, 20.0) is None
    assert numbers_of(1.0, 2.0, 4.0) == Numbers(1.0, 2.0, 0.0)
    assert numbers_of(4.0, 8.0, 20.0, rows=8.0) == Numbers(4.0, 2.0, 1.0, missing=0.5)
    assert numbers_of(4.0, 8.0, 20.0, rows=3.0) == Numbers(4.0, 2.0, 1.0)
    assert numbers_of(4.0, 8.0, 16.0 * (1 + 1.1e-10)).std > 0  # type: ignore[union-attr]
    assert numbers_of(4.0, 8.0, 16.0 * (1 + 0.9e-10)).std == 0  # type: ignore[union-attr]


def test_facts_of_numbers() -> None:
    assert Numbers(10.0, 3.0, 4.0).size == 5.0
    assert Numbers(10.0, 3.0, 4.0).effective == pytest.approx(3.6)
    assert Numbers(10.0, 0.0, 0.0).effective == 0.0
    assert Numbers(10.0, -100.0, 0.99e-4).is_flat
    assert not Numbers(10.0, 100.0, 1.01e-4).is_flat
    assert Numbers(10.0, 0.3, math.sqrt(0.21)).may_be_flags
    assert not Numbers(10.0, 0.3, 0.4).may_be_flags
    assert Numbers(10.0, 0.3, 0.4, few_values=True).may_be_flags
    assert not Numbers(10.0, 0.3, math.sqrt(0.21), few_values=False).may_be_flags
    assert not Numbers(10.0, 1.2, math.sqrt(1.2)).may_be_flags
    assert Numbers(10.0, 0.0, 0.0).may_be_flags
    assert Numbers(10.0, 1.0, 0.0).may_be_flags
    assert Numbers(10.0, 0.3, math.sqrt(0.21 * (1 + 0.9e-4))).may_be_flags
    assert not Numbers(10.0, 0.3, math.sqrt(0.21 * (1 + 1.1e-4))).may_be_flags
    assert Numbers(10.0, 0.0, math.sqrt(0.9e-7)).may_be_flags
    assert not Numbers(10.0, 0.0, math.sqrt(1.1e-7)).may_be_flags


def test_a_group_is_a_third_of_a_small_fleet_and_a_tenth_of_a_large_one() -> None:
    sizes = {2: 2, 3: 2, 6: 2, 7: 3, 8: 3, 9: 3, 12: 3, 30: 3, 31: 4, 100: 10}
    assert {count: columns.group_size(count) for count in sizes} == sizes
    assert columns.are_few([1], range(3))
    assert not columns.are_few([1], range(2))
    assert not columns.are_few([1, 2], range(3))


def outliers(*values: float) -> list[int]:
    """The places of those among logarithms that are far from the others."""
    return [int(name) for name in columns.outliers({f"{n}": one for n, one in enumerate(values)})]


def test_an_outlier_is_ten_times_the_median_and_many_deviations_away_and_alone() -> None:
    assert outliers(0, 1.0) == []
    assert outliers(0, 0, 1.0) == [2]
    assert outliers(0, 0, 0.99) == []
    assert outliers(0, 0, -1.0) == [2]
    assert outliers(0, 0, 0, 0, 2, 2, 2) == [], "as many as a group"
    assert outliers(0, 0, 0, 0, 0, 2, 2) == [5, 6]
    assert outliers(0, 0, 1.0, 0, -1.0) == [2, 4]
    # a median distance of 0.2 is 0.2 * 1.4826 * 6 = 1.779
    assert outliers(0.2, -0.2, 0, -0.2, 0.2, 0, 1.78) == [6]
    assert outliers(0.2, -0.2, 0, -0.2, 0.2, 0, 1.77) == []
    # the next one is near: levels that spread
    assert outliers(0, 0, 0, 0, 0.6, 1.05) == []
    assert outliers(0, 0, 0, 0, 0.5, 1.05) == [5]
    assert outliers(-0.2, -0.2, -0.2, -0.2, 0, 0.2, 0.2, 0.9, 1.785) == []
    assert outliers(-0.2, -0.2, -0.2, -0.2, 0, 0.2, 0.2, 0.9, 1.795) == [8]


# -- columns ---------------------------------------------------------------------------------------------------------


def column(
    *others: Numbers, count: int = 10, usual: Numbers = GOOD, apart: float = 0.02
) -> dict[str, Numbers]:
    """The column of a fleet whose last devices are these; means differ a little, as they do."""
    rest = count - len(others)
    common = [
        Numbers(
            usual.count + n, usual.mean + apart * usual.std * n, usual.std, usual.missing, usual.few_values
        )
        for n in range(rest)
    ]  # fmt: skip
    return {f"gw-{n}": one for n, one in enumerate([*common, *others])}


FULL = {f"gw-{n}": Numbers(1000.0 + n, 50.0, 5.0) for n in range(30)}  # a column that all have


def odd_in(*others: Numbers, target: str = "", **how: Any) -> list[tuple[str, str]]:
    of = column(*others, **how)
    full = {name: FULL[name] for name in of}
    return named(odd_columns({"full": full, "load": of}, target))


def scaled(factor: float, shift: float = 0.0, usual: Numbers = GOOD, **changed: Any) -> Numbers:
    values = {"count": usual.count, **changed}
    return Numbers(mean=factor * usual.mean + shift, std=abs(factor) * usual.std, **values)


def test_nothing_is_odd_about_a_column_that_is_alike() -> None:
    assert odd_in() == []
    assert list(odd_columns({})) == []


SCALES: Mapping[str, tuple[Numbers, str]] = {
    "ten times, as units differ": (scaled(10.0), "unit"),
    "a lost comma": (scaled(0.1), "unit"),
    "twelve times": (scaled(12.0), "scale"),
    "a twelfth": (scaled(1 / 12.0), "scale"),
    "nine times": (scaled(9.0), ""),
    "a hundred times, as units differ": (scaled(100.0), "unit"),
    "a hundredth": (scaled(0.01), "unit"),
    "a hundred times, too few values": (scaled(100.0, count=9.0), ""),
    "a hundred times, ten values": (scaled(100.0, count=11.0), "unit"),
    "fahrenheit": (scaled(1.8, 32.0), "unit"),
    "kelvin": (scaled(1.0, 273.15), "unit"),
    "minutes for hours": (scaled(60.0), "unit"),
    "seconds for hours": (scaled(3600.0), "unit"),
    "larger by a known number, with another spread": (Numbers(100.0, 323.0, 8.0), ""),
    "the other sign": (scaled(-1.0), "scale"),
    "the other sign and another spread": (Numbers(100.0, -50.0, 8.0), ""),
    "an offset": (scaled(1.0, 31.0), "scale"),
    "an offset that is small": (scaled(1.0, 29.0), ""),
    "an offset and another spread": (Numbers(100.0, 90.0, 6.6), ""),
    "flat": (Numbers(100.0, 50.0, 0.0), "constant"),
    "flat at another height": (Numbers(100.0, 5000.0, 0.0), "constant"),
    "flat at 0": (Numbers(100.0, 0.0, 0.0), "constant"),
    "all 0, two values": (Numbers(100.0, 0.0, 0.0, few_values=True), "constant"),
    "most cells are missing": (Numbers(100.0, 50.0, 5.0, missing=0.5), "missing"),
    "half of the cells are there": (Numbers(100.0, 50.0, 5.0, missing=0.49), ""),
}


@pytest.mark.parametrize("name", SCALES)
def test_one_device_whose_column_is_another_one(name: str) -> None:
    other, kind = SCALES[name]
    expected = [("gw-9", kind)] if kind else []
    assert odd_in(other) == expected
    is_its_target = kind in ("scale", "unit")
    assert odd_in(other, target="load") == ([("gw-9", "target")] if is_its_target else expected)


def test_a_unit_that_half_of_the_devices_have_is_of_the_smaller_half() -> None:
    half = [scaled(1.8, 32.0 + n) for n in range(4)]
    assert odd_in(*half) == [("gw-6, gw-7, gw-8 and 1 more", "unit")]
    five = [scaled(1.8, 32.0 + n) for n in range(5)]
    [odd] = odd_columns({"full": FULL, "load": column(*five)})
    assert odd.devices == ("gw-5", "gw-6", "gw-7", "gw-8", "gw-9")
    assert odd.what == "'load' is about 124 here and about 50.2 on 5 others: °C and °F?"
    assert odd.weight == 5.0
    # levels of the others reach so far
    far: dict[str, Any] = {"usual": GOOD, "apart": 0.3}
    assert odd_in(Numbers(100.0, 1.8 * 56 + 32 - 15, 9.0), **far) == [("gw-9", "unit")]
    assert odd_in(Numbers(100.0, 1.8 * 56 + 32 - 25, 9.0), **far) == []
    [odd] = odd_columns({"full": FULL, "load": column(scaled(0.01))})
    assert (
        odd.what
        == "'load' is about 0.5 here and about 50.4 on 9 others: units that differ by a factor of 100?"
    )
    [odd] = odd_columns({"full": FULL, "load": column(scaled(100.0))})
    assert "about 50.4 on 9 others" in odd.what
    assert odd_in(scaled(100.0), count=4) == [("gw-3", "unit")]
    assert odd_in(scaled(100.0), count=2) == [("gw-1", "unit")]
    seven = [scaled(1.8, 32.0 + n) for n in range(7)]
    assert odd_in(*seven) == [("gw-0, gw-1, gw-2", "unit")]


def test_ten_times_is_a_unit_on_a_few_devices_among_others_that_are_alike() -> None:
    assert odd_in(scaled(10.0), count=4) == [("gw-3", "unit")]
    assert odd_in(scaled(10.0), count=3) == [], "two others show no spread"
    for factor in (8.9, 11.2, 3.28):
        assert odd_in(scaled(factor), usual=GOOD) in ([], [("gw-9", "scale")]), factor
    group = [scaled(10.0 + 0.02 * n) for n in range(5)]
    assert odd_in(*group) == [], "as many as a group"
    sizes = [scaled(one) for one in (1.0, 1.5, 2.2, 3.0, 10.0)]
    assert odd_in(*sizes, count=5) == [], "sites of other sizes"
    assert odd_in(Numbers(100.0, 500.0, 5.0)) == [("gw-9", "scale")], "another spread"


def test_two_devices_with_two_other_units_hide_each_other_in_no_way() -> None:
    fahrenheit, kelvin, times = scaled(1.8, 32.0), scaled(1.0, 273.15), scaled(1000.0)
    for others, expected in {
        (fahrenheit, kelvin): ["gw-8", "gw-9"],
        (kelvin, fahrenheit): ["gw-8", "gw-9"],
        (fahrenheit, times): ["gw-8", "gw-9"],
        (kelvin, scaled(0.01)): ["gw-8", "gw-9"],
        (scaled(10.0), scaled(0.01)): ["gw-8", "gw-9"],
    }.items():
        assert sorted(odd_in(*others)) == [(name, "unit") for name in expected]
    # one that is away in another way hides none
    assert odd_in(fahrenheit, scaled(1.0, 200.0)) == [("gw-8", "unit"), ("gw-9", "scale")]
    assert odd_in(fahrenheit, scaled(12.0)) == [("gw-8", "unit"), ("gw-9", "scale")]
    three = [scaled(1.8, 32.0 + n) for n in range(3)]
    assert odd_in(*three, kelvin) == [("gw-6, gw-7, gw-8", "unit"), ("gw-9", "unit")]


def unit(low: Numbers, high: Numbers, reach: float = 0.0) -> str:
    return columns._unit_of(low, high, reach) or ""


def test_a_unit_explains_mean_and_spread_together() -> None:
    low = Numbers(100.0, 20.0, 2.0)
    assert unit(low, Numbers(100.0, 68.0, 3.6)) == "°C and °F"
    assert unit(low, Numbers(100.0, 68.0, 3.6 * 1.29)) == "°C and °F"
    assert unit(low, Numbers(100.0, 68.0, 3.6 * 1.31)) == ""
    assert unit(low, Numbers(100.0, 68.0, 3.6 / 1.31)) == ""
    assert unit(low, Numbers(100.0, 68.0 + 3.6, 3.6)) == "°C and °F"
    assert unit(low, Numbers(100.0, 68.0 + 3.7, 3.6)) == ""
    assert unit(low, Numbers(100.0, 68.0 + 3.7, 3.6), 0.1) == "°C and °F"
    assert unit(low, Numbers(100.0, 293.15, 2.0)) == "°C and K"
    assert unit(Numbers(100.0, 150.0, 2.0), Numbers(100.0, 302.0, 3.6)) == "°C and °F"
    assert unit(Numbers(100.0, 151.0, 2.0), Numbers(100.0, 303.8, 3.6)) == ""
    assert unit(low, Numbers(100.0, 1200.0, 120.0)) == "seconds and minutes"
    assert unit(low, Numbers(100.0, 1080.0, 120.0)) == "seconds and minutes"
    assert unit(Numbers(100.0, 200.0, 20.0), Numbers(100.0, 12e3, 1200.0)) == "seconds and minutes"
    assert unit(low, Numbers(100.0, 72_000.0, 7200.0)) == "seconds and hours"
    assert unit(low, Numbers(100.0, 64_800.0, 7200.0)) == "seconds and hours"
    assert unit(low, Numbers(100.0, 2000.0, 200.0)) == "units that differ by a factor of 100"
    assert unit(low, Numbers(100.0, 200.0, 20.0)) == "", "groups may differ by ten times"
    assert unit(low, Numbers(100.0, 2000.0, 300.0)) == ""
    assert unit(low, Numbers(100.0, -68.0, 3.6)) == ""
    assert unit(Numbers(100.0, 20.0, 19.0), Numbers(100.0, 68.0, 34.2)) == "", (
        "one within the other"
    )
    assert unit(Numbers(100.0, 20.0, 12.9), Numbers(100.0, 68.0, 23.3)) == "°C and °F"


def camps(**sizes: float) -> Any:
    return columns._camps(sizes)


def test_camps_have_a_gap_that_is_wider_than_either_by_far() -> None:
    assert camps(a=1.0, b=1.6) == (["a"], ["b"])
    assert camps(a=1.0, b=1.4) is None
    assert camps(b=1.0, a=1.0, c=2.0) == (["a", "b"], ["c"])
    assert camps(a=1.0, b=1.5, c=3.5) == (["a", "b"], ["c"])
    assert camps(a=1.0, b=1.5, c=3.3) is None
    assert camps(a=1.0, b=2.0, c=3.1) is None


def test_flags_and_rare_events_have_no_scale() -> None:
    flags = Numbers(1000.0, 0.001, math.sqrt(0.001 * 0.999))
    assert odd_in(Numbers(1000.0, 0.5, 0.5), usual=flags) == []
    codes = Numbers(100.0, 1.5, 0.5, few_values=True)
    for times in (12.0, 100.0):
        assert odd_in(scaled(times, usual=codes, few_values=True), usual=codes, apart=0) == []
    assert odd_in(scaled(1.0, 10.0, usual=codes, few_values=True), usual=codes, apart=0) == []
    rain = Numbers(900.0, 0.5, 9.0)  # mostly 0: three values carry the sum
    assert odd_in(Numbers(900.0, 8.0, 100.0), usual=rain, apart=0) == []
    many = Numbers(9000.0, 0.5, 9.0)
    assert odd_in(Numbers(9000.0, 6.0, 108.0), usual=many, apart=0) == [("gw-9", "scale")]
    assert odd_in(Numbers(9000.0, 40.0, 93.0), usual=many, apart=0) == [], "rain fell more often"
    assert odd_in(scaled(100.0, usual=rain), usual=rain, apart=0) == []
    debts = Numbers(900.0, -0.5, 9.0)
    assert odd_in(Numbers(900.0, -8.0, 100.0), usual=debts, apart=0) == []
    assert not columns._is_mixed({"a": debts, "b": Numbers(9.0, 0.0, 1.0)})
    assert not columns._is_mixed({"a": GOOD, "b": Numbers(9.0, 0.0, 1.0)})
    about_0 = [Numbers(100.0, -0.2, 1.0), Numbers(100.0, -0.3, 1.0)]
    assert odd_in(*about_0, Numbers(100.0, -0.1, 12.0), usual=Numbers(100.0, 0.1, 1.0)) == [("gw-9", "scale")]  # fmt: skip
    assert odd_in(*about_0, Numbers(100.0, 12.0, 120.0), usual=Numbers(100.0, 0.1, 1.0)) == [("gw-9", "unit")]  # fmt: skip
    assert odd_in(Numbers(100.0, -53.0, 530.0), usual=GOOD) == [("gw-9", "scale")]


TINY = Numbers(100.0, 0.05, 0.005)


def test_scales_of_small_and_of_constant_numbers() -> None:
    assert odd_in(scaled(12.0, usual=TINY), usual=TINY) == [("gw-9", "scale")]
    flat = Numbers(100.0, 50.0, 0.0)
    assert odd_in(Numbers(100.0, 600.0, 60.0), usual=flat, apart=0) == [("gw-9", "scale")]
    assert odd_in(Numbers(100.0, 50.0, 5.0), usual=flat, apart=0) == []
    assert odd_in(usual=Numbers(100.0, 0.0, 0.0)) == []
    assert list(odd_columns({"load": {}})) == []
    assert odd_in(Numbers(9.0, 50.0, 0.0)) == []
    assert odd_in(Numbers(10.0, 50.0, 0.0)) == [("gw-9", "constant")]


def test_the_words_of_a_scale() -> None:
    found = [
        odd
        for other in (scaled(12.0), scaled(1 / 12.0), scaled(-1.0))
        for odd in odd_columns({"full": FULL, "load": column(other)})
    ]
    assert [odd.what for odd in found] == [
        "'load' is 11.89 times the fleet's median: 603, there 50.7",
        "'load' is 12.08 times smaller than the fleet's median: 4.187, there 50.6",
        "'load' is about -50 here and about 50.35 on the others: the sign is wrong?",
    ]
    assert [odd.next for odd in found] == ["on the device: agent check --propose --data DATA"] * 3
    assert found[2].weight == 1.0
    assert found[0].weight == pytest.approx(math.log10(603 / 50.7), abs=0.01)
    assert found[1].weight == pytest.approx(math.log10(50.6 / 4.187), abs=0.01)


def signs(*others: Numbers, **how: Any) -> list[str]:
    """Whose sign is wrong."""
    found = odd_columns({"load": column(*others, **how)})
    return [odd.who for odd in found if "sign" in odd.what]


def test_a_sign_is_wrong_only_where_the_others_have_one() -> None:
    for mean, expected in ((15.6, ["gw-9"]), (14.0, [])):
        usual = Numbers(100.0, mean, 5.0)
        assert signs(scaled(-1.0, usual=usual), usual=usual, apart=0) == expected
    three = [scaled(-1.0, -0.1 * n) for n in range(3)]
    assert odd_in(*three) == [], "a group"
    assert signs(*three[:2]) == ["gw-8", "gw-9"]
    assert odd_in(scaled(-1.0), count=2) == []
    assert signs(scaled(-1.0), count=3) == ["gw-2"]
    assert signs(Numbers(100.0, -55.3, 5.0)) == ["gw-9"]
    assert signs(Numbers(100.0, -55.6, 5.0)) == []
    assert signs(scaled(-1.0, usual=TINY), usual=TINY) == ["gw-9"]


def test_an_offset_is_one_of_numbers_that_vary_alike() -> None:
    assert odd_in(scaled(1.0, 0.04, usual=TINY), usual=TINY) == [("gw-9", "scale")]
    three = [scaled(1.0, 40 + 0.1 * n) for n in range(3)]
    assert odd_in(*three) == [], "a group"
    [odd] = odd_columns({"full": FULL, "load": column(scaled(1.0, 40.0))})
    assert odd.what == "'load' is about 90 here and about 50.45 on the others"
    assert 0.0079 < odd.weight < 0.008


def test_a_constant_is_odd_where_the_others_change() -> None:
    flat = Numbers(100.0, 50.0, 0.0)
    assert odd_in(flat, flat) == [("gw-8, gw-9", "constant")]
    assert odd_in(flat, flat, flat) == [], "more than a fifth"
    assert odd_in(flat, count=3) == [("gw-2", "constant")]
    assert odd_in(flat, count=2) == []
    assert odd_in(flat, usual=Numbers(100.0, 0.3, math.sqrt(0.21))) == [], "flags"
    rain = Numbers(100.0, 1.0, 0.75)
    assert odd_in(Numbers(100.0, 0.0, 0.0), usual=rain) == []
    assert odd_in(Numbers(100.0, 0.0, 0.0), usual=Numbers(100.0, 1.0, 0.6)) == [("gw-9", "constant")]  # fmt: skip
    assert odd_in(Numbers(100.0, 1.0, 0.0), usual=rain) == [("gw-9", "constant")]
    # a pixel at the edge: 0 or nearly 0 in the north, and inverted in the south
    inverted = [Numbers(100.0, 253.0, 2.0)] * 3
    assert odd_in(Numbers(100.0, 0.0, 0.0), rain, *inverted, count=5) == []
    assert odd_in(Numbers(100.0, 0.0, 0.0), *inverted, count=4) == [("gw-0", "constant")]
    # the height of a place: it differs from one to another, and hardly changes
    heights = [Numbers(100.0, 100.0 * n, 1.0) for n in range(1, 9)]
    assert odd_in(*heights, flat, count=9) == []
    hills = [Numbers(100.0, 100.0 * n, 50.0) for n in range(1, 9)]
    assert odd_in(*hills, flat, count=9) == []
    steep = [Numbers(100.0, 100.0 * n, 99.0) for n in range(1, 9)]
    assert odd_in(*steep, flat, count=9) == [("gw-8", "constant")]
    [odd] = odd_columns({"full": FULL, "load": column(flat)})
    assert odd.what == "'load' is 50 in all its rows, and changes on the others"
    assert odd.next == "look at the sensor; on the device: agent check --propose --data DATA"
    assert odd.weight == 100.0


def test_a_number_that_moves_in_a_few_rows_alone_is_odd_where_the_others_move() -> None:
    """2 % of the rows are as they were: of sums the deviation shows it, of a description the share of the most frequent number."""
    stuck = Numbers(100.0, 51.0, 5 * math.sqrt(0.02))
    assert odd_in(stuck) == [("gw-9", "constant")]
    assert odd_in(stuck, stuck) == [("gw-8, gw-9", "constant")]
    assert odd_in(stuck, stuck, stuck) == [], "a group"
    assert odd_in(stuck, count=3) == [("gw-2", "constant")]
    assert odd_in(stuck, count=2) == []
    [odd] = odd_columns({"full": FULL, "load": column(stuck)})
    assert odd.what == "'load' hardly changes: its deviation is 0.7071, on the others 5"
    assert odd.next == "look at the sensor; on the device: agent check --propose --data DATA"
    assert odd_in(Numbers(100.0, 50.0, 1.24)) == [("gw-9", "constant")]
    assert odd_in(Numbers(100.0, 50.0, 1.26)) == []
    assert odd_in(Numbers(24.0, 50.0, 0.7)) == [], "too few to tell"
    # other levels, rain, flags, the height of a place, and fleets whose sites vary as they like
    assert odd_in(Numbers(100.0, 8.0, 0.8)) == []
    assert odd_in(Numbers(100.0, 8.0, 0.8), usual=Numbers(100.0, 50.0, 25.0)) == [("gw-9", "constant")]  # fmt: skip
    assert odd_in(Numbers(100.0, 8.0, 4.0), usual=Numbers(100.0, 50.0, 25.0)) == [], "it is a level"
    assert odd_in(Numbers(900.0, 0.3, 0.5), usual=Numbers(900.0, 0.5, 9.0), apart=0) == []
    assert odd_in(Numbers(100.0, 0.01, math.sqrt(0.0099)), usual=Numbers(100.0, 0.3, math.sqrt(0.21)), apart=0) == []  # fmt: skip
    heights = [Numbers(100.0, 100.0 * n, 1.0) for n in range(1, 9)]
    assert odd_in(*heights, Numbers(100.0, 400.0, 0.1), count=9) == []
    free = [Numbers(100.0, 50.0, std) for std in (1.0, 2.0, 4.0, 8.0, 16.0, 0.2)]
    assert odd_in(*free, count=6) == []

    def shared(most: float, *others: float) -> list[tuple[str, str]]:
        found = [Numbers(100.0, 50.0 + n, 5.0, 0.0, False, one) for n, one in enumerate(others)]
        return odd_in(*found, Numbers(100.0, 90.0, 9.0, 0.0, False, most), count=len(found) + 1)

    assert shared(0.9, 0.1, 0.1, 0.45) == [("gw-3", "constant")], "wherever it sticks"
    assert shared(0.89, 0.1, 0.1, 0.1) == []
    assert shared(0.98, 0.1, 0.46, 0.46) == [], "mostly one number: rain"
    assert shared(0.98, 0.1, 0.98, 0.1) == [], "a group"
    of = {f"gw-{n}": Numbers(100.0, 50.0 + n, 5.0, 0.0, False, most) for n, most in enumerate((0.02, 0.02, 0.98))}  # fmt: skip
    [odd] = odd_columns({"full": {name: FULL[name] for name in of}, "load": of})
    assert odd.what == "'load' is one number in 98 % of its rows, on the others in 2 %"


def test_missing_cells_are_odd_where_the_others_have_nearly_all() -> None:
    empty = Numbers(50.0, 50.0, 5.0, missing=0.5)
    some = Numbers(100.0, 50.0, 5.0, missing=0.05)
    assert odd_in(empty, usual=some) == [("gw-9", "missing")]
    assert odd_in(empty, usual=Numbers(100.0, 50.0, 5.0, missing=0.06)) == []
    assert odd_in(empty, empty, empty, usual=some) == [], "a group"
    assert odd_in(Numbers(3.0, 50.0, 5.0, missing=0.97)) == [("gw-9", "missing")], "of few values, too"  # fmt: skip
    [odd] = odd_columns({"full": FULL, "load": column(empty, usual=some)})
    assert odd.what == "'load' is missing in 50 % of its rows, on the others in 5 %"
    assert odd.weight == 0.5


def test_swapped_columns_look_like_each_other() -> None:
    warm, wet = Numbers(100.0, 15.0, 5.0), Numbers(100.0, 60.0, 12.0)

    def odd(own: Numbers, other: Numbers, count: int = 10, target: str = "") -> list[Odd]:
        return list(
            odd_columns(
                {
                    "full": {f"gw-{n}": FULL[f"gw-{n}"] for n in range(count)},
                    "temp": column(own, count=count, usual=warm),
                    "wet": column(other, count=count, usual=wet),
                },
                target,
            )
        )

    [swap] = odd(wet, warm)
    assert (swap.who, swap.kind) == ("gw-9", "swap")
    assert swap.what == "'temp' looks like 'wet' of the others, and the other way round"
    assert swap.weight > 10
    assert odd(wet, warm, target="wet")[0].what.startswith("'temp' looks like the target of")
    assert kinds(odd(wet, wet)) == []
    assert odd(warm, warm) == []
    assert odd(wet, warm, count=2) == []
    assert named(odd(wet, warm, count=3)) == [("gw-2", "swap")]
    few: dict[str, Any] = {"count": 24.0}
    assert "swap" not in kinds(
        odd(Numbers(mean=60.0, std=12.0, **few), Numbers(mean=15.0, std=5.0, **few))
    )
    few = {"count": 25.0}
    assert "swap" in kinds(odd(Numbers(mean=60.0, std=12.0, **few), Numbers(mean=15.0, std=5.0, **few)))  # fmt: skip
    # each looks like the other one only so far
    assert "swap" in kinds(odd(Numbers(100.0, 60.0, 23.0), Numbers(100.0, 15.0, 9.0)))
    assert "swap" not in kinds(odd(Numbers(100.0, 60.0, 24.0), Numbers(100.0, 15.0, 11.0)))


def test_a_swap_is_of_numbers_that_tell_columns_apart() -> None:
    def odd(usual: tuple[Numbers, Numbers], own: tuple[Numbers, Numbers], apart: float = 0.0, others: tuple[Numbers, ...] = ()) -> bool:  # fmt: skip
        of = {name: column(*others, mine, usual=theirs, apart=apart) for name, mine, theirs in zip("ab", own, usual, strict=True)}  # fmt: skip
        return "swap" in kinds(odd_columns({"full": FULL, **of}))

    def near(mean: float, std: float = 5.0) -> Numbers:
        return Numbers(100.0, mean, std)

    def is_seen(a: float, b: float, apart: float = 0.0) -> bool:
        middle = 5 * 4.5 * apart
        return odd((near(a), near(b)), (near(b + middle), near(a + middle)), apart)

    assert is_seen(15, 25)
    assert not is_seen(15, 19.5), "within a deviation"
    assert not odd((near(15), near(25)), (near(22.5), near(17.5))), "half way"
    assert not is_seen(15, 25, apart=0.3)
    assert not is_seen(15, 30, apart=0.3)
    assert is_seen(15, 45, apart=0.3)
    rain, flood = Numbers(900.0, 0.5, 9.0), Numbers(900.0, 8.0, 100.0)
    assert not odd((rain, flood), (flood, rain))
    low, high = Numbers(100.0, 0.1, 1.0), Numbers(100.0, 0.1, 50.0)
    assert odd((low, high), (high, low), others=(Numbers(100.0, -0.1, 7.0),))
    assert columns._far(Numbers(10.0, 50.0, 0.0), GOOD) == 1.0


def test_a_column_is_swapped_with_one_other() -> None:
    small, large = Numbers(100.0, 5.0, 1.0), Numbers(100.0, 900.0, 40.0)
    for usual in ((small, large, large), (small, small, large)):
        own = [large if one is small else small for one in usual]
        of = {name: column(mine, usual=theirs) for name, mine, theirs in zip("abc", own, usual, strict=True)}  # fmt: skip
        assert sorted(kinds(odd_columns({"full": FULL, **of}))) == ["scale", "swap"]


def test_a_swap_explains_what_else_is_odd_about_its_columns() -> None:
    small, large = Numbers(100.0, 5.0, 1.0), Numbers(100.0, 900.0, 40.0)
    found = odd_columns(
        {"full": FULL, "a": column(large, usual=small), "b": column(small, usual=large)}
    )
    assert named(found) == [("gw-9", "swap")]
    # three columns that went round: one pair, and the third is odd by itself
    third = Numbers(100.0, 70_000.0, 900.0)
    found = odd_columns(
        {
            "full": FULL,
            "a": column(large, usual=small),
            "b": column(small, usual=large),
            "c": column(small, usual=third),
        }
    )
    assert [kind for _, kind in named(found)] == ["scale", "swap"]


def test_copies_have_the_same_sums_in_all_columns() -> None:
    one = {"gw-1": Numbers(10.0, 5.0, 1.0), "gw-2": Numbers(10.0, 5.0 + 1e-10, 1.0)}
    assert named(columns.copies({"a": one})) == [("gw-1, gw-2", "copy")]
    assert [odd.weight for odd in columns.copies({"a": one})] == [2.0]
    assert named(odd_columns({"a": one})) == [("gw-1, gw-2", "copy")]
    other = {"gw-1": Numbers(10.0, 5.0, 1.0), "gw-2": Numbers(10.0, 5.0 + 1e-7, 1.0)}
    assert named(columns.copies({"a": one, "b": other})) == []
    assert named(columns.copies({"a": {n: Numbers(9.0, 5.0, 1.0) for n in "xy"}})) == []
    assert named(columns.copies({"a": {n: Numbers(99.0, 5.0, 0.0) for n in "xy"}})) == []
    assert named(columns.copies({"a": {"x": GOOD, "y": Numbers(101.0, 50.0, 5.0)}})) == []
    assert named(columns.copies({"a": {"x": GOOD, "y": Numbers(100.0, 50.0, 6.0)}})) == []


def rows(*counts: float) -> list[tuple[str, str]]:
    return named(columns.few_rows({f"gw-{n}": count for n, count in enumerate(counts)}))


def test_few_rows_are_a_tenth_of_the_others() -> None:
    assert rows(1000, 1100, 100) == [("gw-2", "rows")]
    assert rows(1000, 1100, 101) == []
    assert rows(1000, 1100, 20_000) == [], "many are no fault"
    assert rows(1000, 1100, 0) == [], "none yet"
    assert rows(1000, 1100, 1) == [("gw-2", "rows")]
    assert rows() == []
    [odd] = columns.few_rows({"a": 1000, "b": 1100, "c": 20})
    assert odd.what == "it has 20 rows to train with, the fleet's median is 1000"
    assert odd.weight == 50.0
    # the fullest column counts
    of = {"gw-9": Numbers(10.0, 50.0, 5.0), "gw-8": Numbers(9.0, 50.0, 5.0)}
    assert named(odd_columns({"load": {**column(), **of}})) == [("gw-8", "rows"), ("gw-9", "rows")]
    assert named(odd_columns({"load": {**column(), **of}, "full": {"gw-9": FULL["gw-9"]}})) == [("gw-8", "rows")]  # fmt: skip


# -- columns from what devices send ----------------------------------------------------------------------------------

TASK: Mapping[str, Any] = {
    "features": [2],
    "columns": ["temp", "wind"],
    "target": "load",
    "classes": None,
    "model": {"name": "linear"},
}  # fmt: skip


def test_columns_of_reports_have_the_names_of_the_task() -> None:
    task = Task.model_validate(TASK)
    sums = {"sum": [8.0, 40.0], "square": [20.0, 410.0], "count": [4.0, 2.0]}
    target = {"count": 4.0, "sum": 8.0, "square": 20.0}
    found = moments.columns_of_reports([("gw-1", {**sums, "target": target}), ("gw-2", {})], task)
    assert found["temp"] == {"gw-1": Numbers(4.0, 2.0, 1.0)}
    assert found["wind"]["gw-1"].missing == 0.5
    assert found["load"] == {"gw-1": Numbers(4.0, 2.0, 1.0)}
    assert set(found) == {"temp", "wind", "load"}


def test_columns_of_images_are_their_channels() -> None:
    task = Task.model_validate({"features": [2, 4, 4], "classes": 2, "model": {"name": "linear"}})
    sums = {"sum": [8.0, 0.0], "square": [20.0, 0.0], "count": 4.0}
    found = moments.columns_of_reports([("gw-1", sums)], task)
    assert found["channel 1"] == {"gw-1": Numbers(4.0, 2.0, 1.0)}
    assert found["channel 2"]["gw-1"].mean == 0.0
    assert moments.target_of(task) == ""
    assert moments.columns_of_reports([("gw-1", {**sums, "sum": [], "square": [], "count": []})], task) == {}  # fmt: skip


def test_the_target_of_a_forecast_without_a_name_has_one() -> None:
    task = Task.model_validate({"features": [2], "classes": None, "model": {"name": "linear"}})
    assert moments.target_of(task) == "target"


def facts(name: str, **changed: Any) -> ColumnFacts:
    fields = {"cells": 10, "missing": 5, "numbers": 5, "kind": "number", "distinct": 3, "mean": 2.0, "std": 1.0}  # fmt: skip
    return ColumnFacts(name=name, **{**fields, **changed})


def test_columns_of_descriptions_are_those_of_measurements() -> None:
    others = [facts("steps", steps="rising"), facts("words", kind="word"), facts("empty", mean=None), facts("none", std=None)]  # fmt: skip
    device = DataDescription(source="gw-1", kind="table", samples=10, columns=(facts("a"), *others))
    assert moments.columns_of_descriptions([device]) == {"a": {"gw-1": Numbers(5.0, 2.0, 1.0, 0.5, False)}}  # fmt: skip
    flags = facts("y", distinct=2, cells=0, missing=0)
    device = DataDescription(source="gw-1", kind="arrays", samples=10, target=flags)
    assert moments.columns_of_descriptions([device]) == {"y": {"gw-1": Numbers(5.0, 2.0, 1.0, 0.0, True)}}  # fmt: skip
