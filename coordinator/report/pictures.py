"""The pictures of finished runs: which ones these runs have, and what each of them shows.

Runs come in groups. A group of several runs is one method on several seeds: its lines are means, with a band of one
population deviation to either side. A report of single runs has a group for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from covey.coordinator.report import cluster_pictures
from covey.coordinator.report.curves import Curves
from covey.coordinator.report.figure_pictures import (
    Picture,
    RunGroup,
    band_remark,
    extent,
    of_figures,
    series_of,
)
from covey.coordinator.view import plots
from covey.coordinator.view.axes import columns_axis, figure_axis, from_zero, rounds_axis, shown
from covey.coordinator.view.svg import Drawing, Panel
from covey.coordinator.view.theme import other
from covey.shared.numerics.measures import MEASURES, Measure
from covey.shared.sentences import counted

MAX_PANELS = 6  # runs that get panels of their own
MISSING = other(3)  # the colour of agents that did not report


def pictures(groups: Sequence[RunGroup], *, by_seed: bool = False) -> list[Picture]:
    """All pictures of these groups, most important first.

    With `by_seed`, every run is a seed of its group: there are no pictures of single runs.
    """
    found: list[Picture] = []
    found.extend(of_figures(groups))
    found.extend(_of_rounds(groups))
    if by_seed:
        return found
    single = [group.runs[0] for group in groups if len(group.runs) == 1]
    if len(single) == len(groups):
        found.extend(_of_agents(single))
        for name, title, drawing in cluster_pictures.of_single_runs(single):
            found.append(Picture(name, title, drawing))
    return found


# -- other lines over rounds -----------------------------------------------------------------------


def _of_rounds(groups: Sequence[RunGroup]) -> Iterator[Picture]:
    """Training loss, and who reported in each round."""
    no_scale = MEASURES["loss"]
    series = []
    for number, group in enumerate(groups):
        series.append(
            series_of(other(number), group.label, [run.loss for run in group.runs], no_scale)
        )
    places: list[float] = []
    for one in series:
        places.extend(x for x, _ in one.points)
    if places:
        x = rounds_axis(places)
        panel = plots.lines("", series, x, from_zero(extent(series), "training loss"))
        drawing = Drawing([panel], plots.legend_of(series))
        title = "Training loss, mean over a round's agents"
        yield Picture("loss", title, drawing, band_remark(groups))
    runs = [group.runs[0] for group in groups if len(group.runs) == 1]
    attended = [run for run in runs if any(one.missing for one in run.attendance)]
    if attended and len(runs) <= MAX_PANELS:
        panels = [_attendance(run, alone=len(runs) == 1) for run in attended]
        legend = [
            plots.colour_entry(None, "reported"),
            plots.colour_entry(MISSING, "invited, did not report"),
        ]
        yield Picture("attendance", "Agents of each training round", Drawing(panels, legend))


def _attendance(run: Curves, *, alone: bool) -> Panel:
    stacks = []
    most = 0
    for one in run.attendance:
        reported = (one.reported, None, "reported")
        stacks.append(
            plots.StackedColumn(one.round, [reported, (one.missing, MISSING, "did not report")])
        )
        most = max(most, one.reported + one.missing)
    x = columns_axis([one.round for one in run.attendance], "round")
    y = from_zero([most], "agents", whole=True)
    return plots.columns("" if alone else run.label, stacks, x, y)


# -- agents and clusters ---------------------------------------------------------------------------


def _of_agents(runs: Sequence[Curves]) -> Iterator[Picture]:
    """The figures of single agents, and the clusters that they are in."""
    measure = runs[0].measure
    if any(_has_figures(run) for run in runs):
        title = f"Agents: {measure.label} in E-server, agent by agent"
        remark = "Each dot is an agent, the line their mean."
        yield Picture("agents", title, _agents(runs, measure), remark)
    clustered = [run for run in runs if _has_clusters(run)]
    if not clustered or len(runs) > MAX_PANELS:
        return
    alone = len(runs) == 1
    yield Picture("clusters", "Agents per cluster over rounds", _sizes(clustered, alone=alone))
    panels = [_samples(run, alone=alone) for run in clustered if run.samples]
    if panels:
        yield Picture("samples", "Training samples per cluster", Drawing(panels))
    planted = [run for run in clustered if run.by_truth()]
    if planted:
        title = "Agents by cluster found (rows) and group planted (columns)"
        yield Picture("groups", title, cluster_pictures.clusters_by_group(planted, alone=alone))


def _has_figures(run: Curves) -> bool:
    return any(one.figure is not None for one in run.agents)


def _has_clusters(run: Curves) -> bool:
    """Whether there were ever two clusters or more."""
    return any(len(sizes) > 1 for _, sizes in run.sizes)


def _agents(runs: Sequence[Curves], measure: Measure) -> Drawing:
    """A row of dots for each run, or for each cluster of a single run."""
    rows = []
    for number, run in enumerate(runs):
        dots: dict[int | None, list[tuple[float, str]]] = {}  # by cluster; by nothing if several
        for one in run.agents:
            if one.figure is not None:
                cluster = one.cluster if len(runs) == 1 else None
                dot = (shown(measure, one.figure), one.agent)
                dots.setdefault(cluster, []).append(dot)
        for cluster, own in sorted(dots.items(), key=_none_first):
            mean = fmean(value for value, _ in own)
            label = run.label if cluster is None else f"cluster {cluster}"
            colour = other(number) if cluster is None else cluster
            rows.append(plots.Strip(label, own, colour, mean))
    values: list[float] = []
    for row in rows:
        values.extend(value for value, _ in row.dots)
    return Drawing([plots.strips("", rows, figure_axis(measure, values))])


def _none_first(item: tuple[int | None, object]) -> int:
    """Sorts clusters by number, agents without a cluster before them."""
    cluster, _ = item
    return -1 if cluster is None else cluster


def _sizes(runs: Sequence[Curves], *, alone: bool) -> Drawing:
    """Agents per cluster after each round, stacked."""
    panels = []
    names: set[int] = set()
    for run in runs:
        newest: dict[int, dict[int, int]] = {}  # sizes by cluster, after each round
        for rounds, sizes in run.sizes:
            newest[rounds] = {int(cluster): size for cluster, size in sizes.items()}
        stacks = []
        for rounds, by_cluster in newest.items():
            layers = []
            for cluster in sorted(by_cluster):
                layers.append((by_cluster[cluster], cluster, f"cluster {cluster}"))
                names.add(cluster)
            stacks.append(plots.StackedColumn(rounds, layers))
        most = max(sum(by_cluster.values()) for by_cluster in newest.values())
        x = columns_axis(list(newest), "rounds that were over")
        y = from_zero([most], "agents", whole=True)
        panels.append(plots.columns("" if alone else run.label, stacks, x, y))
    legend = [plots.colour_entry(cluster, f"cluster {cluster}") for cluster in sorted(names)]
    return Drawing(panels, legend)


def _samples(run: Curves, *, alone: bool) -> Panel:
    """Bars of each cluster's training samples, with the number of its agents."""
    rows = []
    for cluster in sorted(run.samples):
        samples = run.samples[cluster]
        agents = sum(1 for own in run.clusters.values() if own == cluster)
        text = f"{samples} ({counted(agents, 'agent')})"
        rows.append(plots.Bar(f"cluster {cluster}", samples, text, cluster))
    axis = from_zero(run.samples.values(), "training samples", whole=True)
    return plots.bars("" if alone else run.label, rows, axis)
