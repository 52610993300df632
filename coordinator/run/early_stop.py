"""The run's own evaluations: which one is the best, and whether the rounds should end. Pure.

An evaluation counts with one figure of mode `server`, the measure of `rounds.stop` or else that of the task:
its median over the agents of the federation, which false figures of a few of them cannot move far. Agents evaluate on test
data, so what is chosen by this figure makes it optimistic: the reason to stop and the best version say so.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covey.coordinator.fold.means import Means
from covey.shared.candidate_names import DELIVERED
from covey.shared.numerics.measures import Measure
from covey.shared.scenario.rounds import Stop
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId

CHOSEN_ON = "test data"
SERVER = "server"  # mode of the figures between rounds: no agent weighs what it uses before the last round is over

Figures = Mapping[ClientId, Mapping[str, Any]]  # of agents by mode


@dataclass(frozen=True)
class EvaluationFigure:
    """One evaluation of the run's models."""

    round: int  # complete rounds
    value: float


History = Sequence[EvaluationFigure]  # oldest first
Saved = list[list[float]]  # the same as a checkpoint has it: [round, value, mean over agents]


def note(
    scenario: Scenario, saved: Saved, number: int, value: float | None, mean: float | None
) -> None:
    """Add an evaluation after round `number` to the history of a run that evaluates its models between rounds, or whose
    figures are of sums: no agent's are kept. `value` chooses, `mean` is shown."""
    if value is not None and (scenario.evaluation.every or scenario.is_summed):
        saved.append([number, value, value if mean is None else mean])


def value_after(
    scenario: Scenario, evaluation: Figures, newcomers: Collection[ClientId], means: Means
) -> float | None:
    """The figure of an evaluation: the median over the federation; of a secure sum the mean, which false figures can move."""
    measure = measure_of(scenario)
    if scenario.is_summed:
        figures = (means.evaluation or {}).get("server", {}).get(measure.name, {})
        value: float | None = figures.get("macro", figures.get("micro"))
        return value
    federated = {client: own for client, own in evaluation.items() if client not in newcomers}
    return value_of(federated, measure)


def reason(scenario: Scenario, saved: Saved) -> str:
    """Why `rounds.stop` needs no more rounds; empty if it does, or is not set."""
    stop = scenario.rounds.stop
    if stop is None:
        return ""
    why = stop_reason(stop, measure_of(scenario), _history(saved))
    return f"{why} (chosen on {CHOSEN_ON}: the figures of this run are optimistic)" if why else ""


def best_figure(scenario: Scenario, saved: Saved, number: int) -> dict[str, Any] | None:
    """{"metric", "value", "mode", "chosen_on"} of the best evaluation, if it is that after round `number`; else None."""
    measure = measure_of(scenario)
    best = best_of(_history(saved), measure)
    if best is None or best.round != number:
        return None
    return {"metric": measure.name, "value": best.value, "mode": SERVER, "chosen_on": CHOSEN_ON}


def figure_after(
    scenario: Scenario, saved: Saved, evaluation: Figures, number: int, rounds: int
) -> dict[str, Any]:
    """{"metric", "value", "mode"} of the models of a round: the mean over agents, as in all tables; empty if they were not
    evaluated. After the last round it is that of what agents use, and between rounds of what they are served.

    Args:
        scenario: of the run.
        saved: its evaluations between rounds.
        evaluation: its newest one, by agent.
        number: of complete rounds of the models.
        rounds: of the run so far, after which the newest evaluation took place.
    """
    measure = measure_of(scenario)
    if number == rounds and (value := mean_of(evaluation, measure, DELIVERED)) is not None:
        return {"metric": measure.name, "value": value, "mode": DELIVERED}
    found = [one[-1] for one in saved if one[0] == number]
    value = found[-1] if found else mean_of(evaluation, measure) if number == rounds else None
    return {} if value is None else {"metric": measure.name, "value": value, "mode": SERVER}


def _history(saved: Saved) -> History:
    return [EvaluationFigure(int(number), value) for number, value, *_ in saved]


def measure_of(scenario: Scenario) -> Measure:
    """The measure by which evaluations of a scenario are compared."""
    task, stop = scenario.task, scenario.rounds.stop
    if stop is not None:
        return stop.measure(task.main_measure, regression=task.classes is None)
    return task.main_measure


def value_of(evaluation: Figures, measure: Measure) -> float | None:
    """The median of a figure over the agents whose models gave finite outputs; None if no agent has it."""
    values = _values(evaluation, measure)
    return statistics.median(values) if values else None


def mean_of(evaluation: Figures, measure: Measure, mode: str = SERVER) -> float | None:
    """The mean of the figures of a mode; None if no agent has it."""
    values = _values(evaluation, measure, mode)
    return statistics.fmean(values) if values else None


def _values(evaluation: Figures, measure: Measure, mode: str = SERVER) -> list[float]:
    found: list[float] = []
    for modes in evaluation.values():
        figures = modes.get(mode, {})
        if measure.name in figures and figures["n"] > 0 and "diverged" not in figures:
            found.append(figures[measure.name])
    return found


def best_of(history: History, measure: Measure) -> EvaluationFigure | None:
    """The best evaluation, the earliest of equals; None without any."""
    if not history:
        return None
    best = history[0]
    for one in history[1:]:
        if measure.is_better(one.value, best.value):
            best = one
    return best


def stop_reason(stop: Stop, measure: Measure, history: History) -> str:
    """Why no further round is needed, in words for the result; empty if rounds should follow."""
    if not history:
        return ""
    newest = history[-1]
    target = stop.target
    if target is not None and measure.reaches(newest.value, target):
        value = measure.text(newest.value)
        expected = measure.target_text(target)
        what = measure.title
        when = newest.round
        return f"target reached: {what} is {value} after round {when}, the target is {expected}"
    patience = stop.patience
    if patience is None:
        return ""
    best, since = _since_improvement(history, measure, stop.min_delta)
    if since < patience:
        return ""
    value = measure.text(best.value)
    what = measure.label
    when = best.round
    seen = f"no improvement of {what} in {since} evaluations"
    return f"{seen}; the best is {value} after round {when}"


def _since_improvement(
    history: History, measure: Measure, min_delta: float
) -> tuple[EvaluationFigure, int]:
    """The newest evaluation that was better than all before it by more than `min_delta`, and how many followed it."""
    sign = -1 if measure.lower_is_better else 1
    best = history[0]
    since = 0
    for one in history[1:]:
        improvement = one.value - best.value
        if sign * improvement > min_delta:
            best = one
            since = 0
        else:
            since += 1
    return best, since
