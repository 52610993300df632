"""Buffered rounds against synchronous ones, and drift: seconds of a virtual clock, rounds until an accuracy is back.

    python -m benchmarks.asynchronous --data-root ../shared/data [--seeds 1 2 3]

Fashion-MNIST, 100 agents with 100 training samples each, in four groups with disjoint labels (`grouped_labels`), a
small MLP. The time of an order is log-normal with median 1 s and sigma 1, drawn for each order.

- `speed`: FedAvg, IFCA and FedClust. Synchronous rounds of all agents, synchronous rounds of ten drawn agents, and buffered
  rounds with m = 10 and all agents at work. The cell has E-server over the virtual seconds, and how stale the folded
  reports were.
- `drift`: at half time a third of the agents exchange their data with agents of other groups. FedAvg, FedClust, whose
  clusters are formed once and stay, and IFCA and FeSEM, which cluster again. Synchronous rounds of 30 agents; IFCA in buffers too.

Every cell is written to --out as soon as it is finished, and a second start resumes after the last finished cell.
`--table` runs nothing and prints the tables of docs/asynchronous.md.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import record_options, resumed
from benchmarks.torch_runs import TorchClients, repeatable, started
from covey.agent.data import Dataset, fit
from covey.agent.data.partition import SampleSplit, client_dataset, fleet_data
from covey.coordinator.record.notices import Notice, PhaseFolded
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.simulated_agents import agent_name, drift_round, holders_of
from covey.shared.strategies.base import ClientId
from covey.shared.wire.messages import OrderMessage

AGENTS = 100
SAMPLES = 10_000  # of the training set, all agents together
TESTS = 200  # of each agent, drawn from those with its labels
GROUPS = 4
BUFFER = 10
SPEED = ("fedavg", "ifca", "fedclust")
DRIFT = ("fedavg", "fedclust", "ifca", "fesem")
BUFFERED_DRIFT = ("ifca",)
ROUNDS = {"synchronous": 20, "buffered": 200, "drawn": 200}  # of a speed cell: 2000 reports each
DRIFT_ROUNDS = {"synchronous": 40, "buffered": 120}  # 1200 reports each
BACK = 0.01  # below its level before the drift, an accuracy counts as back
OUT = Path(__file__).parent / "results" / "asynchronous.json"
Figures = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One run."""

    kind: str  # speed or drift
    method: str
    mode: str
    seed: int

    @property
    def key(self) -> str:
        """The cell's name in the JSON file."""
        return f"{self.kind} {self.method} {self.mode} {self.seed}"


def scenario(cell: Cell) -> Scenario:
    """The scenario that `coordinator run --in-process` would run."""
    strategy: Figures = {"name": cell.method}
    if cell.method != "fedavg":
        strategy["n_clusters"] = GROUPS
    fleet: Figures = {
        "agents": AGENTS,
        "data": "fashion-mnist",
        "limit": SAMPLES,
        "partition": {"name": "grouped_labels", "groups": GROUPS},
        "durations": {"median_s": 1.0, "sigma": 1.0},
    }
    mode = "buffered" if cell.mode == "buffered" else "synchronous"
    rounds: Figures = {"mode": mode, "count": ROUNDS[cell.mode], "buffer": BUFFER}
    if cell.mode == "drawn":
        rounds["agents"] = BUFFER
    every = 1 if cell.mode == "synchronous" else 5
    if cell.kind == "drift":
        fleet["drift"] = {"at": 0.5, "share": 1 / 3}
        rounds |= {"count": DRIFT_ROUNDS[cell.mode], "agents": 30}
        every = 1 if cell.mode == "synchronous" else 3
    return Scenario.model_validate(
        {
            "name": "asynchronous",
            "seed": cell.seed,
            "task": {
                "features": [1, 28, 28],
                "classes": 10,
                "scale": 1 / 255,
                "model": {"name": "mlp", "options": {"hidden": 64}},
            },
            "training": {"epochs": 1, "batch": 20, "lr": 0.05},
            "strategy": strategy,
            "rounds": rounds,
            "evaluation": {"every": every, "tune_epochs": 0},
            "fleet": fleet,
        }
    )


@cache
def fleet(seed: int, data_root: str) -> tuple[tuple[Dataset, ...], SampleSplit]:
    """Each agent's data, the same for all cells of a seed, with a part of its test samples."""
    scene = scenario(Cell("speed", "fedavg", "synchronous", seed))
    data, split = fleet_data(scene, data_root)
    datasets: list[Dataset] = []
    for index in range(AGENTS):
        own = fit(client_dataset(data, split, index), scene.task)
        tests = np.random.default_rng([seed, index]).permutation(len(own.test_targets))[:TESTS]
        features = own.test_features[tests]
        datasets.append(replace(own, test_features=features, test_targets=own.test_targets[tests]))
    return tuple(datasets), split


class Timed(TorchClients):
    """Clients on a virtual clock whose data may drift, and what their run shows."""

    def __init__(self, cell: Cell, data_root: str) -> None:
        scene = scenario(cell)
        own, split = fleet(cell.seed, data_root)
        datasets = {agent_name(index, AGENTS): data for index, data in enumerate(own)}
        super().__init__(scene, started(scene), datasets)
        self.curve: list[tuple[float, int, float]] = []  # virtual seconds, rounds, E-server
        self.reports: list[tuple[float, int]] = []  # virtual seconds, reports of a fold
        self.staleness: Counter[int] = Counter()
        self._holders = holders_of(scene, split.truth)

    def data(self, client: ClientId, order: OrderMessage) -> Dataset:
        assert order.work is not None
        index = self._holders.index_in(order.work.round, int(client.removeprefix("agent-")))
        return self.datasets[agent_name(index, AGENTS)]

    def see(self, notice: Notice) -> None:
        if not isinstance(notice, PhaseFolded):
            return
        clock_s = notice.clock_s or 0.0
        evaluation = notice.means.evaluation
        if evaluation is not None:
            accuracy = evaluation["server"]["accuracy"]["macro"]
            self.curve.append((round(clock_s, 3), notice.round, round(accuracy, 5)))
            return
        self.reports.append((round(clock_s, 3), len(notice.reported)))
        self.staleness.update(notice.staleness)


def measured(cell: Cell, data_root: str) -> Figures:
    """E-server over virtual seconds and rounds, and the staleness of the folded reports."""
    timed = Timed(cell, data_root)
    began = time.process_time()
    memory = Path("/dev/shm")  # noqa: S108 - the folder of a run that is not kept
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        timed.run(Path(folder), observer=timed.see)
    stale = {str(s): number for s, number in sorted(timed.staleness.items())}
    return {
        "curve": timed.curve,
        "reports": sum(number for _, number in timed.reports),
        "seconds": timed.reports[-1][0],
        "staleness": stale,
        "drift_round": drift_round(timed.scene),
        "cpu_s": round(time.process_time() - began, 1),
    }


def cells(seeds: Sequence[int]) -> Iterator[Cell]:
    """All cells of the first seed come before any of the second."""
    for seed in seeds:
        for method in SPEED:
            for mode in ROUNDS:
                yield Cell("speed", method, mode, seed)
        for method in DRIFT:
            yield Cell("drift", method, "synchronous", seed)
        for method in BUFFERED_DRIFT:
            yield Cell("drift", method, "buffered", seed)


# -- tables ----------------------------------------------------------------------------------------


TARGETS = {"fedavg": (0.55, 0.60), "ifca": (0.90, 0.92), "fedclust": (0.95, 0.965)}
MODES = {
    "synchronous": "synchronous, all",
    "drawn": "synchronous, 10 drawn",
    "buffered": "buffered, m = 10",
}


def seconds_to(curve: Sequence[Sequence[float]], target: float) -> float | None:
    """Virtual seconds until an evaluation first reached the target; None if none did."""
    for clock_s, _, accuracy in curve:
        if accuracy >= target:
            return clock_s
    return None


def speed_table(found: dict[str, Figures], seeds: Sequence[int]) -> str:
    """Markdown: virtual seconds to each target, with the factor by which buffered rounds are faster."""
    lines = [
        "| method | E-server | synchronous, all | synchronous, 10 drawn | buffered, m = 10 | faster |"
    ]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for method, targets in TARGETS.items():
        for target in targets:
            taken: dict[str, list[float]] = {}
            for mode in MODES:
                for seed in seeds:
                    cell = found.get(Cell("speed", method, mode, seed).key)
                    if cell is not None:
                        reached = seconds_to(cell["curve"], target)
                        taken.setdefault(mode, []).append(np.inf if reached is None else reached)
            texts = [spread(taken.get(mode, [])) for mode in MODES]
            factor = ""
            if "buffered" in taken and "synchronous" in taken:
                pairs = zip(taken["synchronous"], taken["buffered"], strict=False)
                # a seed in which neither mode reached the level has no factor
                factors = [slow / fast for slow, fast in pairs if not np.isinf(fast)]
                factor = spread(factors)
                if len(factors) < len(taken["buffered"]):
                    factor += f", {len(factors)} seeds"
            row = " | ".join([method, f"{100 * target:.1f} %", *texts, factor])
            lines.append(f"| {row} |")
    return "\n".join(lines)


def end_table(found: dict[str, Figures], seeds: Sequence[int]) -> str:
    """Markdown: E-server after the same number of reports, and the virtual seconds that they took."""
    heads = " | ".join(MODES.values())
    lines = [f"| method | {heads} |", "|---|" + "---:|" * len(MODES)]
    for method in SPEED:
        texts: list[str] = []
        for mode in MODES:
            ends: list[float] = []
            seconds: list[float] = []
            for seed in seeds:
                cell = found.get(Cell("speed", method, mode, seed).key)
                if cell is not None:
                    ends.append(100 * cell["curve"][-1][2])
                    seconds.append(cell["seconds"])
            texts.append(f"{spread(ends)} %, {np.median(seconds):.0f} s" if ends else "")
        row = " | ".join([method, *texts])
        lines.append(f"| {row} |")
    return "\n".join(lines)


def spread(values: Sequence[float]) -> str:
    """The median, with the least and the most if there are several; "never" for an infinite value."""
    if not values:
        return ""
    text = _or_never(float(np.median(values)))
    if len(values) > 1:
        text += f" ({_or_never(min(values))} to {_or_never(max(values))})"
    return text


def _or_never(value: float) -> str:
    """A figure with one decimal; an infinite one stands for a target that no evaluation reached."""
    return "never" if np.isinf(value) else f"{value:.1f}"


def staleness_table(found: dict[str, Figures], seeds: Sequence[int]) -> str:
    """Markdown: the share of folded reports by staleness."""
    bounds = ((0, 0), (1, 2), (3, 5), (6, 10), (11, 20), (21, 10**9))
    lines = ["| method | s = 0 | 1-2 | 3-5 | 6-10 | 11-20 | more | largest |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|---:|")
    for method in SPEED:
        counts: Counter[int] = Counter()
        for seed in seeds:
            cell = found.get(Cell("speed", method, "buffered", seed).key, {"staleness": {}})
            for staleness, number in cell["staleness"].items():
                counts[int(staleness)] += number
        total = counts.total()
        if not total:
            continue
        shares: list[str] = []
        for least, most in bounds:
            within = sum(number for s, number in counts.items() if least <= s <= most)
            shares.append(f"{100 * within / total:.0f} %")
        row = " | ".join([method, *shares, str(max(counts))])
        lines.append(f"| {row} |")
    return "\n".join(lines)


def drift_table(found: dict[str, Figures], seeds: Sequence[int]) -> str:
    """Markdown: E-server before the drift, right after it and at the end, and rounds until it was back."""
    lines = ["| method | mode | before | first evaluation after | end | rounds until back |"]
    lines.append("|---|---|---:|---:|---:|---:|")
    cells_of_drift = [(method, "synchronous") for method in DRIFT]
    cells_of_drift += [(method, "buffered") for method in BUFFERED_DRIFT]
    for method, mode in cells_of_drift:
        figures: list[tuple[float, float, float]] = []
        rounds: list[str] = []
        for seed in seeds:
            cell = found.get(Cell("drift", method, mode, seed).key)
            if cell is None:
                continue
            # the evaluation after that round already has the new data
            before = [a for _, r, a in cell["curve"] if r < cell["drift_round"]]
            after = [(r, a) for _, r, a in cell["curve"] if r >= cell["drift_round"]]
            usual = float(np.mean(before[-5:]))
            figures.append((usual, after[0][1], after[-1][1]))
            back = [r - cell["drift_round"] for r, a in after if a >= usual - BACK]
            rounds.append(
                str(back[0]) if back else f"never in {after[-1][0] - cell['drift_round']}"
            )
        if figures:
            texts = [f"{100 * median:.1f} %" for median in np.median(figures, axis=0)]
            shown = (
                rounds[:1] if len(set(rounds)) == 1 else rounds
            )  # equal figures of all seeds once
            row = " | ".join([method, mode, *texts, ", ".join(shown)])
            lines.append(f"| {row} |")
    return "\n".join(lines)


def main() -> None:
    parser = record_options(__doc__, OUT, [1])
    parser.add_argument("--data-root", default="../shared/data")
    options = parser.parse_args()
    repeatable()
    found = resumed(
        options,
        {cell.key: partial(measured, cell, options.data_root) for cell in cells(options.seeds)},
        {"agents": AGENTS, "samples": SAMPLES, "groups": GROUPS, "buffer": BUFFER},
        shown=lambda figures: (figures["curve"][-1], figures["cpu_s"]),
        indent=None,
    )
    for table in (speed_table, end_table, staleness_table, drift_table):
        text = table(found, options.seeds)
        print(f"\n{text}")


if __name__ == "__main__":
    main()
