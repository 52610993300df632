"""The mixture of what each device can have, next to each candidate alone. Prints a table, writes JSON.

    python -m benchmarks.mixture [--fleets even rotated people] [--seeds 1 2 3] [--data-root ../shared/data]

The fleets are those of `benchmarks.kin_fleets`. After a run of FedAvg or FedClust each agent has the candidates of
`covey.shared.work.candidates`; their weights are fitted out of fold, first alone, then twice with the fleet's mean as prior, and
the three largest are kept. All figures are macro averages over the agents on their test samples: accuracy, or R2 of a regression,
in hundredths. The best single candidate is the one that is best for the whole fleet after the fact, of the same run.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kin import Cell, Voters, people, scenario, setting_of
from benchmarks.kin_fleets import FLEETS, NATURAL
from benchmarks.measuring import record_options, resumed, show_tables
from benchmarks.torch_runs import repeatable, started
from covey.agent.data.dataset import folds
from covey.agent.data.trees import trees_for
from covey.coordinator.run.run import Run
from covey.shared.numerics.figures import figures_of
from covey.shared.numerics.measures import derived
from covey.shared.numerics.mixture import REFITS, FleetWeights, Judged, chosen, fitted
from covey.shared.strategies.base import ClientId, Fold
from covey.shared.wire.messages import OrderMessage, ReportContent
from covey.shared.work.at_hand import AtHand
from covey.shared.work.candidates import BeforeHome, judged
from covey.shared.work.candidates import fitted as candidates_of
from covey.shared.work.use import model_for_use
from tests.kit.local_clients import decode_named

OUT = Path(__file__).parent / "results" / "mixture.json"
METHODS = ("fedavg", "fedclust")
Answers = dict[str, Any]  # of each candidate on the test samples


class Agents(Voters):
    """Agents that judge their candidates when they are evaluated."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.judged: dict[ClientId, Judged | None] = {}
        self.answers: dict[ClientId, Answers] = {}
        self.seconds = 0.0

    def work(self, run: Run, client: ClientId, order: OrderMessage) -> ReportContent:
        assert order.work is not None
        if order.work.phase == "evaluate":
            began = time.process_time()
            self._judge(run, client, order)
            self.seconds += time.process_time() - began
        return super().work(run, client, order)

    def _judge(self, run: Run, client: ClientId, order: OrderMessage) -> None:
        assert order.work is not None
        models = [
            decode_named(ref.key, run.orders.content_of(ref.key), run.setup.whole)
            for ref in order.work.models
        ]
        data, task = self.datasets[client], self.scene.task
        local = partial(self.trainer, client=client, order=order)
        memory = self.memories.get(client, {})
        served = model_for_use(order, models, AtHand(local(data)), memory, client=client)
        assert served is not None
        trees = trees_for(task)
        given = BeforeHome(served, task.outputs, others={} if trees is None else {"trees": trees})
        found = candidates_of(local(data), given)
        parts = (Fold(local(part), units) for part, units in folds(data, order.work.seed, client))
        self.judged[client] = judged(parts, given, found)
        here = local(data)
        self.answers[client] = {name: one.answers(here, "test") for name, one in found.items()}


def shown(truth: Any, found: Any) -> float:
    """In hundredths."""
    figures = figures_of(truth, found)
    return 100 * (figures["accuracy"] if "accuracy" in figures else derived(figures)["r2"])


def known_of(judged: Iterable[Judged | None], fleet: FleetWeights | None) -> FleetWeights:
    """What agents report after a fit with what was known of the fleet before."""
    sound = [one for one in judged if one is not None]
    weights = [fitted(one, None if fleet is None else fleet.weights) for one in sound]
    votes = [one.vote(own) for one, own in zip(sound, weights, strict=True)]
    return FleetWeights.of(weights, [vote for vote in votes if vote is not None])


def measured(cell: Cell, data_root: Path | None = None) -> dict[str, Any]:
    """The mean over agents of each candidate and of each way to use them, the weights, and the seconds of an agent."""
    owned, _ = people(cell.fleet, cell.seed, cell.setting, data_root)
    scene = scenario(cell)
    clients = Agents(scene, started(scene), owned)
    clients.torch = setting_of(cell).torch
    with tempfile.TemporaryDirectory() as folder:
        clients.run(Path(folder))
    names = list(next(iter(clients.answers.values())))
    fleet = None
    for _ in range(REFITS):
        fleet = known_of(clients.judged.values(), fleet)
    ways: dict[str, list[float]] = {}

    def add(way: str, client: ClientId, weights: Mapping[str, float]) -> None:
        answers = clients.answers[client]
        found = sum(weight * answers[name] for name, weight in weights.items())
        ways.setdefault(way, []).append(shown(owned[client].test_targets, found))

    unused, used = 0, []
    assert fleet is not None
    for client, one in clients.judged.items():
        for name in names:
            add(name, client, {name: 1.0})
        choice = chosen(one, names, fleet)
        unused += choice.uses_none
        used.append(choice.weights)
        add("mixture", client, choice.weights)
        add("one of them", client, chosen(one, names, fleet, single=True).weights)
        add("own weights", client, chosen(one, names, None).weights)
        add("all kept", client, fitted(one, fleet.weights) if one else choice.weights)
        ungated = chosen(one, names, replace(fleet, gains=True)).weights
        add("no gate", client, ungated)
        add("uniform", client, dict.fromkeys(names, 1 / len(names)))
    return {
        "figures": {way: float(np.mean(values)) for way, values in ways.items()},
        "fleet": fleet.weights,
        "gains": fleet.gains,
        "kept": {name: float(np.mean([one.get(name, 0.0) for one in used])) for name in names},
        "unused": unused,
        "judged": sum(one is not None for one in clients.judged.values()),
        "agents": len(owned),
        "seconds": round(clients.seconds / len(owned), 2),
    }


WAYS = ("mixture", "one of them", "own weights", "all kept", "no gate", "uniform")


def table(found: Mapping[str, Any]) -> str:
    """How far each way is behind the best single candidate of the same method, mean over seeds; below zero it is ahead."""
    lines = [
        f"| fleet | method | best single | served | {' | '.join(WAYS)} |",
        "|---|---|---|" + "--:|" * (len(WAYS) + 1),
    ]
    apart: dict[str, list[list[float]]] = {}
    for fleet, method in dict.fromkeys(tuple(key.split("/")[:2]) for key in found):
        rows = [
            cell["figures"] for key, cell in found.items() if key.startswith(f"{fleet}/{method}/")
        ]
        means = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        alone = {name: mean for name, mean in means.items() if name not in WAYS}
        best = max(alone, key=lambda name: alone[name])
        behind = [alone[best] - means[way] for way in ("served", *WAYS)]
        apart.setdefault(method, []).append(behind)
        shown = " | ".join(f"{one:.1f}" for one in behind)
        lines.append(f"| {fleet} | {method} | {best} {alone[best]:.1f} | {shown} |")
    for method, of_fleets in apart.items():
        for name, of_all in (("mean", np.mean(of_fleets, 0)), ("worst", np.max(of_fleets, 0))):
            shown = " | ".join(f"{one:.1f}" for one in of_all)
            lines.append(f"| {name} | {method} | | {shown} |")
    return "\n".join(lines)


def main() -> None:
    parser = record_options(__doc__, OUT, [1])
    parser.add_argument("--fleets", nargs="+", choices=[*FLEETS, *NATURAL])
    parser.add_argument("--data-root", type=Path, default=Path("../shared/data"))
    options = parser.parse_args()
    repeatable()
    cells = [
        Cell(fleet, method, seed)
        for fleet in options.fleets or [*FLEETS, *NATURAL]
        for method in METHODS
        for seed in options.seeds
    ]
    planned = {cell.key: partial(measured, cell, options.data_root) for cell in cells}
    found = resumed(options, planned, {}, lambda one: one["figures"])
    show_tables(options, {"fleet": table(found)})


if __name__ == "__main__":
    main()
