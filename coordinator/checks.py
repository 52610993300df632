"""Checks of reports, which come from the network, before anything is computed with them. Pure.

A phase of a strategy declares the numbers that it uses (`Phase.numbers`); those that belong to the run itself are
listed here. Only these are kept, finite and within bounds. Numbers that were not asked for are dropped; a report with wrong
ones is refused with a reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, Protocol

from covey.shared import extras
from covey.shared.candidate_names import DELIVERED
from covey.shared.disclosures import SUMS
from covey.shared.errors import DecodeError
from covey.shared.numerics.measures import derived
from covey.shared.numerics.vectors import Measured, Peaks, Vector
from covey.shared.privacy.settings import LOCAL
from covey.shared.scenario.columns import is_word
from covey.shared.scenario.fleet_statistics import QUANTILE_LEVELS, asked_statistics
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.task import Task
from covey.shared.strategies import phase_names
from covey.shared.strategies.base import LARGEST, Expected, Phase
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.expected import is_list, is_number
from covey.shared.wire.codec import measured
from covey.shared.wire.messages import ReportContent

# of a vector: its square is still a float32, so training on it need not end in infinity
LARGEST_VALUE = 1e18
TRACK = "track"  # test figures right after training, in any report
MAX_BYTES_PER_VALUE = 8  # of a vector in any codec: topk sends an index and a value
MAX_OTHER_BYTES = 2 << 20  # of a report, for everything else in it
MAX_SAMPLES = 2**53  # the integers that a float64 holds exactly
MAX_STEPS = 10_000_000  # of local SGD in one phase
MAX_SECONDS = 1e9
# figures of a regression that an agent may leave out: mean absolute error, mean and variance of the test targets
OPTIONAL = ("mae", "mean", "variance")
# of classes: a client of another framework may know its accuracy alone
OPTIONAL_SHARES = ("f1", "recall", "auc")
QUANTILES = len(QUANTILE_LEVELS)
MOMENT_NAMES = ("count", "sum", "square")
SUMMED = (*MOMENT_NAMES, "target")

Numbers = Mapping[str, Any]  # a report's, by name


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
        raise DecodeError("wrong vectors", f"{sorted(content.vectors)}, expected {sorted(sizes)}")
    vectors = Measured(
        {
            name: measured(encoded, length=sizes[name], bases=base)
            for name, encoded in content.vectors.items()
        }
    )
    for name, found in vectors.peaks.items():
        check_peaks(name, found)
    numbers = checked_numbers(phase, content, scenario)
    check_examples(content, train_samples)
    return Report(
        vectors=vectors,
        examples=content.examples,
        numbers=numbers,
        steps=content.steps,
        loss=content.loss,
    )


def largest_report_of(phase: Phase) -> int:
    """Bytes that no report of a phase can exceed, in any codec."""
    vector_bytes = MAX_BYTES_PER_VALUE * sum(abs(size) for size in phase.sizes.values())
    return MAX_OTHER_BYTES + vector_bytes


def check_examples(report: ReportFacts, train_samples: int | None) -> None:
    """Raises DecodeError("too many examples") for more than the agent's status has (None: not known)."""
    if train_samples is not None and report.examples > train_samples:
        claim = f"{report.examples}, the agent's status has {train_samples}"
        raise DecodeError("too many examples", claim)


def checked_numbers(phase: Phase, report: ReportFacts, scenario: Scenario) -> Kept:
    """The numbers of a report that the run uses, and no others. Raises DecodeError("wrong numbers")."""
    _check_facts(report)
    numbers = report.numbers
    match phase.name:
        case phase_names.MOMENTS:
            check_statistics(numbers, scenario.task)
            kept = _those_of(numbers, asked_statistics(scenario.task))
        case phase_names.EVALUATE if not phase.sizes:
            kept = _evaluation(numbers, scenario)
        case _:
            kept = _of_training(phase, report, scenario)
    task = scenario.task
    if SUMS in numbers and task.asks_fleet_for and phase.name != phase_names.MOMENTS:
        kept[SUMS] = _sums(numbers[SUMS], task)
    if _tracks(phase, scenario) and TRACK in numbers:
        kept[TRACK] = _figures(TRACK, numbers[TRACK], scenario.task)
    return kept


def _refuse(why: str) -> NoReturn:
    raise DecodeError("wrong numbers", why)


def _those_of(numbers: Numbers, names: Iterable[str]) -> Kept:
    """The numbers with these names, as far as there are any."""
    return {name: numbers[name] for name in names if name in numbers}


def check_peaks(name: str, found: Peaks) -> None:
    """Raises DecodeError("implausible values") where a value is too large for any model or gradient to be trained on."""
    for largest in found:
        if largest > LARGEST_VALUE:
            expected = f"at most {LARGEST_VALUE:g} is expected"
            raise DecodeError("implausible values", f"{name} holds {largest:.3g}; {expected}")


def _check_facts(report: ReportFacts) -> None:
    """Loss, steps and seconds are summed over a cohort: each must leave room for the others."""
    if not abs(report.loss) <= LARGEST:
        _refuse(f"loss is {report.loss!r:.60}; at most {LARGEST:g} is expected")
    if report.steps > MAX_STEPS:
        _refuse(f"steps is {report.steps}; at most {MAX_STEPS} are expected")
    if not 0 <= report.seconds <= MAX_SECONDS:
        _refuse(f"seconds is {report.seconds!r:.60}; 0 to {MAX_SECONDS:g} are expected")


def _of_training(phase: Phase, report: ReportFacts, scenario: Scenario) -> Kept:
    """The numbers that a strategy's phase declares, and the epsilon of DP-SGD where agents report it."""
    expected = dict(phase.numbers)
    if scenario.privacy is not None and scenario.privacy.local is not None:
        expected[LOCAL] = Expected(most=LARGEST, required=False)
    for name, one in expected.items():
        _check_number(name, report.numbers, one, float(max(report.examples, 1)))
    return _those_of(report.numbers, expected)


def _evaluation(numbers: Numbers, scenario: Scenario) -> Kept:
    """The figures of every mode that the scenario evaluates, and the agent's choice.

    A device whose owner demands sums or noise sends none.
    """
    if not numbers:
        return {}
    if "server" not in numbers:
        _refuse("server is missing; expected the figures of every mode of the evaluation")
    task = scenario.task
    kept: Kept = {
        mode: _figures(mode, numbers[mode], task) for mode in _modes(scenario) if mode in numbers
    }
    is_noised = scenario.privacy is not None and scenario.privacy.local is not None
    if DELIVERED in numbers and scenario.evaluation.judges and not is_noised:
        kept[DELIVERED] = _figures(DELIVERED, numbers[DELIVERED], task)
        kept |= extras.part("judge", "in_run").checked(numbers)
    return kept


def _figures(mode: str, value: Any, task: Task) -> Kept:
    """One mode's test figures: none for no samples, otherwise all that the task has."""
    has_samples = isinstance(value, Mapping) and is_number(
        value.get("n"), 0, MAX_SAMPLES, whole=True
    )
    if not has_samples:
        _refuse(f"{mode} is {value!r:.60}; expected figures with a number of samples n")
    if not value["n"]:
        return {"n": 0}
    if value.get("diverged") is True:  # the model's outputs were not finite
        return _those_of(value, ("n", "diverged"))
    expected = _expected_figures(value, task)
    if expected:
        _refuse(f"{mode} is {value!r:.120}; expected {expected}")
    if task.classes is not None:
        names = ("n", "correct", *_shares(task), *OPTIONAL_SHARES, *_amounts(task))
        return _those_of(value, names)
    kept = _those_of(value, ("n", *_amounts(task), *OPTIONAL, "maes"))
    return kept | derived(kept)


def _expected_figures(figures: Numbers, task: Task) -> str:
    """What the figures of some samples lack, in words; empty if they are right."""
    shares = _shares(task)
    if not _all_within(figures, shares, 1):
        return f"{' and '.join(shares)} from 0 to 1"
    optional_shares = _those_of(figures, OPTIONAL_SHARES)
    if not _all_within(optional_shares, optional_shares, 1):
        return f"{' and '.join(optional_shares)} from 0 to 1"
    amounts = _amounts(task)
    if not _all_within(figures, amounts, LARGEST):
        return f"{' and '.join(amounts)} from 0 to {LARGEST:g}"
    if task.classes is not None:
        is_right = "correct" not in figures or is_number(
            figures["correct"], 0, figures["n"], whole=True
        )
        return "" if is_right else "correct from 0 to n"
    maes = figures.get("maes", [])
    if not isinstance(maes, list) or not (
        len(maes) in (0, task.outputs) and all(is_number(mae, 0, LARGEST) for mae in maes)
    ):
        return f"maes: {task.outputs} numbers from 0 to {LARGEST:g}"
    optional = _those_of(figures, OPTIONAL)
    if not is_number(optional.pop("mean", 0.0), -LARGEST, LARGEST):
        return f"mean from {-LARGEST:g} to {LARGEST:g}"
    if not _all_within(optional, optional, LARGEST):
        return f"{' and '.join(optional)} from 0 to {LARGEST:g}"
    return ""


def _all_within(figures: Numbers, names: Iterable[str], most: float) -> bool:
    return all(is_number(figures.get(name), 0, most) for name in names)


def _shares(task: Task) -> tuple[str, ...]:
    """Figures from 0 to 1."""
    if task.classes is None:
        return ()
    return ("accuracy",)


def _amounts(task: Task) -> tuple[str, ...]:
    """Figures without a bound of their own."""
    if task.classes is None:
        return ("mse", "loss")
    return ("loss",)


def _modes(scenario: Scenario) -> tuple[str, ...]:
    """The modes that agents report."""
    evaluation = scenario.evaluation
    without_noise = scenario.privacy is None or scenario.privacy.local is None
    asked = {"tuned": without_noise and evaluation.tune_epochs > 0}
    asked |= dict.fromkeys(("baseline", "trees"), without_noise)
    return tuple(mode for mode in phase_names.MODES if asked.get(mode, True))


def _tracks(phase: Phase, scenario: Scenario) -> bool:
    """Whether agents report test figures right after training in this phase."""
    if phase.name in phase_names.OF_THE_RUN:
        return False
    return scenario.evaluation.track


# -- statistics of the data of agents ---------------------------------------------------------------


def check_statistics(numbers: Numbers, task: Task, *, sums_alone: bool = False) -> None:
    """Raises DecodeError("wrong numbers") at the first mistake in the statistics that a task asks for, or in their sums."""
    asked = task.asks_fleet_for
    if task.has_own_columns:
        columns = task.number_columns
        if "standardise" in asked or task.impute == "mean":
            # an agent may have no value at all in a column
            _check_moments(numbers, columns, fewest=0.0)
        if task.impute == "median" and not sums_alone:
            _check_quantiles(numbers, columns)
        if "categories" in asked and not sums_alone:
            _check_words(numbers.get("words"), task)
    elif "standardise" in asked or not asked:
        _check_moments(numbers, task.features[0], fewest=1.0)
    if task.target_scale == "federated":
        target = numbers.get("target")
        if not isinstance(target, dict):
            _refuse(f"target is {target!r:.60}; expected count, sum and square")
        lists = {name: [target.get(name)] for name in MOMENT_NAMES}
        _check_moments(lists, 1, fewest=1.0, of="target: ")


def _sums(value: Any, task: Task) -> Kept:
    """Sums of data that were replaced, of the statistics that the task asks for."""
    if not isinstance(value, dict):
        _refuse(f"{SUMS} is {value!r:.60}; expected sums by name")
    check_statistics(value, task, sums_alone=True)
    return _those_of(value, [name for name in asked_statistics(task) if name in SUMMED])


def _check_moments(numbers: Numbers, channels: int, fewest: float, of: str = "") -> None:
    """Counts, sums and sums of squares: each is a list per channel, of at least `fewest` values."""
    if not channels:
        return
    _check_number("count", numbers, Expected(channels, fewest, LARGEST), LARGEST, of)
    _check_number("sum", numbers, Expected(channels, -LARGEST, LARGEST), LARGEST, of)
    _check_number("square", numbers, Expected(channels, 0.0, LARGEST), LARGEST, of)
    lists = [numbers[name] for name in MOMENT_NAMES]
    for count, total, square in zip(*lists, strict=True):
        wrong = _impossible_moments(count, total, square)
        if wrong:
            _refuse(of + wrong)


def _impossible_moments(count: float, total: float, square: float) -> str:
    """Why no values that a sensor gives have these moments; empty if some have."""
    if not count:
        if total or square:
            return f"sum is {total!r:.60} and square {square!r:.60} of no values; expected 0"
        return ""
    mean = total / count
    mean_square = square / count
    if not math.sqrt(mean_square) <= LARGEST_VALUE:
        given = f"square is {square!r:.60} over {count!r:.60} values"
        return f"{given}; expected values up to {LARGEST_VALUE:g}"
    largest = mean_square * (1 + 1e-6) + 1e-300  # room for rounding
    if mean * mean > largest:
        given = f"sum is {total!r:.60} and square {square!r:.60}"
        return f"{given}; no {count!r:.60} values have both"
    return ""


def _check_quantiles(numbers: Numbers, columns: int) -> None:
    if columns:
        _check_number("count", numbers, Expected(columns, 0.0, LARGEST), LARGEST)
    quantiles = numbers.get("quantiles")
    if not isinstance(quantiles, list) or len(quantiles) != columns:
        _refuse(f"quantiles is {quantiles!r:.60}; expected a list for each of {columns} columns")
    for found in quantiles:
        if found == []:
            continue
        are_numbers = is_list(found, -QUANTILES, -LARGEST_VALUE, LARGEST_VALUE, whole=False)
        if not are_numbers or len(found) not in (1, QUANTILES) or found != sorted(found):
            expected = f"{QUANTILES} rising numbers, one, or none"
            _refuse(f"quantiles has {found!r:.60}; expected {expected}")


def _check_words(words: Any, task: Task) -> None:
    """The words of the columns whose words the fleet finds."""
    rooms = task.open_categories
    if not isinstance(words, dict) or words.keys() != rooms.keys():
        _refuse(f"words is {words!r:.60}; expected words of {sorted(rooms)}")
    for name, room in rooms.items():
        found = words[name]
        if not isinstance(found, list) or len(found) > room:
            _refuse(f"words of {name!r} are {found!r:.60}; expected a list of at most {room}")
        for word in found:
            if not is_word(word):
                _refuse(f"words of {name!r} have {word!r:.60}; expected short visible text")
        if len(set(found)) < len(found):
            _refuse(f"words of {name!r} occur twice")


# -- numbers ----------------------------------------------------------------------------------------


def _check_number(
    name: str, numbers: Numbers, expected: Expected, examples: float, of: str = ""
) -> None:
    """One number or list of numbers; `of` begins the refusal.

    `examples` bounds what the phase gives no bound of its own.
    """
    if name not in numbers and not expected.required:
        return
    if fault := expected.fault(numbers.get(name), examples):
        _refuse(f"{of}{name} {fault}")
