"""`coordinator report --html`: finished runs as one page that needs nothing beside it, figures within it as SVG."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from covey.coordinator.report import pictures
from covey.coordinator.report.curves import Curves
from covey.coordinator.report.tables import results
from covey.coordinator.run.modes import MODE_TITLES
from covey.shared.errors import UserError
from covey.shared.files import write_atomically

FEWEST_CUTS = 3  # runs at different cuts that make a curve
WIDTH = 4.6  # of one plot, in inches
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "covey",  # the same runs, the same bytes
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
}


@dataclass(frozen=True)
class Picture:
    """One figure: the name by which the command line asks for it, its heading, and the drawing as SVG."""

    name: str
    title: str
    svg: Markup


def page(runs: Sequence[Curves]) -> str:
    """HTML of these runs, with the table that the terminal shows."""
    pages = Environment(
        loader=PackageLoader("covey.coordinator.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
    )
    table = results([run.result for run in runs], [run.label for run in runs])
    return pages.get_template("report.html").render(runs=runs, table=table, plots=drawn(runs))


def drawn(runs: Sequence[Curves]) -> list[Picture]:
    """All pictures of these runs, most important first."""
    with mpl.rc_context(STYLE):
        return [Picture(name, title, _svg(figure)) for name, title, figure in _figures(runs)]


def write_pictures(runs: Sequence[Curves], wanted: Iterable[str]) -> None:
    """Write pictures to files of their own, each wanted as NAME=FILE. Raises UserError where there is none of that name."""
    found = {picture.name: picture for picture in drawn(runs)}
    for text in wanted:
        name, equals, file = text.partition("=")
        if not equals or not file:
            raise UserError(f"--svg {text}: expected NAME=FILE, such as accuracy=accuracy.svg")
        if name not in found:
            raise UserError(
                f"--svg {text}: these runs have no picture {name!r}; they have {', '.join(found)}"
            )
        svg = found[name].svg
        write_atomically(Path(file), f'<?xml version="1.0" encoding="utf-8"?>\n{svg}'.encode())


def _figures(runs: Sequence[Curves]) -> Iterable[tuple[str, str, Figure]]:
    """Name, heading and drawing of what there is to see, most important first; nothing without points is drawn."""
    figure = runs[0].figure
    modes = [mode for mode in MODE_TITLES if any(run.over_rounds(mode) for run in runs)]
    if modes:
        over_rounds = [
            (MODE_TITLES[mode], [(run.label, run.over_rounds(mode)) for run in runs])
            for mode in modes
        ]
        yield (
            figure,
            f"{figure.capitalize()} over rounds, mean over agents",
            _lines(over_rounds, "rounds"),
        )
        traffic = [
            (MODE_TITLES[mode], [(run.label, run.over_traffic(mode)) for run in runs])
            for mode in modes
        ]
        yield "traffic", f"{figure.capitalize()} for traffic", _lines(traffic, "Mbit per agent")
    if len({run.cut.quantile for run in runs if run.cut is not None}) >= FEWEST_CUTS:
        yield (
            "cut",
            f"{figure.capitalize()} and clusters over the cut",
            pictures.curve_of_the_cut(runs),
        )
    if any(run.loss for run in runs):
        loss = _lines([("", [(run.label, run.loss) for run in runs])], "rounds")
        yield "loss", "Training loss, mean over a round's agents", loss
    if any(value is not None for run in runs for *_, value in run.agents):
        yield "agents", f"Agents: {figure} in E-server, agent by agent", _boxes(runs)
    if clustered := [run for run in runs if any(len(sizes) > 1 for _, sizes in run.sizes)]:
        yield "clusters", "Agents per cluster over rounds", _sizes(clustered)
        yield "samples", "Training samples per cluster", pictures.samples_per_cluster(clustered)
    if known := [run for run in runs if run.by_truth()]:
        yield (
            "groups",
            "Agents by cluster found (rows) and group planted (columns)",
            _matrices(known),
        )
    sketched = [run for run in runs if run.models]
    for run in sketched:
        name, title = _of_one(
            "models", "Agents' models over rounds (principal components)", run, len(sketched)
        )
        yield name, title, pictures.models_over_rounds(run)
    mapped = [(run, run.proximity) for run in runs if run.proximity is not None]
    mapped = [(run, near) for run, near in mapped if 2 <= len(near.clients) <= pictures.MOST_ROWS]
    for run, near in mapped:
        name, title = _of_one(
            "proximity", "Distances between agents, and their merge tree", run, len(mapped)
        )
        yield name, title, pictures.proximity_map(run, near)


def _of_one(name: str, title: str, run: Curves, of: int) -> tuple[str, str]:
    """Name and heading of a picture of a single run, with its label where several have such a picture."""
    return (name, title) if of == 1 else (f"{name}-{run.label}", f"{title}: {run.label}")


def _axes(count: int, height: float = 3.2, *, share: bool = False) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(WIDTH * count, height), layout="constrained")
    return figure, list(figure.subplots(1, count, sharey=share, squeeze=False)[0])


def _lines(
    plots: Sequence[tuple[str, Sequence[tuple[str, Sequence[tuple[float, float]]]]]], below: str
) -> Figure:
    figure, axes = _axes(len(plots), share=True)
    for ax, (title, lines) in zip(axes, plots, strict=True):
        ax.set_title(title)
        ax.set_xlabel(below)
        for label, points in lines:  # one without points keeps its colour
            ax.plot(*zip(*points, strict=True) if points else ([], []), marker=".", label=label)
    axes[0].legend(frameon=False, fontsize="small")
    return figure


def _boxes(runs: Sequence[Curves]) -> Figure:
    figure, (ax,) = _axes(1, 1 + 0.35 * len(runs))
    values = [[value for *_, value in run.agents if value is not None] for run in runs]
    ax.boxplot(
        values, orientation="horizontal", tick_labels=[run.label for run in runs], widths=0.6
    )
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    return figure


def _sizes(runs: Sequence[Curves]) -> Figure:
    figure, axes = _axes(len(runs))
    for ax, run in zip(axes, runs, strict=True):
        rounds = [done for done, _ in run.sizes]
        names = sorted({name for _, sizes in run.sizes for name in sizes}, key=int)
        ax.stackplot(
            rounds,
            *([sizes.get(name, 0) for _, sizes in run.sizes] for name in names),
            labels=names,
        )
        ax.set_title(run.label)
        ax.set_xlabel("rounds")
        ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _matrices(runs: Sequence[Curves]) -> Figure:
    figure, axes = _axes(len(runs))
    for ax, run in zip(axes, runs, strict=True):
        counts = run.by_truth()
        clusters, groups = (sorted({pair[i] for pair in counts}) for i in (0, 1))
        cells = [[counts.get((k, g), 0) for g in groups] for k in clusters]
        ax.imshow(
            cells, cmap="Blues", vmin=0, vmax=2 * max(map(max, cells)), aspect="auto"
        )  # pale: numbers stand on it
        ax.set_xticks(range(len(groups)), [str(group) for group in groups])
        ax.set_yticks(range(len(clusters)), [str(cluster) for cluster in clusters])
        ax.set_title(run.label)
        ax.grid(visible=False)
        for (k, g), count in counts.items():
            ax.text(groups.index(g), clusters.index(k), str(count), ha="center", va="center")
    return figure


def _svg(figure: Figure) -> Markup:
    for ax in figure.axes:
        if ax.get_xlabel() == "rounds":
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    drawn = text.getvalue()
    return Markup(drawn[drawn.index("<svg") :])  # noqa: S704 - our own drawing; its labels are escaped by the SVG writer
