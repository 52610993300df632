"""Kin next to simple methods on fleets of digits and of real data. Prints tables, writes JSON.

    python -m benchmarks.kin [--seeds 1 2 3] [--fleets even rotated] [--methods kin fedavg]

    python -m benchmarks.kin --setting few --fleets even "two labels" --data-root ../shared/data

    python -m benchmarks.kin --setting natural --data-root ../shared/data

`benchmarks.kin_fleets` describes the fleets and settings. Macro averages over agents of E-server and of E-tuned (one epoch more at
home): accuracy, or R2 of a regression.

The methods are Kin and seven simple ones: Local, FedAvg, FedAvg whose last third is local, FedClust and IFCA with 2, 3 and 4
clusters; every other setting has its default in a simulated fleet. Kin has a second row without the sums of classes with fewer
than five samples (`task.min_cell: 5`, the default of real fleets), and FedAvg one with the label prior. Further rows are Local
with the prior, Ditto, PACFL, CFL, FeSEM, FLUX and Feroma.

Each cell is written to --out as soon as it is finished, and a second start resumes after the last finished cell. `--table` runs
nothing and prints the finished cells; `--page` replaces the tables in a Markdown page that has them already.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import t as students

from benchmarks.kin_fleets import FLEETS, HARD, NATURAL, SETTINGS, Fleet, Setting
from benchmarks.measuring import record_options, resumed, show_tables
from benchmarks.torch_runs import TorchClients, device_options, megabytes, repeatable, started
from covey.agent.data import Dataset, fit
from covey.agent.data.dataset import hold_back, take
from covey.agent.data.partition import SampleSplit, client_dataset, divided, fleet_data
from covey.agent.data.survey import DataSurvey
from covey.extras.kin.advise import advice, planned
from covey.extras.light.numpy_learner import NumpyLocal
from covey.shared.numerics.measures import derived
from covey.shared.numerics.metrics import adjusted_rand
from covey.shared.scenario.fleet_statistics import resolved
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.simulated_agents import agent_name
from covey.shared.strategies.base import HOLD_BACK, ClientId, Training
from covey.shared.strategies.client_half import Local
from covey.shared.strategies.phase_names import MOMENTS, VOTE
from covey.shared.wire.messages import OrderMessage
from covey.shared.work.at_hand import shuffle

METHODS: dict[str, dict[str, Any]] = {
    "kin": {"name": "kin"},
    "kin, cells of 5": {"name": "kin"},
    "local": {"name": "local"},
    "fedavg": {"name": "fedavg"},
    "local last third": {"name": "fedavg"},  # its fine-tuning is the last third
    "fedclust": {"name": "fedclust", "vote": "none"},
    "ifca 2": {"name": "ifca", "n_clusters": 2},
    "ifca 3": {"name": "ifca", "n_clusters": 3},
    "ifca 4": {"name": "ifca", "n_clusters": 4},
}
KINS = ("kin", "kin, cells of 5")
# what a method's task has besides the defaults
TASKS: dict[str, dict[str, Any]] = {
    "kin, cells of 5": {"min_cell": 5},  # that of other fleets
    "fedavg, prior": {"label_prior": "on"},
    "local, prior": {"label_prior": "on"},
}
METHODS |= {"fedavg, prior": METHODS["fedavg"]}
# further rows; those that need a number of clusters have that of their cut or of the cards
OTHERS: dict[str, dict[str, Any]] = {
    "local, prior": METHODS["local"],
    "ditto": {"name": "ditto"},
    "pacfl": {"name": "pacfl", "vote": "none"},
    "cfl": {"name": "cfl"},
    "fesem, cards": {"name": "fesem"},
    "flux": {"name": "flux"},
    "feroma": {"name": "feroma"},
}
RIVALS = tuple(method for method in (*METHODS, *OTHERS) if method not in KINS)
# methods that need a number of clusters, with their usual one and with that of the cards; a vote; FLUX and Feroma
GATED: dict[str, dict[str, Any]] = {
    "ifca 2": METHODS["ifca 2"],
    "ifca, cards": {"name": "ifca"},
    "fesem 2": {"name": "fesem", "n_clusters": 2},
    "fesem, cards": OTHERS["fesem, cards"],
    "fesem_ma 3": {"name": "fesem_ma", "n_clusters": 3},
    "fesem_ma, cards": {"name": "fesem_ma"},
    "fedclust": METHODS["fedclust"],
    "fedclust, vote": {"name": "fedclust", "vote": "auto"},
    "flux": OTHERS["flux"],
    "feroma": OTHERS["feroma"],
}
EVERY = {**METHODS, **OTHERS, **GATED}
MODES = {"tuned": "E-tuned", "server": "E-server"}
OUT = Path(__file__).parent / "results" / "kin.json"
PLAIN = {"epochs": 2, "batch": 10, "lr": 0.1}
FEWEST = 8  # samples that an agent keeps
SEEDS = range(1, 10)  # that a record may have
SIGMA = 0.7  # of the logarithm of the share of its samples that an agent keeps
Found = dict[str, dict[str, Any]]  # the figures of each cell by its key


@dataclass(frozen=True)
class Cell:
    """One run."""

    fleet: str
    method: str
    seed: int
    setting: str = "digits"

    @property
    def key(self) -> str:
        """The cell's name in the JSON file."""
        return f"{self.fleet}/{self.method}/{self.seed}"


def fleet_of(name: str) -> Fleet:
    return {**FLEETS, **NATURAL, **HARD}[name]


def setting_of(cell: Cell) -> Setting:
    """That of its fleet, or else of its table."""
    return fleet_of(cell.fleet).own or SETTINGS[cell.setting]


def suits(fleet: str, method: str) -> bool:
    """Whether the method can run: a regression has no label prior."""
    own = fleet_of(fleet).own
    return own is None or "classes" in own.task or "label_prior" not in TASKS.get(method, {})


def scenario(cell: Cell) -> Scenario:
    """The scenario that a coordinator would run."""
    common = setting_of(cell)
    is_last_third = cell.method == "local last third"
    first = round(2 * common.rounds / 3)
    last_third = (common.rounds - first) * PLAIN["epochs"]
    return Scenario.model_validate(
        {
            "name": "kin",
            "seed": cell.seed,
            "task": {**common.task, **TASKS.get(cell.method, {})},
            "training": {**PLAIN, "lr": common.lr},
            "strategy": EVERY[cell.method],
            "rounds": {
                "count": first if is_last_third else common.rounds,
                "participation": common.participation,
            },
            "evaluation": {"tune_epochs": last_third + 1 if is_last_third else 1},
            "fleet": {
                "agents": common.agents,
                "data": common.data,
                "limit": common.limit,
                "partition": fleet_of(cell.fleet).partition,
            },
        }
    )


@cache
def people(
    fleet: str, seed: int, setting: str = "digits", data_root: Path | None = None
) -> tuple[dict[ClientId, Dataset], tuple[int, ...]]:
    """Each agent's data and true group (nothing if there is one), the same for all methods of a seed."""
    kind = fleet_of(fleet)
    cell = Cell(fleet, "fedavg", seed, setting)
    agents = setting_of(cell).agents
    scene = scenario(cell)
    data, split = _divided(scene, kind, data_root)
    kept = kept_shares(SIGMA if kind.unequal else 0.0, agents, seed)
    owned = {}
    for index in range(agents):
        own = fit(client_dataset(data, split, index), scene.task)
        if kind.change is not None:
            own = kind.change(own, index % kind.groups)
        samples = max(int(kept[index] * len(own.targets)), FEWEST)
        order = np.random.default_rng([seed, index]).permutation(len(own.targets))
        owned[agent_name(index, agents)] = take(own, np.sort(order[:samples]))
    truth = [index % kind.groups for index in range(agents)]
    if split.truth is not None:
        truth = split.truth.tolist()
    return owned, tuple(truth) if len(set(truth)) > 1 else ()


def _divided(scene: Scenario, kind: Fleet, data_root: Path | None) -> tuple[Dataset, SampleSplit]:
    """All data of a fleet, and who holds what."""
    if kind.make is None:
        return fleet_data(scene, data_root)
    assert scene.fleet is not None
    assert not isinstance(scene.fleet.partition, str)
    data = kind.make(scene.seed, data_root)
    return data, divided(data, scene.fleet.partition, scene.fleet, scene.seed)


class Voters(TorchClients):
    """Agents with the learner `numpy`, which hold samples back where their order asks for it."""

    torch = False

    def trainer(self, data: Dataset, client: ClientId, order: OrderMessage) -> Local:  # type: ignore[override]
        if order.work is not None and order.work.phase == MOMENTS:
            return DataSurvey(data, self.scene.task)  # type: ignore[return-value]
        if self.torch:
            learner: Local = super().trainer(data, client, order)
            return learner
        work = order.work
        assert work is not None
        training = Training.model_validate(work.training)
        rng = shuffle(work, client)
        task = resolved(self.scene.task, work.scaling)
        return NumpyLocal(
            data, task, self.setup.layout, training=training, rng=rng, scaling=work.scaling
        )

    def data(self, client: ClientId, order: OrderMessage) -> Dataset:
        rest, _ = self._halves(client, order)
        return rest

    def held(self, client: ClientId, order: OrderMessage) -> Local | None:
        """What the agent compares models on."""
        _, held = self._halves(client, order)
        assert order.work is not None
        if held is None or order.work.phase != VOTE:
            return None
        voter: Local = self.trainer(held, client, order)
        return voter

    def _halves(self, client: ClientId, order: OrderMessage) -> tuple[Dataset, Dataset | None]:
        assert order.work is not None
        data = self.datasets[client]
        if HOLD_BACK not in order.work.numbers:
            return data, None
        return hold_back(data, order.work.seed, client)


def measured(cell: Cell, data_root: Path | None = None) -> dict[str, Any]:
    """E-server and E-tuned: the mean over agents and over the worst tenth of them; MB an agent, the sizes of the clusters, ARI,
    and what Kin decided."""
    owned, truth = people(cell.fleet, cell.seed, cell.setting, data_root)
    scene = scenario(cell)
    clients = Voters(scene, started(scene), owned)
    clients.torch = setting_of(cell).torch
    clients.held_back_for = clients.held
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        run = clients.run(Path(folder))
        traffic = megabytes(run, len(owned))
    modes = {
        mode: np.array([_shown(own[mode]) for own in run.members.evaluation.values()])
        for mode in MODES
    }
    if cell.method == "local last third":
        modes["server"] = modes["tuned"]
    clusters = run.strategy.assignment(run.state)
    labels = [clusters.get(name, -1) for name in owned]
    figures: dict[str, Any] = {
        **{mode: float(values.mean()) for mode, values in modes.items()},
        "decile": {mode: _worst_decile(values) for mode, values in modes.items()},
        "mb": traffic,
        "sizes": sizes_of(labels) if clusters else [],
        "ari": adjusted_rand(labels, list(truth)) if truth and clusters else None,
        "seconds": round(time.process_time() - began, 1),
    }
    if scene.strategy.name == "kin":
        state = run.state
        figures |= {"chances": list(state.chances), "basis": state.basis, "votes": state.outcomes}
    return figures


def kept_shares(sigma: float, agents: int, seed: int) -> list[float]:
    """The share of its training samples that each agent keeps; the largest is 1."""
    shares = np.exp(sigma * np.random.default_rng(seed).standard_normal(agents))
    kept: list[float] = (shares / shares.max()).tolist()
    return kept


def sizes_of(labels: Sequence[int]) -> list[int]:
    """Sizes of the clusters, the largest first."""
    _, counts = np.unique(labels, return_counts=True)
    return sorted(counts.tolist(), reverse=True)


def _shown(figures: Mapping[str, float]) -> float:
    """The accuracy of an agent, or its R2."""
    return figures["accuracy"] if "accuracy" in figures else derived(figures)["r2"]


def _worst_decile(values: npt.NDArray[np.float64]) -> float:
    """The mean over the tenth of the agents (n,), one at least, that have least."""
    return float(np.sort(values)[: max(len(values) // 10, 1)].mean())


def cells(
    fleets: list[str], methods: list[str], seeds: list[int], setting: str = "digits"
) -> Iterator[Cell]:
    """All cells of the first seed come before any of the second."""
    for seed, fleet, method in itertools.product(seeds, fleets, methods):
        if method == ADVICE or suits(fleet, method):
            yield Cell(fleet, method, seed, setting)


def of(found: Found, fleet: str, method: str, key: str) -> list[Any]:
    """A figure of all finished seeds that have it, in order."""
    of_seeds = [found.get(f"{fleet}/{method}/{seed}", {}) for seed in SEEDS]
    return [figures[key] for figures in of_seeds if key in figures]


def percent(found: Found, fleet: str, method: str, mode: str) -> float:
    """The mean over the seeds."""
    return 100 * float(np.mean(of(found, fleet, method, mode)))


def table(found: Found, mode: str) -> str:
    """Markdown: a row per fleet, percent per method, and Kin's distance from the best of the table.

    Args:
        found: the finished cells.
        mode: "server" or "tuned".
    """
    head = " | ".join(METHODS)
    lines = [
        f"| {MODES[mode]} on | {head} | Kin to the best | cells of 5 | Kin's groups (ARI) | cells of 5 |",
        "|---|" + "---:|" * (len(METHODS) + len(KINS)) + "---|" * len(KINS),
    ]
    for fleet in whole(found):
        figures = [f"{percent(found, fleet, method, mode):.1f}" for method in METHODS]
        apart = [f"{margin(found, fleet, method, mode):+.1f}" for method in KINS]
        row = " | ".join([*figures, *apart, *[decisions(found, fleet, method) for method in KINS]])
        lines.append(f"| {fleet} | {row} |")
    return "\n".join(lines)


def brief(found: Found, title: str, methods: Sequence[str] = tuple(METHODS)) -> str:
    """Markdown: a row per fleet with E-server / E-tuned of each method that has run, and what Kin decided if it is one of them."""
    methods = _ran(found, methods)
    kins = [method for method in methods if method in KINS][:1]
    head = " | ".join([*methods, *("Kin's groups (ARI)" for _ in kins)])
    lines = [
        f"| {title}, E-server / E-tuned | {head} |",
        "|---|" + "---:|" * len(methods) + "---|" * len(kins),
    ]
    for fleet in whole(found, methods):
        row = [
            " / ".join(f"{percent(found, fleet, method, mode):.1f}" for mode in ("server", "tuned"))
            if suits(fleet, method)
            else ""
            for method in methods
        ]
        row += [decisions(found, fleet, method) for method in kins]
        lines.append(f"| {fleet} | {' | '.join(row)} |")
    return "\n".join(lines)


def whole(found: Found, methods: Sequence[str] = tuple(METHODS)) -> list[str]:
    """The fleets of which all methods that have run and suit them have finished the same seeds."""
    finished = {
        fleet: {
            len(of(found, fleet, method, "tuned"))
            for method in _ran(found, methods)
            if suits(fleet, method)
        }
        for fleet in (*FLEETS, *NATURAL)
    }
    return [fleet for fleet, counts in finished.items() if len(counts) == 1 and 0 not in counts]


def _ran(found: Found, methods: Sequence[str]) -> list[str]:
    return [method for method in methods if any(f"/{method}/" in key for key in found)]


def paired(found: Found, title: str) -> str:
    """Markdown: how far Kin is from the best of the table, seed by seed, with 95 % intervals; its worst decile, traffic and tests."""
    lines = [
        f"| {title}: Kin to the best of the table | seeds | E-server | E-tuned | worst tenth as served: Kin | that best | MB an agent: "
        "Kin | FedAvg | chance of the clearest shift | z of the votes |",
        "|---|---:|---|---|---:|---:|---:|---:|---|---|",
    ]
    for fleet in whole(found):
        best = best_of_table(found, fleet, "server")
        row = [
            str(len(of(found, fleet, "kin", "server"))),
            *[_interval(found, fleet, mode) for mode in ("server", "tuned")],
            *[_worst_tenth(found, fleet, method) for method in ("kin", best)],
            *[_traffic(found, fleet, method) for method in ("kin", "fedavg")],
            "; ".join(f"{min(chances):.4f}" for chances in of(found, fleet, "kin", "chances")),
            "; ".join(_votes(votes) for votes in of(found, fleet, "kin", "votes")),
        ]
        lines.append(f"| {fleet}: {best} | {' | '.join(row)} |")
    return "\n".join(lines)


def _worst_tenth(found: Found, fleet: str, method: str) -> str:
    deciles = [decile["server"] for decile in of(found, fleet, method, "decile")]
    return f"{100 * np.mean(deciles):.1f}" if deciles else ""


def _traffic(found: Found, fleet: str, method: str) -> str:
    sizes = of(found, fleet, method, "mb")
    return f"{np.mean(sizes):.2f}" if sizes else ""


def _interval(found: Found, fleet: str, mode: str) -> str:
    """The mean of the paired differences over seeds, and half of its 95 % interval (Student's t)."""
    best = best_of_table(found, fleet, mode)
    apart = 100 * np.subtract(of(found, fleet, "kin", mode), of(found, fleet, best, mode))
    text = f"{apart.mean():+.1f}"
    if len(apart) < 2:
        return text
    half = students.ppf(0.975, len(apart) - 1) * apart.std(ddof=1) / np.sqrt(len(apart))
    return f"{text} ± {half:.1f}"


def _votes(votes: Mapping[str, Mapping[str, float]]) -> str:
    """The outcomes of the votes of one run."""
    return ", ".join(f"{name} {vote['z']:.1f}" for name, vote in votes.items()) or "none"


def best_of_table(found: Found, fleet: str, mode: str) -> str:
    """The best of the other methods that have run, in the mean over seeds."""
    seeds = len(of(found, fleet, "fedavg", mode))
    ran = [method for method in RIVALS if len(of(found, fleet, method, mode)) == seeds]
    return max(ran, key=lambda method: percent(found, fleet, method, mode))


def margin(found: Found, fleet: str, method: str, mode: str) -> float:
    """Points above the best of the other methods."""
    best = best_of_table(found, fleet, mode)
    return percent(found, fleet, method, mode) - percent(found, fleet, best, mode)


def decisions(found: Found, fleet: str, method: str) -> str:
    """What Kin found and decided, seed by seed."""
    words = []
    keys = ("chances", "sizes", "ari")
    figures = zip(*[of(found, fleet, method, key) for key in keys], strict=True)
    alone = of(
        found, fleet, method, "alone"
    )  # of records from the time when agents could finish alone
    for place, (chances, sizes, ari) in enumerate(figures):
        if min(chances) >= 0.01:
            words.append("FedAvg")
            continue
        groups = str(max(len(sizes), 1))
        groups += "" if ari is None else f" ({ari:.2f})"
        words.append(f"{groups}, own" if alone and alone[place] else groups)
    return "; ".join(words)


def gated(found: Found) -> str:
    """Markdown: E-server of each fleet, with the usual number of clusters and with that of the cards."""
    finished = {
        fleet: {seed for seed in SEEDS if all(f"{fleet}/{one}/{seed}" in found for one in GATED)}
        for fleet in FLEETS
    }
    fleets = [fleet for fleet, seeds in finished.items() if seeds]
    figures = {
        method: [
            100 * np.mean([found[f"{fleet}/{method}/{seed}"]["server"] for seed in finished[fleet]])
            for fleet in fleets
        ]
        for method in GATED
    }
    lines = [f"| E-server | {' | '.join(GATED)} |", "|---|" + "---:|" * len(GATED)]
    for place, fleet in enumerate(fleets):
        row = " | ".join(f"{figures[method][place]:.1f}" for method in GATED)
        lines.append(f"| {fleet} | {row} |")
    means = " | ".join(f"{np.mean(figures[method]):.1f}" for method in GATED) if fleets else ""
    return "\n".join([*lines, f"| mean | {means} |"])


ANSWERS = {
    "one model": ("fedavg",),
    "groups": ("fedclust", "ifca 2", "ifca 3", "ifca 4"),
    "own models": ("local", "local last third"),
}  # what training shows of each kind of advice, besides the prior
ADVICE = "advice"  # in place of a method: what `coordinator advise` finds out
WRONG = 0.5  # points behind the best kind


def advised(found: Found, title: str = "fleet") -> str:
    """Markdown: the advice of `coordinator advise` for each fleet, seed by seed, next to what training showed (E-server)."""
    lines = [
        f"| {title} | advice | {' | '.join(ANSWERS)} | wrong |",
        "|---|---|" + "---:|" * len(ANSWERS) + "---|",
    ]
    total = wrong = 0
    for fleet in whole(found):
        seeds = len(of(found, fleet, "kin", "server"))
        kinds = of(found, fleet, ADVICE, "kind")[:seeds]
        if len(kinds) < seeds:
            continue
        by_seed = {
            kind: np.max([of(found, fleet, method, "server") for method in methods], axis=0)
            for kind, methods in ANSWERS.items()
        }
        best = np.max(list(by_seed.values()), axis=0)
        misses = [
            100 * (best[place] - by_seed[kind][place]) > WRONG for place, kind in enumerate(kinds)
        ]
        total, wrong = total + seeds, wrong + sum(misses)
        means = " | ".join(f"{100 * values.mean():.1f}" for values in by_seed.values())
        said = "; ".join(f"{kind} ({kinds.count(kind)})" for kind in ANSWERS if kind in kinds)
        lines.append(f"| {fleet} | {said} | {means} | {sum(misses)} of {seeds} |")
    return "\n".join([*lines, f"| all | | | | | {wrong} of {total} |"])


def advice_for(cell: Cell, data_root: Path | None = None) -> dict[str, str]:
    """The kind of advice from the cards of a fleet."""
    owned, _ = people(cell.fleet, cell.seed, cell.setting, data_root)
    scene = planned(scenario(replace(cell, method="kin")), None)
    with tempfile.TemporaryDirectory() as folder:
        run = Voters(scene, started(scene), owned).run(Path(folder))
    notes = dict(run.strategy.shown(run.state).notes)
    groups = [[""]] * (max(run.state.assign.values(), default=-1) + 1)
    return {"kind": advice(notes, len(owned), groups).kind}


def summary(found: Found, mode: str, title: str = "") -> str:
    """Markdown: a row per method, over the fleets whose cells are finished."""
    lines = [
        f"| {title}{MODES[mode]}, to the best of the table | mean | worst | behind by > 0.5 | ahead by > 0.5 |",
        "|---|---:|---:|---:|---:|",
    ]
    for method in (*METHODS, *OTHERS):
        margins = [
            margin(found, fleet, method, mode)
            for fleet in whole(found)
            if of(found, fleet, method, mode)
        ]
        if not margins:
            continue
        behind = sum(one < -0.5 for one in margins)
        ahead = sum(one > 0.5 for one in margins)
        figures = f"{np.mean(margins):+.2f} | {min(margins):+.1f}"
        lines.append(f"| {method} | {figures} | {behind} of {len(margins)} | {ahead} |")
    return "\n".join(lines)


def changed(before: Found, after: Found, title: str) -> str:
    """Markdown: a row per fleet with the figures of Kin in two records, over the seeds of the second one."""
    lines = [
        f"| {title} | E-server | one vote | E-tuned | one vote | groups (ARI) | one vote |",
        "|---|---:|---:|---:|---:|---|---|",
    ]
    fleets = [fleet for fleet in (*FLEETS, *NATURAL) if of(after, fleet, "kin", "server")]
    pairs: list[list[float]] = []
    for fleet in fleets:
        seeds = [key for key in after if key.startswith(f"{fleet}/kin/")]
        records = [{key: record[key] for key in seeds} for record in (before, after)]
        figures = [
            percent(one, fleet, "kin", mode) for mode in ("server", "tuned") for one in records
        ]
        pairs.append(figures)
        cuts = [decisions(one, fleet, "kin") for one in records]
        lines.append(f"| {fleet} | {' | '.join([*[f'{one:.1f}' for one in figures], *cuts])} |")
    means = " | ".join(f"{one:.1f}" for one in np.mean(pairs, axis=0))
    return "\n".join([*lines, f"| mean | {means} | | |"])


def outputs(setting: str) -> Path:
    """The record of a setting."""
    return OUT if setting == "digits" else OUT.with_name(f"kin_{setting}.json")


def main() -> None:
    parser = record_options(__doc__, OUT, [1, 2, 3, 4, 5])
    parser.add_argument("--fleets", nargs="+", choices=[*FLEETS, *NATURAL])
    parser.add_argument("--methods", nargs="+", default=[*EVERY, ADVICE], choices=[*EVERY, ADVICE])
    parser.add_argument("--setting", default="digits", choices=[*SETTINGS, "natural"])
    parser.add_argument("--data-root", type=Path, default=Path("../shared/data"))
    device_options(parser)
    options = parser.parse_args()
    repeatable(options)
    if options.out == OUT:
        options.out = outputs(options.setting)
    fleets = options.fleets or list(NATURAL if options.setting == "natural" else FLEETS)
    planned = {
        cell.key: partial(advice_for, cell, options.data_root)
        if cell.method == ADVICE
        else partial(measured, cell, options.data_root)
        for cell in cells(fleets, options.methods, options.seeds, options.setting)
    }
    found = resumed(options, planned, described(options.setting))
    show_tables(options, tables_of(found, options.setting))


def described(setting: str) -> dict[str, Any]:
    """What a record names besides its cells."""
    if setting == "natural":
        return {
            fleet: [kind.own.rounds, kind.own.agents] for fleet, kind in NATURAL.items() if kind.own
        }
    common = SETTINGS[setting]
    return {"rounds": common.rounds, "agents": common.agents}


def tables_of(found: Found, setting: str) -> dict[str, str]:
    """All tables of a record, by the name of their first column."""
    tables = {f"{setting}: Kin to the best of the table": paired(found, setting)}
    if _ran(found, list(OTHERS)):
        further = f"{setting}, further rows"
        tables[f"{further}, E-server / E-tuned"] = brief(found, further, list(OTHERS))
    if _ran(found, [ADVICE]):
        asked = "fleet" if setting == "digits" else f"{setting} fleet"
        tables[asked] = advised(found, asked)
    prefix = "" if setting == "digits" else f"{setting}, "
    for mode, name in MODES.items():
        tables[f"{prefix}{name}, to the best of the table"] = summary(found, mode, prefix)
    if setting != "digits":
        return {**tables, f"{setting}, E-server / E-tuned": brief(found, setting)}
    tables["E-server"] = gated(found)
    for mode, name in MODES.items():
        tables[f"{name} on"] = table(found, mode)
    return tables


if __name__ == "__main__":
    main()
