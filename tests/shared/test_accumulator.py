"""Weighted means by key that are collected on arrival: any order, subtraction, shards and trees give the same bytes."""

from __future__ import annotations

from collections.abc import Sequence

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.shared.errors import DecodeError
from covey.shared.numerics.accumulator import Accumulator
from covey.shared.numerics.exact_sum import weighted_mean, weighted_sum
from covey.shared.numerics.vectors import Vector, mean
from tests.night import examples

Term = tuple[str, Vector, float]

values = st.floats(-1e6, 1e6, width=32)
vectors = st.lists(values, min_size=3, max_size=3).map(lambda row: np.array(row, np.float32))
weights = st.one_of(st.integers(0, 5000).map(float), st.floats(0, 1e6))
terms = st.lists(st.tuples(st.sampled_from("01"), vectors, weights), min_size=1, max_size=10)


def accumulated(of: Sequence[Term]) -> Accumulator:
    result = Accumulator()
    for key, vector, weight in of:
        result.add(key, vector, weight)
    return result


@settings(max_examples=examples(16), deadline=None)
@given(counted=terms, passing=terms, seed=st.integers(0, 2**32))
def test_any_order_with_terms_that_come_and_go_over_a_wire_gives_the_bytes_of_the_batch(
    counted: list[Term], passing: list[Term], seed: int
) -> None:
    source = np.random.default_rng(seed)
    shards = [Accumulator() for _ in range(source.integers(1, 5))]
    pending = [(term, False) for term in counted] + [(term, True) for term in passing]
    for place in source.permutation(len(pending)):
        (key, vector, weight), passes = pending[place]
        shard = shards[source.integers(len(shards))]
        shard.add(key, vector, weight)
        if passes:
            shard.subtract(key, vector, weight)
    while len(shards) > 1:
        sent = shards.pop(source.integers(len(shards))).to_bytes()
        into = shards[source.integers(len(shards))]
        into.merge(Accumulator.from_bytes(sent))
    expected = accumulated(counted)
    assert shards[0].to_bytes() == expected.to_bytes()
    for key in expected.keys:
        pairs = [(vector, weight) for of_key, vector, weight in counted if of_key == key]
        if sum(weight for _, weight in pairs) > 0:
            assert shards[0].mean(key).tobytes() == weighted_mean(pairs).tobytes()


@settings(max_examples=examples(33), deadline=None)
@given(content=st.binary(max_size=200))
def test_bytes_of_anything_else_are_refused(content: bytes) -> None:
    with pytest.raises(DecodeError, match="partial sum"):
        Accumulator.from_bytes(content)


@settings(max_examples=examples(33), deadline=None)
@given(place=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_changed_byte_is_refused_or_makes_another_sound_accumulator(
    place: int, byte: int
) -> None:
    content = bytearray(accumulated([("0", np.ones(2, np.float32), 0.3)]).to_bytes())
    content[place % len(content)] = byte
    try:
        read = Accumulator.from_bytes(bytes(content), max_values=2)
    except DecodeError:
        return
    assert Accumulator.from_bytes(read.to_bytes()).to_bytes() == read.to_bytes()


def entry(size: int, count: int, weight: str, grids: list[object]) -> dict[str, object]:
    return {"key": "0", "size": size, "count": count, "weight": weight, "grids": grids}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"form": 2}, "form 2"),
        ({"means": [entry(9, 1, "1/1", [])]}, "9 is not a whole"),
        ({"means": [entry(3, 0, "1/1", [])]}, "0 is not a whole"),
        ({"means": [entry(3, 1, "-1/1", [])]}, "negative"),
        ({"means": [entry(3, 1, "1/0", [])]}, "Fraction"),
        ({"means": [entry(3, 1, "1/1", [[-64, b"short"]])]}, "3 values"),
        ({"means": [entry(3, 1, "1/1", [[-64, b"\xff" * 24]])]}, "not units"),
        ({"means": [entry(3, 1, "1/1", [[1000, bytes(24)]])]}, "expected float64"),
        ({"means": [entry(3, 1, "1/1", []), entry(3, 1, "1/1", [])]}, "two means"),
    ],
)
def test_a_partial_sum_with_one_thing_wrong_is_refused_with_that_reason(
    change: dict[str, object], why: str
) -> None:
    content = msgpack.packb({"form": 1, "means": []} | change)
    with pytest.raises(DecodeError, match=why):
        Accumulator.from_bytes(content, max_values=3)


def test_what_cannot_be_counted_changes_nothing() -> None:
    total = accumulated([("0", np.ones(3, np.float32), 1.0)])
    before = total.to_bytes()
    for key, vector, weight in [
        ("0", np.ones(4, np.float32), 1.0),
        ("0", np.full(3, np.nan, np.float32), 1.0),
        ("1", np.ones(3, np.float32), -1.0),
        ("1", np.ones(3, np.float32), float("inf")),
    ]:
        with pytest.raises(ValueError, match=r"expected|cannot add|not negative"):
            total.add(key, vector, weight)
    with pytest.raises(ValueError, match="nothing is counted"):
        total.subtract("1", np.ones(3, np.float32), 1.0)
    with pytest.raises(ValueError, match="lengths 3 and 4"):
        total.merge(
            accumulated([("0", np.ones(4, np.float32), 1.0), ("2", np.ones(1, np.float32), 1.0)])
        )
    assert total.to_bytes() == before
    assert (total.keys, total.count("0"), total.weight("1")) == (("0",), 1, 0.0)


def test_sums_in_sections_have_the_bytes_of_a_sum_of_whole_vectors() -> None:
    """A section has grids of its own, so the lengths go beyond one section and one block."""
    source = np.random.default_rng(5)
    size = (1 << 18) + 20_000
    scale = np.ones(size)
    scale[1 << 18 :] = 1e-9
    pairs = []
    total = Accumulator()
    for number in (3.0, 0.1, 700.0):
        vector = (scale * source.normal(scale=0.05, size=size)).astype(np.float32)
        pairs.append((vector, number))
        total.add("0", vector, number)
    assert weighted_mean(pairs).tobytes() == total.mean("0").tobytes()
    assert weighted_sum(pairs).tobytes() == total.total("0").astype(np.float32).tobytes()
    np.testing.assert_allclose(weighted_mean(pairs), mean(pairs), rtol=2e-7, atol=1e-18)
