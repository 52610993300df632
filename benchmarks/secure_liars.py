"""Rounds until agents that spoil secure sums are named, and the sums that they cost.

    python -m benchmarks.secure_liars [--seeds 0 1 2 ...] [--out benchmarks/results/secure_liars.json] [--table]

Memberships alone, by the product's grouping and suspicion (`extras/secure/tests/liars.py`): a sum with a liar is out of range. Agents
drop out of a round each on its own, half of them before its groups are drawn. A run is stuck if 20 rounds in a row have no sum.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measuring import record_options, resumed
from covey.extras.secure.tests.liars import fleet, play

AGENTS, LIARS, GONE = (8, 20, 100), (0, 1, 2), (0.0, 0.1, 0.3)
ROUNDS = 60


def measured(agents: int, liars: int, gone: float, seeds: list[int]) -> dict[str, Any]:
    """Medians and largest numbers over the seeds; rounds and lost sums of runs whose liars were all named."""
    everybody = fleet(agents)
    rounds, lost, stuck, innocent = [], [], 0, 0
    for seed in seeds:
        lying = set(random.Random(seed).sample(everybody, liars))  # noqa: S311 - no secrets
        found = play(everybody, lying, gone=gone, rounds=ROUNDS, seed=seed)
        innocent += len(found.named.keys() - lying)
        stuck += found.is_stuck
        if found.named.keys() == lying:
            rounds.append(found.rounds)
            lost.append(found.lost)
    return {
        "named": len(rounds),
        "stuck": stuck,
        "innocent": innocent,
        "rounds": [median(rounds), max(rounds)] if rounds else None,
        "lost": [median(lost), max(lost)] if lost else None,
    }


def main() -> None:
    out = Path("benchmarks/results/secure_liars.json")
    options = record_options(__doc__, out, tuple(range(100))).parse_args()
    cells = {
        f"{agents} agents, {liars} lie, {gone:.0%} gone": partial(
            measured, agents, liars, gone, options.seeds
        )
        for agents in AGENTS
        for liars in LIARS
        for gone in GONE
    }
    found = resumed(options, cells, {"rounds": ROUNDS, "seeds": len(options.seeds)})
    print("| runs | all liars named | stuck | innocent named | rounds until then | sums lost |")
    print("|---|---:|---:|---:|---:|---:|")
    for key in cells:
        one = found[key]
        print(
            f"| {key} | "
            + " | ".join(
                str(one[name]) for name in ("named", "stuck", "innocent", "rounds", "lost")
            )
            + " |"
        )


if __name__ == "__main__":
    main()
