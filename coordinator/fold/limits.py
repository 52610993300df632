"""What happens between a spool full of reports and the strategy's fold: caps, clipping, and who is to blame.

Pure, apart from the memory-mapped arrays that it reads. Nothing here trusts a report: claims are capped, steps that no
training makes are refused, the others are clipped if the scenario asks for it, and a fold that fails all the same is
tried again without each suspect.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from covey.coordinator.checks import LARGEST_VALUE
from covey.shared.errors import DecodeError
from covey.shared.numerics.averages import (
    MIN_REPORTS,
    clipped,
    lower_median,
    most_samples,
    step_norm,
)
from covey.shared.numerics.vectors import Vector, peaks
from covey.shared.own_code.faults import said
from covey.shared.scenario.aggregation import Aggregation
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies import phase_names
from covey.shared.strategies.base import ClientId, Order, Phase, Reports, Strategy
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.reading import bases_of
from covey.shared.strategies.sums import Terms

ClientReport = tuple[ClientId, Report]
AnyStrategy = Strategy[Any]
Fold = Callable[[Reports], Any]
Figures = Mapping[str, Any]  # an agent's test figures by mode
FairFigures = dict[ClientId, dict[str, Any]]
Reasons = dict[ClientId, str]  # why a client is to blame
MAX_FAILURE_LENGTH = 300  # characters of an exception that a reason quotes


class UnsoundFoldError(ArithmeticError):
    """A fold gave a state that no run can continue from; the text names the fault."""


@dataclass(frozen=True)
class ReportedVector:
    """One reported vector that is going to be averaged, compared with the model that it started from, its base."""

    client: ClientId
    name: str  # of the vector
    key: str  # of its base; "": a gradient, which has none
    norm: float  # of the difference to the base
    size: float  # the base's own norm


Steps = Sequence[ReportedVector]
Lengths = list[float]
Place = tuple[str, str]  # a vector's name, and the key of the model that it started from
Norms = Mapping[str, float]  # usual norms by vector name


def capped(reports: Reports, settings: Aggregation) -> list[ClientReport]:
    """The reports with claims of examples and steps no larger than the cohort's cap."""
    cap = settings.max_samples
    most_examples = most_samples([report.examples for _, report in reports], cap.times_median)
    most_steps = most_samples([report.steps for _, report in reports], cap.times_median)
    result: list[ClientReport] = []
    for client, report in reports:
        examples = min(report.examples, most_examples or report.examples)
        steps = min(report.steps, most_steps or report.steps)
        is_capped = examples < report.examples or steps < report.steps
        if is_capped:
            report = replace(report, examples=examples, steps=steps)
        result.append((client, report))
    return result


def are_measured(scenario: Scenario, phase: Phase) -> bool:
    """Whether steps of single reports are compared: not where masks or clips hide them, or the scenario has no limit."""
    privacy = scenario.privacy
    is_hidden = privacy is not None and (privacy.client or privacy.secure) is not None
    is_of_the_run = phase.name in phase_names.OF_THE_RUN
    return not (is_hidden or is_of_the_run or scenario.aggregation.refuse_beyond is None)


class Distances:
    """How far the vectors of a phase that are going to be averaged lie from the models that their orders named.

    The norm of each such model is computed once.
    """

    def __init__(self, strategy: AnyStrategy) -> None:
        self._strategy = strategy
        self._sizes: dict[str, float] = {}  # norms of models, by key

    def of(
        self,
        state: Any,
        phase: Phase,
        client: ClientId,
        *,
        report: Report,
        order: Order,
        terms: Terms,
        norms: Norms | None = None,
    ) -> list[ReportedVector]:
        """The steps of one report.

        Args:
            state: the method's.
            phase: of the report.
            client: who sent it.
            report: with its vectors, or with `norms`.
            order: that it answers.
            terms: of the report.
            norms: the distances by name, of a report whose vectors another process has compared.

        Raises:
            DecodeError: ("partial sum") that process compared others than those that this phase averages.
        """
        steps: list[ReportedVector] = []
        bases = bases_of(self._strategy, order, terms)
        for name in report.vectors:
            key = bases.get(name)
            if key is None:
                continue
            base = self._strategy.model(state, key) if key else None  # a gradient has none
            if norms is None:
                vector = report.vectors[name]
                if base is not None and base.size != vector.size:
                    continue
                norm = step_norm(vector, base)
            else:
                if base is not None and base.size != phase.sizes[name]:
                    continue
                norm = norms.get(name, -1.0)
                if not norm >= 0:
                    raise DecodeError("partial sum", f"the norm of {name} of {client} is missing")
            if key not in self._sizes:
                self._sizes[key] = 0.0 if base is None else step_norm(base, None)
            steps.append(
                ReportedVector(client=client, name=name, key=key, norm=norm, size=self._sizes[key])
            )
        return steps


def usual_steps(steps: Steps) -> dict[str, float]:
    """The lower median of the steps' norms by vector name, where enough reports make one."""
    norms: dict[str, Lengths] = defaultdict(list)
    for step in steps:
        norms[step.name].append(step.norm)
    return {name: lower_median(own) for name, own in norms.items() if len(own) >= MIN_REPORTS}


def too_far(steps: Steps, settings: Aggregation, earlier: Norms | None = None) -> Reasons:
    """Clients whose step no training makes, and why: many times as long as the usual one, and as the model itself.

    A few reports have no median that a liar among them could not make: they are compared with `earlier` ones of the
    run, as `usual_steps` gave them, where there are any.
    """
    if settings.refuse_beyond is None:
        return {}
    before = earlier or {}
    usual_norms = _UsualSteps(steps)
    found: Reasons = {}
    for step in steps:
        name = step.name
        usual = usual_norms.of_or_before(step, before)
        size = max(step.size, 1.0)
        limit = settings.refuse_beyond * max(usual, size)
        if step.norm > limit:
            moved = f"{name} moved by {step.norm:.3g}"
            usually = f"the usual step is {usual:.3g}"
            norm = f"the model's norm {size:.3g}"
            expected = f"up to {limit:.3g} is expected"
            found[step.client] = f"implausible values: {moved}, {usually} and {norm}; {expected}"
    return found


class _UsualSteps:
    """The usual norms among the steps of a phase."""

    def __init__(self, steps: Steps) -> None:
        self._norms: dict[str, Lengths] = defaultdict(list)  # of all steps, by vector name
        self._near: dict[Place, Lengths] = defaultdict(list)  # of those from one model
        for step in steps:
            self._norms[step.name].append(step.norm)
            self._near[step.name, step.key].append(step.norm)
        self._medians: dict[Place, float] = {}  # of those asked for so far

    def of(self, step: ReportedVector) -> float:
        """The lower median of the steps from the same model; of all steps where too few start there."""
        place = (step.name, step.key)
        if place in self._medians:
            return self._medians[place]
        norms = self._near[place]
        if len(norms) < MIN_REPORTS:
            norms = self._norms[step.name]
        median = lower_median(norms)
        self._medians[place] = median
        return median

    def of_or_before(self, step: ReportedVector, earlier: Norms) -> float:
        """The usual norm: of this phase, or an earlier one where this phase has too few steps of the vector."""
        before = earlier.get(step.name)
        norms = self._norms[step.name]
        if before is None or len(norms) >= MIN_REPORTS:
            return self.of(step)
        return before


def clip(
    strategy: AnyStrategy, state: Any, reports: Reports, steps: Steps, settings: Aggregation
) -> Reports:
    """The reports with every averaged vector's step at most as long as the scenario allows."""
    if not settings.clips:
        return reports
    by_client: dict[ClientId, dict[str, ReportedVector]] = {}
    for step in steps:
        own_steps = by_client.setdefault(step.client, {})
        own_steps[step.name] = step
    usual_norms = _UsualSteps(steps)
    result: list[ClientReport] = []
    for client, report in reports:
        vectors: dict[str, Vector] = dict(report.vectors)
        own_steps = by_client.get(client, {})
        for name, step in own_steps.items():
            limit = _longest(step, usual_norms, settings)
            if limit is None:
                continue
            base = strategy.model(state, step.key) if step.key else None
            vectors[name] = clipped(vectors[name], base, limit, step.norm)
        clipped_report = replace(report, vectors=vectors)
        result.append((client, clipped_report))
    return result


def _longest(step: ReportedVector, usual_norms: _UsualSteps, settings: Aggregation) -> float | None:
    """The longest step that the scenario allows in place of this one; None where it allows any."""
    times = settings.clip.times_median
    return None if times is None else times * usual_norms.of(step)


def guilty(fold: Fold, reports: Reports) -> Reasons:
    """Whose reports make a fold fail, and how; empty where it does not fail.

    First each report alone is left out: this finds a single liar. If that does not help, reports are added one after
    another, and each that breaks the fold stays out. If all of several reports break it, none is to blame: then the
    method itself is at fault. Raises OSError and MemoryError as they come: a full disk is no agent's fault.
    """
    failure = _failure(fold, reports)
    if failure is None:
        return {}
    liar = _single_liar(fold, reports)
    if liar is not None:
        return {liar: failure}

    good: list[ClientReport] = []
    found: Reasons = {}
    for entry in reports:
        client, _ = entry
        tried = [*good, entry]
        why = _failure(fold, tried)
        if why is None:
            good = tried
        else:
            found[client] = why
    are_several = len(reports) > 1
    if are_several and not good:
        return {}
    return found


def _single_liar(fold: Fold, reports: Reports) -> ClientId | None:
    """The first client without whose report alone the fold works; None where no single one is enough."""
    for place, (client, _) in enumerate(reports):
        before = reports[:place]
        after = reports[place + 1 :]
        others = [*before, *after]
        if not others:
            continue
        if _failure(fold, others) is None:
            return client
    return None


def _failure(fold: Fold, reports: Reports) -> str | None:
    try:
        fold(reports)
    except (OSError, MemoryError):
        raise
    except Exception as error:
        return said(error)[:MAX_FAILURE_LENGTH]
    return None


def check_sound(strategy: AnyStrategy, state: Any) -> None:
    """Raises UnsoundFoldError where a cluster's model or a number of the state is not finite or absurdly large."""
    for k, model in enumerate(strategy.clusters(state)):
        for largest in peaks(model):
            if not largest <= LARGEST_VALUE:
                raise UnsoundFoldError(f"the model of group {k} would hold {largest:.3g}")
    _check_numbers(state, "")
    check_json(dict(strategy.shown(state).notes), "its notes")


def check_json(value: Any, what: str) -> None:
    """Raises UnsoundFoldError where a value cannot be written as JSON: NaN and infinity are none."""
    try:
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError) as error:
        raise UnsoundFoldError(f"{what} cannot be written: {error}") from None


def _check_numbers(value: Any, where: str) -> None:
    match value:
        case float():
            if not math.isfinite(value):
                raise UnsoundFoldError(f"{where} would be {value}")
        case dict():
            for key, item in value.items():
                _check_numbers(item, f"{where}.{key}")
        case tuple() | list():
            for item in value:
                _check_numbers(item, where)
        case _ if is_dataclass(value) and not isinstance(value, type):
            for one in fields(value):
                field_value = getattr(value, one.name)
                _check_numbers(field_value, one.name)


def fair_figures(evaluation: Mapping[ClientId, Figures], settings: Aggregation) -> FairFigures:
    """Test figures by agent and mode, with numbers of samples capped like examples: they weigh the averages."""
    cap = settings.max_samples
    claims: dict[str, list[int]] = defaultdict(list)  # numbers of samples by mode
    for figures in evaluation.values():
        for mode, row in figures.items():
            claims[mode].append(row["n"])
    most = {mode: most_samples(amounts, cap.times_median) for mode, amounts in claims.items()}
    return {
        client: {mode: _fair_row(row, most[mode]) for mode, row in figures.items()}
        for client, figures in evaluation.items()
    }


def _fair_row(row: Figures, most: int | None) -> Figures:
    """Figures of one mode that claim no more samples than allowed."""
    if most is None or row["n"] <= most:
        return row
    return {**row, "n": most}
