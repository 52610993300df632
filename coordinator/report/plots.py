"""Plain plots of finished runs: lines over rounds and traffic, boxes, shares of clusters, counts of agents."""

# density: drawing calls, whose many options are one node or two each

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from covey.coordinator.report.curves import Curves, Points

WIDTH = 4.6  # of one plot, in inches
HEIGHT = 3.2


@dataclass(frozen=True)
class Plot:
    """One set of axes with a line for each run."""

    title: str
    lines: Sequence[tuple[str, Points]]  # label and points


def axes_side_by_side(
    count: int, height: float = HEIGHT, *, share: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure of this many plots; `share` gives them one scale of y."""
    figure = Figure(figsize=(WIDTH * count, height), layout="constrained")
    grid = figure.subplots(1, count, sharey=share, squeeze=False)
    return figure, list(grid[0])


def line_plots(plots: Sequence[Plot], x_label: str) -> Figure:
    """Plots side by side, with one legend."""
    figure, axes = axes_side_by_side(len(plots), share=True)
    for ax, plot in zip(axes, plots, strict=True):
        ax.set_title(plot.title)
        ax.set_xlabel(x_label)
        for label, points in plot.lines:  # a run without points keeps its colour
            xs = [x for x, _ in points]
            ys = [y for _, y in points]
            ax.plot(xs, ys, marker=".", label=label)
    axes[0].legend(frameon=False, fontsize="small")
    return figure


def boxes_of_agents(runs: Sequence[Curves]) -> Figure:
    """A box for each run: the figures of its agents."""
    height = 1 + 0.35 * len(runs)
    figure, (ax,) = axes_side_by_side(1, height)
    values = []
    for run in runs:
        of_run = [one.figure for one in run.agents if one.figure is not None]
        values.append(of_run)
    names = [run.label for run in runs]
    ax.boxplot(values, orientation="horizontal", tick_labels=names, widths=0.6)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    return figure


def cluster_sizes(runs: Sequence[Curves]) -> Figure:
    """Agents per cluster over rounds, stacked."""
    figure, axes = axes_side_by_side(len(runs))
    for ax, run in zip(axes, runs, strict=True):
        rounds = [done for done, _ in run.sizes]
        names: set[str] = set()
        for _, sizes in run.sizes:
            names |= sizes.keys()
        in_order = sorted(names, key=int)
        layers = []
        for name in in_order:
            layer = [sizes.get(name, 0) for _, sizes in run.sizes]
            layers.append(layer)
        ax.stackplot(rounds, *layers, labels=in_order)
        ax.set_title(run.label)
        ax.set_xlabel("rounds")
        ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def clusters_by_group(runs: Sequence[Curves]) -> Figure:
    """How many agents of each planted group (columns) are in each cluster (rows)."""
    figure, axes = axes_side_by_side(len(runs))
    for ax, run in zip(axes, runs, strict=True):
        counts = run.by_truth()
        clusters = sorted({cluster for cluster, _ in counts})
        groups = sorted({group for _, group in counts})
        cells = []
        for cluster in clusters:
            row = [counts.get((cluster, group), 0) for group in groups]
            cells.append(row)
        darkest = 2 * max(counts.values())  # pale, so that the numbers can be read
        ax.imshow(cells, cmap="Blues", vmin=0, vmax=darkest, aspect="auto")
        group_names = [str(group) for group in groups]
        cluster_names = [str(cluster) for cluster in clusters]
        ax.set_xticks(range(len(groups)), group_names)
        ax.set_yticks(range(len(clusters)), cluster_names)
        ax.set_title(run.label)
        ax.grid(visible=False)
        for (cluster, group), count in counts.items():
            x = groups.index(group)
            y = clusters.index(cluster)
            ax.text(x, y, str(count), ha="center", va="center")
    return figure
