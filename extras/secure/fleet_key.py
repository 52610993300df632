"""The fleet key: what it signs, and the keys that devices make for themselves."""

from __future__ import annotations

import secrets
from collections.abc import Collection

from covey.extras.secure.derivation import signed_of_entry, signed_of_expelled
from covey.extras.secure.messages import Entry, Expelled
from covey.extras.secure.primitives import KEY_BYTES, signature, signing_key

ENTRY_DAYS = 90
SECONDS_PER_DAY = 86_400


def new_secret() -> bytes:
    """The secret of a new signing key, from the operating system."""
    return secrets.token_bytes(KEY_BYTES)


def signed_entry(
    fleet_secret: bytes, federation: str, agent: str, *, key: bytes, now_ms: int, days: int
) -> bytes:
    """An entry for a device's signing key.

    Args:
        fleet_secret: of the fleet key.
        federation: of the agent.
        agent: its id.
        key: the device's signing key, public.
        now_ms: Unix time in milliseconds; the serial of the entry.
        days: that it is valid.
    """
    since = now_ms // 1000
    entry = Entry(
        federation=federation,
        agent=agent,
        serial=now_ms,
        key=key,
        since=since,
        until=since + days * SECONDS_PER_DAY,
        signature=bytes(64),
    )
    signed = signature(fleet_secret, signed_of_entry(entry))
    return entry.model_copy(update={"signature": signed}).to_bytes()


def signed_list(
    fleet_secret: bytes, federation: str, serials: Collection[int], now_ms: int
) -> bytes:
    """The list of a federation's expelled entries. A later one has all serials of those before.

    Args:
        fleet_secret: of the fleet key.
        federation: whose entries they are.
        serials: of the entries.
        now_ms: Unix time in milliseconds; the version of the list.
    """
    expelled = Expelled(
        federation=federation, version=now_ms, serials=sorted(serials), signature=bytes(64)
    )
    signed = signature(fleet_secret, signed_of_expelled(expelled))
    return expelled.model_copy(update={"signature": signed}).to_bytes()


def key_of_entry(content: bytes) -> bytes:
    """The device's signing key in an entry."""
    return Entry.from_bytes(content).key


def public_fleet_key(fleet_secret: bytes) -> bytes:
    return signing_key(fleet_secret)
