"""Which of several independent brokers an agent belongs to. Pure: nothing here connects.

The brokers of a federation are shards: each knows its own agents and retained messages, and nothing of the others.
"""

from __future__ import annotations

from hashlib import blake2b

WEIGHT_BYTES = 8


def shard_of(agent: str, shards: int) -> int:
    """The shard of an agent, by rendezvous hashing of its id (Thaler and Ravishankar 1998, section 3).

    The shard with the greatest weight has the agent; the weight is the blake2b digest of "SHARD/AGENT". One shard more
    takes its share of the agents from all others, and moves no agent between them.

    Args:
        agent: the agent's id.
        shards: how many shards there are.

    Returns:
        The number of the shard, counted from 0.

    Raises:
        ValueError: there is no shard.
    """
    if shards < 1:
        raise ValueError(f"expected at least one shard, not {shards}")
    names = [f"{shard}/{agent}".encode() for shard in range(shards)]
    weights = [blake2b(name, digest_size=WEIGHT_BYTES).digest() for name in names]
    return weights.index(max(weights))
