"""`python -m tests.chaos.soak --minutes 20`: many short rounds under small faults; memory and descriptors must be flat."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import yaml

from tests.chaos.one import EQUAL
from tests.chaos.site import Broken, Site

SAMPLE_S = 5.0
FAULT_EVERY_S = 20.0
ENDLESS = 100_000  # rounds
GROWTH_MB, GROWTH_SHARE, GROWTH_DESCRIPTORS = 3.0, 0.05, 4  # what a flat process may differ by


@dataclass(frozen=True)
class Sample:
    """One look at one process."""

    at_s: float
    memory_mb: float  # PSS: its own share of what it shares with others
    descriptors: int


@dataclass(frozen=True)
class Trend:
    """What became of a process from the second quarter of its samples to the last: medians."""

    name: str
    samples: int
    before_mb: float
    after_mb: float
    before_descriptors: float
    after_descriptors: float

    @property
    def flat(self) -> bool:
        """Did it grow by no more than noise?"""
        memory = max(GROWTH_MB, GROWTH_SHARE * self.before_mb)
        grew_mb = self.after_mb - self.before_mb
        grew = self.after_descriptors - self.before_descriptors
        return grew_mb <= memory and grew <= GROWTH_DESCRIPTORS


def trend(name: str, samples: Sequence[Sample]) -> Trend:
    """Compare the second quarter with the last one: the first is warming up."""
    quarter = max(len(samples) // 4, 1)
    before, after = samples[quarter : 2 * quarter] or samples[:1], samples[-quarter:]
    return Trend(
        name,
        len(samples),
        round(statistics.median(one.memory_mb for one in before), 1),
        round(statistics.median(one.memory_mb for one in after), 1),
        statistics.median(one.descriptors for one in before),
        statistics.median(one.descriptors for one in after),
    )


def table(trends: Sequence[Trend], rounds: int, faults: int, minutes: float) -> str:
    """What people read."""
    lines = [
        f"{minutes:.1f} minutes, {rounds} rounds, {faults} faults",
        "",
        "| process | samples | PSS before, MB | after | descriptors before | after | flat |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for one in trends:
        numbers = f"{one.samples} | {one.before_mb} | {one.after_mb}"
        files = f"{one.before_descriptors:g} | {one.after_descriptors:g}"
        lines.append(f"| {one.name} | {numbers} | {files} | {'yes' if one.flat else 'NO'} |")
    return "\n".join(lines)


async def soak(
    folder: Path, minutes: float, seed: int, agents: int
) -> tuple[list[Trend], int, int, str]:
    """Run for so long. Gives the trends, rounds, faults, and EQUAL or what went wrong."""
    samples: dict[str, list[Sample]] = {}
    async with Site(
        folder / "site", agents=agents, rounds=ENDLESS, slow_s=0.5, disks=False
    ) as site:
        await site.initial_models("fedavg", folder / "start.npz")
        await site.start_fleet()
        scenario = site.scenario("fedavg", init=folder / "start.npz")
        (site.folder / "soak.yaml").write_text(yaml.safe_dump(scenario))
        coordinator = await site.start_coordinator("soak")
        faults = asyncio.create_task(_disturb(site, seed))
        began = time.monotonic()
        why = EQUAL
        try:
            while time.monotonic() - began < 60 * minutes:
                if not coordinator.lives:
                    raise Broken(f"the coordinator ended: {coordinator.output[-2000:]}")
                _look(site, time.monotonic() - began, samples)
                await asyncio.sleep(SAMPLE_S)
        except Broken as broken:
            why = str(broken)
        faults.cancel()
        await asyncio.wait({faults})
        rounds = sum(row["event"] == "phase" and row["ends_round"] for row in site.rows("soak"))
        hits = site.proxy.counts["faults"]
    return [trend(name, seen) for name, seen in sorted(samples.items())], rounds, hits, why


async def _disturb(site: Site, seed: int) -> None:
    """Small faults that leave every process alive, so that its memory can be compared."""
    dice = random.Random(seed)  # noqa: S311 - bad luck, no secrets
    while True:
        await asyncio.sleep(dice.uniform(0.5, 1.5) * FAULT_EVERY_S)
        site.proxy.counts["faults"] += 1
        match dice.choice(["cut", "torn", "stall", "duplicate", "half-close"]):
            case "cut":
                site.proxy.cut(dice.choice(["agents", "coordinator", "all"]))
            case "torn":
                site.proxy.cut("agents", torn=True)
            case "stall":
                await site.proxy.stall("all", 2.0)
            case "duplicate":
                await site.proxy.duplicate("all", 3.0)
            case "half-close":
                site.proxy.half_close("agents", towards_broker=True)


def _look(site: Site, at_s: float, samples: dict[str, list[Sample]]) -> None:
    programs = {"coordinator": site.coordinator, "fleet": site.fleet, "broker": site.broker}
    processes = {
        name: psutil.Process(program.pid)
        for name, program in programs.items()
        if program is not None and program.lives
    }
    processes |= {f"worker {index}": worker for index, worker in enumerate(site.workers())}
    for name, process in processes.items():
        with contextlib.suppress(psutil.Error):
            memory = process.memory_full_info().pss / 2**20
            samples.setdefault(name, []).append(Sample(round(at_s, 1), memory, process.num_fds()))


def main() -> int:
    """Exit code 0 where every process stayed flat."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--agents", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("runs/soak"))
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    trends, rounds, faults, why = asyncio.run(
        soak(out, options.minutes, options.seed, options.agents)
    )
    flat = all(one.flat for one in trends) and why == EQUAL and rounds > 0
    record = {
        "minutes": options.minutes,
        "rounds": rounds,
        "faults": faults,
        "why": why,
        "flat": flat,
    }
    record["processes"] = [asdict(one) | {"flat": one.flat} for one in trends]
    (out / "soak.json").write_text(json.dumps(record, indent=1))
    print(table(trends, rounds, faults, options.minutes))
    if why != EQUAL:
        print(why)
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
