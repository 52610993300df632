"""Newcomers to the groups that Kin has found, with the coordinator there and without it. Prints a table, writes JSON.

    python -m benchmarks.kin_newcomers [--seeds 1 2 3 4 5]

Of the fleets of `benchmarks.kin` those in which Kin finds groups with every seed. Five of the twenty agents come after the last round, and train
nothing. *by card*: they send a card, and get the model of the nearest group. *by loss*: the coordinator is away; they fetch the
models that it left at the broker and use the one with the smallest loss on their training samples, as `agent start` does. A
place is right in the group that holds most agents of the newcomer's true group. A second start resumes after the last
finished cell.
"""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kin import Cell, Found, Voters, people, scenario
from benchmarks.measuring import record_options, resumed
from benchmarks.torch_runs import repeatable, started
from covey.agent.light.numpy_learner import NumpyLocal
from covey.shared.scenario.simulated_agents import newcomers
from covey.shared.strategies.bases.hard import lowest_loss

OUT = Path(__file__).parent / "results" / "kin_newcomers.json"
FLEETS = ("label groups", "upside down", "rotated", "swaps", "skewed rotation")
NEWCOMERS = 5
WAYS = ("card", "loss")


def measured(fleet: str, seed: int) -> dict[str, Any]:
    """How many newcomers came to the right group and their mean accuracy there, by card, by loss and at best."""
    plain = scenario(Cell(fleet, "kin", seed))
    assert plain.fleet is not None
    scene = plain.model_copy(
        update={"fleet": plain.fleet.model_copy(update={"newcomers": NEWCOMERS})}
    )
    all_of_them, truth = people(fleet, seed)
    data = list(all_of_them.values())
    # groups take turns, so that each has members before the newcomers come
    turns = sorted(range(len(data)), key=lambda place: (truth[:place].count(truth[place]), place))
    owned = {name: data[place] for name, place in zip(all_of_them, turns, strict=True)}
    group_of = {name: truth[place] for name, place in zip(all_of_them, turns, strict=True)}
    clients = Voters(scene, started(scene), owned)
    clients.held_back_for = clients.held
    with tempfile.TemporaryDirectory() as folder:
        run = clients.run(Path(folder))
    placed = run.strategy.assignment(run.state)
    late = sorted(newcomers(scene))
    settled = [(group_of[one], cluster) for one, cluster in placed.items() if one not in late]
    right_place = {
        group: Counter(cluster for own, cluster in settled if own == group).most_common(1)[0][0]
        for group in set(truth)
    }
    found: dict[str, Any] = {"models": len(run.models)}
    places: dict[str, list[int]] = {"card": [], "loss": []}
    accuracies: dict[str, list[float]] = {"card": [], "loss": [], "best": []}
    for one in late:
        local = NumpyLocal(
            owned[one],
            scene.task,
            clients.setup.layout,
            scene.training,
            np.random.default_rng(seed),
        )
        targets = local.targets("test")
        of_models = [
            float(np.mean(local.predict(model, "test").argmax(axis=1) == targets))
            for model in run.models
        ]
        accuracies["best"].append(max(of_models))
        for way, place in (("card", placed[one]), ("loss", lowest_loss(run.models, local))):
            places[way].append(place)
            accuracies[way].append(of_models[place])
    for way in WAYS:
        pairs = zip(late, places[way], strict=True)
        found[f"right by {way}"] = sum(right_place[group_of[one]] == place for one, place in pairs)
    return found | {way: float(np.mean(values)) for way, values in accuracies.items()}


def table(found: Found) -> str:
    """Markdown: a row per fleet."""
    lines = [
        "| newcomers to | agents | right by card | right by loss | accuracy by card | by loss | of the best model |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for fleet in FLEETS:
        cells = [cell for key, cell in found.items() if key.startswith(f"{fleet}/")]
        if not cells:
            continue
        right = [str(sum(cell[f"right by {way}"] for cell in cells)) for way in WAYS]
        accuracy = [
            f"{100 * np.mean([cell[way] for cell in cells]):.1f}" for way in (*WAYS, "best")
        ]
        lines.append(f"| {fleet} | {NEWCOMERS * len(cells)} | {' | '.join([*right, *accuracy])} |")
    return "\n".join(lines)


def main() -> None:
    options = record_options(__doc__, OUT, [1, 2, 3, 4, 5]).parse_args()
    repeatable()
    planned = {
        f"{fleet}/{seed}": partial(measured, fleet, seed)
        for seed, fleet in itertools.product(options.seeds, FLEETS)
    }
    print(table(resumed(options, planned, {})))


if __name__ == "__main__":
    main()
