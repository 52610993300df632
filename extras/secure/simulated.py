"""Keys of a simulated fleet: they follow from the scenario's seed and protect nothing."""

from __future__ import annotations

from covey.extras.secure.agent_state import SecureIdentity
from covey.extras.secure.derivation import signed_of_entry
from covey.extras.secure.messages import Entry
from covey.extras.secure.primitives import hashed, number, signature, signing_key

FEDERATION = "simulated"
_ALWAYS = 2**52


def simulated_identity(seed: int, agent: str) -> SecureIdentity:
    """The identity of a simulated agent. Anyone who knows the seed can make it."""
    root = number(seed % 2**64)
    fleet = hashed("simulated fleet", root)
    secret = hashed("simulated agent", root, agent.encode())
    entry = Entry(
        federation=FEDERATION,
        agent=agent,
        serial=0,
        key=signing_key(secret),
        since=0,
        until=_ALWAYS,
        signature=bytes(64),
    )
    signed = entry.model_copy(update={"signature": signature(fleet, signed_of_entry(entry))})
    return SecureIdentity(signed.to_bytes(), secret, signing_key(fleet))
