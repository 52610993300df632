"""Shamir's scheme: any `threshold` shares of a secret rebuild it, and fewer are as likely for every other secret.

Source: A. Shamir, How to share a secret, Communications of the ACM 22 (11), 1979. The field has the smallest prime above
2**256, so that any 32 bytes are a secret. A share is the value of a random polynomial at a place from 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from covey.shared.secure.primitives import Token

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33
_DRAWN_BYTES = 48  # for one coefficient: 2**384 values over the field leave a bias below 2**-127


def split(
    secret: bytes, threshold: int, places: Sequence[int], token: Token, prime: int = PRIME
) -> dict[int, int]:
    """The share of each place.

    Args:
        secret: 32 bytes, little-endian, below `prime`.
        threshold: shares that rebuild the secret.
        places: numbers from 1, all different.
        token: random bytes.
        prime: of the field; the tests use a small one.

    Raises:
        ValueError: the threshold is below 1 or above the number of places, or places repeat or are not in the field.
    """
    if not 1 <= threshold <= len(places):
        raise ValueError(f"threshold {threshold} of {len(places)} shares")
    if len(set(places)) != len(places) or not all(0 < place < prime for place in places):
        raise ValueError("places must be different numbers from 1")
    drawn = (int.from_bytes(token(_DRAWN_BYTES), "little") % prime for _ in range(threshold - 1))
    polynomial = [int.from_bytes(secret, "little"), *drawn]
    shares = {}
    for place in places:
        value = 0
        for coefficient in reversed(polynomial):
            value = (value * place + coefficient) % prime
        shares[place] = value
    return shares


@lru_cache(maxsize=16)  # the secrets of a group are rebuilt from the shares of the same places
def factors_at_zero(places: tuple[int, ...], prime: int = PRIME) -> list[int]:
    """Lagrange's factors: the secret is the sum of factor times share over these places."""
    factors = []
    for place in places:
        above, below = 1, 1
        for other in places:
            if other != place:
                above = above * other % prime
                below = below * (other - place) % prime
        factors.append(above * pow(below, -1, prime) % prime)
    return factors


def rebuilt(shares: Mapping[int, int], prime: int = PRIME) -> int:
    """The value at place 0 of the polynomial through these shares: the secret, if they are `threshold` true shares.

    Raises:
        ValueError: there are no shares.
    """
    if not shares:
        raise ValueError("no shares")
    factors = factors_at_zero(tuple(shares), prime)
    return (
        sum(factor * share for factor, share in zip(factors, shares.values(), strict=True)) % prime
    )


def secret_of(shares: Mapping[int, int]) -> bytes | None:
    """The secret of 32 bytes that these shares rebuild; None if they rebuild no such secret, so that one is false."""
    value = rebuilt(shares)
    return value.to_bytes(SECRET_BYTES, "little") if value < 2**256 else None


def share_to_bytes(share: int) -> bytes:
    """A share: 33 bytes, little-endian."""
    return share.to_bytes(SHARE_BYTES, "little")


def share_from_bytes(content: bytes | None) -> int | None:
    """The share in 33 bytes, or None if there is none."""
    if content is None or len(content) != SHARE_BYTES:
        return None
    share = int.from_bytes(content, "little")
    return share if share < PRIME else None
