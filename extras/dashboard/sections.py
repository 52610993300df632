"""The sections of the dashboard's page that the server draws: headline, figures, charts, events. Pure.

The page puts a section in the place of its older version. Every text in it is escaped: names of agents and runs, phases
and reasons come from others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from covey.coordinator.view.table import NONE, Table
from covey.coordinator.view.words import away_words, bytes_text, duration_text, trouble_words
from covey.extras.dashboard import plots, svg
from covey.extras.dashboard.svg import (
    Axis,
    LegendEntry,
    Panel,
    columns_axis,
    figure_axis,
    from_zero,
    other,
    panel,
    rounds_axis,
    shown,
    swatch,
)
from covey.extras.dashboard.templates import templates
from covey.extras.runs.state import DashboardState, Points
from covey.shared.numerics.measures import MEASURES, PERCENT, Measure, plain
from covey.shared.sentences import counted

DESK = plots.Size(520, 220)  # of the first chart
PHONE = plots.Size(svg.WIDTH, 230)  # of the same in a narrow window
SMALL = (plots.Size(svg.WIDTH, 170),)  # of the others
MISSING = other(3)  # the colour of reports that did not come
UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))
LARGEST = 1e30  # value that is drawn
ONE_PHASE = "The broker keeps the newest phase only. The run's folder has the curves."
LARGE_FLEET = 10_000  # agents from which a tile has room for one number alone


@dataclass(frozen=True)
class LiveTile:
    """One of the figures that matter most."""

    title: str
    figure: str
    note: str
    name: str = ""  # of the figure's element


@dataclass(frozen=True)
class Chart:
    """A chart under its heading: the same drawing for each width of the window. Without any, `empty` is its text."""

    title: str
    panels: Sequence[Panel] = ()
    legend: Sequence[tuple[LegendEntry, str]] = ()  # with the newest value
    empty: str = ""
    heading: str = "h3"


def sections(state: DashboardState) -> dict[str, str]:
    """The HTML of each section, by the id of its place in the page. The same state gives the same text."""
    run = f"run {state.run}" if state.run else ""
    about = " · ".join([word for word in (state.method, run) if word])
    macros = _macros()
    return {
        "head": macros.head(state.name, about),
        "odd": macros.odd(state.odd, state.updated),
        "progress": macros.progress(state, _headline(state)),
        "tiles": macros.tiles(_tiles(state)),
        "chart-figure": macros.chart(_figures(state)),
        "chart-loss": macros.chart(_loss(state)),
        "chart-reports": macros.chart(_reports(state)),
        "chart-traffic": macros.chart(_traffic(state)),
        "events": macros.events(state.log),
    }


def list_sections(found: Table) -> dict[str, str]:
    """The same for a list of runs, each with a link to its page."""
    macros = _macros()
    return {"head": macros.head(found.title, "the newest first"), "runs": macros.runs(found)}


@cache
def _macros() -> Any:
    pages = templates()
    pages.globals |= {"panel": panel, "swatch": swatch}
    return pages.get_template("sections.html").module


# -- words -----------------------------------------------------------------------------------------


def _headline(state: DashboardState) -> str:
    if state.state == "paused":
        return f"{state.headline} Round {state.rounds_done} of {state.rounds}."
    if state.headline:
        return state.headline
    words = [f"round {state.rounds_done} of {state.rounds} is over"]
    if state.phase:
        words.append(f"now: {state.phase}")
    if state.eta_s is not None:
        words.append(f"about {duration_text(state.eta_s)} left")
    return " · ".join(words)


def _tiles(state: DashboardState) -> list[LiveTile]:
    fleet = state.fleet
    known = max(fleet.known, fleet.expected)
    here = f"{fleet.here} of {known}"
    others = away_words(fleet) or f"{fleet.busy} busy"
    if known >= LARGE_FLEET:
        here, others = str(fleet.here), f"of {known}; {others}"
    last = f"after round {state.figures[0].points[-1][0]}" if state.figures else ""
    if change := _change(state):
        last = f"{change}, {last}"
    clusters = len(state.sizes)
    sent, received = (points[-1][1] if points else 0 for points in (state.sent, state.received))
    reasons = sorted(state.refusals.items(), key=lambda item: -item[1])
    ends = Counter(one.end for one in state.sums)
    members = sum(one.reported for one in state.sums if one.is_sum)
    failed = [f"{count} {end}" for end, count in sorted(ends.items()) if end != "sum"]
    sums = LiveTile(
        "secure sums", str(ends["sum"]), ", ".join([f"of {counted(members, 'agent')}", *failed])
    )
    return [
        LiveTile(
            f"mean {state.measure_title}",
            _figure(MEASURES[state.measure], state.newest_figure),
            last or "no evaluation yet",
            "figure",
        ),
        LiveTile("agents", str(fleet.took_part), "took part")
        if fleet.took_part
        else LiveTile("agents here", here, others),
        LiveTile(
            "groups",
            str(clusters or NONE),
            f"{counted(state.moved, 'agent')} moved" if clusters else "none formed",
        ),
        LiveTile("traffic", bytes_text(sent + received), f"{bytes_text(sent)} to agents"),
        LiveTile("missing reports", str(state.faults.missing), trouble_words(state.faults)),
        LiveTile(
            "refused messages",
            str(state.faults.refused),
            ", ".join([f"{reason} {count}" for reason, count in reasons]) or "none",
        ),
        *([sums] if state.sums else []),
    ]


def _change(state: DashboardState) -> str:
    """How much the figure has changed since the evaluation before; empty if it is the first one."""
    if state.newest_figure is None or state.earlier_figure is None:
        return ""
    difference = state.newest_figure - state.earlier_figure
    if MEASURES[state.measure].scale == PERCENT:
        return f"{PERCENT * difference:+.1f} points"
    return f"{'+' if difference >= 0 else '-'}{plain(abs(difference))}"


def _figure(measure: Measure, figure: float | None) -> str:
    if figure is None:
        return NONE
    if measure.scale == PERCENT:
        return f"{PERCENT * figure:.1f} %"
    return plain(figure)


# -- charts ----------------------------------------------------------------------------------------


def _figures(state: DashboardState) -> Chart:
    measure = MEASURES[state.measure]
    title = f"{state.curves_title[0].upper()}{state.curves_title[1:]}"
    if len(state.figures) > 1:
        title += " by group"
    series = []
    for one in state.figures:
        points = [(x, shown(measure, y)) for x, y in one.points]
        if one.cluster is None:
            series.append(plots.Series("all agents", None, points))
        else:
            series.append(plots.Series(f"group {one.cluster}", _number(one.cluster), points))
    empty = "No evaluation yet."
    if state.evaluates_every == 0:
        empty = "Evaluated after the last round. To see figures earlier, set evaluation.every."

    def axis(figures: Sequence[float]) -> Axis:
        return figure_axis(measure, figures)

    def words(figure: float) -> str:
        return _figure(measure, figure / measure.scale)

    places = {x for one in series for x, _ in _drawable(one.points)}
    if not places and len(state.loss) > 1:  # the largest panel is not an empty one
        return _loss(state, f"Training loss. {empty}", (DESK, PHONE), heading="h2")
    if len(places) == 1:
        return _bars(f"{title}, after round {places.pop():g}", series, measure, words)
    return _lines(title, series, axis, words=words, empty=empty, sizes=(DESK, PHONE), heading="h2")


def _bars(
    title: str, series: Sequence[plots.Series], measure: Measure, words: Callable[[float], str]
) -> Chart:
    """The newest figures of a single evaluation: dots over rounds would show no course."""
    rows = [
        plots.Bar(one.label, figure, words(figure), one.number)
        for one in series
        for _, figure in _drawable(one.points)[-1:]
    ]
    axis = figure_axis(measure, [row.value for row in rows], zero=True)
    panels = [plots.bars(title, rows, axis, size.width) for size in (DESK, PHONE)]
    return Chart(title, panels, heading="h2")


def _number(cluster: str) -> int:
    """The number of a cluster's colour, whatever its id is."""
    return int(cluster) if cluster.isdecimal() and len(cluster) < 10 else 0


def _loss(
    state: DashboardState,
    title: str = "Training loss",
    sizes: Sequence[plots.Size] = SMALL,
    heading: str = "h3",
) -> Chart:
    empty = "No training round yet."
    if state.rounds_done:
        empty = ONE_PHASE

    def axis(losses: Sequence[float]) -> Axis:
        return from_zero(losses, "loss, mean over samples")

    series = [plots.Series("loss", other(0), state.loss)]
    return _lines(
        title,
        series,
        axis,
        words=lambda loss: f"{loss:.3g}",
        empty=empty,
        sizes=sizes,
        heading=heading,
    )


def _traffic(state: DashboardState) -> Chart:
    most = max([count for points in (state.sent, state.received) for _, count in points], default=0)
    scale, unit = next(((scale, unit) for scale, unit in UNITS if most >= scale), UNITS[-1])

    def scaled(points: Points) -> Points:
        return [(x, count / scale) for x, count in points]

    series = [
        plots.Series("to agents", other(0), scaled(state.sent)),
        plots.Series("from agents", other(2), scaled(state.received)),
    ]

    def words(count: float) -> str:
        return bytes_text(scale * count)

    return _lines(
        "Traffic so far",
        series,
        lambda counts: from_zero(counts, unit),
        words=words,
        empty="No traffic yet.",
    )


def _lines(
    title: str,
    series: Sequence[plots.Series],
    axis: Callable[[Sequence[float]], Axis],
    *,
    words: Callable[[float], str],
    empty: str,
    sizes: Sequence[plots.Size] = SMALL,
    heading: str = "h3",
) -> Chart:
    """Lines over rounds, with the values of all of them under the pointer."""
    series = [replace(one, points=_drawable(one.points)) for one in series]
    by_round: dict[float, list[str]] = {}
    for one in series:
        for x, value in one.points:
            by_round.setdefault(x, []).append(f"{one.label} {words(value)}")
    if not by_round:
        return Chart(title, empty=empty, heading=heading)
    if len(by_round) == 1:  # a single dot shows no course
        [(x, newest)] = by_round.items()
        return Chart(title, empty=f"After round {x:g}: {', '.join(newest)}.", heading=heading)
    values = [(x, f"after round {x:g}: {', '.join(by_round[x])}") for x in sorted(by_round)]
    rounds = _rounds(by_round)
    y = axis([value for one in series for _, value in one.points])
    on_top_last = series[::-1]
    panels = [
        plots.lines(title, on_top_last, rounds, y, size=size, values=values) for size in sizes
    ]
    newest = [words(one.points[-1][1]) if one.points else "" for one in series]
    return Chart(
        title, panels, list(zip(plots.legend_of(series), newest, strict=False)), heading=heading
    )


def _drawable(points: Points) -> Points:
    """The points without those that no axis reaches, such as losses of a model that diverges."""
    return [
        (x, y if abs(y) > 1 / LARGEST else 0.0)
        for x, y in points
        if abs(y) < LARGEST and 0 <= x < LARGEST
    ]


def _rounds(places: Iterable[float]) -> Axis:
    """From the first round on; from where the curves begin if a broker was asked in the middle of a run."""
    first, last = min(places), max(places)
    return rounds_axis([last], low=first if first > last / 2 and first < last else 0.0)


def _reports(state: DashboardState) -> Chart:
    title = "Reports of each step"
    if not state.bars:
        return Chart(title, empty="No phase is over yet.")
    if len(state.bars) == 1:
        [bar] = state.bars
        of_all = f"{bar.reported} of {counted(bar.reported + bar.missing, 'agent')} reported"
        return Chart(title, empty=f"{bar.phase}, after round {bar.round}: {of_all}. {ONE_PHASE}")
    stacks = []
    values = []
    for place, bar in enumerate(state.bars, start=1):
        counts = {"reported": bar.reported}
        layers: list[tuple[float, int | None, str]] = [(bar.reported, None, "reported")]
        if bar.missing:
            counts["missing"] = bar.missing
            layers.append((bar.missing, MISSING, "missing"))
        stacks.append(plots.StackedColumn(place, layers))
        said = ", ".join([f"{kind} {count}" for kind, count in counts.items()])
        values.append((float(place), f"{bar.phase}, after round {bar.round}: {said}"))
    x = columns_axis([stack.x for stack in stacks], "steps of the rounds")
    y = from_zero([bar.reported + bar.missing for bar in state.bars], "agents", whole=True)
    panels = [plots.columns(title, stacks, x, y, size=size, values=values) for size in SMALL]
    legend = [(plots.colour_entry(None, "reported"), "")]
    if any(bar.missing for bar in state.bars):
        legend.append((plots.colour_entry(MISSING, "missing"), ""))
    return Chart(title, panels, legend)
