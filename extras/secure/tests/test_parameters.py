"""Numbers of a group: the threshold that protects, and how often too few members are left."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.extras.secure.parameters import LARGEST_GROUP, Group, Scale, group_of, groups


@given(st.integers(3, LARGEST_GROUP), st.floats(0.0, 0.5))
def test_a_group_protects_or_is_refused(members: int, share: float) -> None:
    try:
        group = group_of(members, share)
    except ValueError:
        assert members < 5 or share > 0.3
        return
    assert group.fault is None
    assert 2 * group.threshold > members + group.colluders
    assert group.threshold - group.colluders >= 2


# the table of extras/secure/protocol.md: members, share of colluders, threshold, members that may be gone, chances
TABLE = [
    (5, 0.1, 3, 2, 9e-3, 6e-2, 16e-2),
    (5, 0.2, 4, 1, 8e-2, 26e-2, 47e-2),
    (8, 0.33, 6, 2, 4e-2, 20e-2, 45e-2),
    (16, 0.2, 10, 6, 5e-4, 3e-2, 18e-2),
    (32, 0.2, 20, 12, 6e-6, 6e-3, 13e-2),
    (64, 0.33, 43, 21, 1e-7, 5e-3, 26e-2),
    (100, 0.1, 56, 44, 0, 1e-8, 1e-3),
    (128, 0.2, 77, 51, 0, 8e-8, 7e-3),
]


@pytest.mark.parametrize(
    ("members", "share", "threshold", "may_vanish", "few", "some", "many"), TABLE
)
def test_the_chance_that_too_few_are_left(
    members: int,
    share: float,
    threshold: int,
    may_vanish: int,
    few: float,
    some: float,
    many: float,
) -> None:
    group = group_of(members, share)
    assert (group.threshold, group.may_vanish) == (threshold, may_vanish)
    for gone, expected in ((0.1, few), (0.2, some), (0.3, many)):
        # the table has one digit, or two from 10 %
        assert group.void_chance(gone) == pytest.approx(expected, rel=0.5, abs=1e-12)


@pytest.mark.parametrize(
    "group",
    [
        Group(8, 4, 1, 4),  # 2 t = n + c - 1
        Group(8, 4, 0, 4),  # 2 t = n + c
        Group(8, 5, 1, 4),  # fewer members than shares
        Group(2, 2, 0, 2),
        Group(8, 9, 0, 9),
        Group(8, 5, -1, 5),
    ],
)
def test_numbers_that_do_not_protect_have_a_fault(group: Group) -> None:
    assert group.fault


def test_a_larger_threshold_may_be_given_and_a_smaller_one_is_raised() -> None:
    assert group_of(16, 0.2, threshold=12) == Group(16, 12, 3, 12)
    assert group_of(16, 0.2, threshold=5).threshold == 10
    assert group_of(16, 0.2, least=14).least == 14
    with pytest.raises(ValueError, match="expected 3"):
        group_of(2)


def test_groups_differ_by_at_most_one_member_and_hold_all() -> None:
    agents = [f"a{number:03}" for number in range(260)]
    cut = groups(agents, 3)
    assert sorted(len(group) for group in cut) == [86, 87, 87]
    assert sorted(agent for group in cut for agent in group) == agents
    assert groups(agents[:5], 1) == [agents[:5]]
    assert groups([], 1) == [[]]


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (Scale(1.0, 1000, 2**29), "could exceed"),
        (Scale(1.0, 2**29, 1000), "weight"),
        (Scale(0.0, 1, 1), "positive"),
        (Scale(1.0, 2, 4096, 64.0), "weights are 1"),
        (Scale(1.0, 1, 4096, 3.0), "too coarse"),
        (Scale(1.0, 1, 4096, float("inf")), "below 2**31 units"),
    ],
)
def test_a_scale_whose_sums_could_be_ambiguous_has_a_fault(scale: Scale, words: str) -> None:
    assert words in (scale.fault(8) or "")


@given(st.sets(st.integers(1, 12), min_size=3), st.sets(st.integers(1, 12), min_size=3))
def test_two_sums_with_a_common_member_whose_parts_have_a_threshold_each_are_the_same(
    one: set[int], other: set[int]
) -> None:
    """So a rule by such parts would let a device answer no sum of the same models that the rule by members does not."""
    needed = max(group_of(len(some)).threshold for some in (one, other))
    parts = [some for some in (one & other, one - other, other - one) if some]
    if one & other and all(len(some) >= needed for some in parts):
        assert one == other
