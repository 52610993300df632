"""Pictures of clusters: agents' models in a plane, distances with their merge tree, clusters by planted group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from covey.coordinator.record.sketches import ModelSketches
from covey.coordinator.report.cluster_plots import (
    DistanceMap,
    Dot,
    count_grid,
    distance_map,
    group_entry,
    scatter,
)
from covey.coordinator.report.curves import Curves
from covey.coordinator.report.projection import rounds_in_one_plane, tree_of, tsne
from covey.coordinator.view.plots import colour_entry
from covey.coordinator.view.svg import Drawing, Entry
from covey.shared.numerics.clustering import Matrix
from covey.shared.strategies.base import ClientId, Proximity
from covey.shared.strategies.phase_names import TRAIN

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


def _legend(rounds: Sequence[ModelSketches], truth: Mapping[ClientId, int]) -> list[Entry]:
    """An entry for each cluster, then for each planted group."""
    clusters: set[int] = set()
    for models in rounds:
        clusters.update([cluster for cluster in models.clusters if cluster is not None])
    entries = [colour_entry(cluster, f"cluster {cluster}") for cluster in sorted(clusters)]
    for group in sorted(set(truth.values())):
        entries.append(group_entry(group))
    return entries


def proximity_map(run: Curves, proximity: Proximity) -> Drawing:
    """Distances between agents, in the order of their merge tree; the tree is to the left, with its cut."""
    tree = tree_of(proximity.distances, proximity.linkage)
    order = list(tree.order)
    clients = [proximity.clients[row] for row in order]
    clusters = [run.clusters.get(client) for client in clients]
    strips: list[tuple[str, Sequence[int | None]]] = [("cluster", clusters)]
    if run.truth:
        strips.append(("group", [run.truth.get(client) for client in clients]))
    cells = proximity.distances[np.ix_(order, order)]
    shown = DistanceMap("", cells, tree, proximity.cut, proximity.unit, strips, clients)
    found = {cluster for cluster in clusters if cluster is not None}
    legend = [colour_entry(cluster, f"C: cluster {cluster}") for cluster in sorted(found)]
    for group in sorted(set(run.truth.values())):
        legend.append(colour_entry(group, f"G: group {group}"))
    return Drawing([distance_map(shown)], legend)
