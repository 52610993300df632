"""The judge in a run: what an order of the last evaluation states of the fleet, and what its reports have for the next one. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from covey.extras.judge.mixture import FleetWeights
from covey.shared.candidate_names import CANDIDATES, GAIN, JUDGE, USES, WEIGHTS
from covey.shared.errors import DecodeError
from covey.shared.strategies.base import Reports
from covey.shared.strategies.expected import LARGEST, is_list, is_number
from covey.shared.work.judging import FLEET, GAINS

Numbers = Mapping[str, Any]  # of an order or a report, by name
ROUNDED = 1e-4  # by which weights may miss a sum of 1


def order_numbers(judge: int, fleet: Numbers | None) -> dict[str, Any]:
    """What an order of the last evaluation has besides the method's numbers.

    Args:
        judge: how often the device was given the fleet's weights.
        fleet: what is known of the fleet, as `FleetWeights` has it; None: nothing yet.
    """
    if fleet is None:
        return {JUDGE: judge}
    weights = [fleet["weights"].get(name, 0.0) for name in CANDIDATES]
    return {JUDGE: judge, FLEET: weights, GAINS: int(fleet["gains"])}


def fleet_of(numbers: Numbers) -> FleetWeights | None:
    """The inverse of `order_numbers`."""
    if FLEET not in numbers:
        return None
    weights = dict(zip(CANDIDATES, numbers[FLEET], strict=True))
    return FleetWeights(
        {name: weight for name, weight in weights.items() if weight}, numbers.get(GAINS) == 1
    )


def checked(numbers: Numbers) -> dict[str, Any]:
    """Of the numbers of a report those that the judge has sent. Raises DecodeError("wrong numbers")."""
    kept: dict[str, Any] = {USES: _weights(USES, numbers.get(USES))}
    if WEIGHTS in numbers:
        kept[WEIGHTS] = _weights(WEIGHTS, numbers[WEIGHTS])
    if GAIN in numbers:
        gain = kept[GAIN] = numbers[GAIN]
        is_pair = is_list(gain, 2, -LARGEST, LARGEST**2, whole=False)
        if not is_pair or abs(gain[0]) > LARGEST or gain[1] < 0:
            raise _wrong(GAIN, gain, "a mean and its variance")
    return kept


def _weights(name: str, value: Any) -> dict[str, float]:
    """Weights by candidate, which sum to 1."""
    if not isinstance(value, Mapping) or not value or not value.keys() <= set(CANDIDATES):
        raise _wrong(name, value, "a weight by candidate")
    shares = value.values()
    if not all(is_number(one, 0, 1) for one in shares) or abs(sum(shares) - 1) > ROUNDED:
        raise _wrong(name, value, "weights from 0 to 1 that sum to 1")
    return {candidate: value[candidate] for candidate in CANDIDATES if candidate in value}


def _wrong(name: str, value: Any, expected: str) -> DecodeError:
    return DecodeError("wrong numbers", f"{name} is {value!r:.60}; expected {expected}")


def of_reports(reports: Reports) -> dict[str, Any] | None:
    """What the agents' weights say about the fleet; None without any."""
    weighed = [report.numbers for _, report in reports if WEIGHTS in report.numbers]
    if not weighed:
        return None
    gains = [tuple(numbers[GAIN]) for numbers in weighed if GAIN in numbers]
    return asdict(FleetWeights.of([numbers[WEIGHTS] for numbers in weighed], gains))
