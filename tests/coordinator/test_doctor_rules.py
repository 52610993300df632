"""The rules of `coordinator doctor`, each just beyond its limit and just within it. Numbers alone: no file, no run, no process."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from covey.coordinator.doctor import columns, devices, examine, moments
from covey.coordinator.doctor.columns import Numbers, numbers_of, odd_columns
from covey.coordinator.doctor.devices import Broker, Seen, odd_devices
from covey.coordinator.doctor.odd import KINDS, Odd, ranked, read_odd, without
from covey.shared.mqtt.duplicate_ids import session_id
from covey.shared.proposal.description import ColumnFacts, DataDescription
from covey.shared.scenario.task import Task
from covey.shared.wire.documents import (
    EXPELLED,
    AgentStatus,
    CoordinatorStatus,
    ModelInUse,
    RosterMessage,
)
from covey.shared.wire.format import FORMAT
from tests.agent.test_deployments import deployment

NOW = 1_900_000_000.0
HOUR, DAY = 3600.0, 86_400.0
GOOD = Numbers(100.0, 50.0, 5.0)


def named(found: Iterable[Odd]) -> list[tuple[str, str]]:
    """Who and why, in the order of the list."""
    return [(odd.who, odd.kind) for odd in ranked(found)]


def kinds(found: Iterable[Odd]) -> list[str]:
    return [kind for _, kind in named(found)]


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
    "ten times": (scaled(10.6), "scale"),
    "a tenth": (scaled(1 / 10.6), "scale"),
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
    assert odd_in(scaled(100.0), count=4) == [("gw-3", "unit")]
    assert odd_in(scaled(100.0), count=2) == [("gw-1", "unit")]
    seven = [scaled(1.8, 32.0 + n) for n in range(7)]
    assert odd_in(*seven) == [("gw-0, gw-1, gw-2", "unit")]


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
    assert odd_in(Numbers(9000.0, 5.4, 97.0), usual=many, apart=0) == [("gw-9", "scale")]
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
    assert odd_in(scaled(10.6, usual=TINY), usual=TINY) == [("gw-9", "scale")]
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
        for other in (scaled(10.6), scaled(1 / 10.6), scaled(-1.0))
        for odd in odd_columns({"full": FULL, "load": column(other)})
    ]
    assert [odd.what for odd in found] == [
        "'load' is 10.51 times the fleet's median: 532.6, there 50.7",
        "'load' is 10.67 times smaller than the fleet's median: 4.741, there 50.6",
        "'load' is about -50 here and about 50.35 on the others: the sign is wrong?",
    ]
    assert [odd.next for odd in found] == ["on the device: agent check --propose --data DATA"] * 3
    assert found[2].weight == 1.0
    assert found[0].weight == pytest.approx(math.log10(532.6 / 50.7), abs=0.01)
    assert found[1].weight == pytest.approx(math.log10(50.6 / 4.741), abs=0.01)


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
    assert odd_in(flat, flat) == [("gw-8", "constant"), ("gw-9", "constant")]
    assert odd_in(flat, flat, flat) == [], "more than a fifth"
    assert odd_in(flat, count=3) == [("gw-2", "constant")]
    assert odd_in(flat, count=2) == []
    assert odd_in(flat, usual=Numbers(100.0, 0.3, math.sqrt(0.21))) == [], "flags"
    rain = Numbers(100.0, 1.0, 0.75)
    assert odd_in(Numbers(100.0, 0.0, 0.0), usual=rain) == []
    assert odd_in(Numbers(100.0, 0.0, 0.0), usual=Numbers(100.0, 1.0, 0.6)) == [("gw-9", "constant")]  # fmt: skip
    assert odd_in(Numbers(100.0, 1.0, 0.0), usual=rain) == [("gw-9", "constant")]
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


# -- devices ---------------------------------------------------------------------------------------------------------

SESSION = session_id(NOW - DAY, "ab")
CALLED = session_id(NOW - 2 * HOUR, "cd")


def status(agent: str = "gw-1", **changed: Any) -> AgentStatus:
    fields = {"session": SESSION, "serial": 3, "online": True, "epoch": f"{CALLED}.1", "version": "2.0.1", "clock": NOW - 5, "samples": 100}  # fmt: skip
    return AgentStatus(agent=agent, **{**fields, **changed})


def caller(**changed: Any) -> CoordinatorStatus:
    return CoordinatorStatus(**{"online": True, "epoch": f"{CALLED}.1", "version": "2.0.1", **changed})  # fmt: skip


KNOWN = {*Seen.__dataclass_fields__} - {"version"}


def odd_about(*, others: int = 2, **changed: Any) -> list[Odd]:
    """All that is odd about a fleet in which gw-1 is another one; keys of `Seen` are meant as such."""
    known = {name: changed.pop(name) for name in list(changed) if name in KNOWN}
    known["version"] = changed.pop("calls", "")
    statuses = {f"gw-{n + 2}": status(f"gw-{n + 2}") for n in range(others)}
    statuses["gw-1"] = status(**changed)
    return ranked(odd_devices(Seen(NOW, statuses, **known)))


def one(**changed: Any) -> Odd:
    [odd] = odd_about(**changed)
    return odd


def test_nothing_is_odd_about_devices_that_are_alike() -> None:
    assert odd_about() == []
    assert odd_about(coordinator=caller()) == []
    assert list(odd_devices(Seen(NOW))) == []


def test_an_expelled_device_is_no_member() -> None:
    gone: dict[str, Any] = {"online": False, "problem": EXPELLED, "twins": 3, "disk_free": 1}
    assert odd_about(**gone) == []
    assert odd_about(**gone, elsewhere={"gw-1": "other"}) != [], "it came back elsewhere"
    assert odd_about(rows={"gw-5": {"problem": EXPELLED}}) == []


def test_a_broker_that_fails_is_the_heaviest() -> None:
    odd = one(broker=Broker("it drops what it acknowledges", since=NOW - 7))
    assert (odd.who, odd.what, odd.next, odd.since, odd.weight) == ("broker", "it drops what it acknowledges", "`broker doctor`", NOW - 7, 9)  # fmt: skip


def test_room_on_disks() -> None:
    odd = one(free=999_999_999)
    assert (odd.who, odd.what, odd.next, odd.weight) == ("coordinator", "1000 MB free on the disk of its runs", "`coordinator prune`", 9)  # fmt: skip
    assert odd_about(free=1_000_000_000) == []
    odd = one(disk_free=(512 << 20) - 1)
    assert (odd.who, odd.kind, odd.what, odd.since) == ("gw-1", "disk", "537 MB free on its disk", NOW - 5)  # fmt: skip
    assert odd_about(disk_free=512 << 20) == []
    assert devices.megabytes(1e9) == "1.0 GB"


def test_certificates_end() -> None:
    odd = one(certificate=NOW)
    assert (odd.who, odd.what, odd.next, odd.since, odd.weight) == ("gw-1", "its certificate has expired", "`broker lab rotate gw-1`", NOW, 0)  # fmt: skip
    assert one(certificate=NOW - HOUR).weight == HOUR
    odd = one(certificate=NOW + DAY)
    assert (odd.what, odd.since) == ("its certificate ends in 1 day", None)
    assert odd.weight == pytest.approx(-1 / 14)
    assert one(certificate=NOW + DAY - 1).what == "its certificate ends in 23 hours"
    assert one(certificate=NOW + 59).what == "its certificate ends in 0 minutes"
    assert one(certificate=NOW + 14 * DAY - 1).what == "its certificate ends in 13 days"
    assert odd_about(certificate=NOW + 14 * DAY) == []
    # an end that most share is the broker's, by whatever way it is known
    odd = one(broker=Broker(until=NOW - 1))
    assert (odd.who, odd.next) == ("broker", "`broker lab renew`")
    assert named(odd_about(broker=Broker(until=NOW - 1), certificate=NOW - 1)) == [("broker", "certificate")]  # fmt: skip
    statuses = {name: status(name, certificate=NOW - 1) for name in ("a", "b")}
    odd = next(iter(odd_devices(Seen(NOW, statuses))))
    assert (odd.who, odd.next) == ("broker", "`broker lab renew`")
    statuses |= {"c": status("c"), "d": status("d")}
    assert [one.who for one in odd_devices(Seen(NOW, statuses))] == ["broker"], "two do not know"
    statuses |= {"c": status("c", certificate=NOW - 2), "d": status("d", certificate=NOW - 3)}
    assert [one.who for one in odd_devices(Seen(NOW, statuses))] == ["a", "b", "c", "d"]


def test_what_a_device_states_itself() -> None:
    odd = one(twins=1)
    assert (odd.kind, odd.next, odd.since) == ("twin id", "give one of them another --id", NOW - DAY)  # fmt: skip
    odd = one(problem="policy of this device: epochs")
    assert (odd.kind, odd.what, odd.next) == ("excluded", "it takes no part: policy of this device: epochs", "on the device: agent lab policy")  # fmt: skip
    assert odd.since == NOW - 5
    assert one(problem="no rows").next == "on the device: agent check DATA"
    assert kinds(odd_about(problem="no rows", online=False)) == []


def test_a_clock_is_off_by_more_than_ten_minutes() -> None:
    assert odd_about(clock=NOW + 600) == []
    odd = one(clock=NOW + 601)
    assert (odd.kind, odd.what, odd.next, odd.weight) == ("clock", "its clock is 10 minutes ahead", "on the device: timedatectl", 601)  # fmt: skip
    assert odd_about(clock=NOW - 2 * HOUR - 600) == [], "it was published before the roll call"
    odd = one(clock=NOW - 2 * HOUR - 601)
    assert odd.what == "its clock is 10 minutes or more behind: it stands still, or was never set"
    assert one(clock=NOW - 2 * HOUR - DAY).what.startswith("its clock is 1 day or more behind")
    assert one(clock=NOW - 3 * HOUR - 1).what.startswith("its clock is 1 hour or more behind")
    assert odd_about(clock=1.6e9 - 600, epoch="") == []
    assert kinds(odd_about(clock=1.6e9 - 601, epoch="")) == ["clock"]
    assert odd_about(clock=None) == []
    assert odd_about(clock=4000.0, online=False) == []
    # the coordinator saw it come
    assert kinds(odd_about(rows={"gw-1": {"behind": 601.0}})) == ["clock"]
    assert odd_about(rows={"gw-1": {"behind": 600.0}}) == []
    assert odd_about(rows={"gw-1": {"behind": None}}) == []


def test_reports_that_are_refused() -> None:
    def odd(row: Mapping[str, Any], **changed: Any) -> Odd:
        [found] = devices.reports_of("gw-1", {"seen": NOW - 9, **row}, status(**changed))
        assert found.kind == "reports"
        return found

    found = odd({"quarantined": "loss: nan", "refusals": {"rate": 2}})
    assert (found.what, found.since, found.weight) == ("in quarantine: loss: nan", NOW - 9, 9)
    assert found.next == "`coordinator lab story gw-1`, then `coordinator lab release gw-1` or `broker expel gw-1`"  # fmt: skip
    found = odd({"refusals": {"rate": 2, "loss": 1}}, refused="loss: nan")
    assert (found.what, found.since) == ("its messages were refused: rate 2, loss 1", NOW - 9)
    assert odd({"set_aside": "its newest report was refused: x", "refusals": {"rate": 2}}).what == "its newest report was refused: x"  # fmt: skip
    found = odd({}, refused="loss: nan")
    assert (found.what, found.since) == ("its newest report was refused: loss: nan", NOW - 5)
    assert found.next == "`coordinator lab story gw-1`"
    assert odd({"set_aside": "its newest report was refused: x"}).what.endswith("refused: x")
    assert named(odd_about(rows={"gw-1": {"quarantined": "loss: nan"}})) == [("gw-1", "reports")]
    assert list(devices.reports_of("gw-1", {})) == []
    assert list(devices.reports_of("gw-1", {}, status())) == []


def test_work_that_fails() -> None:
    def odd(**row: Any) -> Odd:
        [found] = devices.reports_of("gw-1", {"seen": NOW - 9, **row})
        assert (found.kind, found.since) == ("work", NOW - 9)
        return found

    found = odd(failing="no model", failed="another", failures=3)
    assert (found.what, found.next, found.weight) == ("it cannot do its work: no model", "`coordinator lab story gw-1`", 3.0)  # fmt: skip
    assert odd(failed="no model", failures=1).weight == 1.0
    assert list(devices.reports_of("gw-1", {"failed": "no model", "failures": 0})) == []
    for words in ("out of memory", "900 MiB", "largest_model_mb: 3"):
        assert odd(failing=words).next == "on the device: agent lab policy"
    assert odd(failing="x").weight == 0.0


def test_devices_that_are_away() -> None:
    row = {"gw-1": {"seen": NOW - 9}}
    odd = one(online=False, serial=0, rows=row)
    assert (odd.kind, odd.what, odd.next, odd.since) == ("offline", "offline: the broker lost it without a goodbye", "look at its power and network; `broker list`", NOW - 9)  # fmt: skip
    assert kinds(odd_about(online=False, serial=0, certificate=NOW)) == ["certificate"]
    assert kinds(odd_about(online=False, serial=0, certificate=NOW + 20 * DAY)) == ["offline"]
    assert kinds(odd_about(online=False, serial=0, certificate=NOW, waits="for 3")) == ["certificate"]  # fmt: skip
    assert odd_about(online=False) == [], "it said goodbye"
    odd = one(online=False, waits="9 of 10 agents are there", clock=None, rows=row)
    assert (odd.kind, odd.what, odd.next, odd.since) == ("offline", "its agent ended in order, and the run waits: 9 of 10 agents are there", "on the device: agent start", NOW - 9)  # fmt: skip
    assert one(online=False, waits="for 3").since == NOW - 5
    assert odd_about(waits="for 3") == []
    odd = one(rows={"gw-1": {"seen": NOW - 9, "silent": "twice"}}, coordinator=caller(epoch="other"))  # fmt: skip
    assert (odd.what, odd.next, odd.since) == ("online, and sends no reports: twice", "`coordinator lab story gw-1`", NOW - 9)  # fmt: skip


def test_a_roll_call_is_answered_within_two_minutes_and_its_spread() -> None:
    def kinds_at(called: float, online: bool = True, **changed: Any) -> list[str]:
        epoch = f"{session_id(called, 'ef')}.1"
        rest = {f"gw-{n + 2}": status(f"gw-{n + 2}", epoch=epoch) for n in range(2)}
        statuses = {"gw-1": status(**changed), **rest}
        calling = caller(online=online, epoch=epoch, spread_s=30.0)
        return kinds(odd_devices(Seen(NOW, statuses, {"gw-1": {"seen": NOW}}, calling)))

    assert kinds_at(NOW - 150) == []
    assert kinds_at(NOW - 151) == ["silent"]
    assert kinds_at(NOW - 151, online=False) == []
    assert kinds_at(NOW - 151, serial=4) == ["silent"]
    assert odd_about(coordinator=caller(epoch="")) == []
    assert odd_about(coordinator=caller(epoch="short.1")) == [], "nobody knows when it was called"
    odd = one(epoch=f"{CALLED}.0", coordinator=caller(), rows={"gw-1": {"seen": NOW - 9}})
    assert (odd.what, odd.next, odd.since) == ("online by its last word, and has not answered the coordinator's roll call", "look at its power and network", NOW - 9)  # fmt: skip


def test_who_is_known_and_has_no_status() -> None:
    odd = one(rows={"gw-9": {"seen": NOW - 9}})
    assert (odd.who, odd.kind, odd.since, odd.next) == ("gw-9", "silent", NOW - 9, "`broker doctor --credentials FILE` with its file")  # fmt: skip
    assert list(odd_devices(Seen(NOW, {}, {"gw-9": {}}))) == [], "the broker has none at all"
    odd = one(elsewhere={"gw-9": "defualt"})
    assert (odd.who, odd.kind, odd.what) == ("gw-9", "federation", "it is in federation 'defualt', where no coordinator has been")  # fmt: skip
    assert odd_about(elsewhere={"gw-1": "defualt"}) == []


def linked(*losses: int, **changed: Any) -> list[Odd]:
    changed.setdefault("epoch", "")
    statuses = {f"gw-{n}": status(f"gw-{n}", links=lost + 1, **changed) for n, lost in enumerate(losses)}  # fmt: skip
    return ranked(odd_devices(Seen(NOW, statuses)))


def test_links_that_are_lost_twenty_times_a_day() -> None:
    assert linked(0, 0, 19) == []
    [odd] = linked(0, 0, 20)
    assert (odd.who, odd.what, odd.weight) == ("gw-2", "its link was lost 20 times within a day, the others' 0 times", 20)  # fmt: skip
    assert linked(3, 3, 29) == [], "a network that all of them have"
    assert named(linked(3, 3, 30)) == [("gw-2", "link")]
    assert named(linked(0, 20, 0, 30, 0)) == [("gw-3", "link"), ("gw-1", "link")]
    [odd] = linked(0, 20, 30)
    assert (odd.who, odd.kind, odd.weight) == ("broker", "broker", 20)
    assert odd.what == "it drops connections: 2 of 3 devices came back 20 times or so"
    assert named(linked(0, 0, 0, 20, 30)) == [("gw-4", "link"), ("gw-3", "link")]
    assert named(linked(20, 0)) == [("gw-0", "link")]
    assert named(linked(20, 20)) == [("broker", "broker")]
    assert linked(20, -1) == [], "there is no other to compare with"
    assert linked(0, 0, 20, clock=NOW - DAY - 1) == [], "it was the day before"
    assert named(linked(0, 0, 20, clock=NOW - DAY)) == [("gw-2", "link")]
    assert named(linked(0, 0, 20, clock=None)) == [("gw-2", "link")]


def test_a_link_explains_nobody_else() -> None:
    flaps, lost = status(links=40), status("gw-2", online=False, serial=0)
    statuses = {"gw-1": flaps, "gw-2": lost, "gw-3": status("gw-3", links=1)}
    assert named(odd_devices(Seen(NOW, statuses))) == [("gw-2", "offline"), ("gw-1", "link")]


def test_a_broker_that_drops_connections_explains_who_is_away() -> None:
    statuses = {f"gw-{n}": status(f"gw-{n}", links=40) for n in range(4)}
    statuses["gw-4"] = status("gw-4", online=False, serial=0)
    statuses["gw-5"] = status("gw-5", epoch="", links=40)
    assert kinds(odd_devices(Seen(NOW, statuses, coordinator=caller()))) == ["broker"]


def test_versions_of_devices_and_of_the_coordinator() -> None:
    odd = one(version="1.9")
    assert (odd.who, odd.what, odd.next, odd.since) == ("gw-1", "Covey 1.9, most devices have 2.0.1", "update it: pip install --upgrade covey", NOW - DAY)  # fmt: skip
    assert odd_about(version="1.9", online=False) == []
    assert odd_about(version="1.9", others=1) == [], "no version is that of most"
    assert odd_about(version="") == []
    assert odd_about(version="2.0.1.dev4") == []
    assert odd_about(version="2.1") == [], "the first one that was upgraded"
    assert odd_about(version="2.1", calls="2.1") == []
    odd = one(version="10.0", calls="2.0.1")
    assert (odd.who, odd.what, odd.next, odd.weight) == ("gw-1", "Covey 10.0 is newer than the coordinator's 2.0.1", "on the coordinator's machine: pip install --upgrade covey", 8)  # fmt: skip
    assert named(odd_about(calls="2.0")) == [("gw-1, gw-2, gw-3", "version")]
    assert one(version="2.2", calls="2.0").what.startswith("Covey 2.2 is")
    assert odd_about(calls="2.0.1") == []


def test_formats_of_messages() -> None:
    odd = one(format=FORMAT - 1, version="1.9", problem="speaks another format")
    assert (odd.what, odd.next, odd.weight) == (f"Covey 1.9 speaks format {FORMAT - 1}, not {FORMAT}", "update it: pip install --upgrade covey", 9)  # fmt: skip
    assert odd.since == NOW - DAY
    odd = one(format=FORMAT + 1, version="")
    assert odd.what == f"Covey of unknown version speaks format {FORMAT + 1}, not {FORMAT}"
    assert odd.next == "update the coordinator: pip install --upgrade covey"
    assert odd_about(format=FORMAT + 1, online=False) == []
    assert odd_about(format=FORMAT + 1, version="3.0", calls="2.0.1")[0].weight == 8


def test_without_a_deployment_a_version_in_use_is_not_judged() -> None:
    assert odd_about(model=ModelInUse(run="run-0", round=3, serial=5)) == []


def publication(**changed: Any) -> list[Odd]:
    fields = {"run": "run-0", "round": 3, "name": "may", "serial": 5, "note": "rejected: worse", **changed}  # fmt: skip
    wanted = deployment(name="june")
    statuses = {"a": status("a", model=ModelInUse(**fields)), "b": status("b"), "c": status("c", model=ModelInUse(**{**fields, "note": ""}))}  # fmt: skip
    return list(odd_devices(Seen(NOW, statuses, deployment=wanted)))


def test_a_publication_that_devices_refuse_is_one_thing() -> None:
    [odd] = publication()
    assert (odd.who, odd.kind, odd.what, odd.next) == ("a, c", "publication", "refused june: rejected: worse", "`coordinator versions`")  # fmt: skip
    assert publication(run="run-1") == []
    assert publication(serial=4) == [], "not judged yet"
    assert len(publication(run="run-1", round=4)) == 1


def test_devices_with_far_fewer_rows_state_it_between_runs() -> None:
    assert named(odd_about(samples=10)) == [("gw-1", "rows")]
    assert odd_about(samples=11) == []
    assert odd_about(samples=0) == []


# -- figures ---------------------------------------------------------------------------------------------------------


def fleet(other: Mapping[str, Any], usual: Mapping[str, Any], count: int = 10) -> list[tuple[str, str]]:  # fmt: skip
    found = {f"gw-{n}": usual for n in range(count - 1)} | {f"gw-{count - 1}": other}
    return named(examine.odd_figures(found))


def errors(mine: float, nothing: float = 1.0, name: str = "rmse", mode: str = "server") -> dict[str, Any]:  # fmt: skip
    return {mode: {"n": 50, name: mine}, "baseline": {"n": 50, name: nothing}}


def test_a_model_is_worse_than_none() -> None:
    usual = errors(0.5)
    assert fleet(errors(1.49), usual) == []
    assert fleet(errors(1.51), usual) == [("gw-9", "figure")]
    assert fleet(errors(2.9, 2.0), usual) == []
    assert fleet(errors(2.24, name="mse"), errors(0.5, name="mse")) == []
    assert fleet(errors(2.26, name="mse"), errors(0.5, name="mse")) == [("gw-9", "figure")]
    assert fleet(errors(1.49, 0.0), usual) == [], "a constant target needs no model"
    assert fleet(errors(1.51, 0.0), usual) == [("gw-9", "figure")]
    assert (
        fleet(
            {"server": {"n": 50, "rmse": 1.51}, "baseline": {"n": 50, "rmse": 0.0}},
            {**usual, "baseline": {}},
        )
        == []
    )
    assert fleet({"server": {"n": 50, "rmse": 1.51}}, usual) == []
    [odd] = examine.odd_figures({"a": usual, "b": usual, "c": errors(1.6)})
    assert odd.what == "its model is worse than none: RMSE 1.6, the constant answer 1"
    assert odd.weight == pytest.approx(0.1)


def shares(mine: float, nothing: float = 0.5, n: int = 100, **more: Any) -> dict[str, Any]:
    return {"server": {"n": n, "accuracy": mine}, "baseline": {"n": n, "accuracy": nothing}, **more}


def test_a_share_is_worse_than_none_beyond_chance() -> None:
    usual = shares(0.9)
    assert fleet(shares(0.4), usual) == []
    assert fleet(shares(0.39), usual) == [("gw-9", "figure")]
    assert fleet(shares(0.39, n=80), usual) == []
    assert fleet(shares(0.3, 0.65), usual) == [], "it has mostly one class"
    assert fleet(shares(0.3, 0.59), usual) == [("gw-9", "figure")]
    assert fleet(shares(0.99, 1.0), usual) == []


def test_many_that_are_worse_than_none_have_a_method_that_fails() -> None:
    found = {f"gw-{n}": shares(0.1 if n < 3 else 0.9) for n in range(10)}
    assert named(examine.odd_figures(found)) == []
    found["gw-2"] = shares(0.4)
    assert named(examine.odd_figures(found)) == [("gw-0", "figure"), ("gw-1", "figure")]
    lost = {f"gw-{n}": errors(1.6 if n == 0 else 1.1 if n < 3 else 0.9) for n in range(10)}
    assert named(examine.odd_figures(lost)) == [], "others lose by it too"
    lost["gw-2"] = errors(1.0)
    assert named(examine.odd_figures(lost)) == [("gw-0", "figure")]


def test_the_fleets_model_is_no_good_where_a_device_has_trained_its_own() -> None:
    own: dict[str, Any] = {"delivered": {"n": 100, "accuracy": 0.9}}
    usual = shares(0.9, **own)
    assert fleet(shares(0.1, **own), usual) == [("gw-9", "figure")]
    alone: dict[str, Any] = {"delivered": {"n": 100, "accuracy": 1.0}}
    assert fleet(shares(0.8, 1.0, **alone), usual) == [], "one class alone"
    found = {"a": usual, "b": usual, "c": shares(0.1, **own)}
    [odd] = examine.odd_figures(found)
    assert odd.what == "the fleet's model is worse there than none: accuracy 10.00 %, the constant answer 50.00 %"  # fmt: skip
    assert named(examine.odd_figures({**found, "d": {"server": {"n": 9, "accuracy": 0.9}, **own}})) == [("c", "figure")]  # fmt: skip
    assert named(examine.odd_figures({**found, "d": own})) == [("c", "figure")]
    delivered = {"delivered": {"n": 50, "rmse": 0.4}}
    assert fleet({**errors(4.9), **delivered}, {**errors(0.5), **delivered}) == [("gw-9", "figure")]
    assert fleet({**errors(1.4, 0.2), "delivered": {"n": 50, "rmse": 0.1}}, {**errors(0.5), **delivered}) == [], "small changes there"  # fmt: skip


def test_an_error_is_ten_times_the_fleets() -> None:
    def odd(*losses: float, name: str = "loss") -> list[Odd]:
        return list(examine.odd_figures({f"gw-{n}": {"server": {"n": 50 + n, name: one}} for n, one in enumerate(losses)}))  # fmt: skip

    assert odd(0.2, 0.2, 1.9) == []
    [far] = odd(0.2, 0.2, 2.0)
    assert (far.who, far.kind, far.what) == (
        "gw-2",
        "figure",
        "loss 2.0000, the fleet's median is 0.2000",
    )
    assert far.weight == pytest.approx(10.0)
    assert odd(0.2, 0.2, 0.02) == [], "a small one is no fault"
    assert odd(0.2, 0.2, 0.0) == []
    assert odd(4.0, 4.0, 390.0, name="mse") == []
    [far] = odd(4.0, 4.0, 401.0, name="mse")
    assert far.what == "RMSE 20.02, the fleet's median is 2"
    both = {"n": 50, "rmse": 1.0, "loss": 50.0}
    rest = {f"gw-{n}": {"server": {"n": 51 + n, "rmse": 1.0, "loss": 1.0}} for n in range(3)}
    assert list(examine.odd_figures({**rest, "gw-9": {"server": both}})) == []
    own = {f"gw-{n}": {"server": {"n": 50 + n, "loss": one}, "delivered": {"n": 50 + n, "loss": 0.1}} for n, one in enumerate((0.2, 0.2, 3.0))}  # fmt: skip
    [far] = examine.odd_figures(own)
    assert far.what == "the fleet's model there: loss 3.0000, the fleet's median is 0.2000"


def test_the_figures_of_what_a_device_uses() -> None:
    delivered, server = {"n": 5, "loss": 1.0}, {"n": 5, "loss": 2.0}
    assert examine.in_use({"delivered": delivered, "server": server}) is delivered
    assert examine.in_use({"server": server}) is server
    assert examine.in_use({"delivered": {}, "server": server}) is server
    assert examine.in_use({"last": server}) == {}
    assert examine.in_use({"server": {"n": 0, "loss": 1.0}}) == {}
    assert examine.in_use({"server": {**server, "diverged": True}}) == {}


def test_the_same_loss_on_as_many_rows_is_a_copy() -> None:
    def copied(n: int, loss: float, other: float) -> list[tuple[str, str]]:
        found = {"a": {"server": {"n": n, "loss": loss}}, "b": {"server": {"n": n, "loss": other}}}
        return named(examine.odd_figures(found))

    assert copied(10, 0.25, 0.25) == [("a, b", "copy")]
    assert copied(9, 0.25, 0.25) == []
    assert copied(10, 0.0, 0.0) == []
    assert copied(10, 0.25, 0.26) == []
    rows = {"a": {"server": {"n": 10, "loss": 0.25}}, "b": {"server": {"n": 11, "loss": 0.25}}}
    assert named(examine.odd_figures(rows)) == []


def checked(shift: float, mean: float = 50.0, variance: float = 25.0, n: int = 50, **own: float) -> dict[str, Any]:  # fmt: skip
    """The figures of a device whose test targets are this number of deviations from those it trains on."""
    server = {"n": n, "mse": 1.0 + mean / 1e6, "mean": mean, "variance": variance, **own}
    return {"server": server, "baseline": {"n": n, "mse": variance * (1 + shift**2)}}


def test_test_targets_that_are_unlike_those_trained_on() -> None:
    def odd(shift: float, usual: float = 0.0, others: int = 9) -> list[Odd]:
        rest = {f"gw-{n}": checked(usual, 50 + n / 10) for n in range(others)}
        return list(examine.odd_figures({**rest, "gw-9": checked(shift, 49.0)}))

    assert odd(2.99) == []
    [drift] = odd(3.01)
    assert (drift.who, drift.kind) == ("gw-9", "drift")
    assert drift.what == "its test targets are 3.0 deviations from those it trains on, on the others 0.0"  # fmt: skip
    assert drift.weight == pytest.approx(3.01)
    assert odd(5.9, usual=1.0) == []
    assert named(odd(6.1, usual=1.0)) == [("gw-9", "drift")]
    assert odd(9.0, others=1) == []
    many = {f"gw-{n}": checked(9.0 if n < 3 else 0.0, 50 + n / 10) for n in range(10)}
    assert list(examine.odd_figures(many)) == []
    small = {f"gw-{n}": checked(0.0, 50 + n / 10, 0.5) for n in range(9)}
    assert kinds(examine.odd_figures({**small, "gw-9": checked(9.0, 49.0, 0.5)})) == ["drift"]
    unknown = {"server": {"n": 50, "mse": 1.0, "mean": 49.0, "variance": 0.5}}
    assert kinds(examine.odd_figures({**small, "gw-9": unknown})) == []
    flat = checked(0.0, variance=0.0)
    rest = {f"gw-{n}": checked(0.0, 50 + n / 10) for n in range(9)}
    assert kinds(examine.odd_figures({**rest, "gw-9": flat})) == ["constant"]


def test_targets_are_judged_as_a_column() -> None:
    rest = {f"gw-{n}": checked(0.0, 50 + n / 10) for n in range(9)}
    assert named(examine.odd_figures({**rest, "gw-9": checked(0.0, 5000.0, 250_000.0)})) == [("gw-9", "target")]  # fmt: skip
    [odd] = examine.odd_figures({**rest, "gw-9": checked(0.0, 5000.0, 250_000.0)})
    assert odd.what.startswith("its target is about 5000 here")
    only_mean = {"gw-9": {"server": {"n": 50, "mean": 5000.0}}}
    assert named(examine.odd_figures({**rest, **only_mean})) == []


def test_a_mixture_that_gives_no_model_any_weight() -> None:
    def odd(*weights: Mapping[str, float]) -> list[tuple[str, str]]:
        return named(examine.odd_figures({}, {f"gw-{n}": own for n, own in enumerate(weights)}))

    good, none = {"server": 0.4, "none": 0.6}, {"server": 0.0, "none": 1.0}
    assert odd(good, good, none) == [("gw-2", "no model")]
    assert odd(good, none, none) == [("gw-1, gw-2", "no model")]
    assert odd(good, good, {}) == []
    assert odd(good, good, {"none": 1.0}) == [("gw-2", "no model")]
    [lone] = examine.odd_figures({}, {"a": good, "b": good, "c": none})
    assert lone.weight == 0.0


# -- the list --------------------------------------------------------------------------------------------------------


def thing(device: str = "a", kind: Any = "disk", what: str = "full", **more: Any) -> Odd:
    return Odd((device,), kind, what, "`broker doctor`", **more)


def test_the_list_is_in_the_order_of_kinds_weights_and_names() -> None:
    found = [thing("c"), thing("b"), thing("a", weight=-1), thing("d", weight=2), thing("e", "broker"), thing("b")]  # fmt: skip
    assert [odd.devices[0] for odd in ranked(found)] == ["e", "d", "b", "c", "a"]
    assert len(ranked(thing(f"{n}") for n in range(101))) == 100
    assert without(found, "b") == [found[0], *found[2:5]]
    assert thing().weight == 0.0
    assert not KINDS["figure"].is_urgent
    assert thing().sentence == "a: full; next: `broker doctor`"
    assert Odd(("a", "b", "c", "d"), "copy", "x", "y").who == "a, b, c and 1 more"


def test_the_list_leaves_out_malformed_entries() -> None:
    good = thing(since=3.0).to_json()
    assert read_odd([good]) == [thing(since=3.0)]
    wrong: dict[str, Any]
    for wrong in ({"devices": []}, {"devices": [3]}, {"kind": "x"}, {"since": "1"}, {"weight": None}, {"next": 3}):  # fmt: skip
        assert read_odd([{**good, **wrong}]) == []
    assert read_odd("[]") == read_odd(None) == read_odd(["a", 3]) == []


def test_oddities_of_one_cause_are_named_once() -> None:
    facts = examine.Facts(known=[thing("a", "figure"), thing("b", "figure"), thing("a", "target")])
    assert named(examine.examine(facts)) == [("a", "target"), ("b", "figure")]
    facts = examine.Facts(known=[thing("a", "figure", "one"), thing("a", "figure", "two")])
    assert [odd.what for odd in examine.examine(facts)] == ["one"]
    facts = examine.Facts(known=[thing("a", "work", "one"), thing("a", "work", "two")])
    assert len(examine.examine(facts)) == 2
    facts = examine.Facts(known=[thing("a", "disk"), thing("a", "figure")])
    assert kinds(examine.examine(facts)) == ["disk", "figure"]
    far = {"gw-9": errors(4.9), **{f"gw-{n}": errors(0.5) for n in range(9)}}
    assert named(examine.examine(examine.Facts(evaluation=far))) == [("gw-9", "figure")]
    weights = {"a": {"none": 1.0}, "b": {"server": 1.0}, "c": {"server": 1.0}}
    assert kinds(examine.examine(examine.Facts(weights=weights))) == ["no model"]
    shown = examine.Facts(Seen(NOW, {"a": status("a", twins=1)}), {"load": column(scaled(10.6))}, "load")  # fmt: skip
    assert kinds(examine.examine(shown)) == ["twin id", "target"]
    assert examine.examine(examine.Facts()) == []


def test_the_list_from_what_a_broker_retains() -> None:
    known = [thing("gw-5", "figure"), thing("gw-6", "offline"), thing("gw-7", "reports")]
    roster = RosterMessage(
        agents={"gw-9": {"seen": NOW - 9, "silent": "x"}}, odd=[odd.to_json() for odd in known]
    )
    statuses = {"gw-1": status(version="3.0"), "gw-2": status("gw-2", version="3.0")}

    def found(between_runs: bool, **more: Any) -> list[Odd]:
        return examine.of_retained(NOW, statuses, roster, caller(), between_runs=between_runs, **more)  # fmt: skip

    assert named(found(False)) == [("gw-7", "reports"), ("gw-5", "figure"), ("gw-9", "silent"), ("gw-6", "offline"), ("gw-1, gw-2", "version")]  # fmt: skip
    remembered = found(True)
    assert [odd.what for odd in remembered[:2]] == ["full (last run)", "full (last run)"]
    assert kinds(remembered) == ["reports", "figure", "silent", "version"]
    assert remembered[2].since == NOW - 9
    more = found(True, until=NOW, elsewhere={"gw-8": "b"}, deployment=deployment())
    assert kinds(more) == ["certificate", "federation", "reports", "figure", "silent", "version"]
    assert examine.of_retained(NOW, {}, None, None, between_runs=True) == []
