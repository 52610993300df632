"""Rounds and traffic until a run reaches the target of its comparison: an accuracy, or an error."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covey.coordinator.compare.metrics import figure_of
from covey.coordinator.record.records import mbit_per_agent
from covey.shared.numerics.measures import ACCURACY, Measure, main_measure
from covey.shared.scenario.compare import Metric
from covey.shared.strategies.phase_names import TRAIN

Phase = Mapping[str, Any]  # a line of the record


@dataclass(frozen=True)
class Point:
    """The state of a run after some rounds: its figure, and its traffic until then."""

    on: str  # what the figure is of
    rounds: int  # counted from 1
    figure: float  # as it is stored: an accuracy is a share
    mbit: float  # of float32 values, per agent
    mb_wire: (
        float | None
    )  # of all agents, without models sent for evaluation; None without a broker


def columns_to_target(
    phases: Sequence[Phase],
    metric: Metric,
    measure: Measure,
    target: float,
    agents: int,
    classes: int,
) -> dict[str, Any]:
    """The columns of a row about its target.

    Args:
        phases: the phases of the run's record, in order
        metric: which average of which mode is compared with the target
        measure: its kind of figure, which knows what is better
        target: the figure to reach, as it is stored: an accuracy is a share
        agents: how many agents the run has, without newcomers
        classes: of the task; an untrained agent counts as a guess among them
    """
    points = curve(phases, metric, measure, agents, classes)
    columns: dict[str, Any] = {
        "target_on": None,
        "rounds_to_target": None,
        "mbit_to_target": None,
        "mb_wire_to_target": None,
        "rounds_to_target_participants": _participants_reach(phases, measure, target),
    }
    if points:
        columns["target_on"] = points[0].on
    reached = _first_at(points, measure, target)
    if reached is not None:
        columns["rounds_to_target"] = reached.rounds
        columns["mbit_to_target"] = reached.mbit
        columns["mb_wire_to_target"] = reached.mb_wire
    return columns


def curve(
    phases: Sequence[Phase], metric: Metric, measure: Measure, agents: int, classes: int
) -> list[Point]:
    """The metric over the rounds: E-last after each round if it was tracked, else wherever all were evaluated."""
    if metric == "last" and _is_tracked(phases, measure):
        guessed_among = classes if measure == ACCURACY else None
        return _tracked_curve(phases, agents, guessed_among)
    points = []
    for phase in phases:
        figure = figure_of(phase.get("evaluation", {}), metric, measure)
        if figure is not None:
            points.append(_point(phase, metric, phase["round"], figure, agents))
    return points


def _is_tracked(phases: Iterable[Phase], measure: Measure) -> bool:
    """Whether the record has each agent's figure right after its training. It has accuracy or RMSE, and no other."""
    if measure != main_measure(regression=measure != ACCURACY):
        return False
    return any("tracked" in phase for phase in phases)


def _tracked_curve(phases: Iterable[Phase], agents: int, classes: int | None) -> list[Point]:
    """E-last over the rounds: the mean over all agents of the figure right after their newest training.

    Any phase that trains counts. Published counts of rounds are made this way, with a guess for each agent
    that has not trained: with C = 0.1 a quarter of all agents has not trained after 13 rounds, unless
    all trained once before the rounds. Without classes it is unknown how good a guess is: then the mean is over the
    agents that have trained.
    """
    newest: dict[str, float | None] = {}  # by agent; None: it has no test data
    points = []
    for phase in phases:
        newest |= phase.get("tracked", {}).get("by_agent", {})
        if not phase["ends_round"]:
            continue
        figure = _mean_with_guesses(newest.values(), agents, classes)
        if figure is not None:
            points.append(_point(phase, "last, tracked", phase["round"] + 1, figure, agents))
    return points


def _mean_with_guesses(
    reached: Collection[float | None], agents: int, classes: int | None
) -> float | None:
    """The mean over all agents with test data, a guess for each that has not trained; None if none has trained."""
    known = [figure for figure in reached if figure is not None]
    if not known:
        return None
    if classes is None:
        return sum(known) / len(known)
    without_data = len(reached) - len(known)
    return (sum(known) + (agents - len(reached)) / classes) / (agents - without_data)


def _point(phase: Phase, on: str, rounds: int, figure: float, agents: int) -> Point:
    """The point after a phase, with the traffic until then."""
    traffic = phase["traffic"]
    mbit = mbit_per_agent(traffic, agents)
    mb_wire = None
    if traffic.get("wire_up"):  # there was a broker
        bytes_sent = -traffic.get("evaluation_models", 0)
        for key in ("wire_down", "down_models", "wire_up"):
            bytes_sent += traffic.get(key, 0)
        mb_wire = bytes_sent / 1e6
    return Point(on, rounds, figure, mbit, mb_wire)


def _first_at(points: Iterable[Point], measure: Measure, target: float) -> Point | None:
    """The first point that is as good as the target, without smoothing."""
    for point in points:
        if measure.reaches(point.figure, target):
            return point
    return None


def _participants_reach(phases: Iterable[Phase], measure: Measure, target: float) -> int | None:
    """The first round, from 1, whose participants alone reach the target on average, right after training."""
    for phase in phases:
        if phase["phase"] != TRAIN:  # a phase of all agents before the rounds is no round
            continue
        mean = figure_of({"last": phase.get("tracked", {})}, "last", measure)
        if mean is not None and measure.reaches(mean, target):
            rounds: int = phase["round"] + 1
            return rounds
    return None
