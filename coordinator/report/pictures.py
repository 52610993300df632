"""Pictures of clusters: agents' models in a plane, distances with their merge tree, samples per cluster, cuts."""

# density: drawing calls, whose many options are one node or two each

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from covey.coordinator.report.curves import Curves, Cut
from covey.coordinator.report.projection import Tree, rounds_in_one_plane, tree_of, tsne
from covey.coordinator.run.modes import MODE_TITLES
from covey.coordinator.run.sketches import ModelSketches
from covey.shared.numerics.clustering import Matrix
from covey.shared.numerics.measures import MEASURES
from covey.shared.strategies.base import ClientId, Proximity

PANELS = 5  # rounds that are drawn of one run, at most
MAX_ROWS = 1000  # of a distance matrix: more rows than a picture has lines
MARKERS = "o^sDvPX*"
GREY = "#888888"


def colour(cluster: int | None) -> str:
    """One of ten colours for each cluster; grey for none."""
    if cluster is None:
        return GREY
    cycle = mpl.rcParams["axes.prop_cycle"].by_key()
    palette: Sequence[str] = cycle["color"]
    return palette[cluster % len(palette)]


def models_over_rounds(run: Curves) -> Figure:
    """Agents' models in the plane of their first two principal components.

    Some rounds are drawn side by side; a t-SNE of the last one follows.
    """
    chosen = _evenly_spaced(run.models, PANELS)
    rounds = [(one.rows, one.centres) for one in chosen]
    plane, drawn = rounds_in_one_plane(rounds)
    last = chosen[-1]
    embedded = tsne(last.rows)
    panels = len(chosen)
    if embedded is not None:
        panels += 1
    figure = Figure(figsize=(2.5 * panels, 3.0), layout="constrained")
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    first_share, second_share = plane.shares
    for ax, models, (points, centres) in zip(axes, chosen, drawn, strict=False):
        title = _when(models)
        ax.set_title(title)
        _scatter(ax, models, points, run.truth)
        _mark_centres(ax, centres)
        ax.set_xlabel(f"PC 1 ({first_share:.0%})")
    axes[0].set_ylabel(f"PC 2 ({second_share:.0%})")
    all_points = np.concatenate([points for points, _ in drawn])
    x_limit = _limit(all_points[:, 0])
    y_limit = _limit(all_points[:, 1])
    for ax in axes[: len(chosen)]:
        ax.set_xlim(-x_limit, x_limit)
        ax.set_ylim(-y_limit, y_limit)
    if embedded is not None:
        ax = axes[-1]
        title = _when(last)
        ax.set_title(f"t-SNE, {title}")
        _scatter(ax, last, embedded, run.truth)
    for ax in axes:
        ax.set_xticks([])
        ax.set_yticks([])
    handles = _legend(chosen, run.truth)
    figure.legend(handles=handles, loc="outside lower center", ncols=8, frameon=False)
    return figure


def _mark_centres(ax: Axes, centres: Matrix) -> None:
    """A cross for the centre of each cluster, with a black border."""
    for cluster, (x, y) in enumerate(centres):
        ax.plot(x, y, marker="x", color="black", markersize=8, markeredgewidth=3.5)
        ax.plot(x, y, marker="x", color=colour(cluster), markersize=7, markeredgewidth=2)


def _limit(coordinates: Matrix) -> float:
    """The end of an axis around zero, a little beyond all points."""
    farthest = float(np.abs(coordinates).max())
    return farthest * 1.1 or 1.0


def _evenly_spaced(models: Sequence[ModelSketches], count: int) -> list[ModelSketches]:
    """The first, the last, and others at even distances between them; `count` in all, if there are as many."""
    available = len(models)
    places = np.linspace(0, available - 1, min(count, available))
    chosen = []
    for place in places:
        nearest = round(place)
        chosen.append(models[nearest])
    return chosen


def _when(models: ModelSketches) -> str:
    """The round of these models, or the phase before the rounds."""
    if models.phase == "train":
        return f"round {models.rounds}"
    return models.phase


def _scatter(
    ax: Axes, models: ModelSketches, points: Matrix, truth: Mapping[ClientId, int]
) -> None:
    """One mark per agent: its cluster is the colour, its planted group the shape."""
    rows: dict[tuple[int | None, int | None], list[int]] = {}  # by cluster and group
    for row, agent in enumerate(models.agents):
        kind = (models.clusters[row], truth.get(agent))
        rows.setdefault(kind, []).append(row)
    for (cluster, group), own_rows in rows.items():
        own = points[own_rows]
        marker = _marker(group or 0)
        ax.scatter(
            own[:, 0],
            own[:, 1],
            s=14,
            marker=marker,
            color=colour(cluster),
            alpha=0.7,
            linewidths=0,
        )


def _legend(rounds: Sequence[ModelSketches], truth: Mapping[ClientId, int]) -> list[Line2D]:
    """An entry for each cluster, then for each planted group."""
    clusters: set[int] = set()
    for models in rounds:
        found = [cluster for cluster in models.clusters if cluster is not None]
        clusters.update(found)
    groups = set(truth.values())
    handles = []
    for cluster in sorted(clusters):
        handle = _handle("o", colour(cluster), f"cluster {cluster}")
        handles.append(handle)
    for group in sorted(groups):
        handle = _handle(_marker(group), GREY, f"group {group}")
        handles.append(handle)
    return handles


def _handle(marker: str, colour: str, label: str) -> Line2D:
    return Line2D([], [], marker=marker, ls="", color=colour, label=label)


def _marker(group: int) -> str:
    return MARKERS[group % len(MARKERS)]


def proximity_map(run: Curves, proximity: Proximity) -> Figure:
    """Distances between agents, in the order of their merge tree; the tree is to the left, with its cut."""
    tree = tree_of(proximity.distances, proximity.linkage)
    order = list(tree.order)
    clients = [proximity.clients[row] for row in order]
    clusters = [run.clusters.get(client) for client in clients]
    strips = [clusters]
    titles = ["cluster"]
    if run.truth:
        groups = [run.truth.get(client) for client in clients]
        strips.append(groups)
        titles.append("group")
    figure = Figure(figsize=(6.8, 4.6), layout="constrained")
    widths = [1.3, *[0.12] * len(strips), 3.6, 0.12]  # tree, strips, distances, scale
    axes = list(figure.subplots(1, len(widths), width_ratios=widths))
    _draw_tree(axes[0], tree, proximity.cut)
    axes[0].set_xlabel("merge height")
    for ax, strip, title in zip(axes[1:], strips, titles, strict=False):
        column = []  # an image of one column
        for number in strip:
            pixel = mpl.colors.to_rgb(colour(number))
            column.append([pixel])
        ax.imshow(column, aspect="auto", interpolation="nearest")
        ax.set_xlabel(title, rotation=90)
    cells = proximity.distances[np.ix_(order, order)]
    picture = axes[-2].imshow(cells, cmap="viridis", aspect="auto", interpolation="nearest")
    axes[-2].set_xlabel(f"{len(order)} agents, in the order of the tree")
    figure.colorbar(picture, cax=axes[-1], label=proximity.unit)
    for ax in axes[:-1]:
        ax.set_yticks([])
        ax.grid(visible=False)
    for ax in axes[1:-1]:
        ax.set_xticks([])
    return figure


def _draw_tree(ax: Axes, tree: Tree, cut: float | None) -> None:
    """The tree from right to left, its rows from top to bottom as an image has them."""
    for places, heights in zip(tree.places, tree.heights, strict=True):
        ax.plot(heights, places, color="black", linewidth=0.7)
    if cut is not None:
        ax.axvline(cut, color="tab:red", linestyle="--", linewidth=1, label="cut")
        ax.legend(frameon=False, fontsize="small", loc="upper left")
    ax.set_ylim(len(tree.order) - 0.5, -0.5)
    ax.invert_xaxis()


def samples_per_cluster(runs: Sequence[Curves]) -> Figure:
    """Bars of each cluster's training samples, with the number of its agents."""
    figure = Figure(figsize=(4.6 * len(runs), 2.6), layout="constrained")
    axes = figure.subplots(1, len(runs), squeeze=False)[0]
    for ax, run in zip(axes, runs, strict=True):
        clusters = sorted(run.samples)
        names = [str(cluster) for cluster in clusters]
        amounts = [run.samples[cluster] for cluster in clusters]
        colours = [colour(cluster) for cluster in clusters]
        bars = ax.bar(names, amounts, color=colours)
        agents = Counter(run.clusters.values())
        labels = [f"{agents[cluster]} agents" for cluster in clusters]
        ax.bar_label(bars, labels, fontsize="small")
        ax.set_title(run.label)
        ax.set_xlabel("cluster")
        ax.set_ylabel("training samples")
        ax.grid(axis="x", visible=False)
    return figure


def curve_of_the_cut(runs: Sequence[Curves]) -> Figure:
    """Accuracy by mode, and the number of clusters, over the quantile of all distances at which the tree was cut.

    Runs without such a cut, such as FedAvg and local training, are horizontal lines, in E-server.
    """
    cuts: dict[float, list[Cut]] = {}  # by quantile
    for run in runs:
        if run.cut is not None:
            cuts.setdefault(run.cut.quantile, []).append(run.cut)
    quantiles = sorted(cuts)
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    ax = figure.subplots()
    for mode, title in MODE_TITLES.items():
        xs = []
        ys = []
        for quantile in quantiles:
            mean = _mean_of(cuts[quantile], mode)
            if mean is not None:
                xs.append(quantile)
                ys.append(mean)
        if xs:
            ax.plot(xs, ys, marker=".", label=title)
    _draw_runs_without_cut(ax, runs)
    ax.set_xlabel("cut, as a quantile of all distances")
    ax.set_ylabel(MEASURES[runs[0].figure].label)
    clusters = []
    for quantile in quantiles:
        counts = [cut.clusters for cut in cuts[quantile]]
        clusters.append(fmean(counts))
    other = ax.twinx()
    other.plot(quantiles, clusters, color="black", drawstyle="steps-mid")
    other.set_ylabel("clusters (black)")
    other.set_ylim(bottom=0)
    other.yaxis.set_major_locator(MaxNLocator(integer=True))
    other.grid(visible=False)
    other.spines["right"].set_visible(True)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure


def _draw_runs_without_cut(ax: Axes, runs: Sequence[Curves]) -> None:
    """A horizontal line for the newest E-server of each run that was not cut."""
    styles = itertools.cycle(("--", ":", "-."))
    for run in runs:
        served = run.over_rounds("server")
        if run.cut is None and served:
            _, newest = served[-1]
            ax.axhline(newest, color=GREY, linestyle=next(styles), label=f"{run.label}, E-server")


def _mean_of(cuts: Sequence[Cut], mode: str) -> float | None:
    """The mean over runs that were cut at the same quantile; None if one of them lacks the mode."""
    figures = [cut.figures[mode] for cut in cuts if mode in cut.figures]
    if len(figures) < len(cuts):
        return None
    return fmean(figures)
