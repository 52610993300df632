"""The result of a run that is over: its figures, a table of its agents, a file for each cluster's model."""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from covey.coordinator.disk.array_files import save_arrays
from covey.coordinator.fold.means import KEPT_MODES, averages, by_mode, last_of_undrawn
from covey.coordinator.odd import Odd, doctor
from covey.coordinator.record.records import counted, mbit_per_agent, one_device, sizes
from covey.coordinator.run.run import Run
from covey.shared.candidate_names import DELIVERED, USES, in_words
from covey.shared.numerics import metrics
from covey.shared.numerics.measures import SHOWN_OF_REGRESSION
from covey.shared.programs.version import version
from covey.shared.storage.files import atomic_replace, model_file, write_atomically
from covey.shared.strategies.base import ClientId

Figures = dict[str, Any]  # of one agent, by mode
Truth = Mapping[ClientId, int]  # the true cluster of each agent
UNKNOWN_SAMPLES = (0, 0)  # of an agent whose status never came
NO_AGENTS: Mapping[str, Any] = {"agents": 0}  # the averages over no agent
FIGURES: tuple[str, ...] = (
    "accuracy",
    "f1",
    "recall",
    "auc",
    "loss",
    "mse",
)  # columns of the table of agents


def per_agent(run: Run) -> dict[ClientId, Figures]:
    """Every agent's figures by mode, own best where it was tracked."""
    figures: dict[ClientId, Figures] = {}
    for client, numbers in sorted(run.members.evaluation.items()):
        modes = by_mode(numbers)
        tracked = run.members[client].tracked
        if tracked is not None:
            modes["best"] = tracked
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
    fine_tuning: Mapping[str, Any] | None  # of fine-tuned; None: it is not evaluated
    # those that came after the last round; None: the run has none
    newcomers: Mapping[str, Any] | None
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
    # No key for any of these if there is nothing to say.
    privacy: Mapping[str, Any] | None = None
    origin: Mapping[str, Any] | None = None  # the finished run that this one continues
    unevaluated: Sequence[ClientId] = ()  # agents of the federation without any figures
    kept_back: Sequence[ClientId] = ()  # agents that reported, and whose figures stay with them
    left_out: Sequence[str] = ()  # modes that the scenario's privacy does not allow
    stale: Mapping[ClientId, int] = field(default_factory=dict)  # see `_stale`
    failures: Mapping[ClientId, Figures] = field(default_factory=dict)  # see `RunState`
    measure: str | None = None  # what models were chosen by; None: the usual one
    uses: Mapping[ClientId, Mapping[str, float]] = field(
        default_factory=dict
    )  # weights by candidate
    fleet: Mapping[str, Any] | None = None  # what was known of it when agents chose
    worse_than_none: Sequence[
        ClientId
    ] = ()  # agents where the constant is better than the served model
    failure: str = ""  # why the run came to nothing, and what to do next
    odd: Sequence[Figures] = ()  # what `coordinator doctor` lists at the end of the run

    def to_json(self) -> dict[str, Any]:
        """The document, with its keys in their order."""
        document = dict(vars(self))
        for key in (
            "privacy",
            "unevaluated",
            "kept_back",
            "left_out",
            "stale",
            "failures",
            "origin",
            "measure",
            "uses",
            "fleet",
            "worse_than_none",
            "failure",
            "odd",
        ):
            if not document[key]:
                del document[key]
        return document


def result_of(run: Run, truth: Truth | None, odd: Sequence[Odd] | None = None) -> RunResult:
    """The summary of a run.

    Args:
        run: that is over.
        truth: the agents' true clusters, where they are known.
        odd: what is odd about its devices; None: what its reports show.
    """
    if odd is None:
        look = doctor()
        odd = () if look is None else look.at_the_end(run, {})
    scenario = run.scenario
    strategy = run.strategy
    late = run.engine.rules.newcomers
    federated = run.engine.known - late
    trained = run.members.trained
    never_trained = federated - trained.keys()
    assignment = dict(sorted(run.assignment.items()))
    agreement = _agreement(assignment, truth or {})
    federation_size = len(federated)
    newcomers = None
    if late:
        newcomers = _newcomers(run)
    seconds = round(run.seconds, 3)
    devices = run.members.by_agent(lambda one: one.device)
    return RunResult(
        name=scenario.name,
        method=strategy.name,
        seed=scenario.seed,
        rounds=run.engine.round,
        stopped=run.facts.stopped or None,
        agents=federation_size,
        clusters=_number_of_clusters(run, assignment),
        cluster_sizes=sizes(assignment, run.members.expelled),
        assignment=assignment,
        accuracy=_accuracy(run),
        fine_tuning=scenario.fine_tuning,
        newcomers=newcomers,
        took_part=sorted(trained),
        never_trained=sorted(never_trained),
        ari=agreement.ari,
        nmi=agreement.nmi,
        purity=agreement.purity,
        bytes=_bytes(run.traffic),
        mbit_per_agent=mbit_per_agent(run.traffic, federation_size),
        seconds=seconds,
        device=one_device(devices.values()),
        devices=counted(devices),
        versions=versions(),
        notes=dict(strategy.shown(run.state).notes),
        privacy=None if run.privacy is None else run.privacy.spent(),
        origin=run.facts.origin or None,
        unevaluated=_unevaluated(run, federated),
        kept_back=[
            client
            for client, modes in sorted(run.members.evaluation.items())
            if not modes and not scenario.is_summed
        ],
        left_out=scenario.modes_left_out,
        stale=_stale(run, federated),
        failures=dict(sorted(run.members.by_agent(lambda one: one.failures).items())),
        measure=scenario.task.measure,
        uses={
            client: modes[DELIVERED][USES]
            for client, modes in sorted(run.members.evaluation.items())
            if DELIVERED in modes
        },
        worse_than_none=worse_than_none(run)[0],
        failure=strategy.failure(run.state),
        fleet=run.facts.fleet,
        odd=[one.to_json() for one in odd],
    )


def worse_than_none(run: Run) -> tuple[list[ClientId], int]:
    """The agents where the constant is better than the served model, by their test rows; and how many have both figures."""
    measure = run.scenario.task.main_measure
    worse, compared = [], 0
    for client, modes in sorted(run.members.evaluation.items()):
        served, constant = modes.get("server", {}), modes.get("baseline", {})
        if measure.name not in constant:
            continue
        compared += 1
        is_lost = "diverged" in served or measure.name not in served
        if is_lost or measure.is_better(constant[measure.name], served[measure.name]):
            worse.append(client)
    return worse, compared


def _number_of_clusters(run: Run, assignment: Mapping[ClientId, int]) -> int:
    """The clusters that have agents; of a method without an assignment, all its models."""
    occupied = set(assignment.values())
    if occupied:
        return len(occupied)
    return len(run.strategy.clusters(run.state))


def _unevaluated(run: Run, federated: Set[ClientId]) -> list[ClientId]:
    """The agents that never reported an evaluation."""
    return sorted(federated - run.members.evaluation.keys())


def _stale(run: Run, federated: Set[ClientId]) -> dict[ClientId, int]:
    """The agents whose newest figures are not of the last evaluation, with the rounds that were over when they were."""
    newest = run.facts.evaluated
    evaluated_in = run.members.by_agent(lambda one: one.evaluated_in)
    return {
        client: rounds
        for client, rounds in sorted(evaluated_in.items())
        if client in federated and rounds < newest
    }


def _accuracy(run: Run) -> dict[str, Any]:
    """Averages over the federation by mode; own last once more for those that were drawn, and for the others."""
    if run.scenario.sums is not None:
        found = run.scenario.sums.figures(run.state)
        return {} if found is None else dict(found.modes)
    late = run.engine.rules.newcomers
    trained = run.members.trained
    weight = run.scenario.evaluation.weight
    share = run.scenario.aggregation.max_samples.share
    train = _train_samples(run)
    by_agent = per_agent(run)
    federated: dict[ClientId, Figures] = {}
    participants: dict[ClientId, Figures] = {}
    for client, figures in by_agent.items():
        if client in late:
            continue
        federated[client] = figures
        if client in trained:
            participants[client] = figures
    accuracy = averages(federated, train, weight, share)
    of_participants = averages(participants, train, weight, share)
    accuracy["last_of_participants"] = of_participants.get("last", dict(NO_AGENTS))
    accuracy["last_of_undrawn"] = last_of_undrawn(federated, trained, train, weight, share)
    return accuracy


def _newcomers(run: Run) -> dict[str, Any]:
    """Averages over the agents that came after the last round, and who they are."""
    late = run.engine.rules.newcomers
    weight = run.scenario.evaluation.weight
    share = run.scenario.aggregation.max_samples.share
    train = _train_samples(run)
    figures = {client: own for client, own in per_agent(run).items() if client in late}
    accuracy = averages(figures, train, weight, share)
    return {"agents": sorted(figures), "accuracy": accuracy}


def _train_samples(run: Run) -> dict[ClientId, int]:
    return {client: train for client, (train, _) in run.members.samples.items()}


@dataclass(frozen=True)
class _Agreement:
    """How well clusters match the truth, over the agents that have both; None where no agent has both."""

    ari: float | None = None
    nmi: float | None = None
    purity: float | None = None


def _agreement(assignment: Mapping[ClientId, int], truth: Truth) -> _Agreement:
    found: list[int] = []
    true: list[int] = []
    for client, cluster in assignment.items():
        if client in truth:
            found.append(cluster)
            true.append(truth[client])
    if not found:
        return _Agreement()
    return _Agreement(
        ari=metrics.adjusted_rand(found, true),
        nmi=metrics.mutual_information(found, true),
        purity=metrics.purity(found, true),
    )


def _bytes(traffic: Mapping[str, int]) -> dict[str, int]:
    """Vectors count as float32 numbers; the wire counts MQTT packets."""
    return {
        "vectors_down": 4 * traffic["down_vectors"],
        "vectors_up": 4 * traffic["up_vectors"],
        "wire_down": traffic["wire_down"] + traffic["down_models"],
        "wire_up": traffic["wire_up"],
    }


def write_models(run: Run) -> None:
    """Leave each cluster's model in the run's folder, and in each file the task that it was trained for.

    That task has the statistics that the fleet found in place of the keys that asked for them.
    """
    models = run.folder / "models"
    models.mkdir(exist_ok=True)
    layout = run.setup.whole
    facts = {"task": run.task_of_models}
    for k, model in enumerate(run.models):
        save_arrays(model_file(models, k), layout.named(model), facts)


def write_all(
    run: Run, truth: Truth | None, partition: str | None = None, odd: Sequence[Odd] | None = None
) -> dict[str, Any]:
    """Leave the table of agents and the result in the run's folder; returns the result as its file has it. Models: `write_models`.

    `partition` names who held which samples of a simulated fleet, `odd` is as `result_of` takes it.
    """
    folder = run.folder
    document = {**result_of(run, truth, odd).to_json(), "partition": partition}
    _write_table(folder / "agents.parquet", run, truth)
    content = json.dumps(document, indent=1, allow_nan=False).encode()
    write_atomically(folder / "result.json", content)
    return document


def _write_table(path: Path, run: Run, truth: Truth | None) -> None:
    from pyarrow import Table, parquet

    clusters = run.assignment
    by_agent = per_agent(run)
    kept = FIGURES
    if run.scenario.task.classes is None:
        kept += SHOWN_OF_REGRESSION
    rows: list[dict[str, Any]] = []
    for client in sorted(run.engine.known):
        member = run.members[client]
        train, test = member.samples or UNKNOWN_SAMPLES
        row: dict[str, Any] = {
            "agent": client,
            "samples": train,
            "test_samples": test,
            "cluster": clusters.get(client),
            "truth": truth.get(client) if truth else None,
            "last_round": member.trained,
            "device": member.device,
        }
        modes = by_agent.get(client, {})
        for mode in KEPT_MODES:
            figures = modes.get(mode) or {}
            for figure in kept:
                row[f"{mode}_{figure}"] = figures.get(figure)
        if delivered := modes.get(DELIVERED):
            row["uses"] = in_words(delivered[USES])
        rows.append(row)
    table = Table.from_pylist(rows)
    with atomic_replace(path) as written:
        parquet.write_table(table, written)


def versions() -> dict[str, str]:
    """What the figures were made with."""
    wanted = ("covey", "numpy", "scipy", "scikit-learn", "torch", "aiomqtt", "msgpack")
    found = {"python": platform.python_version(), "machine": platform.machine()}
    return found | installed_versions(wanted)


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """The versions of those packages that are installed here: a coordinator needs no torch."""
    found = {name: _version_of(name) for name in packages}
    return {name: known for name, known in found.items() if known is not None}


@cache
def _version_of(package: str) -> str | None:
    """Read once: each package is looked for in all folders of the path, and a comparison has many results."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return version() if package == "covey" else metadata.version(package)
    return None
