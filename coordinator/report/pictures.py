"""Pictures of clusters: agents' models in a plane, distances with their tree, samples per cluster, the curve of a cut."""

from __future__ import annotations

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
from covey.shared.strategies.base import ClientId, Proximity

PANELS = 5  # rounds that are drawn of one run
MAX_ROWS = 1000  # of a distance matrix: more rows than a picture has lines
MARKERS = "o^sDvPX*"
GREY = "#888888"


def colour(cluster: int | None) -> str:
    """One of ten colours for each cluster; grey for none."""
    palette: Sequence[str] = mpl.rcParams["axes.prop_cycle"].by_key()["color"]
    return GREY if cluster is None else palette[cluster % len(palette)]


def models_over_rounds(run: Curves) -> Figure:
    """Agents' models in the plane of their first two principal components, some rounds side by side; then t-SNE of the last."""
    chosen = _spread(run.models, PANELS)
    plane, drawn = rounds_in_one_plane([(one.rows, one.centres) for one in chosen])
    last = chosen[-1]
    embedded = tsne(last.rows)
    panels = len(chosen) + (embedded is not None)
    figure = Figure(figsize=(2.5 * panels, 3.0), layout="constrained")
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    for ax, models, (points, centres) in zip(axes, chosen, drawn, strict=False):
        ax.set_title(_when(models))
        _scatter(ax, models, points, run.truth)
        for cluster, centre in enumerate(centres):
            ax.plot(*centre, marker="x", color="black", markersize=8, markeredgewidth=3.5)
            ax.plot(*centre, marker="x", color=colour(cluster), markersize=7, markeredgewidth=2)
        ax.set_xlabel(f"PC 1 ({plane.shares[0]:.0%})")
    axes[0].set_ylabel(f"PC 2 ({plane.shares[1]:.0%})")
    limits = [
        max(abs(points[:, axis]).max() for points, _ in drawn) * 1.1 or 1.0 for axis in (0, 1)
    ]
    for ax in axes[: len(chosen)]:
        ax.set_xlim(-limits[0], limits[0])
        ax.set_ylim(-limits[1], limits[1])
    if embedded is not None:
        axes[-1].set_title(f"t-SNE, {_when(last)}")
        _scatter(axes[-1], last, embedded, run.truth)
    for ax in axes:
        ax.set_xticks([])
        ax.set_yticks([])
    figure.legend(
        handles=_legend(chosen, run.truth), loc="outside lower center", ncols=8, frameon=False
    )
    return figure


def _spread(models: Sequence[ModelSketches], most: int) -> list[ModelSketches]:
    """The first, the last, and those between at even distances."""
    places = np.linspace(0, len(models) - 1, min(most, len(models)))
    return [models[round(place)] for place in places]


def _when(models: ModelSketches) -> str:
    return f"round {models.rounds}" if models.phase == "train" else models.phase


def _scatter(
    ax: Axes, models: ModelSketches, points: Matrix, truth: Mapping[ClientId, int]
) -> None:
    """One mark per agent: its cluster is the colour, its planted group the shape."""
    kinds = [
        (cluster, truth.get(agent))
        for agent, cluster in zip(models.agents, models.clusters, strict=True)
    ]
    for cluster, group in dict.fromkeys(kinds):
        own = points[[kind == (cluster, group) for kind in kinds]]
        marker = MARKERS[(group or 0) % len(MARKERS)]
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
    clusters = sorted(
        {cluster for one in rounds for cluster in one.clusters if cluster is not None}
    )
    found = [
        Line2D([], [], marker="o", ls="", color=colour(cluster), label=f"cluster {cluster}")
        for cluster in clusters
    ]
    for group in sorted(set(truth.values())):
        marker = MARKERS[group % len(MARKERS)]
        found.append(Line2D([], [], marker=marker, ls="", color=GREY, label=f"group {group}"))
    return found


def proximity_map(run: Curves, proximity: Proximity) -> Figure:
    """Distances between agents, in the order of their merge tree, which stands beside them with its cut."""
    tree = tree_of(proximity.distances, proximity.linkage)
    order = list(tree.order)
    strips = [[run.clusters.get(proximity.clients[row]) for row in order]]
    titles = ["cluster"]
    if run.truth:
        strips.append([run.truth.get(proximity.clients[row]) for row in order])
        titles.append("group")
    figure = Figure(figsize=(6.8, 4.6), layout="constrained")
    widths = [1.3, *(0.12 for _ in strips), 3.6, 0.12]
    axes = list(figure.subplots(1, len(widths), width_ratios=widths))
    _draw_tree(axes[0], tree, proximity.cut)
    axes[0].set_xlabel("merge height")
    for ax, strip, title in zip(axes[1:], strips, titles, strict=False):
        column = [[mpl.colors.to_rgb(colour(one))] for one in strip]
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
    for ax, run in zip(figure.subplots(1, len(runs), squeeze=False)[0], runs, strict=True):
        clusters = sorted(run.samples)
        amounts = [run.samples[cluster] for cluster in clusters]
        bars = ax.bar(
            [str(cluster) for cluster in clusters],
            amounts,
            color=[colour(cluster) for cluster in clusters],
        )
        agents = [sum(own == cluster for own in run.clusters.values()) for cluster in clusters]
        ax.bar_label(bars, [f"{count} agents" for count in agents], fontsize="small")
        ax.set_title(run.label)
        ax.set_xlabel("cluster")
        ax.set_ylabel("training samples")
        ax.grid(axis="x", visible=False)
    return figure


def curve_of_the_cut(runs: Sequence[Curves]) -> Figure:
    """Accuracy by mode, and the number of clusters, over the quantile of all distances at which the tree was cut.

    Runs without such a cut are drawn as lines across, in E-server: what no clusters, or nobody else, would give.
    """
    cuts = sorted({run.cut.quantile for run in runs if run.cut is not None})
    at = {
        quantile: [run.cut for run in runs if run.cut and run.cut.quantile == quantile]
        for quantile in cuts
    }
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    ax = figure.subplots()
    for mode, title in MODE_TITLES.items():
        points = [(quantile, _mean_of(own, mode)) for quantile, own in at.items()]
        known = [(quantile, value) for quantile, value in points if value is not None]
        if known:
            ax.plot(*zip(*known, strict=True), marker=".", label=title)
    for place, run in enumerate(
        run for run in runs if run.cut is None and run.over_rounds("server")
    ):
        _, value = run.over_rounds("server")[-1]
        ax.axhline(
            value,
            color=GREY,
            linestyle=("--", ":", "-.")[place % 3],
            label=f"{run.label}, E-server",
        )
    ax.set_xlabel("cut, as a quantile of all distances")
    ax.set_ylabel(runs[0].figure)
    other = ax.twinx()
    other.plot(
        cuts,
        [fmean(cut.clusters for cut in at[one]) for one in cuts],
        color="black",
        drawstyle="steps-mid",
    )
    other.set_ylabel("clusters (black)")
    other.set_ylim(bottom=0)
    other.yaxis.set_major_locator(MaxNLocator(integer=True))
    other.grid(visible=False)
    other.spines["right"].set_visible(True)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure


def _mean_of(cuts: Sequence[Cut], mode: str) -> float | None:
    """The mean over runs that were cut at the same quantile; None where one has no figure in this mode."""
    values = [cut.figures.get(mode) for cut in cuts]
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None
