"""The run's own evaluations: which one is the best, and whether the rounds should end. Pure.

An evaluation counts with one figure of mode E-server, the micro average over the federation: the measure of `rounds.stop`,
or else accuracy (RMSE for a regression).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covey.shared.numerics.measures import Measure, main_measure
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.stop import Stop


@dataclass(frozen=True)
class Evaluated:
    """One evaluation of the run's models."""

    round: int  # complete rounds
    value: float


History = Sequence[Evaluated]  # oldest first


def measure_of(scenario: Scenario) -> Measure:
    """The measure by which evaluations of a scenario are compared."""
    regression = scenario.task.classes is None
    stop = scenario.rounds.stop
    if stop is None:
        return main_measure(regression=regression)
    return stop.measure(regression=regression)


def value_of(averages: Mapping[str, Any], measure: Measure) -> float | None:
    """The figure of an evaluation; None if no agent has it.

    Args:
        averages: by mode, as `records.averages` makes them.
        measure: the figure's name and direction.
    """
    server = averages.get("server") or {}
    figure = server.get(measure.name) or {}
    value = figure.get("micro")
    return None if value is None else float(value)


def best_of(history: History, measure: Measure) -> Evaluated | None:
    """The best evaluation, the earliest of equals; None without any."""
    best: Evaluated | None = None
    for one in history:
        if best is None or measure.is_better(one.value, best.value):
            best = one
    return best


def stop_reason(stop: Stop, measure: Measure, history: History) -> str:
    """Why no further round is needed, in words for the result; empty if rounds should follow."""
    if not history:
        return ""
    newest = history[-1]
    if stop.target is not None and measure.reaches(newest.value, stop.target):
        reached = measure.text(newest.value)
        target = measure.target_text(stop.target)
        return f"target reached: {measure.title} is {reached} after round {newest.round}, the target is {target}"
    if stop.patience is None:
        return ""
    best, since = _since_improvement(history, measure, stop.min_delta)
    if since < stop.patience:
        return ""
    value = measure.text(best.value)
    return f"no improvement of {measure.label} in {since} evaluations; the best is {value} after round {best.round}"


def _since_improvement(
    history: History, measure: Measure, min_delta: float
) -> tuple[Evaluated, int]:
    """The newest evaluation that was better than all before it by more than `min_delta`, and how many followed it."""
    best = history[0]
    since = 0
    for one in history[1:]:
        sign = -1 if measure.lower_is_better else 1
        improvement = sign * (one.value - best.value)
        if improvement > min_delta:
            best = one
            since = 0
        else:
            since += 1
    return best, since
