"""`coordinator report --html`: finished runs as one page, complete in itself, with pictures as SVG."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from covey.coordinator.report import pictures, plots
from covey.coordinator.report.curves import Curves, Points
from covey.coordinator.report.tables import results
from covey.coordinator.run.modes import MODE_TITLES
from covey.shared.errors import UserError
from covey.shared.files import write_atomically
from covey.shared.numerics.measures import MEASURES

MIN_CUTS = 3  # runs at different cuts that make a curve
XML = '<?xml version="1.0" encoding="utf-8"?>'
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "covey",  # the same runs give the same bytes
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
}


@dataclass(frozen=True)
class Picture:
    """One picture of the page."""

    name: str  # the command line asks for it by this name
    title: str
    svg: Markup


@dataclass(frozen=True)
class _Drawing:
    """A picture before it is rendered."""

    name: str
    title: str
    figure: Figure


def page(runs: Sequence[Curves]) -> str:
    """The HTML of these runs, with the table that the terminal shows."""
    pages = Environment(
        loader=PackageLoader("covey.coordinator.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
    )
    template = pages.get_template("report.html")
    found = [run.result for run in runs]
    labels = [run.label for run in runs]
    return template.render(
        runs=runs,
        table=results(found, labels),
        plots=drawn(runs),
    )


def drawn(runs: Sequence[Curves]) -> list[Picture]:
    """All pictures of these runs, most important first."""
    rendered = []
    with mpl.rc_context(STYLE):
        for drawing in _drawings(runs):
            svg = _svg(drawing.figure)
            picture = Picture(drawing.name, drawing.title, svg)
            rendered.append(picture)
    return rendered


def write_pictures(runs: Sequence[Curves], wanted: Iterable[str]) -> None:
    """Write pictures to files of their own, each given as NAME=FILE.

    Raises UserError if these runs have no picture of that name.
    """
    found = {picture.name: picture for picture in drawn(runs)}
    for text in wanted:
        name, _, file = text.partition("=")
        if not file:
            raise UserError(f"--svg {text}: expected NAME=FILE, such as accuracy=accuracy.svg")
        if name not in found:
            known = ", ".join(found)
            raise UserError(f"--svg {text}: these runs have no picture {name!r}; they have {known}")
        path = Path(file)
        picture = found[name]
        document = f"{XML}\n{picture.svg}"
        write_atomically(path, document.encode())


# -- what is drawn -------------------------------------------------------------------------------------------------


def _drawings(runs: Sequence[Curves]) -> Iterator[_Drawing]:
    """Every picture that has points, most important first."""
    yield from _over_rounds(runs)
    yield from _over_agents(runs)
    yield from _of_models(runs)


def _over_rounds(runs: Sequence[Curves]) -> Iterator[_Drawing]:
    figure = runs[0].figure
    label = MEASURES[figure].label
    name = label[:1].upper() + label[1:]
    by_rounds = _plots_by_mode(runs, Curves.over_rounds)
    if by_rounds:
        title = f"{name} over rounds, mean over agents"
        drawing = plots.line_plots(by_rounds, "rounds")
        yield _Drawing(figure, title, drawing)
        by_traffic = _plots_by_mode(runs, Curves.over_traffic)
        title = f"{name} for traffic"
        drawing = plots.line_plots(by_traffic, "Mbit per agent")
        yield _Drawing("traffic", title, drawing)
    quantiles = {run.cut.quantile for run in runs if run.cut is not None}
    if len(quantiles) >= MIN_CUTS:
        title = f"{name} and clusters over the cut"
        drawing = pictures.curve_of_the_cut(runs)
        yield _Drawing("cut", title, drawing)
    if any(run.loss for run in runs):
        lines = [(run.label, run.loss) for run in runs]
        loss = plots.Plot("", lines)
        title = "Training loss, mean over a round's agents"
        drawing = plots.line_plots([loss], "rounds")
        yield _Drawing("loss", title, drawing)


def _plots_by_mode(
    runs: Sequence[Curves], points: Callable[[Curves, str], Points]
) -> list[plots.Plot]:
    """A plot for each mode of evaluation that any run has points in."""
    made = []
    for mode, title in MODE_TITLES.items():
        lines = [(run.label, points(run, mode)) for run in runs]
        if any(of_run for _, of_run in lines):
            plot = plots.Plot(title, lines)
            made.append(plot)
    return made


def _over_agents(runs: Sequence[Curves]) -> Iterator[_Drawing]:
    figure = runs[0].figure
    if any(_has_figures(run) for run in runs):
        label = MEASURES[figure].label
        title = f"Agents: {label} in E-server, agent by agent"
        boxes = plots.boxes_of_agents(runs)
        yield _Drawing("agents", title, boxes)
    clustered = [run for run in runs if _has_clusters(run)]
    if clustered:
        sizes = plots.cluster_sizes(clustered)
        yield _Drawing("clusters", "Agents per cluster over rounds", sizes)
        samples = pictures.samples_per_cluster(clustered)
        yield _Drawing("samples", "Training samples per cluster", samples)
    planted = [run for run in runs if run.by_truth()]
    if planted:
        title = "Agents by cluster found (rows) and group planted (columns)"
        groups = plots.clusters_by_group(planted)
        yield _Drawing("groups", title, groups)


def _has_figures(run: Curves) -> bool:
    return any(one.figure is not None for one in run.agents)


def _has_clusters(run: Curves) -> bool:
    """Were there ever two clusters or more?"""
    return any(len(sizes) > 1 for _, sizes in run.sizes)


def _of_models(runs: Sequence[Curves]) -> Iterator[_Drawing]:
    """Pictures of one run each."""
    sketched = [run for run in runs if run.models]
    for run in sketched:
        title = "Agents' models over rounds (principal components)"
        drawing = pictures.models_over_rounds(run)
        yield _of_one("models", title, run, len(sketched), drawing)
    mapped = []
    for run in runs:
        proximity = run.proximity
        if proximity is None:
            continue
        agents = len(proximity.clients)
        if 2 <= agents <= pictures.MAX_ROWS:
            mapped.append((run, proximity))
    for run, proximity in mapped:
        title = "Distances between agents, and their merge tree"
        drawing = pictures.proximity_map(run, proximity)
        yield _of_one("proximity", title, run, len(mapped), drawing)


def _of_one(name: str, title: str, run: Curves, runs: int, figure: Figure) -> _Drawing:
    """A picture of a single run, named with its label if several runs have such a picture."""
    if runs == 1:
        return _Drawing(name, title, figure)
    own_name = f"{name}-{run.label}"
    own_title = f"{title}: {run.label}"
    return _Drawing(own_name, own_title, figure)


def _svg(figure: Figure) -> Markup:
    for ax in figure.axes:
        if ax.get_xlabel() == "rounds":
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    document = text.getvalue()
    start = document.index("<svg")
    return Markup(document[start:])  # noqa: S704 - our own drawing; the SVG writer escapes its labels
