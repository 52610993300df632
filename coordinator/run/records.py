"""What a run leaves behind: a line per phase, the result, a table of agents, a file per cluster."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from covey.coordinator.run.disk_space import Room
from covey.coordinator.run.modes import KEPT_MODES
from covey.coordinator.run.notices import Means, Record
from covey.shared import json_text
from covey.shared.errors import UserError
from covey.shared.journal import Journal
from covey.shared.numerics import metrics
from covey.shared.numerics.averages import fair_weights
from covey.shared.numerics.measures import ACCURACY, MEASURES, main_measure, pooled_r2
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId, Reports
from covey.shared.strategies.phase_names import EVALUATE

Row = dict[str, Any]  # a JSON object: a line of the record, or figures by their names
Evaluation = Mapping[ClientId, Mapping[str, Any]]  # each agent's figures by mode
Clients = Collection[ClientId]

FILE = "rounds.jsonl"
FIGURES = tuple(MEASURES)
RESULT = (
    "name",
    "method",
    "agents",
    "clusters",
    "accuracy",
    "ari",
    "rounds",
    "bytes",
    "seconds",
)  # what tables show
MIXED = "mixed"  # in place of a kind of device: there were several
NOTHING_MIXED: Mapping[str, Any] = {
    "membership": None,
    "cluster_accuracy": None,
}  # agents hold no known mixtures


def round_lines(folder: Path, keep: int, room: Room) -> Journal[Record]:
    """`rounds.jsonl` of a run, to continue it after the lines that the checkpoint knows."""
    return Journal(folder / FILE, _line_of, keep=keep, is_sound=_is_object, write=room.write)


def _line_of(record: Record) -> bytes:
    return json.dumps(record.to_json(), allow_nan=False).encode()


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json_text.loads(line), dict)
    except json_text.JsonError:
        return False


def scenario_digest(scenario: Scenario) -> str:
    """Names what a checkpoint belongs to: all that can change a model.

    Left out are the broker's address, what the run is compared with, what is kept for pictures, and the number of
    training processes.
    """
    fleet = scenario.fleet
    if fleet is not None:
        # the default: a scenario that leaves the number out has the digest that its runs have stored
        fleet = fleet.model_copy(update={"workers": 0})
        scenario = scenario.model_copy(update={"fleet": fleet})
    content = scenario.model_dump_json(exclude={"broker", "brokers", "compare", "records"}).encode()
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def sizes(assignment: Mapping[ClientId, int]) -> dict[str, int]:
    """Agents per cluster, by cluster id."""
    counts = Counter(assignment.values())
    by_cluster: dict[str, int] = {}
    for cluster in sorted(counts):
        name = str(cluster)
        by_cluster[name] = counts[cluster]
    return by_cluster


def counted(devices: Mapping[ClientId, str]) -> dict[str, int]:
    """How many of these agents computed on each kind of device."""
    counts = Counter(devices.values())
    return dict(sorted(counts.items()))


def one_device(devices: Iterable[str]) -> str | None:
    """The kind of device that all these are, MIXED where they differ, None where there are none.

    Bytes repeat on one kind of device only, so figures of a mixed fleet depend on which agents had which.
    """
    kinds = set(devices)
    if len(kinds) > 1:
        return MIXED
    return kinds.pop() if kinds else None


def best_so_far(best: dict[str, float] | None, numbers: Mapping[str, Any]) -> dict[str, float]:
    """The best and the newest test figures of an agent right after its local training."""
    newest: dict[str, float] = dict(numbers["track"])
    if best is None or not best["n"]:
        return newest
    if not newest["n"]:
        return best
    if "diverged" in newest:
        return best
    if "diverged" in best:
        return newest
    if "accuracy" in newest:
        is_better = newest["accuracy"] > best["accuracy"]
    else:
        is_better = newest["mse"] <= best["mse"]
    return newest if is_better else best


def by_mode(numbers: Mapping[str, Any]) -> Row:
    """An agent's figures. E-last of one that has trained in no phase at all is what it would use: E-server."""
    modes: Row = {}
    for mode in KEPT_MODES:
        figures = numbers.get(mode)
        if figures:
            modes[mode] = figures
    if "server" not in modes:
        return modes
    untrained = {"last": modes["server"]}
    return untrained | modes


def means(
    reports: Reports,
    phase: str,
    weight: str,
    newcomers: Clients = frozenset(),
    drawn: Clients = frozenset(),
    share: float | None = None,
) -> Means:
    """Averages over the reporters of one phase: of an evaluation by mode, of any other phase the training loss.

    Args:
        reports: what the reporters sent, by agent.
        phase: the name of the phase.
        weight: `evaluation.weight` of the scenario: which samples weigh an agent in micro averages.
        newcomers: agents that came after the last round; their figures are averaged apart.
        drawn: agents that a training round has drawn so far; E-last of the others is given once more, alone.
        share: `aggregation.max_samples.share`, for all averages that weigh agents by samples.
    """
    if phase == EVALUATE:
        return _evaluation_means(reports, weight, newcomers, drawn, share)
    trained = [report for _, report in reports if report.steps]
    examples = fair_weights([report.examples for report in trained], share)
    if not any(examples):
        return Means()
    mean_loss = sum([report.loss * examples[i] for i, report in enumerate(trained)]) / sum(examples)
    return Means(loss=mean_loss, tracked=_tracked_means(reports, weight, share))


def _evaluation_means(
    reports: Reports, weight: str, newcomers: Clients, drawn: Clients, share: float | None
) -> Means:
    train = _train_samples(reports)
    federated: dict[ClientId, Row] = {}
    late: dict[ClientId, Row] = {}
    for client, report in reports:
        group = late if client in newcomers else federated
        group[client] = by_mode(report.numbers)
    means_of_newcomers: Row | None = None
    if late:
        in_order = dict(sorted(late.items()))
        means_of_newcomers = averages(in_order, train, weight, share)
    return Means(
        evaluation=averages(federated, train, weight, share),
        undrawn=last_of_undrawn(federated, drawn, train, weight, share),
        newcomers=means_of_newcomers,
    )


def _tracked_means(reports: Reports, weight: str, share: float | None) -> Row | None:
    """Test figures right after local training: averages, and the accuracy or RMSE of each agent."""
    tracked: dict[ClientId, Row] = {}
    for client, report in reports:
        if "track" in report.numbers:
            tracked[client] = {"trained": report.numbers["track"]}
    if not tracked:
        return None
    means: Row = averages(tracked, _train_samples(reports), weight, share)["trained"]
    measure = main_measure(regression=ACCURACY.name not in means)
    by_agent: dict[ClientId, float | None] = {}
    for client, modes in tracked.items():
        by_agent[client] = modes["trained"].get(measure.name)
    means["by_agent"] = by_agent
    return means


def _train_samples(reports: Reports) -> dict[ClientId, int]:
    return {client: report.examples for client, report in reports}


def averages(
    evaluation: Evaluation,
    train_samples: Mapping[ClientId, int],
    weight: str,
    share: float | None = None,
) -> Row:
    """{mode: {figure: {"micro", "macro"}, "agents"}} over the agents that have the mode.

    No agent weighs more than a fair `share` in micro averages (`numerics.averages.fair_weights`).
    """
    modes: dict[str, None] = {}  # in the order of their first appearance
    for figures in evaluation.values():
        modes |= dict.fromkeys(figures)
    return {mode: _average(mode, evaluation, train_samples, weight, share) for mode in modes}


def means_by_cluster(evaluation: Evaluation, clusters: Mapping[ClientId, int]) -> Row:
    """{cluster: {figure: mean over its tested agents, "agents": how many}} of the served models."""
    members: dict[int, list[Mapping[str, Any]]] = {}
    for client in sorted(evaluation):
        figures = evaluation[client].get("server")
        if not figures or not figures["n"] or "diverged" in figures:
            continue
        if client in clusters:
            cluster = clusters[client]
            members.setdefault(cluster, []).append(figures)
    rows: Row = {}
    for cluster in sorted(members):
        tested = members[cluster]
        row: Row = {"agents": len(tested)}
        for figure in FIGURES:
            values = [figures[figure] for figures in tested if figure in figures]
            if values:
                row[figure] = metrics.macro(values)
        name = str(cluster)
        rows[name] = row
    return rows


def last_of_undrawn(
    figures: Evaluation,
    drawn: Clients,
    train_samples: Mapping[ClientId, int],
    weight: str,
    share: float | None = None,
) -> Row:
    """E-last over the agents that no training round has drawn yet, and how many of these have test data ("agents").

    Their models come from a phase before the rounds; without such a phase, E-last is E-server.
    """
    undrawn = {client: modes for client, modes in figures.items() if client not in drawn}
    by_mode = averages(undrawn, train_samples, weight, share)
    nobody: Row = {"agents": 0}
    row: Row = by_mode.get("last", nobody)
    return row


def _average(
    mode: str,
    evaluation: Evaluation,
    train_samples: Mapping[ClientId, int],
    weight: str,
    share: float | None,
) -> Row:
    """The row of one mode: of each figure the average over samples and the average over agents.

    Micro averages are the figures of all samples together: RMSE is the root of the pooled squared error, and R2 comes
    from pooled sums. Agents whose models gave no finite outputs are in no average; "diverged" names them.
    """
    tested: list[Mapping[str, Any]] = []  # the figures of the agents with test data
    samples: list[float] = []  # that weigh each of them
    diverged: list[ClientId] = []
    for client, modes in evaluation.items():
        figures = modes.get(mode)
        if not figures or figures["n"] <= 0:
            continue
        if "diverged" in figures:
            diverged.append(client)
            continue
        amount = figures["n"]
        if weight == "total":
            amount += train_samples.get(client, 0)
        tested.append(figures)
        samples.append(float(amount))
    samples = fair_weights(samples, share)
    row: Row = {"agents": len(tested)}
    for figure in FIGURES:
        values = [figures[figure] for figures in tested if figure in figures]
        if not values:
            continue
        macro = metrics.macro(values)
        if len(values) < len(
            tested
        ):  # R2 of agents whose targets are all equal, or MAE of an older agent
            row[figure] = {"macro": macro, "agents": len(values)}
        else:
            row[figure] = {"micro": metrics.micro(values, samples), "macro": macro}
    if "mse" in row:
        _pool(row, tested, samples)
    if diverged:
        row["diverged"] = sorted(diverged)
    return row


def _pool(row: Row, tested: Sequence[Mapping[str, Any]], samples: Sequence[float]) -> None:
    """Replace the micro averages of RMSE and R2 by the figures of all samples together."""
    row["rmse"]["micro"] = math.sqrt(row["mse"]["micro"])
    r2 = row.pop("r2", {})
    pooled = pooled_r2(tested, samples)
    if pooled is None:
        r2.pop("micro", None)  # a mean of the agents' own R2 is not the R2 of their samples
    else:
        r2 = {**r2, "micro": pooled}
    if r2:
        row["r2"] = r2


def mbit_per_agent(traffic: Mapping[str, int], agents: int) -> float:
    """Megabits of float32 values, both ways, per agent of the federation; no overhead, evaluation left out, as papers count it."""
    down = traffic.get("down_vectors", 0)
    evaluation = traffic.get("evaluation_vectors", 0)
    up = traffic.get("up_vectors", 0)
    bits = 32 * (down - evaluation + up)
    sharers = max(agents, 1)
    return bits / 1e6 / sharers


def rounds_done(line: Mapping[str, Any]) -> int:
    """Rounds that were over after a phase, by its line."""
    done = int(line["round"])
    if line["ends_round"]:
        done += 1
    return done


def lines(folder: Path) -> list[Row]:
    """The record of a run, a line per phase and event. Raises UserError where it is damaged."""
    path = folder / FILE
    content = path.read_bytes()
    rows: list[Row] = []
    for number, text in enumerate(content.splitlines(), start=1):
        rows.append(_row(text, f"{path}, line {number}", "event"))
    return rows


def newest_privacy(folder: Path) -> Row | None:
    """The privacy account as the record has it last; None where there is no record or no account."""
    if not (folder / FILE).exists():
        return None
    newest: Row | None = None
    for row in lines(folder):
        newest = row.get("privacy", newest)
    return newest


def finished(folder: Path) -> Row:
    """The result of a finished run. Raises UserError where there is none, or a damaged one."""
    path = folder / "result.json"
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{folder}: no result.json is here; has the run been finished?") from None
    return _row(text, str(path), *RESULT)


def _row(text: bytes, where: str, *keys: str) -> Row:
    """One JSON object of a run's files that has these keys."""
    try:
        row: Row = json_text.loads(text)
    except ValueError as error:  # no JSON, or no text at all
        raise _damaged(where, f"no JSON ({error})") from None
    present = row if isinstance(row, dict) else {}
    missing = [key for key in keys if key not in present]
    if missing:
        names = ", ".join(missing)
        raise _damaged(where, f"{names} is missing")
    return row


def _damaged(where: str, why: str) -> UserError:
    return UserError(
        f"{where}: {why}; the file was cut short or changed: restore it, or run the scenario again"
    )
