"""Checks of reports, which come from the network, before anything is computed with them. Pure.

A phase of a strategy declares the numbers that it uses (`Phase.numbers`); those that belong to the run itself are
listed here. Only these are kept, finite and within bounds. Numbers that nobody asked for are dropped; a report with wrong
ones is refused with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from covey.coordinator.run.modes import REPORTED_MODES
from covey.coordinator.run.number_checks import LARGEST_VALUE, Numbers, is_number, wrong_number
from covey.coordinator.run.statistics_checks import wrong_statistics
from covey.shared.client import VOTE
from covey.shared.errors import DecodeError
from covey.shared.numerics.measures import derived
from covey.shared.numerics.vectors import Vector, blocks
from covey.shared.numerics.votes import LEAST
from covey.shared.privacy.settings import LOCAL
from covey.shared.scenario.fleet_statistics import asked_statistics
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.task import Task
from covey.shared.strategies import phase_names
from covey.shared.strategies.base import LARGEST, Expected, Phase, Report
from covey.shared.wire.codec import decode
from covey.shared.wire.messages import ReportContent

TRACK = "track"  # test figures right after training, in any report
MAX_SAMPLES = 2**53  # the integers that a float64 holds exactly
MAX_STEPS = 10_000_000  # of local SGD in one phase
MAX_SECONDS = 1e9
# figures of a regression that an agent may leave out: mean absolute error, mean and variance of the test targets
OPTIONAL = ("mae", "mean", "variance")
VOTE_NUMBERS = {
    "n": Expected(least=LEAST, most=MAX_SAMPLES, whole=True),
    "loss": Expected(least=-LARGEST, most=LARGEST),
    "other": Expected(least=-LARGEST, most=LARGEST),
    "variance": Expected(most=LARGEST**2),
    "naught": Expected(least=-LARGEST, most=LARGEST),
}


class ReportFacts(Protocol):
    """A report without its vectors: a whole one, or one that is part of a sum."""

    @property
    def examples(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def loss(self) -> float: ...
    @property
    def seconds(self) -> float: ...
    @property
    def numbers(self) -> Mapping[str, Any]: ...


Kept = dict[str, Any]  # those of them that the run uses


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
    if content.vectors.keys() != sizes.keys():
        sent = sorted(content.vectors)
        expected = sorted(sizes)
        raise DecodeError("wrong vectors", f"{sent}, want {expected}")
    vectors: dict[str, Vector] = {}
    for name, encoded in content.vectors.items():
        vectors[name] = decode(encoded, length=sizes[name], bases=base)
    for name, vector in vectors.items():
        check_vector(name, vector)
    numbers = checked_numbers(phase, content, scenario)
    check_examples(content, train_samples)
    return Report(
        vectors=vectors,
        examples=content.examples,
        numbers=numbers,
        steps=content.steps,
        loss=content.loss,
    )


def check_examples(report: ReportFacts, train_samples: int | None) -> None:
    """Raises DecodeError("too many examples") for more than the agent's status has (None: not known)."""
    if train_samples is not None and report.examples > train_samples:
        claim = f"{report.examples}, the agent's status has {train_samples}"
        raise DecodeError("too many examples", claim)


def checked_numbers(phase: Phase, report: ReportFacts, scenario: Scenario) -> Kept:
    """The numbers of a report that the run uses, and no others. Raises DecodeError("wrong numbers")."""
    wrong = _mistake(phase, report, scenario)
    if wrong:
        raise DecodeError("wrong numbers", wrong)
    numbers = report.numbers
    match phase.name:
        case phase_names.MOMENTS:
            kept = _those_of(numbers, asked_statistics(scenario.task))
        case phase_names.EVALUATE:
            kept = _kept_evaluation(numbers, scenario)
        case _:
            kept = _those_of(numbers, phase.numbers)
            if _has_epsilon(scenario):
                kept |= _those_of(numbers, (LOCAL,))
    if _tracks(phase, scenario) and TRACK in numbers:
        kept[TRACK] = _kept_figures(numbers[TRACK], scenario.task)
    return kept


def _those_of(numbers: Numbers, names: Iterable[str]) -> Kept:
    """The numbers with these names, as far as there are any."""
    return {name: numbers[name] for name in names if name in numbers}


def _kept_evaluation(numbers: Numbers, scenario: Scenario) -> Kept:
    """The figures of every mode that the scenario evaluates."""
    kept: Kept = {}
    for mode in _modes(scenario):
        if mode in numbers:
            kept[mode] = _kept_figures(numbers[mode], scenario.task)
    if scenario.evaluation.fallback and VOTE in numbers:
        kept[VOTE] = _those_of(numbers[VOTE], VOTE_NUMBERS)
    return kept


def check_vector(name: str, vector: Vector) -> None:
    """Raises DecodeError("absurd values") where a value is too large for any model or gradient to be trained on."""
    for span in blocks(vector.size):
        sizes = np.abs(vector[span])
        largest = float(np.max(sizes, initial=0.0))
        if largest > LARGEST_VALUE:
            expected = f"at most {LARGEST_VALUE:g} is expected"
            raise DecodeError("absurd values", f"{name} holds {largest:.3g}; {expected}")


def _mistake(phase: Phase, report: ReportFacts, scenario: Scenario) -> str:
    """The first mistake in a report's numbers; empty if there is none."""
    numbers = report.numbers
    wrong = _wrong_facts(report)
    if wrong:
        return wrong
    match phase.name:
        case phase_names.MOMENTS:
            wrong = wrong_statistics(numbers, scenario.task)
        case phase_names.EVALUATE:
            wrong = _wrong_evaluation(numbers, scenario)
        case _:
            wrong = _wrong_training(phase, report, scenario)
    if wrong:
        return wrong
    if _tracks(phase, scenario) and TRACK in numbers:
        return _wrong_figures(TRACK, numbers[TRACK], scenario.task)
    return ""


def _wrong_training(phase: Phase, report: ReportFacts, scenario: Scenario) -> str:
    """The first mistake in the numbers that a strategy's phase declares, or in the epsilon of DP-SGD."""
    numbers = report.numbers
    examples = float(max(report.examples, 1))
    for name, expected in phase.numbers.items():
        wrong = wrong_number(name, numbers, expected, examples)
        if wrong:
            return wrong
    if _has_epsilon(scenario) and LOCAL in numbers:
        any_amount = Expected(most=LARGEST)
        return wrong_number(LOCAL, numbers, any_amount, examples)
    return ""


def _has_epsilon(scenario: Scenario) -> bool:
    """Whether agents report what their DP-SGD has spent."""
    privacy = scenario.privacy
    return privacy is not None and privacy.local is not None


def _wrong_facts(report: ReportFacts) -> str:
    """Loss, steps and seconds are summed over a cohort: each must leave room for the others."""
    if not abs(report.loss) <= LARGEST:
        return f"loss is {report.loss!r:.60}; at most {LARGEST:g} is expected"
    if report.steps > MAX_STEPS:
        return f"steps is {report.steps}; at most {MAX_STEPS} are expected"
    if not 0 <= report.seconds <= MAX_SECONDS:
        return f"seconds is {report.seconds!r:.60}; 0 to {MAX_SECONDS:g} are expected"
    return ""


def _wrong_evaluation(numbers: Numbers, scenario: Scenario) -> str:
    if "server" not in numbers:
        return "server is missing; expected the figures of every mode of the evaluation"
    for mode in _modes(scenario):
        if mode not in numbers:
            continue
        wrong = _wrong_figures(mode, numbers[mode], scenario.task)
        if wrong:
            return wrong
    if scenario.evaluation.fallback and VOTE in numbers:
        return _wrong_vote(numbers[VOTE])
    return ""


def _wrong_vote(value: Any) -> str:
    if not isinstance(value, Mapping):
        return f"{VOTE} is {value!r:.60}; expected the losses of two models"
    for name, expected in VOTE_NUMBERS.items():
        if wrong := wrong_number(name, value, expected, MAX_SAMPLES):
            return f"{VOTE}: {wrong}"
    return ""


def _wrong_figures(mode: str, value: Any, task: Task) -> str:
    """One mode's test figures: none for no samples, otherwise all that the task has."""
    if not _has_samples(value):
        return f"{mode} is {value!r:.60}; expected figures with a number of samples n"
    if not value["n"] or _has_diverged(value):
        return ""
    expected = _expected_figures(value, task)
    if expected:
        return f"{mode} is {value!r:.120}; expected {expected}"
    return ""


def _has_samples(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    return is_number(value.get("n"), 0, MAX_SAMPLES, whole=True)


def _expected_figures(figures: Numbers, task: Task) -> str:
    """What the figures of some samples lack, in words; empty if they are right."""
    shares = _shares(task)
    if not _all_within(figures, shares, 1):
        names = " and ".join(shares)
        return f"{names} from 0 to 1"
    amounts = _amounts(task)
    if not _all_within(figures, amounts, LARGEST):
        names = " and ".join(amounts)
        return f"{names} from 0 to {LARGEST:g}"
    if task.classes is None:
        return _expected_sums(figures)
    if "correct" not in figures:
        return ""
    if not is_number(figures["correct"], 0, figures["n"], whole=True):
        return "correct from 0 to n"
    return ""


def _has_diverged(figures: Numbers) -> bool:
    """Whether the model's outputs were not finite. Then there are no figures."""
    return figures.get("diverged") is True


def _expected_sums(figures: Numbers) -> str:
    """What the optional figures of a regression lack, in words; empty if they are right."""
    optional = _those_of(figures, OPTIONAL)
    target_mean = optional.pop("mean", 0.0)
    if not is_number(target_mean, -LARGEST, LARGEST):
        return f"mean from {-LARGEST:g} to {LARGEST:g}"
    if not _all_within(optional, optional, LARGEST):
        names = " and ".join(optional)
        return f"{names} from 0 to {LARGEST:g}"
    return ""


def _all_within(figures: Numbers, names: Iterable[str], most: float) -> bool:
    return all(is_number(figures.get(name), 0, most) for name in names)


def _kept_figures(figures: Numbers, task: Task) -> Kept:
    if not figures["n"]:
        return {"n": 0}
    if _has_diverged(figures):
        return _those_of(figures, ("n", "diverged"))
    known = ["n"]
    if task.classes is not None:
        known.append("correct")
    known += _shares(task)
    known += _amounts(task)
    if task.classes is not None:
        return _those_of(figures, known)
    kept = _those_of(figures, [*known, *OPTIONAL])
    return kept | derived(kept)


def _shares(task: Task) -> tuple[str, ...]:
    """Figures from 0 to 1."""
    if task.classes is None:
        return ()
    return ("accuracy", "f1")


def _amounts(task: Task) -> tuple[str, ...]:
    """Figures without a bound of their own."""
    if task.classes is None:
        return ("mse", "loss")
    return ("loss",)


def _modes(scenario: Scenario) -> tuple[str, ...]:
    """The modes that agents report."""
    if scenario.evaluation.tune_epochs > 0:
        return REPORTED_MODES
    return tuple(mode for mode in REPORTED_MODES if mode != "tuned")


def _tracks(phase: Phase, scenario: Scenario) -> bool:
    """Whether agents report test figures right after training in this phase."""
    if phase.name in phase_names.OF_THE_RUN:
        return False
    return scenario.evaluation.track
