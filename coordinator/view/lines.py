"""A line of the record, reduced to what a dashboard shows of it. Pure.

Lines come from a run's folder, or from the broker. Whatever does not have the expected type counts as missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from covey.shared.numerics.measures import ACCURACY, RMSE, Measure
from covey.shared.strategies.phase_names import EVALUATE

Row = Mapping[str, Any]
Values = Mapping[str, float]

MAX_TEXT = 500  # characters of a sentence
MAX_COUNT = 1e18  # of bytes, rounds or agents: a run has fewer
WARNING = "warning"  # notes under such keys are for people
NOTHING: Row = {}
# these end a round, and others interrupt the next one; a loss of lines has no round in the record
AFTER_A_ROUND = ("stopped", "lost lines", "fell_back")


@dataclass(frozen=True)
class PhaseLine:
    """A phase that was folded."""

    step: int
    phase: str
    rounds: int  # that were over after it
    ends_round: bool
    reported: int
    missing: int
    seconds: float
    loss: float | None = None  # of local training
    measure: str = ACCURACY.name  # of the figures below
    mean: float | None = None  # over all agents, of an evaluation
    by_cluster: Values = field(default_factory=dict)  # means over the agents of each cluster
    sizes: Mapping[str, int] = field(default_factory=dict)  # agents by cluster
    moved: int = 0  # agents that are in another cluster than before
    sent: int = 0  # bytes that the run has sent to agents so far
    received: int = 0  # bytes that it has received from them
    warnings: tuple[str, ...] = ()

    @property
    def round(self) -> int:
        """The round that it belongs to, counted from one: an evaluation follows its round, other phases are within."""
        is_within = not self.ends_round and self.phase != EVALUATE
        return self.rounds + 1 if is_within else self.rounds


@dataclass(frozen=True)
class EventLine:
    """Something else that happened."""

    kind: str
    round: int  # that it happened in, counted from one
    text: str
    or_before: bool = False  # it may be older: earlier rounds are not known


Line = PhaseLine | EventLine


def reduced(row: Row) -> Line | None:
    """A line of the record as the dashboard keeps it; None for one that it does not show."""
    if row.get("event") == "phase":
        return _phase(row)
    return _event(row)


def _phase(row: Row) -> PhaseLine:
    ends_round = row.get("ends_round") is True
    done = _count(row.get("round"))
    means = _main_means(row)
    traffic = _mapping(row.get("traffic"))
    return PhaseLine(
        step=_count(row.get("step")),
        phase=_text(row.get("phase")),
        rounds=done + 1 if ends_round else done,
        ends_round=ends_round,
        reported=_length(row.get("reported")),
        missing=_length(row.get("missing")),
        seconds=_number(row.get("seconds")) or 0.0,
        loss=_number(row.get("loss")),
        measure=means.measure.name,
        mean=means.overall,
        by_cluster=means.by_cluster,
        sizes=_sizes(row),
        moved=_count(row.get("moved")),
        sent=_count(traffic.get("wire_down")) + _count(traffic.get("down_models")),
        received=_count(traffic.get("wire_up")),
        warnings=_warnings(row),
    )


@dataclass(frozen=True)
class _Means:
    measure: Measure
    overall: float | None
    by_cluster: Values


def _main_means(row: Row) -> _Means:
    """The figures of an evaluation in its main measure, accuracy or RMSE."""
    evaluation = _mapping(row.get("evaluation"))
    server = _mapping(evaluation.get("server"))
    measure = RMSE if RMSE.name in server else ACCURACY
    averages = _mapping(server.get(measure.name))
    by_cluster: dict[str, float] = {}
    clusters = _mapping(row.get("by_cluster"))
    for cluster, means in clusters.items():
        value = _number(_mapping(means).get(measure.name))
        if value is not None:
            by_cluster[_text(cluster)] = value
    return _Means(measure, _number(averages.get("macro")), by_cluster)


def _event(row: Row) -> EventLine | None:
    kind = _text(row.get("event"))
    done = _count(row.get("round"))
    agent = _text(row.get("agent"))
    why = _text(row.get("why"))
    sentences = {
        "void": f"the attempt came to nothing and is repeated: {why}",
        "set_aside": f"a report of {agent} was set aside: {why}",
        "quarantined": f"{agent} is in quarantine: {why}",
        "fell_back": f"{agent} {why}",
        "resting": f"{agent} is {_text(row.get('kind'))} and is not invited for some rounds: {why}",
        "released": f"{agent} was released from quarantine",
        "forgotten": f"{agent} was forgotten by the operator",
        "stopped": f"the method needs no more rounds: {why}",
        "lost lines": "lines of the record were lost",
    }
    if kind not in sentences:
        return None
    if kind in AFTER_A_ROUND:
        return EventLine(kind, done, sentences[kind])
    return EventLine(kind, done + 1, sentences[kind])


def _warnings(row: Row) -> tuple[str, ...]:
    texts: list[str] = []
    notes = _mapping(row.get("notes"))
    for key, note in notes.items():
        if key.startswith(WARNING):
            texts.append(_text(note))
    return tuple(texts)


def _sizes(row: Row) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for cluster, agents in _mapping(row.get("cluster_sizes")).items():
        name = _text(cluster)
        sizes[name] = _count(agents)
    return sizes


# -- values that have the expected type, or none ---------------------------------------------------


def _mapping(value: Any) -> Row:
    return value if isinstance(value, dict) else NOTHING


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _count(value: Any) -> int:
    number = _number(value)
    return int(number) if number is not None and abs(number) < MAX_COUNT else 0


def _text(value: Any) -> str:
    if not isinstance(value, str | int | float):
        return ""
    return str(value)[:MAX_TEXT]
