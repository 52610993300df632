"""Shamir's scheme: any threshold of shares rebuilds the secret, and fewer make no secret more likely than another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.extras.secure import derivation
from covey.extras.secure.primitives import Token
from covey.extras.secure.tests.group import token_of

SMALL = 7  # a field in which all polynomials can be tried


def token_from(drawn: Iterator[bytes]) -> Token:
    return lambda _: next(drawn)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_threshold_of_shares_rebuilds_the_secret(data: st.DataObject) -> None:
    secret = data.draw(st.binary(min_size=32, max_size=32))
    count = data.draw(st.integers(1, 20))
    threshold = data.draw(st.integers(1, count))
    places = data.draw(st.lists(st.integers(1, 512), min_size=count, max_size=count, unique=True))
    shares = derivation.split(secret, threshold, places, token_of(secret.hex()))
    chosen = data.draw(st.permutations(places))[:threshold]
    assert derivation.secret_of({place: shares[place] for place in chosen}) == secret


def test_the_largest_secret_is_a_number_of_the_field() -> None:
    shares = derivation.split(b"\xff" * 32, 3, range(1, 6), token_of("largest"))
    assert derivation.secret_of({place: shares[place] for place in (1, 3, 5)}) == b"\xff" * 32


def test_fewer_shares_are_as_likely_for_every_secret() -> None:
    """All polynomials of degree 2 over a small field: two shares occur as often with each secret."""
    seen: Counter[tuple[int, ...]] = Counter()
    for secret, first, second in product(range(SMALL), repeat=3):
        drawn = iter([first.to_bytes(48, "little"), second.to_bytes(48, "little")])
        shares = derivation.split(bytes([secret]), 3, [1, 2, 3], token_from(drawn), SMALL)
        for places in combinations((1, 2, 3), 2):
            seen[(secret, *places, *(shares[place] for place in places))] += 1
    assert set(seen.values()) == {1}
    assert len(seen) == SMALL * 3 * SMALL**2


def test_a_false_share_gives_another_secret_or_none() -> None:
    shares = derivation.split(bytes(32), 3, range(1, 6), token_of("false"))
    changed = {1: shares[1], 2: shares[2], 3: shares[3] + 1}
    assert derivation.secret_of(changed) != bytes(32)


@pytest.mark.parametrize(
    ("threshold", "places"), [(0, [1, 2]), (3, [1, 2]), (2, [1, 1]), (2, [0, 1])]
)
def test_shares_that_could_not_rebuild_a_secret_are_not_dealt(
    threshold: int, places: list[int]
) -> None:
    with pytest.raises(ValueError):
        derivation.split(bytes(32), threshold, places, token_of("bad"))


def test_a_share_has_33_bytes_and_a_number_beyond_the_field_is_none() -> None:
    assert derivation.share_from_bytes(derivation.share_to_bytes(2**256)) == 2**256
    assert derivation.share_from_bytes((2**256 + 297).to_bytes(33, "little")) is None
    assert derivation.share_from_bytes(bytes(32)) is None
    assert derivation.share_from_bytes(None) is None


def test_without_shares_there_is_no_secret() -> None:
    with pytest.raises(ValueError, match="no shares"):
        derivation.rebuilt({})
