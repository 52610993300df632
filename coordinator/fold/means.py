"""Averages over the reporters of a phase: of an evaluation by mode, of training its loss. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from covey.shared.numerics import metrics
from covey.shared.numerics.averages import fair_weights
from covey.shared.numerics.measures import ACCURACY, MEASURES, main_measure, pooled_r2
from covey.shared.strategies.base import ClientId, Reports
from covey.shared.strategies.phase_names import EVALUATE, MODES

Row = dict[str, Any]  # figures by their names
Evaluation = Mapping[ClientId, Mapping[str, Any]]  # each agent's figures by mode
Clients = Collection[ClientId]

FIGURES = tuple(MEASURES)
# delivered: what the agent uses; best: the best model that was tracked; E-global is the micro "server"
KEPT_MODES = (*MODES, "delivered", "best")


@dataclass(frozen=True)
class Means:
    """Averages over the reporters of one phase. A phase has those of its kind; the others are None.

    The evaluation has averages by mode, as `averages` makes them, newcomers apart from the others.
    """

    evaluation: Mapping[str, Any] | None = None
    undrawn: Mapping[str, Any] | None = None  # own last of agents that no training round has drawn
    newcomers: Mapping[str, Any] | None = None
    loss: float | None = None  # of local training, weighted by examples
    tracked: Mapping[str, Any] | None = None  # test figures right after local training
    by_cluster: Mapping[str, Any] | None = None  # of the served models, by cluster id
    untested: Sequence[ClientId] | None = None  # agents without a test sample, in no figure

    def to_json(self) -> Row:
        """The averages that the phase has, by name."""
        named = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in named.items() if value is not None}


def by_mode(numbers: Mapping[str, Any]) -> Row:
    """An agent's figures. Its own last model, if it has trained in no phase at all, is the served one."""
    modes: Row = {}
    for mode in KEPT_MODES:
        figures = numbers.get(mode)
        if figures:
            modes[mode] = figures
    if "server" not in modes:
        return modes
    return {"last": modes["server"]} | modes


def means_of(
    reports: Reports,
    phase: str,
    weight: str,
    *,
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
        drawn: agents that a training round has drawn so far; the own last models of the others are given once more, alone.
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
    untested = [
        client for client, report in reports if report.numbers.get("server", {}).get("n") == 0
    ]
    return Means(
        untested=sorted(untested) or None,
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
    """The figures of own last models over the agents that no training round has drawn yet, and how many of these have test data ("agents").

    Their models come from a phase before the rounds; without such a phase they are the served ones.
    """
    undrawn = {client: modes for client, modes in figures.items() if client not in drawn}
    by_mode = averages(undrawn, train_samples, weight, share)
    no_agents: Row = {"agents": 0}
    row: Row = by_mode.get("last", no_agents)
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
        steps = [figures["maes"] for figures in tested if figures.get("maes")]
        if steps:
            row["maes"] = [metrics.macro(step) for step in zip(*steps, strict=True)]
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
