"""The result of a run that is over: its figures, a table of its agents, a file for each cluster's model."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from covey.coordinator.run.array_files import save_arrays
from covey.coordinator.run.modes import KEPT_MODES
from covey.coordinator.run.records import (
    FIGURES,
    NOTHING_MIXED,
    averages,
    by_mode,
    counted,
    last_of_undrawn,
    mbit_per_agent,
    one_device,
    sizes,
)
from covey.coordinator.run.run import Run
from covey.shared.files import atomic_replace, write_atomically
from covey.shared.model_files import model_file
from covey.shared.numerics import metrics
from covey.shared.strategies.base import ClientId


def per_agent(run: Run) -> dict[ClientId, dict[str, Any]]:
    """Every agent's figures by mode, E-best where it was tracked."""
    figures: dict[ClientId, dict[str, Any]] = {}
    for client, numbers in sorted(run.facts.evaluation.items()):
        modes = by_mode(numbers)
        if client in run.facts.tracked:
            modes["best"] = run.facts.tracked[client]
        figures[client] = modes
    return figures


def result_of(run: Run, truth: Mapping[ClientId, int] | None) -> dict[str, Any]:
    """The summary of a run, JSON-able: the contract of `result.json`."""
    strategy, scenario, traffic = run.strategy, run.scenario, run.traffic
    everybody, late = per_agent(run), run.engine.rules.newcomers
    agents = {client: one for client, one in everybody.items() if client not in late}
    newcomers = {client: one for client, one in everybody.items() if client in late}
    took_part = sorted(run.facts.trained)
    train = {client: told[0] for client, told in run.samples.items()}
    weight = scenario.evaluation.weight
    accuracy = averages(agents, train, weight)
    accuracy["last_of_participants"] = averages(
        {client: one for client, one in agents.items() if client in run.facts.trained},
        train,
        weight,
    ).get("last", {"agents": 0})
    accuracy["last_of_undrawn"] = last_of_undrawn(agents, run.facts.trained, train, weight)
    assignment = dict(sorted(strategy.assignment(run.state).items()))
    known = [client for client in assignment if truth and client in truth]
    found, wanted = (
        [assignment[client] for client in known],
        [truth[client] for client in known] if truth else [],
    )
    return {
        "name": scenario.name,
        "method": strategy.name,
        "seed": scenario.seed,
        "rounds": run.engine.round,
        "stopped": run.facts.stopped or None,
        "agents": len(run.engine.known - late),
        "clusters": len(set(assignment.values())) or len(strategy.clusters(run.state)),
        "cluster_sizes": sizes(assignment),
        "assignment": assignment,
        "accuracy": accuracy,
        "fine_tuning": scenario.fine_tuning,
        "newcomers": {"agents": sorted(newcomers), "accuracy": averages(newcomers, train, weight)}
        if late
        else None,
        "took_part": took_part,
        "never_trained": sorted(set(run.engine.known) - set(took_part) - late),
        "ari": metrics.adjusted_rand(found, wanted) if known else None,
        "nmi": metrics.mutual_information(found, wanted) if known else None,
        "purity": metrics.purity(found, wanted) if known else None,
        "bytes": {
            "vectors_down": 4 * traffic["down_vectors"],
            "vectors_up": 4 * traffic["up_vectors"],
            "wire_down": traffic["wire_down"] + traffic["down_models"],
            "wire_up": traffic["wire_up"],
        },
        "mbit_per_agent": mbit_per_agent(traffic, len(run.engine.known - late)),
        "seconds": round(run.seconds, 3),
        "device": one_device(run.facts.devices.values()),
        "devices": counted(run.facts.devices),
        "versions": versions(),
        "notes": dict(strategy.notes(run.state)),
        **({"privacy": run.privacy.spent()} if run.privacy is not None else {}),
    }


def versions() -> dict[str, str]:
    """What the figures were made with."""
    wanted = ("covey", "numpy", "scipy", "scikit-learn", "torch", "aiomqtt", "msgpack")
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in wanted:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # a coordinator needs no torch
            continue
    return found


def write_models(run: Run) -> None:
    """Leave each cluster's model in the run's folder, and in each file the task that it was trained for.

    That task has the means and deviations that the fleet found, where `task.standardise` is federated.
    """
    models = run.folder / "models"
    models.mkdir(exist_ok=True)
    task = run.scenario.task.for_agents()
    if run.facts.scaling is not None:
        task["standardise"] = run.facts.scaling
    for k, model in enumerate(run.strategy.clusters(run.state)):
        save_arrays(model_file(models, k), run.setup.layout.named(model), {"task": task})


def write_all(
    run: Run, truth: Mapping[ClientId, int] | None, mixed: Mapping[str, Any] = NOTHING_MIXED
) -> dict[str, Any]:
    """Leave the table of agents and the result in the run's folder; returns the result. Models: `write_models`.

    `mixed` are the entries of the result that `coordinator.mixtures` makes.
    """
    summary = {**result_of(run, truth), **mixed}
    _write_table(run.folder / "agents.parquet", run, truth)
    write_atomically(
        run.folder / "result.json", json.dumps(summary, indent=1, allow_nan=False).encode()
    )
    return summary


def _write_table(path: Path, run: Run, truth: Mapping[ClientId, int] | None) -> None:
    from pyarrow import Table, parquet

    clusters = run.strategy.assignment(run.state)
    agents, rows = per_agent(run), []
    for client in sorted(run.engine.known):
        told = run.samples.get(client, (0, 0))
        row: dict[str, Any] = {"agent": client, "samples": told[0], "test_samples": told[1]}
        row |= {"cluster": clusters.get(client), "truth": truth.get(client) if truth else None}
        row["last_round"] = run.facts.trained.get(client)
        row["device"] = run.facts.devices.get(client)
        for mode in KEPT_MODES:
            for figure in FIGURES:
                row[f"{mode}_{figure}"] = (agents.get(client, {}).get(mode) or {}).get(figure)
        rows.append(row)
    with atomic_replace(path) as beside:
        parquet.write_table(Table.from_pylist(rows), beside)
