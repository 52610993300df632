"""What happens between a spool full of reports and the strategy's fold: caps, clipping, and who is to blame.

Pure but for the arrays that it reads. Nothing here trusts a report: claims are capped, steps that no training makes
are refused, the others are clipped where the scenario says so, and a fold that fails all the same is tried again
without each suspect.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

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

ROUNDING = 1e-13  # of a mean square: less spread than this may be the rounding of sums


class UnsoundFoldError(ArithmeticError):
    """A fold gave a state that no run can go on from; the text names what is wrong with it."""


@dataclass(frozen=True)
class Step:
    """One reported vector that is going to be averaged: the key of its base ("": a gradient, which has none), how far
    it lies from it, and the base's own norm."""

    client: ClientId
    name: str
    key: str
    norm: float
    size: float


def capped(reports: Reports, settings: Aggregation) -> list[tuple[ClientId, Report]]:
    """The reports with claims of examples and steps no larger than the cohort's cap."""
    cap = settings.max_samples
    examples = most_samples(
        [report.examples for _, report in reports], cap.absolute, cap.times_median
    )
    steps = most_samples([report.steps for _, report in reports], None, cap.times_median)
    result: list[tuple[ClientId, Report]] = []
    for client, report in reports:
        fewer = min(report.examples, examples or report.examples)
        shorter = min(report.steps, steps or report.steps)
        if (fewer, shorter) != (report.examples, report.steps):
            report = replace(report, examples=fewer, steps=shorter)
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
        norms.setdefault(step.name, []).append(step.norm)
    return {name: lower_median(own) for name, own in norms.items() if len(own) >= MIN_REPORTS}


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
        few = sum(one.name == step.name for one in steps) < MIN_REPORTS
        usual = (earlier or {}).get(step.name) if few else None
        usual = _usual(step, steps) if usual is None else usual
        size = max(step.size, 1.0)
        limit = settings.refuse_beyond * max(usual, size)
        if step.norm > limit:
            found[step.client] = (
                f"absurd values: {step.name} moved by {step.norm:.3g}, the usual step is {usual:.3g} and the "
                f"model's norm {size:.3g}; up to {limit:.3g} is expected"
            )
    return found


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
    limits: dict[tuple[ClientId, str], tuple[Step, float]] = {}
    for step in steps:
        if settings.clip.norm is not None:
            limits[step.client, step.name] = (step, settings.clip.norm)
        elif settings.clip.times_median is not None:
            limits[step.client, step.name] = (
                step,
                settings.clip.times_median * _usual(step, steps),
            )
    result: list[tuple[ClientId, Report]] = []
    for client, report in reports:
        vectors: dict[str, Vector] = {}
        for name, vector in report.vectors.items():
            if (client, name) in limits:
                step, limit = limits[client, name]
                base = strategy.model(state, step.key) if step.key else None
                vector = clipped(vector, base, limit, step.norm)
            vectors[name] = vector
        result.append((client, replace(report, vectors=vectors)))
    return result


def _usual(step: Step, steps: Sequence[Step]) -> float:
    """The lower median of the steps from the same model; of all steps where too few start there."""
    alike = [one for one in steps if one.name == step.name]
    near = [one.norm for one in alike if one.key == step.key]
    return lower_median(near if len(near) >= MIN_REPORTS else [one.norm for one in alike])


def guilty(fold: Callable[[Reports], Any], reports: Reports) -> dict[ClientId, str]:
    """Whose reports make a fold fail, and how; empty where it does not fail.

    First each report alone is left out: one liar is found so. Where that does not help, reports are added one after
    another, and each that breaks the fold stays out. Where all of several reports break it, nobody is to blame: then
    the method itself is at fault. Raises OSError and MemoryError as they come: a full disk is
    nobody's lie.
    """
    failure = _failure(fold, reports)
    if failure is None:
        return {}
    for place, (client, _) in enumerate(reports):
        rest = [*reports[:place], *reports[place + 1 :]]
        if rest and _failure(fold, rest) is None:
            return {client: failure}
    good: list[tuple[ClientId, Report]] = []
    found: dict[ClientId, str] = {}
    for client, report in reports:
        why = _failure(fold, [*good, (client, report)])
        if why is None:
            good.append((client, report))
        else:
            found[client] = why
    return {} if len(found) == len(reports) > 1 else found


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
    rows = [_moments_of(one) for one in moments]
    settings = settings or Aggregation()
    average = settings.average
    table = np.array([_capped_moments(rows, place, settings) for place in range(len(rows))])
    if average.rule != "mean":
        return _median_moments(table)
    count, total, square = (
        np.array([math.fsum(values) for values in table[:, part].T]) for part in range(3)
    )
    mean, size = total / count, square / count
    return _scaling(mean, size - mean**2, size)


def _moments_of(told: Mapping[str, Any]) -> list[Any]:
    """Count, sum and square of one agent, each (channels,)."""
    total = np.ravel(np.asarray(told["sum"], np.float64))
    count, square = (np.ravel(np.asarray(told[name], np.float64)) for name in ("count", "square"))
    return [np.broadcast_to(count, total.shape), total, square]


def _capped_moments(rows: Sequence[Sequence[Any]], place: int, settings: Aggregation) -> Any:
    """One agent's (count, sum, square) per channel, scaled down where it counts more values than the cap."""
    count, total, square = rows[place]
    cap = settings.max_samples.times_median
    if cap is None:
        return [count, total, square]
    usual = np.array([lower_median([float(row[0][c]) for row in rows]) for c in range(len(count))])
    if not (count > cap * usual).any():
        return [count, total, square]
    fair = np.minimum(1.0, cap * usual / count)
    return [count * fair, total * fair, square * fair]


def _median_moments(table: Any) -> dict[str, list[float]]:
    """The median of the agents' means, and of their mean squared distances to it."""
    means, sizes = table[:, 1] / table[:, 0], table[:, 2] / table[:, 0]
    mean = np.median(means, axis=0)
    apart = np.median(np.maximum(sizes - 2 * mean * means + mean**2, 0.0), axis=0)
    return _scaling(mean, apart, np.median(sizes, axis=0))


def _scaling(mean: Any, spread: Any, size: Any) -> dict[str, list[float]]:
    """What is left of a difference of nearly equal numbers is rounding."""
    std = np.sqrt(np.where(spread > ROUNDING * size, spread, 1.0))
    return {"mean": mean.tolist(), "std": std.tolist()}


def fair_figures(
    evaluation: Mapping[ClientId, Mapping[str, Any]], settings: Aggregation
) -> dict[ClientId, dict[str, Any]]:
    """Test figures by agent and mode, with numbers of samples capped like examples: they weigh the averages."""
    cap = settings.max_samples
    result: dict[ClientId, dict[str, Any]] = {
        client: dict(modes) for client, modes in evaluation.items()
    }
    for mode in dict.fromkeys(mode for modes in result.values() for mode in modes):
        claims = [modes[mode]["n"] for modes in result.values() if mode in modes]
        most = most_samples(claims, cap.absolute, cap.times_median)
        for modes in result.values():
            if most is not None and mode in modes and modes[mode]["n"] > most:
                modes[mode] = {**modes[mode], "n": most}
    return result
