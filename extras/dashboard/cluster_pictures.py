"""Pictures of clusters: agents' models in a plane, distances with their merge tree, clusters by planted group."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from covey.extras.dashboard import svg
from covey.extras.dashboard.curves import Curves
from covey.extras.dashboard.plots import BOTTOM, colour_entry, horizontal_axis, mark
from covey.extras.dashboard.sketches import ModelSketches
from covey.extras.dashboard.svg import Axis, Drawing, LegendEntry, fill, from_zero, other, stroke
from covey.shared.numerics.clustering import Linkage, Matrix
from covey.shared.strategies.base import ClientId, Proximity
from covey.shared.strategies.phase_names import TRAIN

SCATTER_HEIGHT = 300.0
CELL = 34.0  # height of a cell of counts
MAP = 204.0  # side of the map of distances
TREE = 92.0  # width of the tree
STRIP = 9.0  # width of a strip of colours
# From near to far: dark blue to pale yellow, in even steps of brightness.
STOPS = (
    (13, 8, 60),
    (54, 54, 140),
    (38, 113, 150),
    (42, 168, 128),
    (140, 206, 88),
    (250, 236, 130),
)
SHADES = 64  # between near and far
Pixels = npt.NDArray[np.uint8]  # numbers of shades


# -- agents in a plane -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Dot:
    """One agent in the plane."""

    x: float
    y: float
    cluster: int | None  # its colour
    group: int | None  # its shape
    name: str


def scatter(
    title: str,
    dots: Sequence[Dot],
    centres: Matrix | None,
    limits: tuple[float, float],
    labels: tuple[str, str],
) -> svg.Panel:
    """Agents as marks, the centres of clusters as crosses; coordinates have no unit, so there are no ticks.

    Args:
        title: of the panel
        dots: the agents
        centres: (K, 2), one for each cluster; None draws none
        limits: the largest x and y, around zero
        labels: of the horizontal and the vertical axis
    """
    x_limit, y_limit = limits
    top = 20.0
    height = SCATTER_HEIGHT - top - 24

    def place(x: float, y: float) -> tuple[float, float]:
        return svg.WIDTH * (x / x_limit + 1) / 2, top + height * (1 - y / y_limit) / 2

    parts = [
        svg.rectangle(0.5, top, svg.WIDTH - 1, height, "grid"),
        svg.words(0, 12, labels[1], "tick"),
        svg.words(svg.WIDTH / 2, SCATTER_HEIGHT - 8, labels[0], "tick", "middle"),
    ]
    for dot in dots:
        x, y = place(dot.x, dot.y)
        drawn = group_mark(x, y, dot.group, dot.cluster)
        parts.append(svg.element("g", svg.hint(dot.name), drawn, fill_opacity="0.75"))
    if centres is not None:
        for cluster, (x, y) in enumerate(centres):
            parts.append(_cross(*place(float(x), float(y)), cluster))
    described = f"{title}: {len(dots)} agents in a plane"
    return svg.Panel(title, SCATTER_HEIGHT, svg.joined(parts), described)


def group_mark(x: float, y: float, group: int | None, cluster: int | None) -> Markup:
    """The shape of a planted group in the colour of a cluster."""
    return mark(x, y, group or 0, fill(cluster))


def group_entry(group: int) -> svg.LegendEntry:
    """A legend's entry for the shape of a planted group."""
    return svg.LegendEntry(
        group_mark(svg.SWATCH / 2, svg.LEGEND_LINE / 2, group, None), f"planted {group}"
    )


def _cross(x: float, y: float, cluster: int) -> Markup:
    """A cross in the cluster's colour, with a border that separates it from the marks."""
    corners = [((x - 6, y - 6), (x + 6, y + 6)), ((x - 6, y + 6), (x + 6, y - 6))]
    parts = []
    for class_, width in (("ink", 5.5), (stroke(cluster), 2.5)):
        for (x1, y1), (x2, y2) in corners:
            parts.append(svg.line(x1, y1, x2, y2, class_, stroke_width=width))
    return svg.joined(parts)


# -- counts ----------------------------------------------------------------------------------------


def count_grid(title: str, counts: Mapping[tuple[int, int], int]) -> svg.Panel:
    """How many agents are in each cluster (row) and of each planted group (column)."""
    clusters = sorted({cluster for cluster, _ in counts})
    groups = sorted({group for _, group in counts})
    left = 74.0
    top = 40.0
    width = min(90.0, (svg.WIDTH - left) / len(groups))
    most = max(counts.values())
    parts = [svg.words(left, 12, "planted", "tick"), svg.words(0, top - 8, "found", "tick")]
    for column, group in enumerate(groups):
        x = left + width * (column + 0.5)
        parts.append(svg.words(x, top - 8, str(group), "tick", "middle"))
    for row, cluster in enumerate(clusters):
        y = top + CELL * row
        parts.append(svg.words(left - 10, y + CELL / 2 + 4, str(cluster), "tick", "end"))
        for column, group in enumerate(groups):
            x = left + width * column
            count = counts.get((cluster, group), 0)
            shade = f"{0.5 * count / most:.2f}"
            cell = svg.rectangle(x + 1, y + 1, width - 2, CELL - 2, fill(None))
            parts.append(svg.element("g", cell, fill_opacity=shade))
            parts.append(svg.words(x + width / 2, y + CELL / 2 + 4, str(count), None, "middle"))
    height = top + CELL * len(clusters) + 8
    return svg.Panel(
        title, height, svg.joined(parts), f"{title}: agents by group found and planted"
    )


# -- distances -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DistanceMap:
    """What a map of distances shows; all rows are in the order of the tree."""

    title: str
    distances: Matrix  # (n, n)
    tree: Tree
    cut: float | None  # height of the cut
    unit: str
    strips: Sequence[tuple[str, Sequence[int | None]]]  # name, and a number for each row
    names: Sequence[str]  # of the rows


def distance_map(shown: DistanceMap) -> svg.Panel:
    """The merge tree to the left, strips of colours, and the distances with their scale."""
    top = 22.0
    heights = from_zero([float(shown.tree.heights.max()), shown.cut or 0.0], "merge height")
    few_ticks = heights.ticks[:: max(1, len(heights.ticks) // 2)]
    axis = Axis(heights.label, heights.high, heights.low, few_ticks)  # from right to left
    parts = [_tree(shown, axis, top), horizontal_axis(axis, 4, TREE, top + MAP)]
    x = TREE + 6
    step = MAP / len(shown.names)
    for name, numbers in shown.strips:
        for row, found in enumerate(numbers):
            parts.append(svg.rectangle(x, top + step * row, STRIP, step + 0.2, fill(found)))
        parts.append(svg.words(x, 14, name[0].upper(), "tick"))
        x += STRIP + 3
    farthest = float(shown.distances.max()) or 1.0
    parts.append(_image(x, top, MAP, MAP, _shades(shown.distances / farthest)))
    centre = x + MAP / 2
    agents = f"{len(shown.names)} agents, in the order of the tree"
    parts.append(svg.words(centre, top + MAP + 17, agents, "tick", "middle"))
    parts.append(_scale(x, top + MAP + 28, farthest, shown.unit))
    height = top + MAP + BOTTOM + 26
    described = f"{shown.title}: {len(shown.names)} agents, {shown.unit}"
    return svg.Panel(shown.title, height, svg.joined(parts), described)


def _tree(shown: DistanceMap, axis: Axis, top: float) -> Markup:
    """The brackets of the tree, rows from top to bottom as the image has them, and its cut."""
    rows = len(shown.names)
    parts = []
    for places, heights in zip(shown.tree.places, shown.tree.heights, strict=True):
        corners = []
        for place, height in zip(places, heights, strict=True):
            x = 4 + (TREE - 4) * axis.share(float(height))
            corners.append((x, top + MAP * (float(place) + 0.5) / rows))
        parts.append(svg.element("path", d=svg.path(corners), class_="ink"))
    if shown.cut is not None:
        x = 4 + (TREE - 4) * axis.share(shown.cut)
        parts.append(svg.line(x, top, x, top + MAP, "ink", stroke_dasharray="5 4"))
        parts.append(svg.words(x + 3, 14, "cut", "tick"))
    return svg.joined(parts)


def _scale(x: float, y: float, farthest: float, unit: str) -> Markup:
    """The colours from zero to the largest distance."""
    return svg.joined(
        [
            _image(x, y, MAP, 8, _shades(np.linspace(0.0, 1.0, 64)[None, :])),
            svg.words(x, y + 22, "0", "tick"),
            svg.words(x + MAP / 2, y + 22, unit, "tick", "middle"),
            svg.words(x + MAP, y + 22, f"{farthest:.3g}", "tick", "end"),
        ]
    )


def _shades(shares: Matrix) -> Pixels:
    """The number of the shade for each value between 0 and 1."""
    return (shares * (SHADES - 1)).round().astype(np.uint8)


def _image(x: float, y: float, width: float, height: float, pixels: Pixels) -> Markup:
    return svg.element(
        "image",
        x=x,
        y=y,
        width=width,
        height=height,
        preserveAspectRatio="none",
        image_rendering="pixelated",
        href=f"data:image/png;base64,{base64.b64encode(png(pixels)).decode()}",
    )


def png(pixels: Pixels) -> bytes:
    """A PNG file (ISO/IEC 15948) of shades (rows, columns) between near and far."""
    rows, columns = pixels.shape
    no_filter = b"\0"
    lines = [no_filter + row.tobytes() for row in pixels]
    header = struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)  # 8 bits, colours by number
    chunks = [
        _chunk(b"IHDR", header),
        _chunk(b"PLTE", _palette()),
        _chunk(b"IDAT", zlib.compress(b"".join(lines), 9)),
        _chunk(b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _palette() -> bytes:
    """Red, green and blue of all shades."""
    stops = np.asarray(STOPS, np.float64)
    places = np.linspace(0.0, 1.0, len(stops))
    shades = np.linspace(0.0, 1.0, SHADES)
    channels = [np.interp(shades, places, stops[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8).tobytes()


def _chunk(kind: bytes, content: bytes) -> bytes:
    length = struct.pack(">I", len(content))
    return length + kind + content + struct.pack(">I", zlib.crc32(kind + content))


PANELS = 5  # rounds that are drawn of one run, at most
MAX_ROWS = 1000  # of a distance matrix: more rows than a picture has lines

Named = tuple[str, str, Drawing]  # the name of a picture, its title, and what it shows


def of_single_runs(runs: Sequence[Curves]) -> Iterator[Named]:
    """Pictures of one run each."""
    sketched = [run for run in runs if run.models]
    for run in sketched:
        title = "Agents' models over rounds (principal components)"
        yield _of_one("models", title, run, len(sketched), models_over_rounds(run))
    mapped = []
    for run in runs:
        proximity = run.proximity
        if proximity is None:
            continue
        if 2 <= len(proximity.clients) <= MAX_ROWS:
            mapped.append((run, proximity))
    for run, proximity in mapped:
        title = "Distances between agents, and their merge tree"
        yield _of_one("proximity", title, run, len(mapped), proximity_map(run, proximity))


def _of_one(name: str, title: str, run: Curves, runs: int, drawing: Drawing) -> Named:
    """A picture of a single run, named with its label if several runs have such a picture."""
    if runs == 1:
        return name, title, drawing
    return f"{name}-{run.label}", f"{title}: {run.label}", drawing


def clusters_by_group(runs: Sequence[Curves], *, alone: bool) -> Drawing:
    """How many agents of each planted group are in each cluster, a panel for each run."""
    panels = []
    for run in runs:
        panels.append(count_grid("" if alone else run.label, run.by_truth()))
    return Drawing(panels)


def models_over_rounds(run: Curves) -> Drawing:
    """Agents' models in the plane of their first two principal components.

    Some rounds are drawn side by side; a t-SNE of the last one follows.
    """
    chosen = _evenly_spaced(run.models, PANELS)
    plane, drawn = rounds_in_one_plane([(one.rows, one.centres) for one in chosen])
    first_share, second_share = plane.shares
    labels = (f"PC 1 ({first_share:.0%})", f"PC 2 ({second_share:.0%})")
    all_points = np.concatenate([points for points, _ in drawn])
    limits = (_limit(all_points[:, 0]), _limit(all_points[:, 1]))
    panels = []
    for models, (points, centres) in zip(chosen, drawn, strict=True):
        dots = _dots(models, points, run.truth)
        panels.append(scatter(_when(models), dots, centres, limits, labels))
    last = chosen[-1]
    embedded = tsne(last.rows)
    if embedded is not None:
        dots = _dots(last, embedded, run.truth)
        own_limits = (_limit(embedded[:, 0]), _limit(embedded[:, 1]))
        panels.append(scatter(f"t-SNE, {_when(last)}", dots, None, own_limits, ("", "")))
    return Drawing(panels, _legend(chosen, run.truth))


def _limit(coordinates: Matrix) -> float:
    """The end of an axis around zero, a little beyond all points."""
    return float(np.abs(coordinates).max()) * 1.1 or 1.0


def _evenly_spaced(models: Sequence[ModelSketches], count: int) -> list[ModelSketches]:
    """The first, the last, and others at even distances between them; `count` in all, if there are as many."""
    available = len(models)
    places = np.linspace(0, available - 1, min(count, available))
    chosen = []
    for place in places:
        chosen.append(models[round(place)])
    return chosen


def _when(models: ModelSketches) -> str:
    """The round of these models, or the phase before the rounds."""
    if models.phase == TRAIN:
        return f"round {models.rounds}"
    return models.phase


def _dots(models: ModelSketches, points: Matrix, truth: Mapping[ClientId, int]) -> list[Dot]:
    """One mark per agent: its cluster is the colour, its planted group the shape."""
    dots = []
    for row, agent in enumerate(models.agents):
        x, y = points[row].tolist()
        dots.append(Dot(x, y, models.clusters[row], truth.get(agent), agent))
    return dots


def _legend(rounds: Sequence[ModelSketches], truth: Mapping[ClientId, int]) -> list[LegendEntry]:
    """An entry for each cluster, then for each planted group."""
    clusters: set[int] = set()
    for models in rounds:
        clusters.update([cluster for cluster in models.clusters if cluster is not None])
    entries = [colour_entry(cluster, f"group {cluster}") for cluster in sorted(clusters)]
    for group in sorted(set(truth.values())):
        entries.append(group_entry(group))
    return entries


def proximity_map(run: Curves, proximity: Proximity) -> Drawing:
    """Distances between agents, in the order of their merge tree; the tree is to the left, with its cut."""
    tree = tree_of(proximity.distances, proximity.linkage)
    order = list(tree.order)
    clients = [proximity.clients[row] for row in order]
    clusters = [run.clusters.get(client) for client in clients]
    strips: list[tuple[str, Sequence[int | None]]] = [("found", clusters)]
    if run.truth:
        strips.append(
            (
                "planted",
                [other(run.truth[client]) if client in run.truth else None for client in clients],
            )
        )
    cells = proximity.distances[np.ix_(order, order)]
    shown = DistanceMap("", cells, tree, proximity.cut, proximity.unit, strips, clients)
    found = {cluster for cluster in clusters if cluster is not None}
    legend = [colour_entry(cluster, f"F: group found {cluster}") for cluster in sorted(found)]
    for group in sorted(set(run.truth.values())):
        legend.append(colour_entry(other(group), f"P: planted {group}"))
    return Drawing([distance_map(shown)], legend)


# -- points of many values in two dimensions, and rows of a distance matrix in the order of their tree. Pure -----------
#
# scikit-learn and scipy are imported only by the functions that use them.


Points = npt.NDArray[np.floating]  # (n, d)

MIN_FOR_TSNE = 10  # points: fewer have no neighbourhoods to keep
MAX_FOR_TSNE = 2000
PERPLEXITY = 30.0


@dataclass(frozen=True)
class Plane:
    """The two directions in which points differ most."""

    axes: Matrix  # (2, d), orthonormal; zero rows if the points span fewer directions
    shares: tuple[float, ...]  # of all variance, along each of them

    def of(self, points: Points) -> Matrix:
        """Coordinates (n, 2) of points (n, d) that are centred already."""
        coordinates: Matrix = np.asarray(points, np.float64) @ self.axes.T
        return coordinates


def principal_plane(points: Points) -> Plane:
    """PCA of points (n, d) that are centred already, d at least 2.

    The sign of an axis is fixed: its largest entry is positive.
    """
    _, singular, directions = np.linalg.svd(np.asarray(points, np.float64), full_matrices=False)
    # Fewer than two points span fewer than two axes: zeros stand for the others.
    missing = np.zeros((2, points.shape[1]))
    axes = np.vstack([directions, missing])[:2]
    places = np.abs(axes).argmax(axis=1)
    largest = axes[np.arange(2), places]
    signs = np.where(largest < 0, -1.0, 1.0)
    axes = axes * signs[:, None]
    variances = np.append(singular**2, [0.0, 0.0])
    total = float(variances.sum())
    if total <= 0:
        return Plane(axes, (0.0, 0.0))
    shares = variances[:2] / total
    return Plane(axes, tuple(shares.tolist()))


def rounds_in_one_plane(
    rounds: Sequence[tuple[Points, Points]],
) -> tuple[Plane, list[tuple[Matrix, Matrix]]]:
    """The plane of all rounds together, and each round's points (n, 2) and centres (K, 2) in it.

    Each round is centred at the mean of its points: the training that all models share would otherwise hide
    the differences between them.

    Args:
        rounds: points (n, d) and centres (K, d) of each round
    """
    centred: list[tuple[Matrix, Matrix]] = []
    for points, centres in rounds:
        middle = np.asarray(points, np.float64).mean(axis=0)
        centred.append((points - middle, centres - middle))
    plane = principal_plane(np.concatenate([points for points, _ in centred]))
    return plane, [(plane.of(points), plane.of(centres)) for points, centres in centred]


def tsne(points: Points) -> Matrix | None:
    """t-SNE (n, 2) of points (n, d), deterministic: it starts from the PCA. None for too few points or too many."""
    count = len(points)
    if not MIN_FOR_TSNE <= count <= MAX_FOR_TSNE:
        return None
    from sklearn.manifold import TSNE

    wide = np.asarray(points, np.float64)
    model = TSNE(2, perplexity=min(PERPLEXITY, (count - 1) / 3), init="pca", random_state=0)
    return np.asarray(model.fit_transform(wide), np.float64)


@dataclass(frozen=True)
class Tree:
    """A merge tree of n rows, as it is drawn: each merge is a bracket of four corners."""

    order: tuple[int, ...]  # of the rows
    places: Matrix  # (n - 1, 4), of the corners along the rows; the first row is at 0
    heights: Matrix  # (n - 1, 4)


def tree_of(distances: Matrix, linkage: Linkage) -> Tree:
    """The merge tree of a symmetric distance matrix (n, n), n at least 2."""
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    condensed = squareform(distances, checks=False)
    drawn = hierarchy.dendrogram(hierarchy.linkage(condensed, linkage), no_plot=True)
    leaves = drawn["leaves"] or ()
    corners = np.asarray(drawn["icoord"], np.float64)
    places = (corners - 5.0) / 10.0  # scipy places row i at 10 i + 5
    heights = np.asarray(drawn["dcoord"], np.float64)
    return Tree(tuple(leaves), places, heights)
