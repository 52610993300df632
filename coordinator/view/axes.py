"""Axes: which range suits some values, where its ticks are, and how they are written. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from covey.shared.numerics.measures import PERCENT, Measure

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)  # between ticks, times a power of ten
TICKS = 5  # about that many on an axis
LEAST_PERCENT = 10.0  # the smallest span of an axis of percentages


@dataclass(frozen=True)
class Axis:
    """A linear axis from `low` to `high`, with its ticks in between."""

    label: str  # with the unit
    low: float
    high: float
    ticks: Sequence[float]

    def share(self, value: float) -> float:
        """The place of a value: 0 at the low end, 1 at the high end."""
        return (value - self.low) / (self.high - self.low)

    def words(self, tick: float) -> str:
        """A tick in words, with as many decimals as its neighbours need."""
        if len(self.ticks) < 2:
            return f"{tick:g}"
        step = self.ticks[1] - self.ticks[0]
        if max(abs(self.low), abs(self.high)) >= 1e6 or step < 1e-4:
            return f"{tick:.3g}"
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        if step * 10**decimals % 1 > 1e-6:  # steps of 2.5 need one more
            decimals += 1
        return f"{tick:.{decimals}f}"


def rounds_axis(rounds: Iterable[float], label: str = "rounds", low: float = 0.0) -> Axis:
    """An axis from round `low` to the last round, with whole numbers as ticks."""
    high = max(low + 1.0, math.ceil(max(rounds, default=0.0)))
    return Axis(label, low, high, _ticks(low, high, whole=True))


def from_zero(values: Iterable[float], label: str, *, whole: bool = False) -> Axis:
    """An axis from zero to a tick at or above the largest value."""
    largest = max(values, default=0.0)
    if not largest > 0:
        largest = 1.0
    step = _step(largest, whole=whole)
    high = step * math.ceil(largest / step - 1e-9)
    return Axis(label, 0.0, high, _ticks(0.0, high, whole=whole))


def around(
    values: Iterable[float],
    label: str,
    *,
    least: float = 0.0,
    floor: float = -math.inf,
    ceiling: float = math.inf,
) -> Axis:
    """An axis that shows the differences of some values, with ticks at both ends.

    Args:
        values: finite numbers
        label: of the axis, with the unit
        least: the smallest span of the axis: single values and small differences are not blown up
        floor: no tick is below
        ceiling: no tick is above
    """
    numbers = list(values) or [0.0]
    lowest = min(numbers)
    highest = max(numbers)
    missing = least - (highest - lowest)
    if highest == lowest and missing <= 0:
        missing = abs(highest) or 1.0
    if missing > 0:
        lowest -= missing / 2
        highest += missing / 2
        too_high = max(0.0, highest - ceiling)
        too_low = max(0.0, floor - lowest)
        lowest += too_low - too_high
        highest += too_low - too_high
    step = _step(highest - lowest)
    low = max(step * math.floor(lowest / step + 1e-9), floor)
    high = min(step * math.ceil(highest / step - 1e-9), ceiling)
    return Axis(label, low, high, _ticks(low, high))


def _step(span: float, *, whole: bool = False) -> float:
    """A round distance between ticks, so that there are about `TICKS` of them."""
    rough = span / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = 10 * power
    for factor in STEPS:
        if factor * power >= rough - 1e-12:
            step = factor * power
            break
    if not whole:
        return step
    if step == 2.5 * power and power < 10:
        step = 5 * power
    return max(1.0, float(round(step)))


def _ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    step = _step(high - low, whole=whole)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [step * place for place in range(first, last + 1)]


def columns_axis(rounds: Sequence[float], label: str = "rounds") -> Axis:
    """An axis for columns that stand on whole numbers, with room for half a column at both ends."""
    first = min(rounds)
    last = max(rounds)
    ticks = [tick for tick in _ticks(first, max(last, first + 1), whole=True) if tick <= last]
    return Axis(label, first - 0.5, last + 0.5, ticks)


def shown(measure: Measure, figure: float) -> float:
    """A figure as charts show it: shares in percent."""
    return measure.scale * figure


def axis_label(measure: Measure) -> str:
    """The measure with its unit; its direction where that is not obvious."""
    if measure.lower_is_better:
        return f"{measure.title}; lower is better"
    return measure.title


def figure_axis(measure: Measure, figures: Iterable[float], *, zero: bool = False) -> Axis:
    """An axis for these figures, which are scaled already. Percentages stay between 0 and 100."""
    label = axis_label(measure)
    values = list(figures)
    if measure.scale != PERCENT:
        is_positive = min(values, default=0.0) >= 0
        if zero and is_positive:
            return from_zero(values, label)
        return around(values, label)
    if zero:
        return Axis(label, 0.0, PERCENT, (0.0, 20.0, 40.0, 60.0, 80.0, 100.0))
    return around(values, label, least=LEAST_PERCENT, floor=0.0, ceiling=PERCENT)
