"""The pictures of finished runs: which ones these runs have, and what each of them shows.

Runs come in groups. A group of several runs is one method on several seeds: its lines are means, with a band of one
population deviation to either side. A report of single runs has a group for each of them.
"""

# density: builds charts out of records, a value for each mark

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev

from covey.coordinator.report import cluster_pictures
from covey.coordinator.report.axes import Axis, around, columns_axis, from_zero, rounds_axis
from covey.coordinator.report.curves import Curves, Cut, Points
from covey.coordinator.report.plots import (
    Bar,
    Column,
    Series,
    Strip,
    bars,
    colour_entry,
    columns,
    legend_of,
    lines,
    strips,
)
from covey.coordinator.report.svg import Drawing, Panel
from covey.coordinator.run.modes import MODE_TITLES
from covey.shared.numerics.measures import MEASURES, PERCENT, Measure

MIN_CUTS = 3  # runs at different cuts that make a curve
MIN_POINTS = 2  # evaluations that make a line
LEAST_PERCENT = 10.0  # the smallest span of an axis of percentages
MAX_PANELS = 6  # runs that get panels of their own
MISSING = 7  # the colour of agents that did not report


@dataclass(frozen=True)
class Group:
    """Runs that are drawn as one: the seeds of a method, or a single run."""

    label: str
    runs: Sequence[Curves]


@dataclass(frozen=True)
class Picture:
    """One picture of a page."""

    name: str  # the command line asks for it by this name
    title: str
    drawing: Drawing
    caption: str = ""


def pictures(groups: Sequence[Group], *, by_seed: bool = False) -> list[Picture]:
    """All pictures of these groups, most important first.

    With `by_seed`, every run is a seed of its group: there are no pictures of single runs.
    """
    found: list[Picture] = []
    found.extend(_of_figures(groups))
    found.extend(_of_rounds(groups))
    if by_seed:
        return found
    single = [group.runs[0] for group in groups if len(group.runs) == 1]
    if len(single) == len(groups):
        found.extend(_of_agents(single))
        for name, title, drawing in cluster_pictures.of_single_runs(single):
            found.append(Picture(name, title, drawing))
    return found


def shown(measure: Measure, figure: float) -> float:
    """A figure as charts show it: shares in percent."""
    return measure.scale * figure


def axis_label(measure: Measure) -> str:
    """The measure with its unit; its direction where that is not obvious."""
    direction = "; lower is better" if measure.lower_is_better else ""
    return f"{measure.title}{direction}"


def figure_axis(measure: Measure, figures: Iterable[float], *, zero: bool = False) -> Axis:
    """An axis for these figures, which are scaled already. Percentages stay between 0 and 100."""
    label = axis_label(measure)
    if measure.scale != PERCENT:
        values = list(figures)
        if zero and min(values, default=0.0) >= 0:
            return from_zero(values, label)
        return around(values, label)
    if zero:
        return Axis(label, 0.0, PERCENT, (0.0, 20.0, 40.0, 60.0, 80.0, 100.0))
    return around(figures, label, least=LEAST_PERCENT, floor=0.0, ceiling=PERCENT)


# -- figures over rounds and traffic ---------------------------------------------------------------


def _of_figures(groups: Sequence[Group]) -> Iterator[Picture]:
    measure = groups[0].runs[0].measure
    name = measure.label[:1].upper() + measure.label[1:]
    evaluations = _distinct(groups, Curves.over_rounds)
    if len(evaluations) >= MIN_POINTS:
        title = f"{name} over rounds, mean over agents"
        drawing = _line_panels(groups, measure, Curves.over_rounds, rounds_axis(evaluations))
        yield Picture(measure.name, title, drawing, _band_remark(groups))
        if any(len(group.runs) > 1 for group in groups):
            title = f"{name} at the end, seed by seed"
            remark = "Each dot is a seed, the line their mean."
            yield Picture("seeds", title, _final_panels(groups, measure), remark)
    elif evaluations:
        [rounds] = evaluations
        title = f"{name} after round {rounds:g}, mean over agents"
        remark = "All agents were evaluated once; evaluation.every asks for more evaluations."
        yield Picture(measure.name, title, _final_panels(groups, measure), remark)
    traffic = _distinct(groups, Curves.over_traffic)
    if (
        len(evaluations) >= MIN_POINTS and max(traffic) > 0
    ):  # else single dots, which a table shows better
        title = f"{name} for traffic"
        axis = from_zero(traffic, "Mbit per agent, both ways")
        drawing = _line_panels(groups, measure, Curves.over_traffic, axis)
        yield Picture("traffic", title, drawing)
    yield from _of_cuts(groups, measure)


def _distinct(groups: Sequence[Group], points: Callable[[Curves, str], Points]) -> list[float]:
    """The places of all points on the horizontal axis."""
    places: set[float] = set()
    for group in groups:
        for run in group.runs:
            for mode in MODE_TITLES:
                places.update(x for x, _ in points(run, mode))
    return sorted(places)


def _band_remark(groups: Sequence[Group]) -> str:
    if all(len(group.runs) == 1 for group in groups):
        return ""
    return "Lines are means over seeds, bands one population deviation to either side."


def _line_panels(
    groups: Sequence[Group], measure: Measure, points: Callable[[Curves, str], Points], x: Axis
) -> Drawing:
    """A panel for each mode that any run has points in, all with one vertical axis.

    A run alone has one panel, with a line for each mode.
    """
    by_mode: dict[str, list[Series]] = {}
    for mode, title in MODE_TITLES.items():
        series = []
        for number, group in enumerate(groups):
            found = [points(run, mode) for run in group.runs]
            series.append(_series(number, group.label, found, measure))
        if any(one.points for one in series):
            by_mode[title] = series
    values: list[float] = []
    for series in by_mode.values():
        values.extend(_extent(series))
    y = figure_axis(measure, values)
    if len(groups) == 1 and len(groups[0].runs) == 1:
        modes = []
        for number, (title, [alone]) in enumerate(by_mode.items()):
            modes.append(replace(alone, label=title, number=number))
        return Drawing([lines("", modes, x, y)], legend_of(modes))
    panels = [lines(title, series, x, y) for title, series in by_mode.items()]
    return Drawing(panels, legend_of(series))


def _series(number: int, label: str, runs: Sequence[Points], measure: Measure) -> Series:
    """The line of a group: its only run's points, or means and a band where every run has a point.

    Over traffic, the seeds of a method have different places: the mean of these is taken as well.
    """
    if len(runs) == 1:
        points = [(x, shown(measure, y)) for x, y in runs[0]]
        return Series(label, number, points)
    points = []
    band = []
    for at_once in zip(*runs, strict=False):
        x = fmean(place for place, _ in at_once)
        values = [shown(measure, value) for _, value in at_once]
        mean = fmean(values)
        deviation = pstdev(values)
        points.append((x, mean))
        band.append((x, mean - deviation, mean + deviation))
    return Series(label, number, points, band)


def _extent(series: Sequence[Series]) -> list[float]:
    """All values that the lines and bands reach."""
    values: list[float] = []
    for one in series:
        values.extend(y for _, y in one.points)
        for _, low, high in one.band:
            values.extend((low, high))
    return values


def _final_panels(groups: Sequence[Group], measure: Measure) -> Drawing:
    """The figures of the only evaluation: bars of single runs, dots of seeds with their mean."""
    found: dict[str, list[tuple[int, Group, list[float]]]] = {}  # by mode: number, group, values
    for mode, title in MODE_TITLES.items():
        of_mode = []
        for number, group in enumerate(groups):
            figures = [run.over_rounds(mode) for run in group.runs]
            values = [shown(measure, points[-1][1]) for points in figures if points]
            if values:
                of_mode.append((number, group, values))
        if of_mode:
            found[title] = of_mode
    if all(len(group.runs) == 1 for group in groups):
        return _final_bars(found, measure, alone=len(groups) == 1)
    panels = []
    for title, of_mode in found.items():
        panels.append(_final_dots(title, of_mode, measure))
    return Drawing(panels)


def _final_bars(
    found: Mapping[str, Sequence[tuple[int, Group, list[float]]]], measure: Measure, *, alone: bool
) -> Drawing:
    """A panel of bars for each mode; of a run alone one panel, with a bar for each mode."""
    rows: dict[str, list[Bar]] = {}
    for title, of_mode in found.items():
        for number, group, (value,) in of_mode:
            text = f"{value:.2f}" if measure.scale == PERCENT else f"{value:.4g}"
            label = title if alone else group.label
            bar = Bar(label, value, text, number)
            rows.setdefault("" if alone else title, []).append(bar)
    values = [bar.value for of_panel in rows.values() for bar in of_panel]
    axis = figure_axis(measure, values, zero=True)
    return Drawing([bars(title, of_panel, axis) for title, of_panel in rows.items()])


def _final_dots(
    title: str, of_mode: Sequence[tuple[int, Group, list[float]]], measure: Measure
) -> Panel:
    """A row of dots for each group: its seeds, and their mean."""
    rows = []
    for number, group, values in of_mode:
        dots = []
        for run, value in zip(group.runs, values, strict=False):
            dots.append((value, f"seed {run.seed}"))
        rows.append(Strip(group.label, dots, number, fmean(values)))
    everything = [value for _, _, values in of_mode for value in values]
    return strips(title, rows, figure_axis(measure, everything))


def _of_cuts(groups: Sequence[Group], measure: Measure) -> Iterator[Picture]:
    """Figures by mode and the number of clusters over the quantile at which FedClust's tree was cut."""
    runs = [run for group in groups for run in group.runs]
    cuts: dict[float, list[Cut]] = {}  # by quantile
    for run in runs:
        if run.cut is not None:
            cuts.setdefault(run.cut.quantile, []).append(run.cut)
    if len(cuts) < MIN_CUTS:
        return
    quantiles = sorted(cuts)
    series = []
    for number, (mode, title) in enumerate(MODE_TITLES.items()):
        points = []
        for quantile in quantiles:
            mean = _mean_of(cuts[quantile], mode)
            if mean is not None:
                points.append((quantile, shown(measure, mean)))
        if points:
            series.append(Series(title, number, points))
    series.extend(_runs_without_cut(runs, quantiles, measure, len(MODE_TITLES)))
    x = around(quantiles, "cut, as a quantile of all distances", floor=0.0, ceiling=1.0)
    y = figure_axis(measure, _extent(series))
    clusters = []
    for quantile in quantiles:
        counts = [cut.clusters for cut in cuts[quantile]]
        clusters.append((quantile, fmean(counts)))
    counted = Series("clusters", MISSING, clusters)
    of_clusters = from_zero([count for _, count in clusters], "clusters", whole=True)
    panels = [
        lines(f"{measure.label}, mean over agents", series, x, y),
        lines("clusters found", [counted], x, of_clusters),
    ]
    title = f"{measure.label.capitalize()} and clusters over the cut"
    yield Picture("cut", title, Drawing(panels, legend_of(series)))


def _runs_without_cut(
    runs: Sequence[Curves], quantiles: Sequence[float], measure: Measure, number: int
) -> Iterator[Series]:
    """A horizontal line for the newest E-server of each run that was not cut."""
    for run in runs:
        served = run.over_rounds("server")
        if run.cut is None and served:
            _, newest = served[-1]
            height = shown(measure, newest)
            points = [(quantiles[0], height), (quantiles[-1], height)]
            yield Series(f"{run.label}, E-server", number, points)
            number += 1


def _mean_of(cuts: Sequence[Cut], mode: str) -> float | None:
    """The mean over runs that were cut at the same quantile; None if one of them lacks the mode."""
    figures = [cut.figures[mode] for cut in cuts if mode in cut.figures]
    if len(figures) < len(cuts):
        return None
    return fmean(figures)


# -- other lines over rounds -----------------------------------------------------------------------


def _of_rounds(groups: Sequence[Group]) -> Iterator[Picture]:
    """Training loss, and who reported in each round."""
    no_scale = MEASURES["loss"]
    series = []
    for number, group in enumerate(groups):
        losses = [run.loss for run in group.runs]
        series.append(_series(number, group.label, losses, no_scale))
    places = [x for one in series for x, _ in one.points]
    if places:
        x = rounds_axis(places)
        y = from_zero(_extent(series), "training loss")
        panel = lines("", series, x, y)
        title = "Training loss, mean over a round's agents"
        yield Picture("loss", title, Drawing([panel], legend_of(series)), _band_remark(groups))
    runs = [group.runs[0] for group in groups if len(group.runs) == 1]
    attended = [run for run in runs if any(one.missing for one in run.attendance)]
    if attended and len(runs) <= MAX_PANELS:
        panels = [_attendance(run, alone=len(runs) == 1) for run in attended]
        legend = [colour_entry(0, "reported"), colour_entry(MISSING, "invited, did not report")]
        yield Picture("attendance", "Agents of each training round", Drawing(panels, legend))


def _attendance(run: Curves, *, alone: bool) -> Panel:
    stacks = []
    most = 0
    for one in run.attendance:
        layers = [(one.reported, 0, "reported"), (one.missing, MISSING, "did not report")]
        stacks.append(Column(one.round, layers))
        most = max(most, one.reported + one.missing)
    x = columns_axis([one.round for one in run.attendance], "round")
    y = from_zero([most], "agents", whole=True)
    return columns("" if alone else run.label, stacks, x, y)


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
    sizes = _sizes(clustered, alone=alone)
    yield Picture("clusters", "Agents per cluster over rounds", sizes)
    panels = [_samples(run, alone=alone) for run in clustered if run.samples]
    if panels:
        yield Picture("samples", "Training samples per cluster", Drawing(panels))
    planted = [run for run in clustered if run.by_truth()]
    if planted:
        title = "Agents by cluster found (rows) and group planted (columns)"
        drawing = cluster_pictures.clusters_by_group(planted, alone=alone)
        yield Picture("groups", title, drawing)


def _has_figures(run: Curves) -> bool:
    return any(one.figure is not None for one in run.agents)


def _has_clusters(run: Curves) -> bool:
    """Were there ever two clusters or more?"""
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
        for cluster in sorted(dots, key=lambda found: -1 if found is None else found):
            own = dots[cluster]
            mean = fmean(value for value, _ in own)
            label = run.label if cluster is None else f"cluster {cluster}"
            colour = number if cluster is None else cluster
            rows.append(Strip(label, own, colour, mean))
    values = [value for row in rows for value, _ in row.dots]
    return Drawing([strips("", rows, figure_axis(measure, values))])


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
            stacks.append(Column(rounds, layers))
        most = max(sum(by_cluster.values()) for by_cluster in newest.values())
        x = columns_axis(list(newest), "rounds that were over")
        y = from_zero([most], "agents", whole=True)
        panels.append(columns("" if alone else run.label, stacks, x, y))
    legend = [colour_entry(cluster, f"cluster {cluster}") for cluster in sorted(names)]
    return Drawing(panels, legend)


def _samples(run: Curves, *, alone: bool) -> Panel:
    """Bars of each cluster's training samples, with the number of its agents."""
    rows = []
    for cluster in sorted(run.samples):
        samples = run.samples[cluster]
        agents = sum(1 for own in run.clusters.values() if own == cluster)
        text = f"{samples} of {agents} agents"
        rows.append(Bar(f"cluster {cluster}", samples, text, cluster))
    axis = from_zero(run.samples.values(), "training samples", whole=True)
    return bars("" if alone else run.label, rows, axis)
