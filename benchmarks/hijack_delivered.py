"""What the devices of a hijacked cluster, and those of a fleet with one liar, answer with: E-server next to E-delivered.

    python -m benchmarks.hijack_delivered [--seeds 1 2 3]

The fleet and the attack of the benchmark `hijack` of commit 8d0c3074, with the plain mean: six agents of other groups do all
their work on samples of group 0's labels, and as soon as they share a cluster with group 0 they report ten times their step,
backwards. With IFCA they keep to the hypothesis that they chose first. `hijack+weights`: in the last evaluation they also claim
that the served model alone has weight, and that mixtures lose by one. `few` is the same fleet with so little data that no device
has 25 samples. `liar`: one agent of twenty reports ten times its step, backwards, in each training, claims 10^12 samples and sends
those weights; with `clip` updates are shortened to the median. A cell without a false report ends the campaign.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import Found, mean_and_spread, record_options, resumed, show_tables
from benchmarks.torch_runs import TIMES, WithLiars, chosen, models_of, repeatable, started
from covey.agent.data import Dataset, fit
from covey.agent.data.dataset import folds
from covey.agent.data.partition import client_dataset, fleet_data
from covey.coordinator.run.run import Run
from covey.shared.candidate_names import DELIVERED, GAIN, SERVED, USES, WEIGHTS
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.simulated_agents import agent_name
from covey.shared.seeds import generator
from covey.shared.strategies.base import TRAIN, ClientId, Fold
from covey.shared.wire.codec import Codec, decode, encode
from covey.shared.wire.messages import OrderMessage, ReportContent
from covey.shared.work.judge import has_judge
from tests.kit.local_clients import Client

AGENTS, GROUPS, HOSTILE, ROUNDS = 20, 4, 6, 6
NAMES = [agent_name(index, AGENTS) for index in range(AGENTS)]
ATTACKED = NAMES[: AGENTS // GROUPS]  # the agents of group 0
METHODS = ("fedclust", "pacfl", "ifca")
WITH_A_LIAR = ("fedavg", "fedclust")
ALONE = "local"  # without an attack, for comparison
FLEETS = {"digits": None, "few": 400}  # samples of the whole fleet
ATTACKS = ("none", "hijack", "hijack+weights")
LIES = {"none": {}, "liar": {}, "liar, clip": {"clip": {"times_median": 1.0}}}  # and `aggregation`
CLAIM = 10**12
OUT = Path(__file__).parent / "results" / "hijack_delivered.json"


def scenario(fleet: str, method: str, seed: int, attack: str) -> Scenario:
    """The scenario that a coordinator would run."""
    is_one = method in ("fedavg", ALONE)
    mlp = {"name": "mlp", "options": {"hidden": 32}}
    groups = {"name": "grouped_labels", "groups": GROUPS}
    return Scenario.model_validate(
        {
            "name": "hijack",
            "seed": seed,
            "task": {"features": [1, 8, 8], "classes": 10, "scale": 1 / 16, "model": mlp},
            "training": {"epochs": 2, "batch": 10, "lr": 0.1},
            "strategy": {"name": method} | ({} if is_one else {"n_clusters": GROUPS}),
            "aggregation": LIES.get(attack, {}),
            "rounds": {"count": ROUNDS},
            "evaluation": {"tune_epochs": 0},
            "fleet": {
                "agents": AGENTS,
                "data": "digits",
                "partition": groups,
                "limit": FLEETS[fleet],
            },
        }
    )


class Hijacked(WithLiars):
    """Clients with hostile agents among them."""

    def __init__(self, fleet: str, method: str, attack: str, seed: int, *, one: bool) -> None:
        scene = scenario(fleet, method, seed, attack)
        data, split = fleet_data(scene, None)
        owned: dict[ClientId, Dataset] = {}
        for index, name in enumerate(NAMES):
            owned[name] = fit(client_dataset(data, split, index), scene.task)
        drawn = generator(seed, "hostile").choice(range(len(ATTACKED), AGENTS), HOSTILE, False)
        self.liars = [NAMES[index] for index in sorted(drawn)] if attack != "none" else []
        if one:
            self.liars = self.liars[:1]
        else:
            for place, liar in enumerate(self.liars):
                owned[liar] = owned[ATTACKED[place % len(ATTACKED)]]
        super().__init__(scene, started(scene), owned)
        self.attack, self.one, self.lies = attack, one, 0
        self._attacking: set[ClientId] = set()  # that have been clustered with group 0
        self._choices: dict[ClientId, int] = {}  # their first hypothesis

    def client(self, run: Run, client: ClientId, order: OrderMessage) -> Client:
        found = super().client(run, client, order)
        assert order.work is not None
        if not has_judge(order.work):
            return found
        parts = folds(self.datasets[client], order.work.seed, client)
        own = [Fold(self.trainer(part, client, order), units) for part, units in parts]
        return replace(found, given=replace(found.given, folds=own))

    def work(self, run: Run, client: ClientId, order: OrderMessage) -> ReportContent:
        report = super().work(run, client, order)
        assert order.work is not None
        if client in self.liars and order.work.phase == TRAIN and self._inside(run, client, order):
            self.lies += 1
            false = self._lie(run, report, order)
            return false.model_copy(update={"examples": CLAIM}) if self.one else false
        sends_weights = self.one or self.attack == "hijack+weights"
        if client in self.liars and sends_weights and WEIGHTS in report.numbers:
            weights = dict.fromkeys(report.numbers[WEIGHTS], 0.0) | {SERVED: 1.0}
            numbers = {**report.numbers, WEIGHTS: weights, GAIN: [-1.0, 1e-6]}
            return report.model_copy(update={"numbers": numbers})
        return report

    def _inside(self, run: Run, client: ClientId, order: OrderMessage) -> bool:
        assert order.work is not None
        if self.one:
            return True
        clusters = run.strategy.assignment(run.state)
        is_apart = len(set(clusters.values())) > 1
        if self.scene.strategy.name == "ifca":
            is_apart = len(order.work.models) > 1  # its first rounds have groups that were drawn
        if is_apart and clusters.get(client) in [clusters.get(name) for name in ATTACKED]:
            self._attacking.add(client)
        return client in self._attacking

    def _lie(self, run: Run, report: ReportContent, order: OrderMessage) -> ReportContent:
        models = models_of(run, order)
        own = chosen(report, models)
        choice = self._choices.setdefault(report.client, own) if len(models) > 1 else own
        honest = decode(report.vectors["model"], length=models[own].size)
        false = np.asarray(models[choice] - TIMES * (honest - models[own]), np.float32)
        rng = generator(self.scene.seed, "lie", report.client, report.step)
        sent, _ = encode(false, Codec(), base=None, base_digest=b"", error=None, rng=rng)
        stated = {"choice": choice} if len(models) > 1 else {}
        numbers = {**report.numbers, **stated}
        return report.model_copy(update={"vectors": {"model": sent}, "numbers": numbers})


def measured(
    fleet: str, method: str, attack: str, seed: int, *, one: bool = False
) -> dict[str, Any]:
    """The accuracy of the honest agents by group, and what those of group 0 use; of all where there is `one` liar."""
    clients = Hijacked(fleet, method, attack, seed, one=one)
    with tempfile.TemporaryDirectory() as folder:
        claimed = clients.samples()
        if one:  # a report must not claim more than its agent's status
            claimed |= {name: (CLAIM, claimed[name][1]) for name in clients.liars}
        run = clients.run(Path(folder), claimed)
        if attack != "none" and not clients.lies:
            raise RuntimeError(f"{fleet} {method} {attack} {seed}: no false report was accepted")
        figures = run.members.evaluation
        honest = [name for name in NAMES if name not in clients.liars]
        found: dict[str, Any] = {}
        others = [name for name in honest if name not in ATTACKED]
        groups = {"honest": honest} if one else {"group 0": ATTACKED, "others": others}
        for group, names in groups.items():
            for mode in ("server", DELIVERED):  # a model that diverged is right about nothing
                shares = [figures[name][mode].get("accuracy", 0.0) for name in names]
                found[f"{group} {mode}"] = [round(float(one), 4) for one in shares]
        shown = groups.get("honest", ATTACKED)
        uses = {name: figures[name][DELIVERED][USES] for name in shown}
        samples = [len(clients.datasets[name].targets) for name in shown]
        return {**found, "samples": samples, "uses": uses, "lies": clients.lies}


def table(found: Found, seeds: Sequence[int]) -> str:
    """Markdown: group 0 / the others."""
    columns = list(itertools.product(ATTACKS, ("server", DELIVERED)))
    columns.remove((ATTACKS[-1], "server"))  # that of `hijack`
    heads = [f"{attack}, E-{mode}" for attack, mode in columns]
    lines = [f"| fleet | method | {' | '.join(heads)} |", "|---|---|" + "---:|" * len(heads)]
    for fleet, method in itertools.product(FLEETS, (*METHODS, ALONE)):
        row = [fleet, method]
        for attack, mode in columns:
            keys = [f"{fleet} {method} {attack} {seed}" for seed in seeds]
            cells = [found[key] for key in keys if key in found]
            both = [
                mean_and_spread([100 * float(np.mean(cell[f"{group} {mode}"])) for cell in cells])
                for group in ("group 0", "others")
            ]
            row.append(" / ".join(both) if all(both) else "–")
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def table_of_lies(found: Found, seeds: Sequence[int]) -> str:
    """Markdown: the mean over the honest agents."""
    columns = list(itertools.product(LIES, ("server", DELIVERED)))
    heads = [f"{attack}, E-{mode}" for attack, mode in columns]
    lines = [f"| fleet with one liar | method | {' | '.join(heads)} |", "|---|---|" + "---:|" * 6]
    for fleet, method in itertools.product(FLEETS, WITH_A_LIAR):
        row = [fleet, method]
        for attack, mode in columns:
            keys = [f"{fleet} {method} 1: {attack} {seed}" for seed in seeds]
            cells = [found[key][f"honest {mode}"] for key in keys if key in found]
            row.append(mean_and_spread([100 * float(np.mean(cell)) for cell in cells]))
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def main() -> None:
    options = record_options(__doc__, OUT, [1, 2, 3]).parse_args()
    repeatable()
    planned = {
        f"{fleet} {method} {attack} {seed}": partial(measured, fleet, method, attack, seed)
        for seed, fleet, attack, method in itertools.product(
            options.seeds, FLEETS, ATTACKS, (*METHODS, ALONE)
        )
        if method != ALONE or attack == "none"
    }
    planned |= {
        f"{fleet} {method} 1: {attack} {seed}": partial(
            measured, fleet, method, attack, seed, one=True
        )
        for seed, fleet, attack, method in itertools.product(
            options.seeds, FLEETS, LIES, WITH_A_LIAR
        )
    }
    settings = {"agents": AGENTS, "groups": GROUPS, "hostile": HOSTILE, "rounds": ROUNDS}
    found = resumed(options, planned, settings, indent=None)
    tables = {"fleet": table, "fleet with one liar": table_of_lies}
    show_tables(options, {first: make(found, options.seeds) for first, make in tables.items()})


if __name__ == "__main__":
    main()
