"""The result of a run that is over: its figures, a table of its agents, a file for each cluster's model."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
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

Figures = dict[str, Any]  # of one agent, by mode


def per_agent(run: Run) -> dict[ClientId, Figures]:
    """Every agent's figures by mode, E-best where it was tracked."""
    figures: dict[ClientId, Figures] = {}
    for client, numbers in sorted(run.facts.evaluation.items()):
        modes = by_mode(numbers)
        if client in run.facts.tracked:
            modes["best"] = run.facts.tracked[client]
        figures[client] = modes
    return figures


@dataclass(frozen=True)
class RunResult:
    """The summary of a run that is over: the contract of `result.json`, where every field is a key."""

    name: str
    method: str
    seed: int
    rounds: int
    stopped: str | None  # why the method needed no more rounds; None: it made all of them
    agents: int  # of the federation, without newcomers
    clusters: int
    cluster_sizes: Mapping[str, int]
    assignment: Mapping[ClientId, int]
    accuracy: Mapping[str, Any]  # averages by mode
    fine_tuning: Mapping[str, Any] | None  # of E-tuned; None: it is not evaluated
    newcomers: (
        Mapping[str, Any] | None
    )  # those that came after the last round; None: the run has none
    took_part: list[ClientId]  # drawn by a training round
    never_trained: list[ClientId]  # the others of the federation
    ari: float | None  # these three compare clusters with the truth; None: it is not known
    nmi: float | None
    purity: float | None
    bytes: Mapping[str, int]
    mbit_per_agent: float
    seconds: float
    device: str | None
    devices: Mapping[str, int]
    versions: Mapping[str, str]
    notes: Mapping[str, Any]
    privacy: Mapping[str, Any] | None = None  # no key without a `privacy` section

    def to_json(self) -> dict[str, Any]:
        """The document, with its keys in their order."""
        document = dict(vars(self))
        if self.privacy is None:
            del document["privacy"]
        return document


def result_of(run: Run, truth: Mapping[ClientId, int] | None) -> RunResult:
    """The summary of a run; `truth` are the agents' true clusters, where they are known."""
    scenario = run.scenario
    strategy = run.strategy
    late = run.engine.rules.newcomers
    federated = run.engine.known - late
    trained = run.facts.trained
    assignment = dict(sorted(strategy.assignment(run.state).items()))
    ari, nmi, purity = _agreement(assignment, truth or {})
    return RunResult(
        name=scenario.name,
        method=strategy.name,
        seed=scenario.seed,
        rounds=run.engine.round,
        stopped=run.facts.stopped or None,
        agents=len(federated),
        clusters=len(set(assignment.values())) or len(strategy.clusters(run.state)),
        cluster_sizes=sizes(assignment),
        assignment=assignment,
        accuracy=_accuracy(run),
        fine_tuning=scenario.fine_tuning,
        newcomers=_newcomers(run) if late else None,
        took_part=sorted(trained),
        never_trained=sorted(federated - trained.keys()),
        ari=ari,
        nmi=nmi,
        purity=purity,
        bytes=_bytes(run.traffic),
        mbit_per_agent=mbit_per_agent(run.traffic, len(federated)),
        seconds=round(run.seconds, 3),
        device=one_device(run.facts.devices.values()),
        devices=counted(run.facts.devices),
        versions=versions(),
        notes=dict(strategy.notes(run.state)),
        privacy=None if run.privacy is None else run.privacy.spent(),
    )


def _accuracy(run: Run) -> dict[str, Any]:
    """Averages over the federation by mode; E-last once more for those that were drawn, and for the others."""
    late = run.engine.rules.newcomers
    trained = run.facts.trained
    weight = run.scenario.evaluation.weight
    train = _train_samples(run)
    federated: dict[ClientId, Figures] = {}
    participants: dict[ClientId, Figures] = {}
    for client, figures in per_agent(run).items():
        if client not in late:
            federated[client] = figures
            if client in trained:
                participants[client] = figures
    accuracy = averages(federated, train, weight)
    of_participants = averages(participants, train, weight)
    accuracy["last_of_participants"] = of_participants.get("last", {"agents": 0})
    accuracy["last_of_undrawn"] = last_of_undrawn(federated, trained, train, weight)
    return accuracy


def _newcomers(run: Run) -> dict[str, Any]:
    late = run.engine.rules.newcomers
    everybody = per_agent(run)
    figures = {client: own for client, own in everybody.items() if client in late}
    accuracy = averages(figures, _train_samples(run), run.scenario.evaluation.weight)
    return {"agents": sorted(figures), "accuracy": accuracy}


def _train_samples(run: Run) -> dict[ClientId, int]:
    return {client: train for client, (train, _) in run.samples.items()}


def _agreement(
    assignment: Mapping[ClientId, int], truth: Mapping[ClientId, int]
) -> tuple[float | None, float | None, float | None]:
    """ARI, NMI and purity over the agents whose cluster and truth are known; None where there are none."""
    known = [client for client in assignment if client in truth]
    if not known:
        return None, None, None
    found = [assignment[client] for client in known]
    true = [truth[client] for client in known]
    return (
        metrics.adjusted_rand(found, true),
        metrics.mutual_information(found, true),
        metrics.purity(found, true),
    )


def _bytes(traffic: Mapping[str, int]) -> dict[str, int]:
    """Vectors count as float32 numbers; the wire counts MQTT packets."""
    return {
        "vectors_down": 4 * traffic["down_vectors"],
        "vectors_up": 4 * traffic["up_vectors"],
        "wire_down": traffic["wire_down"] + traffic["down_models"],
        "wire_up": traffic["wire_up"],
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
    """Leave the table of agents and the result in the run's folder; returns the result as its file has it. Models: `write_models`.

    `mixed` are the entries of the result that `coordinator.mixtures` makes.
    """
    document = {**result_of(run, truth).to_json(), **mixed}
    _write_table(run.folder / "agents.parquet", run, truth)
    text = json.dumps(document, indent=1, allow_nan=False)
    write_atomically(run.folder / "result.json", text.encode())
    return document


def _write_table(path: Path, run: Run, truth: Mapping[ClientId, int] | None) -> None:
    from pyarrow import Table, parquet

    clusters = run.strategy.assignment(run.state)
    everybody = per_agent(run)
    rows: list[dict[str, Any]] = []
    for client in sorted(run.engine.known):
        train, test = run.samples.get(client, (0, 0))
        row: dict[str, Any] = {
            "agent": client,
            "samples": train,
            "test_samples": test,
            "cluster": clusters.get(client),
            "truth": truth.get(client) if truth else None,
            "last_round": run.facts.trained.get(client),
            "device": run.facts.devices.get(client),
        }
        modes = everybody.get(client, {})
        for mode in KEPT_MODES:
            figures = modes.get(mode) or {}
            for figure in FIGURES:
                row[f"{mode}_{figure}"] = figures.get(figure)
        rows.append(row)
    with atomic_replace(path) as beside:
        parquet.write_table(Table.from_pylist(rows), beside)
