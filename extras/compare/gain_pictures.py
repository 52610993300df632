"""Three pictures show what a comparison is about: what is in use, who gains and who loses, and groups next to what is known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean

from covey.extras.compare.verdict import Field, gain_of
from covey.extras.dashboard import plots
from covey.extras.dashboard.cluster_pictures import clusters_by_group
from covey.extras.dashboard.curves import Curves
from covey.extras.dashboard.figure_pictures import Picture
from covey.extras.dashboard.side_by_side import who_loses
from covey.extras.dashboard.svg import Drawing, figure_axis, other
from covey.shared.numerics.measures import PERCENT

ALONE = "local"  # the strategy of agents that train alone
MAX_PANELS = 6  # of groups


def of_field(field: Field) -> Iterator[Picture]:
    """The pictures of one partition, most important first."""
    yield _in_use(field)
    if (alone := field.references.get(ALONE)) is not None:
        gains = {
            method: found
            for method, by_seed in field.rows.items()
            if method not in field.references.values() or method == field.references.get("fedavg")
            if (found := gains_by_agent(field, method, alone)) and by_seed
        }
        if gains:
            numbers = {method: number for number, method in enumerate(field.rows)}
            yield who_loses(gains, alone, numbers, field.measure)


def of_groups(runs: Sequence[Curves]) -> Iterator[Picture]:
    """Groups that runs found, next to those that a simulated fleet was made with."""
    planted = [run for run in runs if run.by_truth() and len(set(run.clusters.values())) > 1]
    if planted:
        drawing = clusters_by_group(planted[:MAX_PANELS], alone=len(planted) == 1)
        yield Picture("groups", "Agents by group found (rows) and planted (columns)", drawing)


def gains_by_agent(field: Field, method: str, other_method: str) -> dict[str, float]:
    """How much better each agent is off with a method than with another one, in the mean over the seeds that both have."""
    sign = -1.0 if field.measure.lower_is_better else 1.0
    gains: dict[str, list[float]] = defaultdict(list)
    for own, reference in field.pairs(method, other_method):
        for agent in own.agents.keys() & reference.agents.keys():
            gains[agent].append(sign * (own.agents[agent] - reference.agents[agent]))
    return {agent: fmean(found) for agent, found in gains.items()}


def _in_use(field: Field) -> Picture:
    """A row for each method: its seeds, their mean, and the interval of 95 % around it, over agents and seeds."""
    measure, rows, values = field.measure, [], []
    for number, (method, by_seed) in enumerate(field.rows.items()):
        dots = [
            (measure.scale * row[field.column], f"seed {seed}") for seed, row in by_seed.items()
        ]
        mean = fmean(value for value, _ in dots)
        half = gain_of([(row, None) for row in by_seed.values()], field.column, measure).half or 0.0
        low, high = mean - measure.scale * half, mean + measure.scale * half
        if measure.scale == PERCENT:
            low, high = max(low, 0.0), min(high, PERCENT)
        rows.append(plots.Strip(method, dots, other(number), mean, (low, high)))
        values += [low, high]
    name = f"{measure.title[:1].upper()}{measure.title[1:]}"
    drawing = Drawing([plots.strips("", rows, figure_axis(measure, values))])
    remark = "A dot is a seed, the upright line the mean, the level line its interval of 95 % over agents and seeds."
    return Picture("in_use", f"{name}, what is in use", drawing, remark)
