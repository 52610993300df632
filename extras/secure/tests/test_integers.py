"""Updates as integers: exact sums that cannot overflow, the mean that they stand for, and noise of the promised size."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.extras.secure.derivation import Stream
from covey.extras.secure.integers import (
    OutOfRangeError,
    add_masks,
    add_noise,
    digest_of,
    integers_of,
    mean_of,
    moved,
    to_integers,
)
from covey.extras.secure.parameters import Scale, group_of, noised_scale, plain_scale
from tests.night import examples

SCALE = plain_scale(5, clip=1.0, cap=100)


def sum_of(updates: list[np.ndarray], examples: list[int], scale: Scale) -> np.ndarray:
    total = np.zeros(updates[0].size + scale.slots, np.uint32)
    for update, count in zip(updates, examples, strict=True):
        total += to_integers(update, count, scale)
    return total


@settings(max_examples=examples(16), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 128), st.integers(1, 50))
def test_the_mean_of_a_sum_is_the_weighted_mean_within_half_a_unit(
    seed: int, members: int, length: int
) -> None:
    rng = np.random.default_rng(seed)
    scale = plain_scale(members, clip=2.0, cap=50)
    updates = [rng.normal(0.0, 0.1, length) for _ in range(members)]
    examples = [int(count) for count in rng.integers(1, 100, members)]
    mean = mean_of(sum_of(updates, examples, scale), members, scale)
    weights = np.minimum(examples, 50)
    clipped = [u * min(1.0, 2.0 / float(np.linalg.norm(u))) for u in updates]
    expected = np.average(clipped, axis=0, weights=weights)
    assert mean.weight == weights.sum()
    assert np.abs(mean.vector - expected).max() <= 0.51 * members * scale.unit / mean.weight


@pytest.mark.parametrize("members", [3, 100, 128, 512])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_updates_of_all_members_do_not_overflow(members: int, sign: float) -> None:
    scale = plain_scale(members, clip=1.0, cap=1000)
    assert scale.fault(members) is None
    updates = [np.array([sign])] * members
    mean = mean_of(sum_of(updates, [5000] * members, scale), members, scale)
    assert mean.vector == pytest.approx([sign])
    assert mean.weight == members * 1000


def test_a_long_update_is_shortened_and_counted() -> None:
    updates = [np.array([3.0, 4.0]), np.array([0.3, 0.4])]
    mean = mean_of(sum_of(updates, [1, 1], SCALE), 2, SCALE)
    assert mean.shortened == 1
    assert mean.vector == pytest.approx([0.45, 0.6], abs=1e-4)
    assert not mean.was_long


def test_the_same_update_always_gives_the_same_integers() -> None:
    update = np.random.default_rng(1).normal(0, 0.1, 1000).astype(np.float32)
    assert to_integers(update, 7, SCALE).tobytes() == to_integers(update, 7, SCALE).tobytes()


def test_values_beyond_what_members_can_send_are_out_of_range() -> None:
    total = sum_of([np.zeros(3)] * 2, [1, 1], SCALE)
    total[0] = 2**31 - 1
    with pytest.raises(OutOfRangeError, match="a value of the sum"):
        mean_of(total, 2, SCALE)
    for slot, value in ((3, 201), (3, 2**32 - 1), (4, 3)):
        total = sum_of([np.zeros(3)] * 2, [1, 1], SCALE)
        total[slot] = value
        with pytest.raises(OutOfRangeError, match="weight"):
            mean_of(total, 2, SCALE)


def test_a_mean_that_no_honest_members_make_is_shortened_and_marked() -> None:
    liar = to_integers(np.zeros(4), 1, SCALE)
    liar[:4] = SCALE.levels // 2  # norm 1 in units of the largest weight, with weight 1
    mean = mean_of(liar, 1, SCALE)
    assert mean.was_long
    assert float(np.linalg.norm(mean.vector)) == pytest.approx(1.0)


def test_a_sum_without_examples_moves_nothing() -> None:
    mean = mean_of(sum_of([np.zeros(2)] * 3, [0, 0, 0], SCALE), 3, SCALE)
    assert mean.weight == 0
    base = np.array([1.0, 2.0], np.float32)
    assert moved(base, mean).tobytes() == base.tobytes()


def test_masks_cancel_and_their_blocks_are_one_stream() -> None:
    vector = np.arange(600_000, dtype=np.uint32)
    masked = vector.copy()
    key = bytes(range(32))
    add_masks(masked, [Stream(1, key)])
    assert np.array_equal(masked - vector, integers_of(key, vector.size))
    assert digest_of(masked) != digest_of(vector)
    add_masks(masked, [Stream(1, key).opposite])
    assert np.array_equal(masked, vector)


# -- noise -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("members", "length"), [(5, 4), (16, 10_000), (128, 61_706)])
def test_noise_has_the_promised_deviation_and_tail(members: int, length: int) -> None:
    group = group_of(members)
    scale = noised_scale(group.honest, length, clip=1.0, multiplier=1.0)
    assert scale.fault(members) is None
    integers = np.zeros(200_000, np.uint32)
    add_noise(integers, scale, bytes(32))
    noise = integers.view(np.int32).astype(np.float64)
    assert noise.std() == pytest.approx(scale.deviation, rel=0.01)
    assert abs(noise.mean()) < 0.02 * scale.deviation
    assert np.abs(noise).max() <= scale.tail
    assert scale.deviation * math.sqrt(group.honest) >= scale.levels  # of the longest update


def test_noise_is_that_of_a_discrete_gaussian() -> None:
    scale = Scale(1.0, 1, 64, 16.0)
    integers = np.zeros(400_000, np.uint32)
    add_noise(integers, scale, b"k" * 32)
    noise = integers.view(np.int32)
    for value in (0, 5, -16, 30):
        weight = math.exp(-(value**2) / 512.0)
        total = sum(math.exp(-(k**2) / 512.0) for k in range(-200, 201))
        expected = integers.size * weight / total
        assert abs((noise == value).sum() - expected) < 5.0 * math.sqrt(expected)


def test_another_key_gives_other_noise_and_no_noise_changes_nothing() -> None:
    scale = noised_scale(group_of(5).honest, 100, 1.0, 1.0)
    first, second, plain = (np.zeros(100, np.uint32) for _ in range(3))
    add_noise(first, scale, b"a" * 32)
    add_noise(second, scale, b"b" * 32)
    add_noise(plain, SCALE, b"a" * 32)
    assert not np.array_equal(first, second)
    assert not plain.any()


def test_under_noise_all_updates_count_alike_and_no_slot_is_sent() -> None:
    scale = noised_scale(group_of(5).honest, 4, 1.0, 1.0)
    total = sum_of([np.full(4, 0.25), np.full(4, -0.05)], [1, 10_000], scale)
    mean = mean_of(total, 2, scale)
    assert total.size == 4
    assert mean.vector == pytest.approx(np.full(4, 0.1), abs=0.02)
    assert mean.shortened is None
