"""Kin next to simple methods on fleets of digits. Prints a table, writes JSON.

    python -m benchmarks.kin [--seeds 1 2 3] [--fleets even rotated] [--methods kin fedavg]

    python -m benchmarks.kin --setting few --fleets even "two labels" --data-root ../shared/data

1 797 images of 8 x 8 pixels, 20 agents, a network of 64 hidden units, 15 rounds of two epochs, all agents in each round.
Macro averages over agents of E-server and of E-tuned (one epoch more at home).

Two other settings have images of Fashion-MNIST: *few* 40 agents with a tenth of them in each of 30 rounds, *lenet* 12 agents with
LeNet-5 and 9 rounds.

- even: equal shares. log-normal: the same with unequal numbers of samples (sigma 0.7).
- two labels, dirichlet 0.1, dirichlet 0.3: skewed labels. label groups: four groups with labels of their own.
- upside down: every second agent's images. rotated: four angles.
- swaps: three groups, of which two exchange the names of four digits each. unequal swaps: of log-normal sizes.
- skewed swaps, skewed rotation: both on labels from Dirichlet 0.3.
- three labels, dirichlet 1, unequal rotation, and sensor gain (half of the brightness at every second agent) were added when
  all rules stood.

The methods are Kin and seven simple ones: Local, FedAvg, FedAvg whose last third is local, FedClust and IFCA with 2, 3 and 4
clusters; every other setting has its default in a simulated fleet. Kin has a second row without the sums of classes with fewer
than five samples (`task.min_cell: 5`, the default of real fleets), and FedAvg one with the label prior. Each cell is written
to --out as soon as it is finished, and a second start resumes after the last finished cell. `--table` runs nothing and prints the finished cells; `--page` replaces the tables in a Markdown page
that has them already.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.default_cut import DIGITS, FEWEST, IMAGES, PLAIN, SIGMA, kept_shares, sizes_of
from benchmarks.measuring import record_options, resumed, show_tables
from benchmarks.torch_runs import TorchClients, device_options, repeatable, started
from covey.agent.data import Dataset, fit
from covey.agent.data.dataset import hold_back, take
from covey.agent.data.partition import client_dataset, fleet_data
from covey.agent.light.numpy_learner import NumpyLocal
from covey.coordinator.commands.advise import advice, planned
from covey.shared.client import shuffle
from covey.shared.numerics.metrics import adjusted_rand
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.simulated_agents import agent_name
from covey.shared.strategies.base import HOLD_BACK, VOTE, ClientId, Local, Training
from covey.shared.wire.messages import OrderMessage

METHODS: dict[str, dict[str, Any]] = {
    "kin": {"name": "kin"},
    "kin, cells of 5": {"name": "kin"},
    "local": {"name": "local"},
    "fedavg": {"name": "fedavg"},
    "local last third": {"name": "fedavg"},  # its fine-tuning is the last third
    "fedclust": {"name": "fedclust"},
    "ifca 2": {"name": "ifca", "n_clusters": 2},
    "ifca 3": {"name": "ifca", "n_clusters": 3},
    "ifca 4": {"name": "ifca", "n_clusters": 4},
}
KINS = ("kin", "kin, cells of 5")
SEVEN = tuple(method for method in METHODS if method not in KINS)
# what a method's task has besides the defaults
TASKS: dict[str, dict[str, Any]] = {
    "kin, cells of 5": {"min_cell": 5},  # that of other fleets
    "fedavg, prior": {"label_prior": "on"},
}
METHODS |= {"fedavg, prior": METHODS["fedavg"]}
# methods that need a number of clusters, with their usual one and with that of the cards; a vote; FLUX and Feroma
GATED: dict[str, dict[str, Any]] = {
    "ifca 2": METHODS["ifca 2"],
    "ifca, cards": {"name": "ifca"},
    "fesem 2": {"name": "fesem", "n_clusters": 2},
    "fesem, cards": {"name": "fesem"},
    "fesem_ma 3": {"name": "fesem_ma", "n_clusters": 3},
    "fesem_ma, cards": {"name": "fesem_ma"},
    "fedclust": METHODS["fedclust"],
    "fedclust, vote": {"name": "fedclust", "vote": "auto"},
    "flux": {"name": "flux"},
    "feroma": {"name": "feroma"},
}
EVERY = {**METHODS, **GATED}


@dataclass(frozen=True)
class Setting:
    """What the runs of a table have in common."""

    task: Mapping[str, Any]
    data: str
    agents: int
    rounds: int
    participation: float = 1.0
    limit: int | None = None  # images
    torch: bool = False  # agents train with torch


LENET = {**IMAGES, "model": {"name": "lenet5"}}
SETTINGS = {
    "digits": Setting(DIGITS, "digits", agents=20, rounds=15),
    "few": Setting(IMAGES, "fashion-mnist", 40, 30, participation=0.1, limit=4800),
    "lenet": Setting(LENET, "fashion-mnist", agents=12, rounds=9, limit=1440, torch=True),
}
SWAPS = [list(range(10)), [1, 0, 3, 2, 4, 5, 6, 7, 8, 9], [0, 1, 2, 3, 4, 5, 7, 6, 9, 8]]
MODES = {"tuned": "E-tuned", "server": "E-server"}
OUT = Path(__file__).parent / "results" / "kin.json"
Found = dict[str, dict[str, Any]]  # the figures of each cell by its key
Images = npt.NDArray[np.floating[Any]]
Change = Callable[[Dataset, int], Dataset]  # from an agent's data and its group


@dataclass(frozen=True)
class Fleet:
    """How a fleet differs from one of equal shares."""

    partition: Mapping[str, Any]
    groups: int = 1  # agents take turns
    change: Change | None = None  # an agent's data as its group has them, from those of the others
    unequal: bool = False  # numbers of samples are log-normal


def renamed(*names: list[int]) -> Change:
    """Each group calls the digits by names of its own."""

    def change(own: Dataset, group: int) -> Dataset:
        of_group = np.array(names[group])
        return replace(own, targets=of_group[own.targets], test_targets=of_group[own.test_targets])

    return change


def seen(view: Callable[[Images], Images], first: int = 1) -> Change:
    """Groups from `first` on see the images (n, 1, 8, 8) in another way."""

    def change(own: Dataset, group: int) -> Dataset:
        if group < first:
            return own
        features, test_features = (
            np.ascontiguousarray(view(images), np.float32)
            for images in (own.features, own.test_features)
        )
        return replace(own, features=features, test_features=test_features)

    return change


TURNED = seen(lambda images: images[..., ::-1, ::-1])
IID = {"name": "iid"}
SKEWED = {"name": "dirichlet", "alpha": 0.3, "test": "proportional"}
FLEETS = {
    "even": Fleet(IID),
    "log-normal": Fleet(IID, unequal=True),
    "two labels": Fleet({"name": "label_skew", "share": 0.2}),
    "dirichlet 0.1": Fleet({**SKEWED, "alpha": 0.1}),
    "dirichlet 0.3": Fleet(SKEWED),
    "label groups": Fleet({"name": "grouped_labels", "groups": 4}),
    "upside down": Fleet({"name": "rotation", "groups": 2}),
    "rotated": Fleet({"name": "rotation", "groups": 4}),
    "swaps": Fleet(IID, 3, renamed(*SWAPS)),
    "unequal swaps": Fleet(IID, 3, renamed(*SWAPS), unequal=True),
    "skewed swaps": Fleet(SKEWED, 3, renamed(*SWAPS)),
    "skewed rotation": Fleet(SKEWED, 2, TURNED),
    "three labels": Fleet({"name": "label_skew", "share": 0.3}),
    "dirichlet 1": Fleet({**SKEWED, "alpha": 1.0}),
    "unequal rotation": Fleet({"name": "rotation", "groups": 4}, unequal=True),
    "sensor gain": Fleet(IID, 2, seen(lambda images: images / 2)),
}


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


def scenario(cell: Cell) -> Scenario:
    """The scenario that a coordinator would run."""
    common = SETTINGS[cell.setting]
    is_last_third = cell.method == "local last third"
    first = round(2 * common.rounds / 3)
    last_third = (common.rounds - first) * PLAIN["epochs"]
    return Scenario.model_validate(
        {
            "name": "kin",
            "seed": cell.seed,
            "task": {**common.task, **TASKS.get(cell.method, {})},
            "training": PLAIN,
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
                "partition": FLEETS[cell.fleet].partition,
            },
        }
    )


@cache
def people(
    fleet: str, seed: int, setting: str = "digits", data_root: Path | None = None
) -> tuple[dict[ClientId, Dataset], tuple[int, ...]]:
    """Each agent's data and true group (nothing if there is one), the same for all methods of a seed."""
    kind = FLEETS[fleet]
    agents = SETTINGS[setting].agents
    scene = scenario(Cell(fleet, "fedavg", seed, setting))
    data, split = fleet_data(scene, data_root)
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


class Voters(TorchClients):
    """Agents with the learner `numpy`, which hold samples back where their order asks for it."""

    torch = False

    def trainer(self, data: Dataset, client: ClientId, order: OrderMessage) -> Local:  # type: ignore[override]
        if self.torch:
            learner: Local = super().trainer(data, client, order)
            return learner
        work = order.work
        assert work is not None
        training = Training.model_validate(work.training)
        rng = shuffle(work, client)
        return NumpyLocal(data, self.scene.task, self.setup.layout, training, rng, work.scaling)

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
    """E-server and E-tuned as macro averages over agents, the sizes of the clusters, ARI, and what Kin decided."""
    owned, truth = people(cell.fleet, cell.seed, cell.setting, data_root)
    scene = scenario(cell)
    clients = Voters(scene, started(scene), owned)
    clients.torch = SETTINGS[cell.setting].torch
    clients.held_back_for = clients.held
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        run = clients.run(Path(folder))
    evaluation = list(run.facts.evaluation.values())
    tuned = [figures["tuned"]["accuracy"] for figures in evaluation]
    served = [figures["server"]["accuracy"] for figures in evaluation]
    clusters = run.strategy.assignment(run.state)
    labels = [clusters.get(name, -1) for name in owned]
    figures: dict[str, Any] = {
        "server": float(np.mean(tuned if cell.method == "local last third" else served)),
        "tuned": float(np.mean(tuned)),
        "sizes": sizes_of(labels) if clusters else [],
        "ari": adjusted_rand(labels, list(truth)) if truth and clusters else None,
        "seconds": round(time.process_time() - began, 1),
    }
    if scene.strategy.name == "kin":
        state = run.state
        figures |= {
            "chances": list(state.chances),
            "basis": state.basis,
            "votes": state.outcomes,
            "alone": state.finishes_alone,
        }
    return figures


def cells(
    fleets: list[str], methods: list[str], seeds: list[int], setting: str = "digits"
) -> Iterator[Cell]:
    """All cells of the first seed come before any of the second."""
    for seed, fleet, method in itertools.product(seeds, fleets, methods):
        yield Cell(fleet, method, seed, setting)


def of(found: Found, fleet: str, method: str, key: str) -> list[Any]:
    """A figure of all finished seeds, in order."""
    return [
        figures[key]
        for name, figures in sorted(found.items())
        if name.rsplit("/", 1)[0] == f"{fleet}/{method}"
    ]


def percent(found: Found, fleet: str, method: str, mode: str) -> float:
    """The mean over the seeds."""
    return 100 * float(np.mean(of(found, fleet, method, mode)))


def table(found: Found, mode: str) -> str:
    """Markdown: a row per fleet, percent per method, and Kin's distance from the best of the seven.

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


def brief(found: Found, setting: str) -> str:
    """Markdown: a row per fleet with E-server / E-tuned of each method of another setting, and what Kin decided."""
    methods = [method for method in METHODS if any(f"/{method}/" in key for key in found)]
    lines = [
        f"| {setting}, E-server / E-tuned | {' | '.join(methods)} | Kin's groups (ARI) |",
        "|---|" + "---:|" * len(methods) + "---|",
    ]
    for fleet in whole(found, tuple(methods)):
        row = [
            " / ".join(f"{percent(found, fleet, method, mode):.1f}" for mode in ("server", "tuned"))
            for method in methods
        ]
        lines.append(f"| {fleet} | {' | '.join(row)} | {decisions(found, fleet, methods[0])} |")
    return "\n".join(lines)


def whole(found: Found, methods: tuple[str, ...] = tuple(METHODS)) -> list[str]:
    """The fleets of which all methods have finished the same seeds."""
    return [
        fleet
        for fleet in FLEETS
        if of(found, fleet, methods[0], "tuned")
        and len({len(of(found, fleet, method, "tuned")) for method in methods}) == 1
    ]


def margin(found: Found, fleet: str, method: str, mode: str) -> float:
    """Points above the best of the seven simple methods."""
    best = max(percent(found, fleet, other, mode) for other in SEVEN)
    return percent(found, fleet, method, mode) - best


def decisions(found: Found, fleet: str, method: str) -> str:
    """What Kin found and decided, seed by seed."""
    words = []
    keys = ("chances", "sizes", "ari", "alone")
    for chances, sizes, ari, alone in zip(
        *[of(found, fleet, method, key) for key in keys], strict=True
    ):
        if min(chances) >= 0.01:
            words.append("FedAvg")
            continue
        groups = str(max(len(sizes), 1))
        groups += "" if ari is None else f" ({ari:.2f})"
        words.append(f"{groups}, own" if alone else groups)
    return "; ".join(words)


def gated(found: Found) -> str:
    """Markdown: E-server of each fleet, with the usual number of clusters and with that of the cards."""
    finished = {
        fleet: {
            seed for seed in range(1, 10) if all(f"{fleet}/{one}/{seed}" in found for one in GATED)
        }
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
WRONG = 2.0  # points behind the best kind


def advised(found: Found) -> str:
    """Markdown: the advice of `coordinator advise` for each fleet, seed by seed, next to what training showed (E-server)."""
    lines = [
        f"| fleet | advice | {' | '.join(ANSWERS)} | wrong |",
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


def advice_for(cell: Cell) -> dict[str, str]:
    """The kind of advice from the cards of a fleet."""
    owned, _ = people(cell.fleet, cell.seed)
    scene = planned(scenario(replace(cell, method="kin")), None)
    with tempfile.TemporaryDirectory() as folder:
        run = Voters(scene, started(scene), owned).run(Path(folder))
    notes = dict(run.strategy.shown(run.state).notes)
    groups = [[""]] * (max(run.state.assign.values(), default=-1) + 1)
    return {"kind": advice(notes, len(owned), groups).kind}


def summary(found: Found, mode: str) -> str:
    """Markdown: a row per method, over the fleets whose cells are finished."""
    fleets = whole(found)
    lines = [
        f"| {MODES[mode]}, to the best of the seven | mean | worst | behind by > 0.5 | ahead by > 0.5 |",
        "|---|---:|---:|---:|---:|",
    ]
    for method in METHODS:
        margins = [margin(found, fleet, method, mode) for fleet in fleets]
        behind = sum(one < -0.5 for one in margins)
        ahead = sum(one > 0.5 for one in margins)
        worst = min(margins, default=0.0)
        mean = sum(margins) / max(len(margins), 1)
        lines.append(
            f"| {method} | {mean:+.2f} | {worst:+.1f} | {behind} of {len(margins)} | {ahead} |"
        )
    return "\n".join(lines)


def outputs(setting: str) -> Path:
    """The record of a setting."""
    return OUT if setting == "digits" else OUT.with_name(f"kin_{setting}.json")


def main() -> None:
    parser = record_options(__doc__, OUT, [1, 2, 3, 4, 5])
    parser.add_argument("--fleets", nargs="+", default=list(FLEETS), choices=list(FLEETS))
    parser.add_argument("--methods", nargs="+", default=[*EVERY, ADVICE], choices=[*EVERY, ADVICE])
    parser.add_argument("--setting", default="digits", choices=list(SETTINGS))
    parser.add_argument("--data-root", type=Path, default=Path("../shared/data"))
    device_options(parser)
    options = parser.parse_args()
    repeatable(options)
    if options.out == OUT:
        options.out = outputs(options.setting)
    common = SETTINGS[options.setting]
    planned = {
        cell.key: partial(advice_for, cell)
        if cell.method == ADVICE
        else partial(measured, cell, options.data_root)
        for cell in cells(options.fleets, options.methods, options.seeds, options.setting)
    }
    found = resumed(options, planned, {"rounds": common.rounds, "agents": common.agents})
    if options.setting != "digits":
        tables = {f"{options.setting}, E-server / E-tuned": brief(found, options.setting)}
    else:
        tables = {"E-server": gated(found), "fleet": advised(found)}
        for mode, name in MODES.items():
            tables[f"{name} on"] = table(found, mode)
            tables[f"{name}, to the best of the seven"] = summary(found, mode)
    show_tables(options, tables)


if __name__ == "__main__":
    main()
