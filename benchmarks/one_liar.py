"""What one agent of twenty does to a mean by the samples that it claims, and what the limit on shares costs honest fleets.

    python -m benchmarks.one_liar --data-root ../shared/data [--seeds 1 2 3]

Handwritten digits, FedAvg, 20 agents that all take part in each of 8 rounds, the MLP and the training of scenarios/digits.yaml.

- Attacks: agents in four groups with labels of their own. The liar claims 10^12 samples and reports its honest model
  (`own`), or ten times its step, backwards (`back`); or it claims 10^12 test samples, all right after round 2 and none
  otherwise (`figures`).
- Honest fleets: the digits in equal mixtures, in parts whose sizes are log-normal (sigma 1), 1:10 by halves, or ten times
  as large for two of the agents (`few`).

Accuracies are macro averages over the honest agents, the record's figure is the micro average of all. Every cell is written to
--out as soon as it is finished. `--table` runs nothing.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import record_options, resumed
from benchmarks.torch_runs import WithLiars, lied, models_of, repeatable, started
from covey.agent.data import Dataset, fit
from covey.agent.data.partition import client_dataset, fleet_data
from covey.coordinator.run.run import Run
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.simulated_agents import agent_name
from covey.shared.seeds import generator
from covey.shared.strategies.base import ClientId
from covey.shared.wire.messages import OrderMessage, ReportContent

AGENTS = 20
ROUNDS = 8
CLAIM = 10**12
LIAR = agent_name(7, AGENTS)
OLD: dict[str, Any] = {"max_samples": {"share": None}}  # a hundred times the median remains
CLIP: dict[str, Any] = {"clip": {"times_median": 1.0}}
SETTINGS: dict[str, dict[str, Any]] = {
    "share: null": OLD,
    "default": {},
    "share: null, clip": {**OLD, **CLIP},
    "clip": CLIP,
    "times_median: 1, clip": {"max_samples": {"times_median": 1.0}, **CLIP},
}
ATTACKS = ("none", "own", "back", "figures")
FLEETS = ("lognormal", "halves", "few")
OUT = Path(__file__).parent / "results" / "one_liar.json"


@dataclass(frozen=True)
class Cell:
    """One run."""

    kind: str  # one of ATTACKS or FLEETS
    settings: str
    seed: int

    @property
    def key(self) -> str:
        """The cell's name in the JSON file."""
        return f"{self.kind} / {self.settings} / {self.seed}"


def scenario(cell: Cell) -> Scenario:
    """The scenario that a coordinator would run."""
    groups = {"name": "grouped_labels", "groups": 4}
    return Scenario.model_validate(
        {
            "name": "one_liar",
            "seed": cell.seed,
            "task": {
                "features": [1, 8, 8],
                "classes": 10,
                "scale": 0.0625,
                "model": {"name": "mlp", "options": {"hidden": 64}},
            },
            "training": {"epochs": 2, "batch": 10, "lr": 0.1},
            "strategy": {"name": "fedavg"},
            "rounds": {"count": ROUNDS},
            "evaluation": {"every": 1, "tune_epochs": 0},
            "aggregation": SETTINGS[cell.settings],
            "fleet": {
                "agents": AGENTS,
                "data": "digits",
                "partition": {"name": "iid"} if cell.kind in FLEETS else groups,
            },
        }
    )


def sizes(fleet: str, seed: int) -> list[float]:
    """How much data each agent has, relative to the one with the most."""
    draw = generator(seed, "one liar", fleet)
    match fleet:
        case "lognormal":
            own = np.exp(draw.standard_normal(AGENTS))
        case "halves":
            own = np.where(draw.permutation(AGENTS) < AGENTS // 2, 1.0, 10.0)
        case _:
            own = np.where(draw.permutation(AGENTS) < 2, 10.0, 1.0)
    return [float(size) for size in own / own.max()]


def people(scene: Scenario, kind: str, data_root: str) -> dict[ClientId, Dataset]:
    """Each agent's data."""
    data, split = fleet_data(scene, data_root)
    parts = sizes(kind, scene.seed) if kind in FLEETS else [1.0] * AGENTS
    datasets: dict[ClientId, Dataset] = {}
    for index, part in enumerate(parts):
        own = client_dataset(data, split, index)
        count = max(6, int(len(own.targets) * part))
        own = replace(own, features=own.features[:count], targets=own.targets[:count])
        datasets[agent_name(index, AGENTS)] = fit(own, scene.task)
    return datasets


class OneLiar(WithLiars):
    """Clients with a liar among them."""

    def __init__(self, cell: Cell, datasets: dict[ClientId, Dataset]) -> None:
        scene = scenario(cell)
        super().__init__(scene, started(scene), datasets)
        self.attack = cell.kind
        self.lies = 0  # so far

    def work(self, run: Run, client: ClientId, order: OrderMessage) -> ReportContent:
        assert order.work is not None
        report = super().work(run, client, order)
        false = report
        if client == LIAR and self.attack in ("own", "back") and order.work.phase == "train":
            if self.attack == "back":
                false = lied(report, models_of(run, order)[0], "sign_flip", generator(1, "lie"))
            false = false.model_copy(update={"examples": CLAIM})
        if client == LIAR and self.attack == "figures" and order.work.phase == "evaluate":
            false = self._boast(report, run.engine.round)
        self.lies += false is not report
        return false

    def _boast(self, report: ReportContent, round_: int) -> ReportContent:
        share = 1.0 if round_ == 2 else 0.0
        claim = {"n": CLAIM, "correct": int(share * CLAIM), "accuracy": share, "f1": share}
        numbers = {mode: {**own, **claim} for mode, own in report.numbers.items()}
        return report.model_copy(update={"numbers": numbers})


def measured(cell: Cell, data_root: str) -> dict[str, Any]:
    """Accuracy of the honest agents and of the record, and the round that counts as the best."""
    clients = OneLiar(cell, people(scenario(cell), cell.kind, data_root))
    claims = clients.samples()
    is_attack = cell.kind in ATTACKS and cell.kind != "none"
    if is_attack:
        claims[LIAR] = (CLAIM, CLAIM)
    with tempfile.TemporaryDirectory() as folder:
        run = clients.run(Path(folder), claims)
        if is_attack and not clients.lies:
            raise RuntimeError(f"{cell.key}: no report was false")
        honest: list[float] = []
        for name, figures in run.facts.evaluation.items():
            if figures["server"]["n"] and (name != LIAR or not is_attack):
                honest.append(figures["server"]["accuracy"])
        lines = [json.loads(line) for line in (Path(folder) / "rounds.jsonl").open()]
        records = [line["evaluation"]["server"] for line in lines if line.get("evaluation")]
        best, _ = max(run.facts.history, key=lambda one: (one[1], -one[0]))
        return {
            "honest": float(np.mean(honest)),
            "record": records[-1]["accuracy"]["micro"],
            "best": best,
            "lies": clients.lies,
        }


def cells(seeds: Sequence[int]) -> list[Cell]:
    """All that is measured, without what two of the settings have in common."""
    found: list[Cell] = []
    for seed in seeds:
        found += [Cell("none", name, seed) for name in ("default", "clip")]
        found += [Cell(kind, name, seed) for kind in ("own", "back") for name in SETTINGS]
        for kind in ("figures", *FLEETS):
            found += [Cell(kind, name, seed) for name in ("share: null", "default")]
    return found


def table(found: dict[str, dict[str, Any]]) -> str:
    """Markdown: a row per attack or fleet and settings; means over the seeds with their deviation, in percent."""
    lines = [
        "| attack or fleet | `aggregation.max_samples` and `clip` | honest agents | record | best round |",
        "|---|---|---:|---:|---|",
    ]
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for key, one in found.items():
        kind, settings, _ = key.split(" / ")
        rows.setdefault((kind, settings), []).append(one)
    for (kind, settings), own in rows.items():
        honest = 100 * np.array([one["honest"] for one in own])
        record = 100 * np.array([one["record"] for one in own])
        best = ", ".join(str(one["best"]) for one in own)
        figures = f"{honest.mean():.1f} ± {honest.std():.1f} | {record.mean():.1f}"
        lines.append(f"| {kind} | {settings} | {figures} | {best} |")
    return "\n".join(lines)


def main() -> None:
    parser = record_options(__doc__, OUT, [1, 2, 3])
    parser.add_argument("--data-root", default="../shared/data")
    options = parser.parse_args()
    repeatable()
    settings = {"agents": AGENTS, "rounds": ROUNDS, "claim": CLAIM}
    planned = {
        cell.key: partial(measured, cell, options.data_root) for cell in cells(options.seeds)
    }
    print(table(resumed(options, planned, settings)))


if __name__ == "__main__":
    main()
