"""`examine`: everything that is odd about a fleet, as one ranked list. All programs that name odd devices ask this function. Pure.

Odd figures: what each device's newest evaluation shows next to those of the other devices. Pure.

A figure is judged by the device's own constant answer (`baseline`) and by the medians of the fleet. If many devices are
worse than nothing, the method is at fault, and no device is odd.

The list from what a broker retains: the devices' own word, and what the coordinator has published. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import median
from typing import TYPE_CHECKING, Any

from covey.coordinator.odd import COORDINATOR, Broker, Odd, ranked, read_odd, without
from covey.extras.doctor.columns import (
    LEAST_VALUES,
    Columns,
    OfDevices,
    are_few,
    numbers_of,
    odd_columns,
    outliers,
    same_rows,
    to_check,
)
from covey.extras.doctor.devices import Seen, odd_devices
from covey.shared.candidate_names import CONSTANT, NONE
from covey.shared.numerics.measures import MEASURES, PERCENT, Measure, shown_measure
from covey.shared.wire.documents import EXPELLED, AgentStatus, CoordinatorStatus, RosterMessage

if TYPE_CHECKING:
    from covey.shared.wire.deployments import Deployment

Modes = Mapping[str, Mapping[str, Any]]  # of one device: figures by mode
Evaluation = Mapping[str, Modes]
USED = ("delivered", "server")  # what a device uses: the first of these that there is
SHIFT = 3.0  # deviations of the target between training and test rows
WORSE = 1.75  # times the error of the constant answer; a target with the wrong sign has up to 2
OF_RETAINED = ("seen", "problem")  # what counts of a roster's row; its list has the rest
CHANCE = 3.0  # deviations of a share: a fleet has many devices


def odd_figures(
    evaluation: Evaluation, weights: Mapping[str, Mapping[str, float]] | None = None
) -> Iterator[Odd]:
    """All that is odd about the figures of a fleet.

    Args:
        evaluation: the newest of each device.
        weights: what each device's mixture gives its candidates, by name; None: there are no mixtures.
    """
    used = {device: own for device, modes in evaluation.items() if (own := in_use(modes))}
    drifts = list(_drifts(evaluation))
    drifted = {device for odd in drifts for device in odd.devices}
    targets = _targets({device: own for device, own in used.items() if device not in drifted})
    # a test part that devices share has the same targets on all of them
    columns = odd_columns({"target": targets}, "target") if targets else ()
    yield from (odd for odd in columns if odd.kind != "copy")
    yield from same_data(used, evaluation)
    yield from _worse_than_nothing(used, evaluation)
    yield from _far_from_others(used)
    # a device may have trained what it uses itself; that the others' model is no good there is odd all the same
    served = {device: figures for device in used if (figures := evaluation[device].get("server"))}
    if served != used:
        yield from _worse_than_nothing(served, evaluation, served=True)
        yield from _far_from_others(served, "the fleet's model there: ")
    yield from drifts
    yield from _no_model({device: _has_none(own) for device, own in (weights or {}).items()})


def in_use(modes: Modes) -> Mapping[str, Any]:
    """The figures of the model that a device uses; empty if it has none, or no test data."""
    for mode in USED:
        figures = modes.get(mode)
        if figures:
            return figures if figures.get("n") and not figures.get("diverged") else {}
    return {}


def _targets(used: Mapping[str, Mapping[str, Any]]) -> OfDevices:
    """The test targets of each device; empty for classes."""
    found = {}
    for device, figures in used.items():
        if "variance" in figures:
            count, mean = float(figures["n"]), float(figures["mean"])
            square = figures["variance"] + mean**2
            if (one := numbers_of(count, count * mean, count * square)) is not None:
                found[device] = one
    return found


def same_data(used: Mapping[str, Mapping[str, Any]], evaluation: Evaluation) -> Iterator[Odd]:
    """Devices with the same loss to the last digit on the same number of test rows, of the model and of their constant: this one
    is of their own training rows, which differ where they only share a test part. A constant class follows from so few counts
    that it is the same on some devices by chance: it means nothing for them if others with the same test rows have another."""
    same: dict[tuple[float, float, bool], dict[float, list[str]]] = {}
    for device, figures in used.items():
        nothing = evaluation[device].get("baseline") or {}
        loss, of_constant = (one.get("loss", 0.0) for one in (figures, nothing))
        if loss > 0 and figures["n"] >= LEAST_VALUES:
            tested = (figures["n"], loss, "variance" in figures)
            same.setdefault(tested, {}).setdefault(of_constant, []).append(device)
    for (*_, is_value), by_constant in same.items():
        if is_value or len(by_constant) == 1:
            yield from same_rows(by_constant.values())


def _worse_than_nothing(
    used: Mapping[str, Mapping[str, Any]], evaluation: Evaluation, *, served: bool = False
) -> Iterator[Odd]:
    """Devices whose model is clearly worse than a constant answer, where nearly all others lose nothing by theirs.

    The answer of the median device counts, too: one with a single class needs no model. And one of whose rows far more are of
    one class is a device of another kind, for which the fleet's model is not made.
    """
    model = "the fleet's model is worse there" if served else "its model is worse"
    answers = [one.get("baseline") or {} for one in evaluation.values()]

    @cache
    def usual_of(name: str) -> float:
        """The figure of the median device's constant answer."""
        return float(median(one[name] for one in answers if name in one))

    losses: dict[str, float] = {}  # by their own constant answer
    found: list[Odd] = []
    for device, figures in used.items():
        nothing = evaluation[device].get("baseline") or {}
        measure = shown_measure(figures)
        if measure is None or measure.name not in nothing:
            continue
        mine, other, rows = figures[measure.name], nothing[measure.name], figures["n"]
        losses[device] = _is_worse(measure, mine, other, rows, times=1.0)
        usual = usual_of(measure.name)
        if not measure.lower_is_better and _is_worse(measure, usual, other, rows) > 0:
            continue
        other = max(other, usual) if measure.lower_is_better else min(other, usual)
        if (beyond := _is_worse(measure, mine, other, rows)) > 0:
            words = f"{_words(measure, mine)}, the constant answer {_words(measure, other)}"
            what = f"{model} than none: {measure.label} {words}"
            found.append(to_check(device, "figure", what, beyond))
    if are_few([device for device, loss in losses.items() if loss > 0], losses):
        yield from found


def _words(measure: Measure, figure: float) -> str:
    return f"{measure.text(figure)}{' %' if measure.scale == PERCENT else ''}"


def _is_worse(
    measure: Measure, mine: float, nothing: float, rows: int, times: float = WORSE
) -> float:
    """How far beyond chance a figure is worse than another one; 0 if it is not."""
    if measure.lower_is_better:
        power = 2 if measure.name == "mse" else 1
        return max(mine - times**power * nothing, 0.0) if nothing > 0 else 0.0
    chance = CHANCE * math.sqrt(max(nothing * (1 - nothing), 0.0) / max(rows, 1))
    return max(nothing - mine - chance, 0.0)


def _far_from_others(used: Mapping[str, Mapping[str, Any]], whose: str = "") -> Iterator[Odd]:
    """Devices whose error is many times the fleet's median."""
    errors: dict[str, float] = {}
    shown: dict[str, tuple[Measure, float]] = {}
    for device, figures in used.items():
        measure = next(
            (MEASURES[name] for name in ("rmse", "mse", "loss") if name in figures), None
        )
        if measure is not None and figures[measure.name] > 0:
            value = float(figures[measure.name])
            if measure.name == "mse":
                measure, value = MEASURES["rmse"], math.sqrt(value)
            errors[device], shown[device] = math.log10(value), (measure, value)
    usual = 10 ** median(errors.values()) if errors else 0.0
    for device in outliers(errors):
        measure, value = shown[device]
        if value < usual:
            continue
        what = f"{whose}{measure.label} {measure.text(value)}, the fleet's median is {measure.text(usual)}"
        yield to_check(device, "figure", what, value / usual)


def _drifts(evaluation: Evaluation) -> Iterator[Odd]:
    """Devices whose test targets lie far from those that they train on.

    The error of the mean of the training targets is variance + (difference of the means)^2.
    """
    shifts: dict[str, float] = {}
    for device, modes in evaluation.items():
        own, nothing = in_use(modes), modes.get("baseline") or {}
        if own.get("variance", 0.0) > 0 and "mse" in nothing:
            shifts[device] = math.sqrt(max(nothing["mse"] / own["variance"] - 1, 0.0))
    usual = median(shifts.values()) if shifts else 0.0
    away = [device for device, shift in shifts.items() if shift >= SHIFT * (1 + usual)]
    if not are_few(away, shifts):
        return
    for device in away:
        what = f"its test targets are {shifts[device]:.1f} deviations from those it trains on, on the others {usual:.1f}"
        yield to_check(device, "drift", what, shifts[device])


def with_own_word(known: Sequence[Odd], said: Mapping[str, str]) -> list[Odd]:
    """The list with what devices use now in the place of what a run has found.

    Args:
        known: the list.
        said: `ModelInUse.uses` of devices; one with "" states none.
    """
    stated = {device: uses == CONSTANT for device, uses in said.items() if uses}
    found = [one for one in known if one.kind != "no model"]
    before = [one for one in known if one.kind == "no model"]
    for device in stated:
        before = without(before, device)
    return [*found, *before, *_no_model(stated)]


def _has_none(weights: Mapping[str, float]) -> bool:
    """Whether a mixture is the constant alone."""
    return {name for name in weights if weights[name]} == {NONE}


def _no_model(found: Mapping[str, bool]) -> Iterator[Odd]:
    """Devices that answer with the constant: their data may be at fault; of many together, it is the method or the columns."""
    without = sorted(device for device, is_without in found.items() if is_without)
    if are_few(without, found):
        for device in without:
            yield to_check(device, "no model", NO_MODEL)
    elif without:
        what = f"{NO_MODEL}, on {len(without)} of {len(found)} devices"
        yield Odd(tuple(without), "no model", what, "`coordinator advise`", weight=len(without))


NO_MODEL = "no model: nothing was better than the constant"


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
    found = [] if facts.seen is None else list(odd_devices(facts.seen))  # newer than what is known
    found += facts.known
    found += odd_columns(facts.columns, facts.target)
    found += odd_figures(facts.evaluation, facts.weights)
    return ranked(with_one_cause(found))


def with_one_cause(found: Sequence[Odd]) -> list[Odd]:
    """Without what another entry of the same device explains: figures of wrong data, one kind found in two ways."""
    explained = {
        (device, kind) for odd in found for kind in odd.facts.explains for device in odd.devices
    }
    kept: list[Odd] = []
    for odd in found:
        rest = tuple(one for one in odd.devices if (one, odd.kind) not in explained)
        if rest:
            kept.append(odd if odd.kind == "copy" else replace(odd, devices=rest))
        if odd.facts.once:
            explained |= {(device, odd.kind) for device in odd.devices}
    return kept


def of_retained(
    now: float,
    statuses: Mapping[str, AgentStatus],
    roster: RosterMessage | None,
    coordinator: CoordinatorStatus | None,
    *,
    between_runs: bool,
    deployment: Deployment | None = None,
    elsewhere: Mapping[str, str] | None = None,
    until: float | None = None,
    judge: str = COORDINATOR,
) -> list[Odd]:
    """The list at one moment.

    Args:
        now: in seconds since 1970.
        statuses: the newest of each device.
        roster: of the run at work, or of the last one.
        coordinator: its status.
        between_runs: no coordinator is at work. Of its list only that counts which no device states itself.
        deployment: in force for all devices.
        elsewhere: agents of federations without a coordinator, with the name of theirs.
        until: when the certificate of the broker ends.
        judge: whose clock `now` is.
    """
    known = [] if roster is None else read_odd(roster.odd)
    rows = {} if roster is None else roster.agents
    for agent, status in statuses.items():
        if status.problem == EXPELLED:
            known = without(known, agent)
    if between_runs:  # all that no device states itself, marked as of the last run
        known = [replace(one, what=f"{one.what} (last run)") for one in known if one.facts.of_run]
        models = {agent: one.model for agent, one in statuses.items() if one.problem != EXPELLED}
        known = with_own_word(known, {agent: one.uses for agent, one in models.items() if one})
    rows = {agent: {name: row.get(name) for name in OF_RETAINED} for agent, row in rows.items()}
    own, of_broker = "" if coordinator is None else coordinator.version, Broker(until=until)
    seen = Seen(now, statuses, rows, coordinator, deployment, elsewhere or {}, of_broker)
    return examine(Facts(seen=replace(seen, version=own, judge=judge), known=known))
