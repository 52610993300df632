"""Pictures of figures: by mode of evaluation over rounds and over traffic, at the end, and over the cut of a tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from covey.coordinator.report.tables import has_judges
from covey.coordinator.view.words import MODE_TITLES
from covey.extras.dashboard.curves import Curves, Points, TreeCut
from covey.extras.dashboard.plots import Bar, Series, Strip, bars, legend_of, lines, strips
from covey.extras.dashboard.svg import (
    Axis,
    Drawing,
    Panel,
    around,
    figure_axis,
    from_zero,
    other,
    rounds_axis,
    shown,
)
from covey.shared.numerics.measures import PERCENT, Measure, plain

# the modes that are measured at every evaluation: what is in use is chosen once, after the last round
CURVES = {mode: title for mode, title in MODE_TITLES.items() if mode != "delivered"}
MIN_CUTS = 3  # runs at different cuts that make a curve
MIN_POINTS = 2  # evaluations that make a line


@dataclass(frozen=True)
class RunGroup:
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


def of_figures(groups: Sequence[RunGroup]) -> Iterator[Picture]:
    measure = groups[0].runs[0].measure
    name = capitalised(measure.label)
    evaluations = _distinct(groups, Curves.over_rounds)
    if len(evaluations) >= MIN_POINTS:
        title = f"{name} over rounds, mean over agents"
        drawing = _line_panels(groups, measure, Curves.over_rounds, rounds_axis(evaluations))
        remark = band_remark(groups)
        yield Picture(measure.name, title, drawing, remark)
        if any(len(group.runs) > 1 for group in groups):
            title = f"{name} at the end, seed by seed"
            remark = "Each dot is a seed, the line their mean."
            drawing = _final_panels(groups, measure)
            yield Picture("seeds", title, drawing, remark)
    elif evaluations:
        [rounds] = evaluations
        title = f"{name} after round {rounds:g}, mean over agents"
        remark = "All agents were evaluated once; evaluation.every asks for more evaluations."
        drawing = _final_panels(groups, measure)
        yield Picture(measure.name, title, drawing, remark)
    traffic = _distinct(groups, Curves.over_traffic)
    if (
        len(evaluations) >= MIN_POINTS and max(traffic) > 0
    ):  # else single dots, which a table shows better
        title = f"{name} for traffic"
        axis = from_zero(traffic, "Mbit per agent, both ways")
        drawing = _line_panels(groups, measure, Curves.over_traffic, axis)
        yield Picture("traffic", title, drawing)
    yield from _of_cuts(groups, measure)


def capitalised(label: str) -> str:
    """The label with a capital first letter; RMSE stays as it is."""
    return f"{label[:1].upper()}{label[1:]}"


def _distinct(groups: Sequence[RunGroup], points: Callable[[Curves, str], Points]) -> list[float]:
    """The places of all points on the horizontal axis."""
    places: set[float] = set()
    for group in groups:
        for run in group.runs:
            for mode in CURVES:
                places.update(x for x, _ in points(run, mode))
    return sorted(places)


def band_remark(groups: Sequence[RunGroup]) -> str:
    if all(len(group.runs) == 1 for group in groups):
        return ""
    return "Lines are means over seeds, bands one standard deviation to either side."


def _line_panels(
    groups: Sequence[RunGroup], measure: Measure, points: Callable[[Curves, str], Points], x: Axis
) -> Drawing:
    """A panel for each mode that any run has points in, all with one vertical axis.

    A run alone has one panel, with a line for each mode.
    """
    by_mode: dict[str, list[Series]] = {}
    for mode, title in CURVES.items():
        series = []
        for number, group in enumerate(groups):
            of_mode = [points(run, mode) for run in group.runs]
            one = series_of(other(number), group.label, of_mode, measure)
            series.append(one)
        if any(one.points for one in series):
            by_mode[title] = series
    values: list[float] = []
    for series in by_mode.values():
        values.extend(extent(series))
    y = figure_axis(measure, values)
    if len(groups) == 1 and len(groups[0].runs) == 1:
        modes = []
        for number, (title, [alone]) in enumerate(by_mode.items()):
            modes.append(replace(alone, label=title, number=other(number)))
        panel = lines("", modes, x, y)
        return Drawing([panel], legend_of(modes))
    panels = []
    for title, series in by_mode.items():
        panel = lines(title, series, x, y)
        panels.append(panel)
    return Drawing(panels, legend_of(series))


def series_of(number: int, label: str, runs: Sequence[Points], measure: Measure) -> Series:
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
        deviation = stdev(values)
        points.append((x, mean))
        band.append((x, mean - deviation, mean + deviation))
    return Series(label, number, points, band)


def extent(series: Sequence[Series]) -> list[float]:
    """All values that the lines and bands reach."""
    values: list[float] = []
    for one in series:
        values.extend(y for _, y in one.points)
        for _, low, high in one.band:
            values.extend((low, high))
    return values


def _final_panels(groups: Sequence[RunGroup], measure: Measure) -> Drawing:
    """The figures of the only evaluation: bars of single runs, dots of seeds with their mean."""
    found: dict[str, list[tuple[int, RunGroup, list[float]]]] = {}  # by mode: number, group, values
    for mode, title in sorted(MODE_TITLES.items(), key=lambda one: one[0] != "delivered"):
        of_mode = []
        for number, group in enumerate(groups):
            values = []
            for run in group.runs:
                newest = _last_figure(run, mode, measure)
                if newest is not None:
                    values.append(shown(measure, newest))
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


def _last_figure(run: Curves, mode: str, measure: Measure) -> float | None:
    """The newest figure of a mode; there is one of what is in use if agents have decided what they use."""
    if mode == "delivered":
        averages = run.result["accuracy"].get(mode, {}) if has_judges(run.result) else {}
        figure: float | None = averages.get(measure.name, {}).get("macro")
        return figure
    points = run.over_rounds(mode)
    return points[-1][1] if points else None


def _final_bars(
    found: Mapping[str, Sequence[tuple[int, RunGroup, list[float]]]],
    measure: Measure,
    *,
    alone: bool,
) -> Drawing:
    """A panel of bars for each mode; of a run alone one panel, with a bar for each mode."""
    rows: dict[str, list[Bar]] = {}
    for title, of_mode in found.items():
        for number, group, (value,) in of_mode:
            text = f"{value:.2f}" if measure.scale == PERCENT else plain(value)
            bar = Bar(title if alone else group.label, value, text, other(number))
            rows.setdefault("" if alone else title, []).append(bar)
    values: list[float] = []
    for of_panel in rows.values():
        values.extend(bar.value for bar in of_panel)
    axis = figure_axis(measure, values, zero=True)
    panels = []
    for title, of_panel in rows.items():
        panels.append(bars(title, of_panel, axis))
    return Drawing(panels)


def _final_dots(
    title: str, of_mode: Sequence[tuple[int, RunGroup, list[float]]], measure: Measure
) -> Panel:
    """A row of dots for each group: its seeds, and their mean."""
    rows = []
    for number, group, values in of_mode:
        dots = [(value, f"seed {run.seed}") for run, value in zip(group.runs, values, strict=False)]
        rows.append(Strip(group.label, dots, other(number), fmean(values)))
    everything: list[float] = []
    for _, _, values in of_mode:
        everything.extend(values)
    return strips(title, rows, figure_axis(measure, everything))


def _of_cuts(groups: Sequence[RunGroup], measure: Measure) -> Iterator[Picture]:
    """Figures by mode and the number of clusters over the quantile at which FedClust's tree was cut."""
    runs = [run for group in groups for run in group.runs]
    cuts: dict[float, list[TreeCut]] = {}  # by quantile
    for run in runs:
        if run.cut is not None:
            cuts.setdefault(run.cut.quantile, []).append(run.cut)
    if len(cuts) < MIN_CUTS:
        return
    quantiles = sorted(cuts)
    series = []
    for number, (mode, title) in enumerate(CURVES.items()):
        points = []
        for quantile in quantiles:
            mean = _mean_of(cuts[quantile], mode)
            if mean is not None:
                points.append((quantile, shown(measure, mean)))
        if points:
            series.append(Series(title, other(number), points))
    series.extend(_runs_without_cut(runs, quantiles, measure, len(CURVES)))
    x = around(quantiles, "cut, as a quantile of all distances", floor=0.0, ceiling=1.0)
    y = figure_axis(measure, extent(series))
    clusters = []
    for quantile in quantiles:
        clusters.append((quantile, fmean([cut.clusters for cut in cuts[quantile]])))
    counted = Series("groups", None, clusters)
    of_clusters = from_zero([count for _, count in clusters], "groups", whole=True)
    upper = lines(f"{measure.label}, mean over agents", series, x, y)
    lower = lines("groups found", [counted], x, of_clusters)
    name = capitalised(measure.label)
    drawing = Drawing([upper, lower], legend_of(series))
    yield Picture("cut", f"{name} and groups over the cut", drawing)


def _runs_without_cut(
    runs: Sequence[Curves], quantiles: Sequence[float], measure: Measure, number: int
) -> Iterator[Series]:
    """A horizontal line for the newest figure as served of each run that was not cut."""
    for run in runs:
        served = run.over_rounds("server")
        if run.cut is None and served:
            _, newest = served[-1]
            height = shown(measure, newest)
            points = [(quantiles[0], height), (quantiles[-1], height)]
            yield Series(f"{run.label}, served", other(number), points)
            number += 1


def _mean_of(cuts: Sequence[TreeCut], mode: str) -> float | None:
    """The mean over runs that were cut at the same quantile; None if one of them lacks the mode."""
    figures = [cut.figures[mode] for cut in cuts if mode in cut.figures]
    if len(figures) < len(cuts):
        return None
    return fmean(figures)
