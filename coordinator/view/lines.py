"""A line of the record, reduced to what is shown of it: on a terminal, a page, in trackers and metrics. Pure.

Lines come from a run's folder, or from the broker. Whatever does not have the expected type counts as missing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from covey.coordinator.view.words import MODE_TITLES
from covey.shared.numerics.measures import ACCURACY, RMSE, Measure
from covey.shared.sentences import some
from covey.shared.strategies.phase_names import EVALUATE

Row = Mapping[str, Any]
Values = Mapping[str, float]
Averages = Mapping[str, Mapping[str, Values]]  # by mode, measure, and "micro" or "macro"

MAX_TEXT = 500  # characters of a sentence
NEWEST = 10  # rounds by which the time of the others is estimated
MAX_COUNT = 1e18  # of bytes, rounds or agents: a run has fewer
# notes under such keys are for people
WARNING = "warning"
DECISION = "decision"  # what the method found or decided
NOTHING: Row = {}
USED = ("delivered", "server")  # modes of what agents use: the first that there is
AGENTS = "agents"  # a count among figures
# these end a round, and others interrupt the next one; a loss of lines has no round in the record
AFTER_A_ROUND = ("stopped", "lost lines")


@dataclass(frozen=True)
class SumLine:
    """How the secure sum of one group ended."""

    cluster: str
    reported: int
    missing: int
    end: str  # sum, void or passed over
    why: str

    @property
    def is_sum(self) -> bool:
        return self.end == "sum"


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
    evaluation: Averages = field(default_factory=dict)  # over all agents
    by_cluster: Mapping[str, Values] = field(default_factory=dict)  # means over a cluster's agents
    diverged: int = 0  # agents in no average: their served models gave no finite outputs
    sizes: Mapping[str, int] = field(default_factory=dict)  # agents by cluster
    moved: int = 0  # agents that are in another cluster than before
    traffic: Mapping[str, int] = field(default_factory=dict)  # totals of the run so far
    warnings: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    sums: tuple[SumLine, ...] = ()
    is_evaluation: bool = (
        False  # it has figures, or would have them had its secure sums not been void
    )

    @property
    def round(self) -> int:
        """The round that it belongs to, counted from one: an evaluation follows its round, other phases are within."""
        is_within = not self.ends_round and not self.is_evaluation and self.phase != EVALUATE
        return self.rounds + 1 if is_within else self.rounds

    @property
    def measure(self) -> Measure:
        """The main measure of the served models: accuracy, or RMSE of a regression."""
        return RMSE if RMSE.name in self.evaluation.get("server", {}) else ACCURACY

    @property
    def means(self) -> Values:
        """The main figure over all agents, by mode: first of what agents use, then of what they are served."""
        found = macro(self.evaluation, self.measure.name)
        return {mode: found[mode] for mode in USED if mode in found}

    @property
    def mean(self) -> float | None:
        """The main figure of what agents use; None without an evaluation."""
        return next(iter(self.means.values()), None)

    @property
    def title(self) -> str:
        """The name of that figure, such as "accuracy in use"."""
        return self._titled(next(iter(self.means), ""))

    @property
    def served(self) -> tuple[str, float]:
        """The name and the figure of what agents are served, which every evaluation has, and so a curve."""
        mode, figure = list(self.means.items())[-1]
        return self._titled(mode), figure

    def _titled(self, mode: str) -> str:
        return f"{self.measure.label} {MODE_TITLES.get(mode, '')}".rstrip()

    @property
    def cluster_means(self) -> Values:
        """The main figure over the agents of each cluster."""
        name = self.measure.name
        return {cluster: own[name] for cluster, own in self.by_cluster.items() if name in own}

    @property
    def sent(self) -> int:
        """Bytes that the run has sent to agents so far; without a broker its models alone."""
        return self.traffic.get("wire_down", 0) + self.traffic.get("down_models", 0)

    @property
    def received(self) -> int:
        """Bytes that it has received from them; without a broker their vectors as float32."""
        return self.traffic.get("wire_up", 0) or 4 * self.traffic.get("up_vectors", 0)


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
        return phase_line(row)
    return _event(row)


def phase_line(row: Row) -> PhaseLine:
    """A line about a phase, as `PhaseFolded.to_json` makes it."""
    ends_round = row.get("ends_round") is True
    done = _count(row.get("round"))
    return PhaseLine(
        step=_count(row.get("step")),
        phase=_text(row.get("phase")),
        rounds=done + 1 if ends_round else done,
        ends_round=ends_round,
        reported=_length(row.get("reported")),
        missing=_length(row.get("missing")),
        seconds=_number(row.get("seconds")) or 0.0,
        loss=_number(row.get("loss")),
        evaluation=averages(row.get("evaluation")),
        by_cluster=_means_by_cluster(row),
        diverged=_length(_mapping(_mapping(row.get("evaluation")).get("server")).get("diverged")),
        sizes=_counts(row.get("cluster_sizes")),
        moved=_count(row.get("moved")),
        traffic=_counts(row.get("traffic")),
        warnings=(*_sentences(row, WARNING), *_untested(row)),
        decisions=_sentences(row, DECISION),
        sums=_sums(row),
        is_evaluation=row.get("evaluation") is not None,
    )


def averages(modes: Any) -> Averages:
    """The averages of an evaluation or a result, without the counts and names that lie between them."""
    found: dict[str, Mapping[str, Values]] = {}
    for mode, figures in _mapping(modes).items():
        of_mode = {
            _text(measure): _values(values)
            for measure, values in _mapping(figures).items()
            if isinstance(values, Mapping)
        }
        if of_mode:
            found[_text(mode)] = of_mode
    return found


def macro(found: Averages, measure: str) -> Values:
    """The mean over agents of one measure, by mode."""
    return {
        mode: figures[measure]["macro"]
        for mode, figures in found.items()
        if "macro" in figures.get(measure, {})
    }


def _means_by_cluster(row: Row) -> dict[str, Values]:
    found: dict[str, Values] = {}
    for cluster, means in _mapping(row.get("by_cluster")).items():
        found[_text(cluster)] = {
            measure: value for measure, value in _values(means).items() if measure != AGENTS
        }
    return found


def _event(row: Row) -> EventLine | None:
    kind = _text(row.get("event"))
    done = _count(row.get("round"))
    agent = _text(row.get("agent"))
    why = _text(row.get("why"))
    sentences = {
        "void": f"the attempt came to nothing and is repeated: {why}",
        "set_aside": f"a report of {agent} was set aside: {why}",
        "quarantined": f"{agent} is in quarantine: {why}",
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


def _sums(row: Row) -> tuple[SumLine, ...]:
    groups = _mapping(row.get("notes")).get("secure")
    return tuple(
        SumLine(
            cluster=_text(one.get("cluster")),
            reported=_length(one.get("reported")),
            missing=_length(one.get("missing")),
            end=_text(one.get("end")),
            why=_text(one.get("why")),
        )
        for one in (groups if isinstance(groups, list) else ())
        if isinstance(one, Mapping)
    )


def _sentences(row: Row, kind: str) -> tuple[str, ...]:
    """The notes for people of one kind."""
    notes = _mapping(row.get("notes"))
    return tuple(_text(note) for key, note in notes.items() if key.startswith(kind))


def _untested(row: Row) -> tuple[str, ...]:
    """A sentence about agents without a test sample."""
    untested = row.get("untested")
    if not isinstance(untested, list) or not untested:
        return ()
    return (
        f"no test samples, so that no figure counts them: {some([_text(one) for one in untested])}",
    )


# -- values that have the expected type, or none ---------------------------------------------------


def _mapping(value: Any) -> Row:
    return value if isinstance(value, Mapping) else NOTHING


def _values(value: Any) -> dict[str, float]:
    numbers = {_text(name): _number(one) for name, one in _mapping(value).items()}
    return {name: number for name, number in numbers.items() if number is not None}


def _counts(value: Any) -> dict[str, int]:
    return {_text(name): _count(one) for name, one in _mapping(value).items()}


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


class TimeLeft:
    """An estimate of the time that the rest of a run takes, from the duration of its newest rounds.

    Feed it each phase, in order. Evaluations and other phases before a round count as part of it."""

    def __init__(self) -> None:
        self._rounds: deque[float] = deque(maxlen=NEWEST)  # durations of complete rounds (s)
        self._open_s = 0.0  # of the phases since the newest complete round

    def __repr__(self) -> str:
        return f"<TimeLeft: {len(self._rounds)} rounds>"

    def add(self, seconds: float, *, ends_round: bool) -> None:
        """A phase is over."""
        self._open_s += seconds
        if ends_round:
            self._rounds.append(self._open_s)
            self._open_s = 0.0

    def left_s(self, rounds: int) -> float | None:
        """Seconds that this many rounds take; None before the first round is over."""
        if not self._rounds:
            return None
        return (sum(self._rounds) / len(self._rounds)) * max(rounds, 0)
