"""Checks of reports, which come from the network, before anything is computed with them. Pure.

A phase of a strategy declares the numbers that it uses (`Phase.numbers`); those that belong to the run itself are
listed here. Only these are kept, finite and within bounds. Numbers that nobody asked for are dropped; a report with wrong
ones is refused with a reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from covey.coordinator.run.modes import REPORTED_MODES
from covey.shared.errors import DecodeError
from covey.shared.numerics.vectors import Vector, blocks
from covey.shared.privacy.settings import LOCAL
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.task import Task
from covey.shared.strategies.base import LARGEST, Expected, Phase, Report
from covey.shared.wire.codec import decode
from covey.shared.wire.messages import ReportContent

EVALUATE, MOMENTS = "evaluate", "moments"  # the phases that belong to the run and not to a strategy
TRACK = "track"  # test figures right after training, in any report
# of a vector: its square is still a float32, so training on it need not end in infinity
LARGEST_VALUE = 1e18
MAX_STEPS = 10_000_000  # of local SGD in one phase
MAX_SECONDS = 1e9


def read_report(
    content: ReportContent,
    phase: Phase,
    scenario: Scenario,
    *,
    train_samples: int | None,
    base: Callable[[bytes], Vector],
) -> Report:
    """The report with decoded vectors. Raises DecodeError unless it is what the phase asked for.

    Args:
        content: what the agent sent.
        phase: the phase of the open step.
        train_samples: how many the agent's status has; None where no status is known.
        base: gives the model with a digest, for vectors that are sent as differences. May raise DecodeError.
    """
    sizes = phase.sizes
    if set(content.vectors) != set(sizes):
        raise DecodeError("wrong vectors", f"{sorted(content.vectors)}, want {sorted(sizes)}")
    vectors: dict[str, Vector] = {}
    for name, encoded in content.vectors.items():
        vectors[name] = decode(encoded, length=sizes[name], bases=base)
    for name, vector in vectors.items():
        check_vector(name, vector)
    numbers = checked_numbers(phase, content, scenario)
    if train_samples is not None and content.examples > train_samples:
        claim = f"{content.examples}, the agent's status has {train_samples}"
        raise DecodeError("too many examples", claim)
    return Report(vectors, content.examples, numbers, content.steps, content.loss)


def checked_numbers(phase: Phase, report: ReportContent, scenario: Scenario) -> dict[str, Any]:
    """The numbers of a report that the run uses, and no others. Raises DecodeError("wrong numbers")."""
    if wrong := _mistake(phase, report, scenario):
        raise DecodeError("wrong numbers", wrong)
    numbers, task = report.numbers, scenario.task
    kept: dict[str, Any] = {}
    if phase.name == MOMENTS:
        kept = {name: numbers[name] for name in ("count", "sum", "square")}
    elif phase.name == EVALUATE:
        kept = {
            mode: _kept_figures(numbers[mode], task) for mode in _modes(scenario) if mode in numbers
        }
    else:
        kept = {name: numbers[name] for name in phase.numbers if name in numbers}
        if _has_epsilon(scenario) and LOCAL in numbers:
            kept[LOCAL] = numbers[LOCAL]
    if _tracks(phase, scenario) and TRACK in numbers:
        kept[TRACK] = _kept_figures(numbers[TRACK], task)
    return kept


def check_vector(name: str, vector: Vector) -> None:
    """Raises DecodeError("absurd values") where a value is too large for any model or gradient to be trained on."""
    for span in blocks(vector.size):
        largest = float(np.max(np.abs(vector[span]), initial=0.0))
        if largest > LARGEST_VALUE:
            raise DecodeError(
                "absurd values",
                f"{name} holds {largest:.3g}; at most {LARGEST_VALUE:g} is expected",
            )


def _mistake(phase: Phase, report: ReportContent, scenario: Scenario) -> str:
    """The first mistake in a report's numbers; empty if there is none."""
    wrong = _wrong_facts(report)
    match phase.name:
        case "moments":
            wrong = wrong or _wrong_moments(report.numbers, scenario.task.features[0])
        case "evaluate":
            wrong = wrong or _wrong_evaluation(report.numbers, scenario)
        case _:
            most = float(max(report.examples, 1))
            for name, expected in phase.numbers.items():
                wrong = wrong or _wrong_number(name, report.numbers, expected, most)
            if not wrong and _has_epsilon(scenario) and LOCAL in report.numbers:
                wrong = _wrong_number(LOCAL, report.numbers, Expected(most=LARGEST), most)
    if not wrong and _tracks(phase, scenario) and TRACK in report.numbers:
        wrong = _wrong_figures(TRACK, report.numbers[TRACK], scenario.task)
    return wrong


def _has_epsilon(scenario: Scenario) -> bool:
    """Do agents report what their DP-SGD has spent?"""
    return scenario.privacy is not None and scenario.privacy.local is not None


def _wrong_facts(report: ReportContent) -> str:
    """Loss, steps and seconds are summed over a cohort: each must leave room for the others."""
    if not abs(report.loss) <= LARGEST:
        return f"loss is {report.loss!r:.60}; at most {LARGEST:g} is expected"
    if report.steps > MAX_STEPS:
        return f"steps is {report.steps}; at most {MAX_STEPS} are expected"
    if not 0 <= report.seconds <= MAX_SECONDS:
        return f"seconds is {report.seconds!r:.60}; 0 to {MAX_SECONDS:g} are expected"
    return ""


def _wrong_number(
    name: str, numbers: Mapping[str, Any], expected: Expected, examples: float
) -> str:
    if name not in numbers and not expected.required:
        return ""
    told = numbers.get(name)
    most = examples if expected.most is None else expected.most
    if expected.length is None:
        right = _number(told, expected.least, most, whole=expected.whole)
        what = "a number"
    else:
        right = _list(told, expected.length, expected.least, most, whole=expected.whole)
        what = (
            f"{expected.length} numbers"
            if expected.length >= 0
            else f"1 to {-expected.length} numbers"
        )
    return (
        ""
        if right
        else f"{name} is {told!r:.60}; expected {what} from {expected.least:g} to {most:g}"
    )


def _wrong_evaluation(numbers: Mapping[str, Any], scenario: Scenario) -> str:
    if "server" not in numbers:
        return "server is missing; expected the figures of every mode of the evaluation"
    for mode in _modes(scenario):
        if mode in numbers and (wrong := _wrong_figures(mode, numbers[mode], scenario.task)):
            return wrong
    return ""


def _wrong_figures(mode: str, told: Any, task: Task) -> str:
    """One mode's test figures: none for no samples, otherwise all that the task has."""
    if not isinstance(told, Mapping) or not _number(told.get("n"), 0, 2**53, whole=True):
        return f"{mode} is {told!r:.60}; expected figures with a number of samples n"
    if not told["n"]:
        return ""
    shares, amounts = _names(task)
    if not all(_number(told.get(name), 0, 1) for name in shares):
        return f"{mode} is {told!r:.120}; expected {' and '.join(shares)} from 0 to 1"
    if not all(_number(told.get(name), 0, LARGEST) for name in amounts):
        return f"{mode} is {told!r:.120}; expected {' and '.join(amounts)} from 0 to {LARGEST:g}"
    if (
        "correct" in told
        and task.classes is not None
        and not _number(told["correct"], 0, told["n"], whole=True)
    ):
        return f"{mode} is {told!r:.120}; expected correct from 0 to n"
    return ""


def _kept_figures(told: Mapping[str, Any], task: Task) -> dict[str, Any]:
    if not told["n"]:
        return {"n": 0}
    shares, amounts = _names(task)
    known = ("n", "correct", *shares, *amounts) if task.classes is not None else ("n", *amounts)
    return {name: told[name] for name in known if name in told}


def _names(task: Task) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Figures that are shares, and figures that are amounts."""
    return (("accuracy", "f1"), ("loss",)) if task.classes is not None else ((), ("mse", "loss"))


def _modes(scenario: Scenario) -> tuple[str, ...]:
    asked = scenario.evaluation.tune_epochs > 0
    return tuple(mode for mode in REPORTED_MODES if asked or mode != "tuned")


def _tracks(phase: Phase, scenario: Scenario) -> bool:
    return scenario.evaluation.track and phase.name not in (EVALUATE, MOMENTS)


def _wrong_moments(numbers: Mapping[str, Any], channels: int) -> str:
    bounds = (("count", 1.0, LARGEST), ("sum", -LARGEST, LARGEST), ("square", 0.0, LARGEST))
    for name, least, most in bounds:
        if wrong := _wrong_number(name, numbers, Expected(channels, least, most), most):
            return wrong
    for count, total, square in zip(*(numbers[name] for name, _, _ in bounds), strict=True):
        mean, size = total / count, square / count
        if not math.sqrt(size) <= LARGEST_VALUE:
            return f"square is {square!r:.60} over {count!r:.60} values; expected values up to {LARGEST_VALUE:g}"
        if mean * mean > size * (1 + 1e-6) + 1e-300:
            return (
                f"sum is {total!r:.60} and square {square!r:.60}; no {count!r:.60} values have both"
            )
    return ""


def _list(told: Any, length: int, least: float, most: float, *, whole: bool) -> bool:
    if not isinstance(told, list):
        return False
    long_enough = len(told) == length if length >= 0 else 1 <= len(told) <= -length
    return long_enough and all(_number(one, least, most, whole=whole) for one in told)


def _number(told: Any, least: float, most: float, *, whole: bool = False) -> bool:
    """Messages hold no other numbers than finite ones; a bool is no number."""
    kinds = int if whole else int | float
    return isinstance(told, kinds) and not isinstance(told, bool) and least <= told <= most
