"""The mixture of what each device can have, next to each candidate alone. Prints a table, writes JSON.

    python -m benchmarks.mixture [--fleets even rotated people] [--seeds 1 2 3] [--data-root ../shared/data]
    python -m benchmarks.mixture --parts --fleets even rotated --out mixture_parts.json

The fleets are those of `benchmarks.kin_fleets`. After a run of FedAvg or FedClust each agent has the candidates of
`covey.extras.judge.candidates`; their weights are fitted out of fold, first alone, then twice with the fleet's mean as prior, and
the three largest are kept. All figures are macro averages over the agents on their test samples: accuracy, or R2 of a regression,
in hundredths. The best single candidate is the one that is best for the whole fleet after the fact, of the same run. With
`--parts` the mixture without each candidate in turn, and with folds that are drawn row by row.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kin import Cell, Voters, people, scenario, setting_of
from benchmarks.kin_fleets import FLEETS, NATURAL
from benchmarks.measuring import record_options, resumed, show_tables
from benchmarks.torch_runs import repeatable, started
from covey.agent.data.dataset import Dataset, folds, take
from covey.coordinator.run.run import Run
from covey.extras.judge.candidates import BeforeHome, at_home, judged, made
from covey.extras.judge.mixture import FleetWeights, Judged, chosen, fitted
from covey.extras.judge.trees import trees_for
from covey.shared.candidate_names import HOMES, REFITS
from covey.shared.numerics.figures import figures_of
from covey.shared.numerics.measures import derived
from covey.shared.seeds import generator
from covey.shared.strategies.base import ClientId
from covey.shared.strategies.client_half import Fold
from covey.shared.wire.messages import OrderMessage, ReportContent
from covey.shared.work.at_hand import AtHand
from covey.shared.work.use import model_for_use
from tests.kit.local_clients import decode_named

OUT = Path(__file__).parent / "results" / "mixture.json"
PARTS = OUT.with_name("mixture_parts.json")
METHODS = ("fedavg", "fedclust")
Answers = dict[str, Any]  # of each candidate on the test samples


class Agents(Voters):
    """Agents that judge their candidates when they are evaluated."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.judged: dict[ClientId, Judged | None] = {}
        self.answers: dict[ClientId, Answers] = {}
        self.in_parts = False
        self.at_random: dict[ClientId, Judged | None] = {}  # by folds that know no units
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
        own = local(data)
        found = made(own, given, at_home(own, given, HOMES))
        parts = (Fold(local(part), units) for part, units in folds(data, order.work.seed, client))
        self.judged[client] = judged(parts, given, found)
        if self.in_parts:
            drawn = (Fold(local(part), units) for part, units in drawn_folds(data, client))
            self.at_random[client] = judged(drawn, given, found)
        here = local(data)
        self.answers[client] = {name: one.answers(here, "test") for name, one in found.items()}


def drawn_folds(data: Dataset, client: str) -> Iterator[tuple[Dataset, Any]]:
    """Three folds of single rows, each a unit."""
    order = generator(0, "rows", client).permutation(len(data.targets))
    for test in np.array_split(order, 3):
        fold = take(data, np.setdiff1d(order, test))
        fold = replace(fold, test_features=data.features[test], test_targets=data.targets[test])
        yield replace(fold, test_groups=None, shared_tests=None), test


def without(one: Judged | None, name: str) -> Judged | None:
    """What was judged, without a candidate."""
    if one is None:
        return None
    answers = {key: own for key, own in one.answers.items() if key != name}
    return Judged.of(answers, one.truth, one.of_samples, one.measure)


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


def fleet_by(of_agents: Collection[Judged | None]) -> FleetWeights:
    """What agents know of one another when they choose."""
    fleet = None
    for _ in range(REFITS):
        fleet = known_of(of_agents, fleet)
    assert fleet is not None
    return fleet


def measured(
    cell: Cell, data_root: Path | None = None, *, in_parts: bool = False
) -> dict[str, Any]:
    """The mean over agents of each candidate and of each way to use them, the weights, and the seconds of an agent."""
    owned, _ = people(cell.fleet, cell.seed, cell.setting, data_root)
    scene = scenario(cell)
    clients = Agents(scene, started(scene), owned)
    clients.torch = setting_of(cell).torch
    clients.in_parts = in_parts
    with tempfile.TemporaryDirectory() as folder:
        clients.run(Path(folder))
    names = list(next(iter(clients.answers.values())))
    fleet = fleet_by(clients.judged.values())
    ways: dict[str, list[float]] = {}

    def add(way: str, client: ClientId, weights: Mapping[str, float]) -> None:
        answers = clients.answers[client]
        found = sum(weight * answers[name] for name, weight in weights.items())
        ways.setdefault(way, []).append(shown(owned[client].test_targets, found))

    of_parts = {"folds at random": (names, clients.at_random)} if in_parts else {}
    for name in names if in_parts else ():
        left = {client: without(one, name) for client, one in clients.judged.items()}
        of_parts[f"without {name}"] = ([own for own in names if own != name], left)
    for way, (kept, of_agents) in of_parts.items():
        known = fleet_by(of_agents.values())
        for client, one in of_agents.items():
            add(way, client, chosen(one, kept, known).weights)
    unused, used = 0, []
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


def parts_table(found: Mapping[str, Any]) -> str:
    """The points that the mixture loses without each part, by run."""
    ways = [way for cell in found.values() for way in cell["figures"]]
    ways = [way for way in dict.fromkeys(ways) if way.startswith(("without", "folds"))]
    columns = [
        [cell["figures"]["mixture"] - cell["figures"].get(way, np.nan) for way in ways]
        for cell in found.values()
    ]
    lines = [
        f"| without | {' | '.join(key.rsplit('/', 1)[0] for key in found)} | mean |",
        "|---|" + "--:|" * (len(found) + 1),
    ]
    for way, losses in zip(ways, np.transpose(columns), strict=True):
        shown = ["" if np.isnan(one) else f"{one:.1f}" for one in losses]
        what = way.removeprefix("without ")
        lines.append(f"| {what} | {' | '.join(shown)} | {np.nanmean(losses):.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = record_options(__doc__, OUT, [1])
    parser.add_argument("--fleets", nargs="+", choices=[*FLEETS, *NATURAL])
    parser.add_argument("--data-root", type=Path, default=Path("../shared/data"))
    parser.add_argument("--parts", action="store_true", help="without each candidate in turn")
    options = parser.parse_args()
    repeatable()
    cells = [
        Cell(fleet, method, seed)
        for fleet in options.fleets or [*FLEETS, *NATURAL]
        for method in METHODS
        for seed in options.seeds
    ]
    measure = partial(measured, data_root=options.data_root, in_parts=options.parts)
    planned = {cell.key: partial(measure, cell) for cell in cells}
    found = resumed(options, planned, {}, lambda one: one["figures"])
    tables = {"without": parts_table(found)} if options.parts else {"fleet": table(found)}
    show_tables(options, tables)


if __name__ == "__main__":
    main()
