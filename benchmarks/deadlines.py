"""Seconds per round with fixed and with adaptive deadlines: fifty agents, heavy-tailed delays, one job in ten is lost.

    python -m benchmarks.deadlines [--agents 50] [--rounds 30] [--seeds 3]

The real coordinator and real agents run over a broker in memory, on a virtual clock: 30 rounds of minutes take seconds. The
time of a job is drawn for each job: the agent's own speed (log-normal, median 8 s) times a Pareto factor (shape 2). A
lost job never ends, while its agent stays online. Prints a table, writes deadlines.json below --out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from covey.coordinator.record.notices import Notice, PhaseFolded
from covey.coordinator.run.rules import rules_of
from covey.shared.seeds import generator
from covey.shared.strategies.base import ClientId
from covey.shared.wire.jobs import Perform
from tests import clock
from tests.bowl import Trainer
from tests.kit import small_run
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import Fleet, Numpy

MEDIAN_S = 8.0  # of an agent's work
SPREAD = 0.5  # of the logarithm of the agents' speeds
SHAPE = 2.0  # of the Pareto factor of each job
LOST = 0.1  # share of jobs that never end
NEVER_S = 1e9
ADAPTIVE: Mapping[str, Any] = {"percentile": 0.9, "factor": 1.5, "least_s": 5, "most_s": 600}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "fixed, 600 s (default)": {},
    "fixed, 60 s (by hand)": {"deadline_s": 60},
    "adaptive": {"deadline": ADAPTIVE},
    "adaptive, over_select: auto": {"deadline": ADAPTIVE, "over_select": "auto"},
}


@dataclass(frozen=True)
class Measured:
    """One run."""

    setting: str
    seed: int
    seconds_per_round: float
    reports_per_round: float
    invited_per_round: float
    accuracy: float  # E-server, macro


class Delayed(Numpy):
    """Jobs take a time that is drawn for each of them."""

    def __init__(self, people: Mapping[ClientId, Trainer], seed: int) -> None:
        super().__init__(people, takes_s=0.0)
        self._seed = seed
        self._jobs = 0

    async def call(self, job: Any, *, weight: float = 0) -> Any:
        if isinstance(job, Perform):
            self._jobs += 1
            await asyncio.sleep(self._seconds(job.client))
        return await super().call(job, weight=weight)

    def _seconds(self, client: str) -> float:
        own = generator(self._seed, "speed", client).lognormal(0.0, SPREAD)
        draw = generator(self._seed, "job", self._jobs)
        if draw.random() < LOST:
            return NEVER_S
        return float(MEDIAN_S * own * (1.0 + draw.pareto(SHAPE)))


def measure(setting: str, seed: int, agents: int, rounds: int) -> Measured:
    """One run with one setting."""
    sections = {
        "count": rounds,
        "participation": 0.4,
        "start_agents": agents,
        "timing": {"first_work_s": 0.0},
        **SETTINGS[setting],
    }
    scene = small_run.judged("ifca", seed=seed, rounds=sections)
    ends: list[float] = []
    folded: list[PhaseFolded] = []

    async def whole(folder: Path) -> float:
        people = small_run.clients(agents, scene)
        started = asyncio.get_running_loop().time()

        def keep(notice: Notice) -> None:
            if isinstance(notice, PhaseFolded):
                folded.append(notice)
                ends.append(asyncio.get_running_loop().time() - started)

        fleet = Fleet(folder, scene, rules_of(scene), MemoryBroker(seed=seed), people)
        fleet.pool = Delayed(people, seed)
        async with fleet:
            run = await fleet.serve(observer=keep)
        figures = run.members.evaluation.values()
        return statistics.fmean([one["server"]["accuracy"] for one in figures])

    with tempfile.TemporaryDirectory() as name:
        accuracy = clock.run(whole(Path(name)))
    train = [one for one in folded if one.ends_round]
    last = folded.index(train[-1])
    return Measured(
        setting,
        seed,
        seconds_per_round=ends[last] / len(train),
        reports_per_round=statistics.fmean(len(one.reported) for one in train),
        invited_per_round=statistics.fmean(len(one.invited) for one in train),
        accuracy=accuracy,
    )


def table(found: Sequence[Measured]) -> Table:
    """A row per setting: means over the seeds, and the largest deviation of the seconds."""
    shown = Table(title="means over seeds")
    for column in ("deadline", "seeds", "s per round", "invited", "reports", "accuracy"):
        shown.add_column(column, justify="left" if column == "deadline" else "right")
    for setting in SETTINGS:
        own = [one for one in found if one.setting == setting]
        seconds = [one.seconds_per_round for one in own]
        invited = statistics.fmean(one.invited_per_round for one in own)
        reports = statistics.fmean(one.reports_per_round for one in own)
        accuracies = [one.accuracy for one in own]
        shown.add_row(
            setting,
            str(len(own)),
            f"{statistics.fmean(seconds):.1f} ± {statistics.pstdev(seconds):.1f}",
            f"{invited:.1f}",
            f"{reports:.1f}",
            f"{100 * statistics.fmean(accuracies):.1f} ± {100 * statistics.pstdev(accuracies):.1f} %",
        )
    return shown


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--agents", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    options = parser.parse_args(arguments)
    found: list[Measured] = []
    for seed in range(1, options.seeds + 1):
        for setting in SETTINGS:
            found.append(measure(setting, seed, options.agents, options.rounds))
    Console().print(table(found))
    options.out.mkdir(parents=True, exist_ok=True)
    rows = [asdict(one) for one in found]
    (options.out / "deadlines.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
