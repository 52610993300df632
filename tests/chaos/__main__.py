"""`python -m tests.chaos --runs 200 --seed 1`: many runs under faults on seeds, and the table of what came of them.

Every run is one JSON line of `--out`; what is there already is not run again. `--only` runs some seeds once more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from pathlib import Path

from tests.chaos.one import EQUAL, Outcome, calm, disturbed
from tests.chaos.plan import KINDS, METHODS, plan
from tests.chaos.site import Site


def main() -> int:
    """Exit code 0 where every run ended in the bytes of the calm run, and every planned kind of fault hit something."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--jobs", type=int, default=2, help="sites that work at the same time")
    parser.add_argument("--out", type=Path, default=Path("runs/chaos"))
    parser.add_argument(
        "--only", type=int, nargs="*", help="these seeds, also where they were run before"
    )
    parser.add_argument("--table", action="store_true", help="run nothing, print the table")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    record = options.out / "runs.jsonl"
    known = read(record)
    seeds = options.only or [
        s for s in range(options.seed, options.seed + options.runs) if s not in known
    ]
    if not options.table:
        asyncio.run(campaign(seeds, options.jobs, options.out, record))
        known = read(record)
    print(table(known))
    never = never_hit(known)
    if never:
        print(f"Hit nothing in any run: {', '.join(never)}.")
    good = known and not never and all(outcome.outcome == EQUAL for outcome in known.values())
    return 0 if good else 1


def never_hit(known: dict[int, Outcome]) -> list[str]:
    """Kinds of faults that were planned and hit nothing in any run: a campaign of these shows nothing."""
    hit = {kind for outcome in known.values() for kind in outcome.injected}
    return sorted({kind for outcome in known.values() for kind in outcome.missed} - hit)


def read(record: Path) -> dict[int, Outcome]:
    """The outcomes by seed; of a seed that was run again the newest."""
    lines = record.read_text().splitlines() if record.exists() else []
    return {outcome.seed: outcome for outcome in (Outcome(**json.loads(line)) for line in lines)}


async def campaign(seeds: list[int], jobs: int, out: Path, record: Path) -> None:
    """Run all seeds on `jobs` sites."""
    waiting: asyncio.Queue[int] = asyncio.Queue()
    for seed in seeds:
        waiting.put_nowait(seed)
    calmly = out / "calm.json"
    wanted: dict[str, dict[str, str]] = json.loads(calmly.read_text()) if calmly.exists() else {}

    async def work(index: int) -> None:
        async with Site((out / f"site-{index}").resolve()) as site:
            await site.start_fleet()
            await calm(
                site, METHODS[index % len(METHODS)], init(out, METHODS[index % len(METHODS)])
            )
            while not waiting.empty():
                seed = waiting.get_nowait()
                this = plan(seed)
                outcome = await disturbed(site, this, init(out, this.method), wanted[this.method])
                with record.open("a") as file:
                    file.write(outcome.to_json() + "\n")
                print(
                    f"{time.strftime('%H:%M:%S')} seed {seed} {this.method}: {outcome.outcome[:300]}",
                    end=" ",
                )
                print(
                    f"({outcome.seconds} s; {', '.join(outcome.injected) or 'nothing'})", flush=True
                )

    if sorted(wanted) != sorted(METHODS):
        wanted = await calm_runs(out)
        calmly.write_text(json.dumps(wanted, indent=1))
    async with asyncio.TaskGroup() as group:
        for index in range(min(jobs, max(len(seeds), 1))):
            group.create_task(work(index))


async def calm_runs(out: Path) -> dict[str, dict[str, str]]:
    """The digests that every method ends with where nothing goes wrong."""
    async with Site((out / "site-calm").resolve()) as site:
        for method in METHODS:
            await site.initial_models(method, init(out, method))
        await site.start_fleet()
        return {method: await calm(site, method, init(out, method)) for method in METHODS}


def init(out: Path, method: str) -> Path:
    """Where the first models of a method lie."""
    return (out / f"start-{method}.npz").resolve()


def table(known: dict[int, Outcome]) -> str:
    """Injected faults and what came of the runs that they hit."""
    hits, equal = Counter[str](), Counter[str]()
    runs, packets = Counter[str](), Counter[str]()
    good = 0
    for outcome in known.values():
        is_equal = outcome.outcome == EQUAL
        good += is_equal
        hits.update(outcome.injected)
        packets.update(outcome.counts)
        for name in set(outcome.injected):
            runs[name] += 1
            equal[name] += is_equal
    lines = ["| fault | injected | runs | equal bytes |", "|---|---:|---:|---:|"]
    for name in KINDS:
        lines.append(f"| {name} | {hits[name]} | {runs[name]} | {equal[name]} |")
    lines.append(f"| **all** | {sum(hits.values())} | {len(known)} | {good} |")
    disturbed_by_proxy = ", ".join(f"{name} {packets[name]}" for name in sorted(packets))
    if disturbed_by_proxy:
        lines += ["", f"Disturbed by the proxy, in packets or connections: {disturbed_by_proxy}."]
    lines += [
        f"Seed {outcome.seed} ({outcome.method}): {outcome.outcome[:300]}"
        for outcome in known.values()
        if outcome.outcome != EQUAL
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
