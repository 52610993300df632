"""Rounds and traffic until a run reaches the target accuracy of its comparison."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covey.coordinator.compare.metrics import accuracy_of
from covey.coordinator.run.records import mbit_per_agent
from covey.shared.scenario.compare import Metric

Phase = Mapping[str, Any]  # a line of the record


@dataclass(frozen=True)
class Point:
    """The state of a run after some rounds: its accuracy, and its traffic until then."""

    on: str  # what the accuracy is of
    rounds: int  # counted from 1
    accuracy: float  # a share
    mbit: float  # of float32 values, per agent
    mb_wire: (
        float | None
    )  # of all agents, without models sent for evaluation; None without a broker


def columns_to_target(
    phases: Sequence[Phase], metric: Metric, target: float, agents: int, classes: int
) -> dict[str, Any]:
    """The columns of a row about its target.

    Args:
        phases: the phases of the run's record, in order
        metric: whose accuracy is compared with the target
        target: the accuracy to reach, a share
        agents: how many agents the run has, without newcomers
        classes: of the task; an untrained agent counts as a guess among them
    """
    points = curve(phases, metric, agents, classes)
    columns: dict[str, Any] = {
        "target_on": None,
        "rounds_to_target": None,
        "mbit_to_target": None,
        "mb_wire_to_target": None,
        "rounds_to_target_participants": _participants_reach(phases, target),
    }
    if points:
        columns["target_on"] = points[0].on
    reached = _first_at(points, target)
    if reached is not None:
        columns["rounds_to_target"] = reached.rounds
        columns["mbit_to_target"] = reached.mbit
        columns["mb_wire_to_target"] = reached.mb_wire
    return columns


def curve(phases: Sequence[Phase], metric: Metric, agents: int, classes: int) -> list[Point]:
    """The metric over the rounds: E-last after each round if it was tracked, else wherever all were evaluated."""
    if metric == "last" and any("tracked" in phase for phase in phases):
        return _tracked_curve(phases, agents, classes)
    points = []
    for phase in phases:
        averages = phase.get("evaluation", {})
        accuracy = accuracy_of(averages, metric)
        if accuracy is not None:
            point = _point(phase, metric, phase["round"], accuracy, agents)
            points.append(point)
    return points


def _tracked_curve(phases: Iterable[Phase], agents: int, classes: int) -> list[Point]:
    """E-last over the rounds: the mean over all agents of the accuracy right after their newest training.

    Any phase that trains counts. Published counts of rounds are made this way, with a guess for each agent
    that has not trained: with C = 0.1 a quarter of all agents has not trained after 13 rounds, unless
    all trained once before the rounds.
    """
    newest: dict[str, float | None] = {}  # by agent; None: it has no test data
    points = []
    for phase in phases:
        tracked = phase.get("tracked", {})
        newest |= tracked.get("by_agent", {})
        if not phase["ends_round"]:
            continue
        accuracy = _mean_with_guesses(newest.values(), agents, classes)
        if accuracy is not None:
            rounds = phase["round"] + 1
            point = _point(phase, "last, tracked", rounds, accuracy, agents)
            points.append(point)
    return points


def _mean_with_guesses(
    reached: Collection[float | None], agents: int, classes: int
) -> float | None:
    """The mean over all agents with test data, a guess for each that has not trained; None if none has trained."""
    known = [accuracy for accuracy in reached if accuracy is not None]
    if not known:
        return None
    without_data = len(reached) - len(known)
    untrained = agents - len(reached)
    guesses = untrained / classes
    tested = agents - without_data
    return (sum(known) + guesses) / tested


def _point(phase: Phase, on: str, rounds: int, accuracy: float, agents: int) -> Point:
    """The point after a phase, with the traffic until then."""
    traffic = phase["traffic"]
    mbit = mbit_per_agent(traffic, agents)
    mb_wire = None
    if traffic.get("wire_up"):  # there was a broker
        bytes_sent = -traffic.get("evaluation_models", 0)
        for key in ("wire_down", "down_models", "wire_up"):
            bytes_sent += traffic.get(key, 0)
        mb_wire = bytes_sent / 1e6
    return Point(on, rounds, accuracy, mbit, mb_wire)


def _first_at(points: Iterable[Point], target: float) -> Point | None:
    """The first point at or above the target, without smoothing."""
    for point in points:
        if point.accuracy >= target:
            return point
    return None


def _participants_reach(phases: Iterable[Phase], target: float) -> int | None:
    """The first round, from 1, whose participants alone reach the target on average, right after training."""
    for phase in phases:
        if phase["phase"] != "train":  # a phase of all agents before the rounds is no round
            continue
        mean = accuracy_of({"last": phase.get("tracked", {})}, "last")
        if mean is not None and mean >= target:
            rounds: int = phase["round"] + 1
            return rounds
    return None
