"""When agents answer a roll call. Pure: a small fleet answers at once, a large one spreads its answers.

The coordinator names the time over which answers are spread, because only it knows how many agents there are. Each agent
finds its own place in that time, without a word to the others.
"""

from __future__ import annotations

import hashlib

ROLL_SPREAD_S = 0.5  # of a fleet whose size nobody knows
ANSWERS_PER_S = 1000.0  # that a coordinator takes besides its other work
MAX_SPREAD_S = 600.0
WORD_BYTES = 8
WORDS = 2.0 ** (8 * WORD_BYTES)


def spread_s(agents: int) -> float:
    """The time (s) over which this many agents spread their answers. Any number may come where one is known at most."""
    return min(agents / ANSWERS_PER_S, MAX_SPREAD_S) if agents > 1 else ROLL_SPREAD_S


def extra_s(agents: int) -> float:
    """How much longer (s) than a small fleet this many agents need for their answers."""
    return max(spread_s(agents) - ROLL_SPREAD_S, 0.0)


def answer_delay_s(agent: str, epoch: str, spread_s: float) -> float:
    """How long (s) an agent waits before it answers: a hash of its name and the roll call, as a share of the spread."""
    word = hashlib.blake2b(f"{epoch}/{agent}".encode(), digest_size=WORD_BYTES).digest()
    return (int.from_bytes(word, "little") / WORDS) * spread_s
