"""Play many seeds: `python -m tests.simulator --seeds 1000`; or one, with its story: `--seed 7`, or `--plan JSON`."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial

from tests.methods import METHODS
from tests.simulator.flaws import FIXES, without
from tests.simulator.plan import KINDS, PACES, Plan, may_be_secure, plan
from tests.simulator.shrink import shrunk
from tests.simulator.world import History, play

# the judge has seen nothing where no secure sum is made, of updates and of figures, or none meets a fault
SECURE = ("attacked sum", "secure sum", "secure evaluation")
SECURE_ENDS = (*SECURE, "secure void", "secure passed over")
REPORT_S = 60.0  # between two lines about the progress


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--minutes", type=float, help="stop after this time")
    parser.add_argument("--seed", type=int, help="play this one alone, and show its story")
    parser.add_argument("--plan", help="play this plan alone, and show its story")
    parser.add_argument("--shrink", action="store_true", help="look for a simpler plan that fails")
    parser.add_argument("--methods", nargs="+", default=sorted(METHODS), choices=sorted(METHODS))
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--paces", nargs="+", default=list(PACES), choices=PACES)
    parser.add_argument("--secure", action="store_true", help="leave out seeds without secure sums")
    parser.add_argument(
        "--without", default="", choices=FIXES, help="take out a fix of the product"
    )
    return parser.parse_args()


def plan_of(options: argparse.Namespace, seed: int) -> Plan:
    return plan(seed, options.methods, options.kinds, options.paces)


def outcome(options: argparse.Namespace, seed: int) -> tuple[Plan, History]:
    this = plan_of(options, seed)
    with without(options.without):
        history = play(this)
    history.story.clear()  # of thousands of histories
    return this, history


def outcomes(options: argparse.Namespace) -> Iterator[tuple[Plan, History]]:
    seeds: Iterable[int] = range(options.first, options.first + options.seeds)
    if options.secure:
        seeds = (seed for seed in seeds if plan_of(options, seed).secure)
    work = partial(outcome, options)
    if options.jobs == 1:
        yield from map(work, seeds)
        return
    with multiprocessing.Pool(options.jobs) as pool:
        yield from pool.imap_unordered(work, seeds, chunksize=4)


def show(options: argparse.Namespace) -> int:
    """Play one plan, and tell its story."""
    this = Plan.of_json(options.plan) if options.plan else plan_of(options, options.seed)
    with without(options.without):
        history = play(this)
        if history.failure and options.shrink:
            this = shrunk(this, lambda simpler: play(simpler).failure != "")
            history = play(this)
    aggregators = "with aggregators" if this.aggregators else "without aggregators"
    print(f"{this.method}, {this.pace}, {this.shards} brokers {aggregators}")
    for fault in this.faults:
        print(f"  {fault}")
    print(*history.story, f"history {history.digest}", sep="\n")
    print(f"--plan '{this.to_json()}'")
    print(history.failure or "every invariant held")
    return bool(history.failure)


def campaign(options: argparse.Namespace) -> int:
    struck: Counter[str] = Counter()
    played: Counter[str] = Counter()
    failures = secure = 0
    began = shown = time.monotonic()
    for this, history in outcomes(options):
        played[this.pace] += 1
        secure += this.secure
        struck += history.struck
        now = time.monotonic()
        if history.failure:
            failures += 1
            fix = f" --without '{options.without}'" if options.without else ""
            print(f"seed {this.seed} ({this.method}, {this.pace}): {history.failure}")
            command = f"python -m tests.simulator{fix} --shrink --plan '{this.to_json()}'"
            print(f"  {command}", flush=True)
        if now > shown + REPORT_S:
            shown = now
            print(f"{played.total()} seeds, {failures} failed", flush=True)
        if options.minutes is not None and now > began + 60 * options.minutes:
            break
    minutes = (time.monotonic() - began) / 60
    total = played.total()
    print(
        f"{total} seeds, {failures} failed, {total / minutes:.0f} a minute, {minutes:.1f} minutes"
    )
    print(", ".join(f"{pace}: {count}" for pace, count in sorted(played.items())))
    print(", ".join(f"{kind}: {struck[kind]}" for kind in options.kinds))
    print(", ".join(f"{end}: {struck[end]}" for end in SECURE_ENDS), f"in {secure} seeds")
    expected = [*options.kinds]
    if any(map(may_be_secure, options.methods)) and set(options.paces) != {"buffered"}:
        expected += SECURE
    if missed := [kind for kind in expected if not struck[kind]]:
        print(f"never played: {', '.join(missed)}; expected each at least once")
    return bool(failures or missed)


def main() -> int:
    options = options_of()
    if options.seed is not None or options.plan:
        return show(options)
    return campaign(options)


if __name__ == "__main__":
    sys.exit(main())
