"""Play many seeds: `python -m tests.simulator --seeds 1000`; or one, with its story: `--seed 7`, or `--plan JSON`.

With `--lying` the coordinator of each seed lies to the workers of real devices.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from tests.methods import METHODS
from tests.simulator import lying_world, world
from tests.simulator.flaws import FIXES, without
from tests.simulator.lies import LIES, kinds_told
from tests.simulator.lying_plan import LyingPlan, lying_plan
from tests.simulator.plan import KINDS, PACES, Plan, may_be_secure, plan
from tests.simulator.shrink import shrunk
from tests.simulator.world import History

# the judge has seen nothing where no secure sum is made, of updates and of figures, or none meets a fault
SECURE = ("attacked sum", "secure sum", "secure evaluation")
SECURE_ENDS = (*SECURE, "secure void", "secure passed over")
HEARD = ("opened sum", "refusal", "compared report", "gone", "asked again")  # among lies
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
    parser.add_argument("--lying", action="store_true", help="seeds in which the coordinator lies")
    parser.add_argument("--lies", nargs="+", default=list(LIES), choices=LIES, help="their kinds")
    parser.add_argument(
        "--without", default="", choices=FIXES, help="take out a fix of the product"
    )
    return parser.parse_args()


def plan_of(options: argparse.Namespace, seed: int) -> Plan | LyingPlan:
    if options.lying:
        return lying_plan(seed, options.lies)
    return plan(seed, options.methods, options.kinds, options.paces)


def play(this: Plan | LyingPlan) -> History:
    return world.play(this) if isinstance(this, Plan) else lying_world.play(this)


def outcome(options: argparse.Namespace, seed: int) -> tuple[Plan | LyingPlan, History]:
    this = plan_of(options, seed)
    with without(options.without):
        history = play(this)
    history.story.clear()  # of thousands of histories
    return this, history


def outcomes(options: argparse.Namespace) -> Iterator[tuple[Plan | LyingPlan, History]]:
    seeds: Iterable[int] = range(options.first, options.first + options.seeds)
    if options.secure:
        seeds = (
            seed
            for seed in seeds
            if plan(seed, options.methods, options.kinds, options.paces).secure
        )
    work = partial(outcome, options)
    if options.jobs == 1:
        yield from map(work, seeds)
        return
    with multiprocessing.Pool(options.jobs) as pool:
        yield from pool.imap_unordered(work, seeds, chunksize=4)


def show(options: argparse.Namespace) -> int:
    """Play one plan, and tell its story."""
    kind = LyingPlan if options.lying else Plan
    this: Any = kind.of_json(options.plan) if options.plan else plan_of(options, options.seed)
    with without(options.without):
        history = play(this)
        if history.failure and options.shrink:
            this = shrunk(this, lambda simpler: play(simpler).failure != "")
            history = play(this)
    print(this)
    print(*history.story, f"history {history.digest}", sep="\n")
    print(f"--plan '{this.to_json()}'")
    print(history.failure or "every invariant held")
    return bool(history.failure)


def campaign(options: argparse.Namespace) -> int:
    struck: Counter[str] = Counter()
    played: Counter[str] = Counter()
    failures = 0
    began = shown = time.monotonic()
    for this, history in outcomes(options):
        played[this.pace] += 1
        struck += history.struck
        now = time.monotonic()
        if history.failure:
            failures += 1
            fix = f" --without '{options.without}'" if options.without else ""
            fix += " --lying" * options.lying
            print(f"seed {this.seed} ({this.method}, {this.pace}): {history.failure}")
            command = f"python -m tests.simulator{fix} --shrink --plan '{this.to_json()}'"
            print(f"  {command}", flush=True)
        if now > shown + REPORT_S:
            shown = now
            print(f"{played.total()} seeds, the newest {this.seed}, {failures} failed", flush=True)
        if options.minutes is not None and now > began + 60 * options.minutes:
            break
    minutes = (time.monotonic() - began) / 60
    total = played.total()
    print(
        f"{total} seeds, {failures} failed, {total / minutes:.0f} a minute, {minutes:.1f} minutes"
    )
    print(", ".join(f"{pace}: {count}" for pace, count in sorted(played.items())))
    missed = missed_lies(options, struck) if options.lying else missed_faults(options, struck)
    if missed:
        print(f"never played: {', '.join(missed)}; expected each at least once")
    return bool(failures or missed)


def missed_lies(options: argparse.Namespace, struck: Counter[str]) -> list[str]:
    """Print how often each lie was told; those that nobody has heard."""
    told = kinds_told(struck)
    for kind in options.lies:
        each = ", ".join(f"{about} {count}" for about, count in sorted(told[kind].items()))
        print(f"{kind}: {told[kind].total()} told ({each})")
    print(", ".join(f"{end}: {struck[end]}" for end in HEARD))
    unheard = [end for end in HEARD[:3] if not struck[end]]
    return [*(kind for kind in options.lies if not told[kind]), *unheard]


def missed_faults(options: argparse.Namespace, struck: Counter[str]) -> list[str]:
    """Print how often each fault struck, and what secure sums met; what never did."""
    print(", ".join(f"{kind}: {struck[kind]}" for kind in options.kinds))
    print(", ".join(f"{end}: {struck[end]}" for end in SECURE_ENDS))
    expected = [*options.kinds]
    if any(map(may_be_secure, options.methods)) and set(options.paces) != {"buffered"}:
        expected += SECURE
    return [kind for kind in expected if not struck[kind]]


def main() -> int:
    options = options_of()
    if options.seed is not None or options.plan:
        return show(options)
    return campaign(options)


if __name__ == "__main__":
    sys.exit(main())
