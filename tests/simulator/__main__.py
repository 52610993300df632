"""Play many seeds: `python -m tests.simulator --seeds 1000`; or one, with its story: `--seed 7`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.simulator.plan import KINDS, Plan, plan
from tests.simulator.world import play
from tests.small_run import METHODS


def shrunk(this: Plan) -> list[int]:
    """The numbers of the faults without which the plan still fails, switched off one by one."""
    dropped: list[int] = []
    for number in range(len(this.faults)):
        if play(this.without([*dropped, number])).failure:
            dropped.append(number)
    return dropped


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="play this one alone, and show its story")
    parser.add_argument("--methods", nargs="+", default=sorted(METHODS), choices=sorted(METHODS))
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--without", type=int, nargs="+", default=[], help="numbers of faults")
    options = parser.parse_args()
    if options.seed is not None:
        this = plan(options.seed, options.methods, options.kinds)
        print(f"{this.method}, {this.shards} brokers, aggregators: {this.aggregators}")
        for number, fault in enumerate(this.faults):
            print(f"  fault {number}{' (off)' if number in options.without else ''}: {fault}")
        history = play(this.without(options.without))
        print(*history.story, f"history {history.digest}", sep="\n")
        print(history.failure or "every invariant held")
        return bool(history.failure)
    struck: Counter[str] = Counter()
    failures = 0
    began = time.monotonic()
    for seed in range(options.first, options.first + options.seeds):
        this = plan(seed, options.methods, options.kinds)
        history = play(this)
        struck += history.struck
        if history.failure:
            failures += 1
            off = shrunk(this)
            without = f" --without {' '.join(map(str, off))}" if off else ""
            chosen = f" --methods {' '.join(options.methods)} --kinds " + " ".join(
                f"'{kind}'" for kind in options.kinds
            )
            print(f"seed {seed} ({this.method}): {history.failure}")
            print(f"  python -m tests.simulator --seed {seed}{without}{chosen}", flush=True)
    minutes = (time.monotonic() - began) / 60
    print(f"{options.seeds} seeds, {failures} failed, {options.seeds / minutes:.0f} a minute")
    print(", ".join(f"{kind}: {struck[kind]}" for kind in options.kinds))
    missed = [kind for kind in options.kinds if not struck[kind]]
    if missed:
        print(f"never injected: {', '.join(missed)}; expected each kind at least once")
    return bool(failures or missed)


if __name__ == "__main__":
    sys.exit(main())
