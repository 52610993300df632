"""`examine`: everything that is odd about a fleet, as one ranked list. All programs that name odd devices ask this function. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from covey.coordinator.doctor.columns import Columns, odd_columns
from covey.coordinator.doctor.devices import Seen, odd_devices
from covey.coordinator.doctor.figures import Evaluation, odd_figures
from covey.coordinator.doctor.odd import Odd, ranked

NOTHING_ODD = "nothing odd"


@dataclass(frozen=True)
class Facts:
    """The known facts about a fleet. Each part may be missing: then nothing is odd about it.

    Attributes:
        seen: the devices themselves.
        columns: of numbers on each device, that of the target included.
        target: the name of the target's column; "" if it is no number.
        evaluation: the newest figures of each device, by mode.
        weights: of each device's mixture, by candidate.
        known: what was found before from reports that are gone.
    """

    seen: Seen | None = None
    columns: Columns = field(default_factory=dict)
    target: str = ""
    evaluation: Evaluation = field(default_factory=dict)
    weights: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    known: Sequence[Odd] = ()


def examine(facts: Facts) -> list[Odd]:
    """The list, the most serious first; empty if nothing is odd."""
    found = list(facts.known)
    if facts.seen is not None:
        found += odd_devices(facts.seen)
    if facts.columns:
        found += odd_columns(facts.columns, facts.target)
    if facts.evaluation or facts.weights:
        found += odd_figures(facts.evaluation, facts.weights)
    return ranked(_with_one_cause(found))


def _with_one_cause(found: Sequence[Odd]) -> list[Odd]:
    """Without what another entry of the same device explains: figures of wrong data, one kind found in two ways."""
    explained = {device for odd in found if odd.facts.explains for device in odd.devices}
    named: set[tuple[tuple[str, ...], str]] = set()
    kept: list[Odd] = []
    for odd in found:
        if odd.facts.follows and explained.issuperset(odd.devices):
            continue
        if not (odd.facts.once and (odd.devices, odd.kind) in named):
            kept.append(odd)
        named.add((odd.devices, odd.kind))
    return kept
