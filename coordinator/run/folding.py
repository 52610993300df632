"""What happens between a spool full of reports and the strategy's fold: caps, clipping, and who is to blame.

Pure, apart from the memory-mapped arrays that it reads. Nothing here trusts a report: claims are capped, steps that no
training makes are refused, the others are clipped if the scenario asks for it, and a fold that fails all the same is
tried again without each suspect.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.coordinator.run.report_checks import LARGEST_VALUE
from covey.shared.numerics.averages import (
    MIN_REPORTS,
    clipped,
    lower_median,
    most_samples,
    step_norm,
)
from covey.shared.numerics.vectors import Vector, blocks
from covey.shared.scenario.aggregation import Aggregation
from covey.shared.strategies.base import ClientId, Phase, Report, Reports, Strategy

Float64 = npt.NDArray[np.float64]
ClientReport = tuple[ClientId, Report]
ROUNDING = 1e-13  # of a mean square: less spread than this may be the rounding of sums


class UnsoundFoldError(ArithmeticError):
    """A fold gave a state that no run can continue from; the text names the fault."""


@dataclass(frozen=True)
class Step:
    """One reported vector that is going to be averaged: the key of its base ("": a gradient, which has none), how far
    it lies from it, and the base's own norm."""

    client: ClientId
    name: str
    key: str
    norm: float
    size: float


def capped(reports: Reports, settings: Aggregation) -> list[ClientReport]:
    """The reports with claims of examples and steps no larger than the cohort's cap."""
    cap = settings.max_samples
    claimed_examples = [report.examples for _, report in reports]
    claimed_steps = [report.steps for _, report in reports]
    most_examples = most_samples(claimed_examples, cap.absolute, cap.times_median)
    most_steps = most_samples(claimed_steps, None, cap.times_median)
    result: list[ClientReport] = []
    for client, report in reports:
        examples = min(report.examples, most_examples or report.examples)
        steps = min(report.steps, most_steps or report.steps)
        if examples != report.examples or steps != report.steps:
            report = replace(report, examples=examples, steps=steps)
        result.append((client, report))
    return result


def steps_of(strategy: Strategy[Any], state: Any, phase: Phase, reports: Reports) -> list[Step]:
    """Every reported vector that this phase averages, with its distance to the model that its order named."""
    sizes: dict[str, float] = {}
    steps: list[Step] = []
    for client, report in reports:
        for name, vector in report.vectors.items():
            key = strategy.base(state, phase, client, report, name)
            if key is None:
                continue
            base = strategy.model(state, key) if key else None
            if base is not None and base.size != vector.size:
                continue
            if key not in sizes:
                sizes[key] = 0.0 if base is None else step_norm(base, None)
            steps.append(Step(client, name, key, step_norm(vector, base), sizes[key]))
    return steps


def usual_steps(steps: Sequence[Step]) -> dict[str, float]:
    """The lower median of the steps' norms by vector name, where enough reports make one."""
    norms: dict[str, list[float]] = {}
    for step in steps:
        of_vector = norms.setdefault(step.name, [])
        of_vector.append(step.norm)
    usual: dict[str, float] = {}
    for name, of_vector in norms.items():
        if len(of_vector) >= MIN_REPORTS:
            usual[name] = lower_median(of_vector)
    return usual


def too_far(
    steps: Sequence[Step], settings: Aggregation, earlier: Mapping[str, float] | None = None
) -> dict[ClientId, str]:
    """Clients whose step no training makes, and why: many times as long as the usual one, and as the model itself.

    A few reports have no median that a liar among them could not make: they are compared with `earlier` ones of the
    run, as `usual_steps` gave them, where there are any.
    """
    if settings.refuse_beyond is None:
        return {}
    found: dict[ClientId, str] = {}
    for step in steps:
        usual = _usual_before(step, steps, earlier or {})
        size = max(step.size, 1.0)
        limit = settings.refuse_beyond * max(usual, size)
        if step.norm > limit:
            found[step.client] = (
                f"absurd values: {step.name} moved by {step.norm:.3g}, the usual step is {usual:.3g} and the "
                f"model's norm {size:.3g}; up to {limit:.3g} is expected"
            )
    return found


def _usual_before(step: Step, steps: Sequence[Step], earlier: Mapping[str, float]) -> float:
    """The usual norm: of this phase, or an earlier one where this phase has too few steps of the vector."""
    of_vector = [one for one in steps if one.name == step.name]
    if len(of_vector) < MIN_REPORTS and step.name in earlier:
        return earlier[step.name]
    return _usual(step, steps)


def clip(
    strategy: Strategy[Any],
    state: Any,
    reports: Reports,
    steps: Sequence[Step],
    settings: Aggregation,
) -> Reports:
    """The reports with every averaged vector's step at most as long as the scenario allows."""
    if not settings.clips:
        return reports
    by_vector = {(step.client, step.name): step for step in steps}
    result: list[ClientReport] = []
    for client, report in reports:
        vectors: dict[str, Vector] = {}
        for name, vector in report.vectors.items():
            step = by_vector.get((client, name))
            limit = None if step is None else _longest(step, steps, settings)
            if step is not None and limit is not None:
                base = strategy.model(state, step.key) if step.key else None
                vector = clipped(vector, base, limit, step.norm)
            vectors[name] = vector
        result.append((client, replace(report, vectors=vectors)))
    return result


def _longest(step: Step, steps: Sequence[Step], settings: Aggregation) -> float | None:
    """The longest step that the scenario allows in place of this one; None where it allows any."""
    clip = settings.clip
    if clip.norm is not None:
        return clip.norm
    if clip.times_median is not None:
        return clip.times_median * _usual(step, steps)
    return None


def _usual(step: Step, steps: Sequence[Step]) -> float:
    """The lower median of the steps from the same model; of all steps where too few start there."""
    alike = [one for one in steps if one.name == step.name]
    near = [one.norm for one in alike if one.key == step.key]
    if len(near) >= MIN_REPORTS:
        return lower_median(near)
    return lower_median([one.norm for one in alike])


def guilty(fold: Callable[[Reports], Any], reports: Reports) -> dict[ClientId, str]:
    """Whose reports make a fold fail, and how; empty where it does not fail.

    First each report alone is left out: this finds a single liar. If that does not help, reports are added one after
    another, and each that breaks the fold stays out. If all of several reports break it, nobody is to blame: then the
    method itself is at fault. Raises OSError and MemoryError as they come: a full disk is no agent's fault.
    """
    failure = _failure(fold, reports)
    if failure is None:
        return {}
    for place, (client, _) in enumerate(reports):
        others = [*reports[:place], *reports[place + 1 :]]
        if others and _failure(fold, others) is None:
            return {client: failure}
    good: list[ClientReport] = []
    found: dict[ClientId, str] = {}
    for client, report in reports:
        why = _failure(fold, [*good, (client, report)])
        if why is None:
            good.append((client, report))
        else:
            found[client] = why
    all_of_several = len(found) == len(reports) > 1
    return {} if all_of_several else found


def _failure(fold: Callable[[Reports], Any], reports: Reports) -> str | None:
    try:
        fold(reports)
    except (OSError, MemoryError):
        raise
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    return None


def check_sound(strategy: Strategy[Any], state: Any) -> None:
    """Raises UnsoundFoldError where a cluster's model or a number of the state is not finite or absurdly large."""
    for k, model in enumerate(strategy.clusters(state)):
        for span in blocks(model.size):
            largest = float(np.max(np.abs(model[span]), initial=0.0))
            if not largest <= LARGEST_VALUE:
                raise UnsoundFoldError(f"the model of cluster {k} would hold {largest:.3g}")
    _check_numbers(state, "")
    check_json(dict(strategy.notes(state)), "its notes")


def check_json(value: Any, what: str) -> None:
    """Raises UnsoundFoldError where a value cannot be written as JSON: NaN and infinity are none."""
    try:
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError) as error:
        raise UnsoundFoldError(f"{what} cannot be written: {error}") from None


def _check_numbers(value: Any, where: str) -> None:
    match value:
        case float() if not math.isfinite(value):
            raise UnsoundFoldError(f"{where} would be {value}")
        case dict():
            for key, item in value.items():
                _check_numbers(item, f"{where}.{key}")
        case tuple() | list():
            for item in value:
                _check_numbers(item, where)
        case _ if is_dataclass(value) and not isinstance(value, type):
            for one in fields(value):
                _check_numbers(getattr(value, one.name), one.name)


def pooled(
    moments: Sequence[Mapping[str, Any]], settings: Aggregation | None = None
) -> dict[str, list[float]]:
    """Means and deviations per channel from counts, sums and sums of squares (each a list per channel).

    Counts are capped like examples. A rule other than the mean takes medians over the agents instead of sums. A
    channel without any spread gets deviation 1, so that it becomes 0 and not infinity.
    """
    settings = settings or Aggregation()
    table = np.array([_moments_of(one) for one in moments])  # (agents, 3, channels)
    table = _capped_moments(table, settings.max_samples.times_median)
    if settings.average.rule != "mean":
        return _median_moments(table)
    count = _exact_sums(table[:, 0])
    total = _exact_sums(table[:, 1])
    square = _exact_sums(table[:, 2])
    mean = total / count
    size = square / count
    return _scaling(mean, size - mean**2, size)


def _moments_of(numbers: Mapping[str, Any]) -> list[Float64]:
    """Count, sum and square of one agent, each (channels,)."""
    count = np.ravel(np.asarray(numbers["count"], np.float64))
    total = np.ravel(np.asarray(numbers["sum"], np.float64))
    square = np.ravel(np.asarray(numbers["square"], np.float64))
    return [np.broadcast_to(count, total.shape), total, square]


def _exact_sums(column: Float64) -> Float64:
    """Sums over the agents, correctly rounded: they do not depend on the order. (agents, channels) -> (channels,)"""
    return np.array([math.fsum(values) for values in column.T])


def _capped_moments(table: Float64, cap: float | None) -> Float64:
    """Moments (agents, 3, channels) of agents that count more values than the cap are scaled down, by channel."""
    if cap is None:
        return table
    counts = table[:, 0]
    usual = np.array([lower_median(channel.tolist()) for channel in counts.T])
    limit = cap * usual
    fair_table = table.copy()
    for place, count in enumerate(counts):
        if (count > limit).any():
            fair_share = np.minimum(1.0, limit / count)
            fair_table[place] = table[place] * fair_share
    return fair_table


def _median_moments(table: Float64) -> dict[str, list[float]]:
    """The median of the agents' means, and of their mean squared distances to it."""
    count, total, square = table[:, 0], table[:, 1], table[:, 2]
    means = total / count
    sizes = square / count
    mean = np.median(means, axis=0)
    distances = np.maximum(sizes - 2 * mean * means + mean**2, 0.0)
    spread = np.median(distances, axis=0)
    return _scaling(mean, spread, np.median(sizes, axis=0))


def _scaling(mean: Float64, spread: Float64, size: Float64) -> dict[str, list[float]]:
    """Means and deviations. A spread that may be nothing but the rounding of sums counts as none."""
    has_spread = spread > ROUNDING * size
    std = np.sqrt(np.where(has_spread, spread, 1.0))
    return {"mean": mean.tolist(), "std": std.tolist()}


def fair_figures(
    evaluation: Mapping[ClientId, Mapping[str, Any]], settings: Aggregation
) -> dict[ClientId, dict[str, Any]]:
    """Test figures by agent and mode, with numbers of samples capped like examples: they weigh the averages."""
    cap = settings.max_samples
    result = {client: dict(figures) for client, figures in evaluation.items()}
    modes: dict[str, None] = {}  # in the order of their first appearance
    for figures in result.values():
        modes |= dict.fromkeys(figures)
    for mode in modes:
        having = [figures for figures in result.values() if mode in figures]
        claims = [figures[mode]["n"] for figures in having]
        most = most_samples(claims, cap.absolute, cap.times_median)
        if most is None:
            continue
        for figures in having:
            if figures[mode]["n"] > most:
                figures[mode] = {**figures[mode], "n": most}
    return result
