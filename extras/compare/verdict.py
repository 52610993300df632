"""What a comparison shows about federation, in a sentence for each method: whether it, and several models, were worth it.

A method is compared with the best reference: FedAvg's one model, agents that train alone, and what each run measures without
any federation, the constant answer and trees on each agent's table. The gain of an agent is the difference of its figures with the one and with the other on the same seed, so that agents with
hard data do not count as a difference of methods. Of two intervals of 95 % around the mean, the wider one counts:

- over agents: Student's t from the deviations of agents within each seed. It takes the seeds as given.
- over seeds: Student's t from the means of two or more seeds. It has what the agents of one seed share: the partition,
  the initial model and the draws.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any, Literal

from covey.coordinator.view.table import NONE, Column, Table, columns_of, numbers
from covey.extras.compare.grid import section, splits
from covey.extras.compare.rows import METRICS, TITLES, ComparisonRow, measure_of
from covey.shared.numerics.measures import PERCENT, Measure, plain
from covey.shared.scenario.scenario import Scenario
from covey.shared.sentences import counted


@dataclass(frozen=True)
class Words:
    """A reference in a sentence."""

    figure: str  # after its figure
    than: str
    better: str
    mode: str = ""  # of every run, which has its figures; "": it is a method of its own
    label: str = ""  # in tables, of one that is no method


REFERENCES: Mapping[str, Words] = {  # strategies, and candidates of every device
    "fedavg": Words("with one model", "with one model", "one model is better"),
    "local": Words("alone", "alone", "agents alone are better"),
    "none": Words(
        "by the constant", "the constant", "the constant is better", "baseline", "constant"
    ),
    "trees": Words("by trees", "trees", "trees are better", "trees", "trees"),
}
ALONE = {name: one for name, one in REFERENCES.items() if one.mode}  # each device has them
WORTH = 0.01  # a smaller gain in accuracy, F1 or R2 does not pay for several models
WORTH_SHARE = 0.02  # of an error: relative to that of the reference
QUANTILE = 0.975  # of an interval of 95 %

Outcome = Literal["worth it", "not worth it", "not shown", "worse"]


@dataclass(frozen=True)
class Gain:
    """How much better one method is than another, as figures are stored: positive is better, whatever the measure."""

    mean: float  # over seeds, of the means over agents
    half: (
        float | None
    )  # of the interval's width; None for one seed without figures of single agents
    agents: int  # pairs of figures in all seeds together; 0 if only means are known
    seeds: int

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return -math.inf if self.half is None else self.mean - self.half

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return math.inf if self.half is None else self.mean + self.half


@dataclass(frozen=True)
class Reference:
    """One model for all agents, or none of a federation: the row that a method is compared with."""

    method: str  # its label
    strategy: str
    figure: float  # mean over the seeds that both have
    gain: Gain  # of the method over it


@dataclass(frozen=True)
class Verdict:
    """One method on one partition."""

    partition: str  # its label
    method: str  # its label
    clusters: Sequence[int | None]  # per seed
    mode: str  # of evaluation
    measure: Measure = field(repr=False)
    figure: float  # mean over seeds of the mean over agents
    references: Sequence[Reference]  # the better one first

    @property
    def outcome(self) -> Outcome:
        """Whether the interval is on one side of nothing, and of what is worth it."""
        gain = self.references[0].gain
        worth = WORTH if self.measure.most == 1 else WORTH_SHARE * abs(self.references[0].figure)
        if gain.high < 0:
            return "worse"
        if gain.low > 0 and gain.mean >= worth:
            return "worth it"
        return "not worth it" if gain.low > 0 or gain.high < worth else "not shown"

    @property
    def sentence(self) -> str:
        """Such as "fedclust, 3 groups: RMSE served 19.2 against 19.4 with one model: 1.0 % better (0.4 to 1.6); ..."."""
        best, measure = self.references[0], self.measure
        where = f" on {self.partition}" if self.partition else ""
        *others, last = [
            f"{measure.text(one.figure)} {REFERENCES[one.strategy].figure}"
            + ("" if one.strategy in ALONE else f" ({one.method})")
            for one in sorted(self.references, key=lambda one: one.strategy)
        ]
        against = f"{', '.join(others)} and {last}" if others else last
        clusters = f", {self._models('group')}" if self._most > 1 else ""
        return (
            f"{self.method}{where}{clusters}: {measure.label} "
            f"{TITLES[self.mode]} {measure.text(self.figure)} against {against}: {self._difference(best)}; {self._conclusion(best)}"
        )

    @property
    def _most(self) -> int:
        """The most clusters that a seed found."""
        return max((number or 0 for number in self.clusters), default=0)

    def _models(self, noun: str) -> str:
        """How many clusters the seeds found."""
        least = min(number for number in self.clusters if number is not None)
        many = counted(self._most, noun)
        return many if least == self._most else f"{least} to {many}"

    def _difference(self, best: Reference) -> str:
        """The gain over the better reference with its interval, as much as it is worse if it is."""
        gain = best.gain
        sign, word = (-1.0, "worse") if gain.mean < 0 else (1.0, "better")
        unit, scale = "", 1.0
        if self.measure.scale == PERCENT:
            unit, scale = " points", PERCENT
        elif self.measure.lower_is_better and best.figure:
            unit, scale = " %", 100.0 / abs(best.figure)
        text = f"{sign * scale * gain.mean:.2f}{unit} {word}"
        if len(self.references) > 1:
            text += f" than {REFERENCES[best.strategy].than}"
        if gain.half is None:
            return text
        ends = sorted((sign * scale * gain.low, sign * scale * gain.high))
        return f"{text} (95 %: {ends[0]:.2f} to {ends[1]:.2f})"

    @property
    def conclusion(self) -> str:
        """What follows, in a few words."""
        return self._conclusion(self.references[0])

    def _conclusion(self, best: Reference) -> str:
        if self.outcome == "worse":
            return REFERENCES[best.strategy].better
        if self.outcome == "not shown":
            return "more seeds would tell" if best.gain.half is None else "no difference is shown"
        if self._most < 2:
            return self.outcome
        return f"{self.outcome.removesuffix(' it')} {self._models('model')}"

    def to_json(self) -> dict[str, Any]:
        """An entry of "verdicts" in compare.json."""
        return {
            "partition": self.partition,
            "method": self.method,
            "clusters": list(self.clusters),
            "mode": self.mode,
            "measure": self.measure.name,
            "figure": self.figure,
            "references": [asdict(one) for one in self.references],
            "outcome": self.outcome,
            "sentence": self.sentence,
        }


@dataclass(frozen=True)
class Field:
    """The rows of one partition that have the compared figure."""

    partition: str  # its label
    mode: str  # of evaluation
    measure: Measure
    column: str  # of a row: the compared figure
    rows: Mapping[
        str, Mapping[int, ComparisonRow]
    ]  # by label, in the scenario's order, and by seed
    references: Mapping[str, str]  # by strategy or candidate, the label of its first rows

    def figure(self, method: str) -> float:
        """The mean over the seeds of a method."""
        return statistics.fmean(row[self.column] for row in self.rows[method].values())

    def pairs(self, method: str, other: str) -> list[tuple[ComparisonRow, ComparisonRow]]:
        """The rows of two methods on the seeds that both have."""
        seeds = sorted(self.rows[method].keys() & self.rows[other].keys())
        return [(self.rows[method][seed], self.rows[other][seed]) for seed in seeds]

    def gain(self, method: str, other: str) -> Gain | None:
        """The gain of a method over another one; None if they share no seed."""
        pairs = self.pairs(method, other)
        return gain_of(pairs, self.column, self.measure) if pairs else None

    def ranks(self) -> dict[str, float]:
        """The mean rank of each method over its seeds, 1 for the best; equal figures share their mean rank."""
        sign = 1.0 if self.measure.lower_is_better else -1.0
        found: dict[str, list[float]] = {method: [] for method in self.rows}
        for seed in sorted({seed for own in self.rows.values() for seed in own}):
            figures = {
                m: sign * own[seed][self.column] for m, own in self.rows.items() if seed in own
            }
            for method, figure in figures.items():
                before = sum(other < figure for other in figures.values())
                equal = sum(other == figure for other in figures.values())
                found[method].append(before + (equal + 1) / 2)
        return {method: statistics.fmean(own) for method, own in found.items()}


def fields(scenario: Scenario, rows: Sequence[ComparisonRow]) -> Iterator[Field]:
    """The rows by partition, in the order of the scenario; a partition or a method without figures is left out."""
    compare = section(scenario)
    measure = measure_of(compare, scenario.task)
    mode, _ = METRICS[compare.metric]
    column = f"{mode}_{measure.name}_macro"
    for split in splits(scenario):
        by_method: dict[str, dict[int, ComparisonRow]] = {}
        references: dict[str, str] = {}
        for method in compare.methods:
            own = {
                row.seed: row
                for row in rows
                if (row.partition, row.method) == (split.label, method.label)
                and row.get(column) is not None
            }
            if own:
                by_method[method.label] = own
                if method.strategy.name in REFERENCES.keys() - ALONE.keys():
                    references.setdefault(method.strategy.name, method.label)
        if by_method and not compare.metric.startswith("newcomers"):  # of other agents
            for name, words in ALONE.items():
                key = f"{words.mode}_{measure.name}_macro"
                own = _alone(
                    words, (key, column), chain(*(of.values() for of in by_method.values()))
                )
                if own and words.label not in by_method:
                    by_method[words.label], references[name] = own, words.label
        if by_method:
            yield Field(split.label, mode, measure, column, by_method, references)


def _alone(
    words: Words, columns: tuple[str, str], rows: Iterable[ComparisonRow]
) -> dict[int, ComparisonRow]:
    """Rows of what agents have without a federation, by seed: the same in the rows of all methods that have it.

    Args:
        words: of the reference.
        columns: where a row has them, and the compared column, where the new rows have them.
        rows: of methods; those with figures of single agents are preferred.
    """
    key, column = columns
    found: dict[int, ComparisonRow] = {}
    for row in sorted(rows, key=lambda row: not row.alone.get(words.mode)):
        if row.get(key) is not None:
            of_it = {column: row[key], "clusters": None}
            agents = row.alone.get(words.mode, {})
            alone = replace(row, method=words.label, columns=of_it, agents=agents)
            found.setdefault(row.seed, alone)
    return found


def verdicts(scenario: Scenario, rows: Sequence[ComparisonRow]) -> list[Verdict]:
    """A verdict on each method that shares seeds with a reference, in the order of the scenario."""
    found = []
    for one in fields(scenario, rows):
        alone = {label for name, label in one.references.items() if name != "fedavg"}
        for method, own in one.rows.items():
            if method in alone:
                continue
            references = []
            for strategy, other in one.references.items():
                if other != method and (pairs := one.pairs(method, other)):
                    figure = statistics.fmean(other_row[one.column] for _, other_row in pairs)
                    gain = gain_of(pairs, one.column, one.measure)
                    references.append(Reference(other, strategy, figure, gain))
            if references:
                found.append(
                    Verdict(
                        partition=one.partition,
                        method=method,
                        clusters=[row.get("clusters") for row in own.values()],
                        mode=one.mode,
                        measure=one.measure,
                        figure=one.figure(method),
                        references=sorted(references, key=lambda one: one.gain.mean),
                    )
                )
    return found


def standings(scenario: Scenario, rows: Sequence[ComparisonRow]) -> list[Table]:
    """A table of each partition with two or more methods: the best first, with gains over the references."""
    found = []
    for one in fields(scenario, rows):
        if len(one.rows) < 2:
            continue
        ranks = one.ranks()
        in_order = sorted(one.rows, key=lambda method: ranks[method])
        others = list(one.references.values())
        lines = [
            [
                method,
                one.measure.text(one.figure(method)),
                *[_gain_text(one, method, other) for other in others],
                f"{ranks[method]:.1f}",
            ]
            for method in in_order
        ]
        where = f" on {one.partition}" if one.partition else ""
        titles = [
            "method",
            TITLES[one.mode],
            *[f"gain over {other}" for other in others],
            "mean rank",
        ]
        found.append(
            Table(
                f"Standings{where}: {one.measure.title}, mean over agents; paired gains (95 %)",
                columns_of(titles),
                lines,
            )
        )
    return found


def verdict_table(found: Sequence[Verdict]) -> Table:
    """The verdicts, a line for each method: its figure, its gain over the best reference, and what follows."""
    first = found[0]
    figure = f"{first.measure.label} {TITLES[first.mode]}"
    columns = [Column("method"), Column("verdict"), *numbers([figure, "gain", "95 %"])]
    columns.append(Column("over"))
    if any(one.partition for one in found):
        columns.insert(0, Column("partition"))
    lines = []
    for one in found:
        best, scale = one.references[0], one.measure.scale
        form = "+.2f" if scale == PERCENT else "+.3g"
        ends = NONE
        if best.gain.half is not None:
            ends = f"{scale * best.gain.low:{form}} to {scale * best.gain.high:{form}}"
        over = f"{best.method} {one.measure.text(best.figure)}"
        gain = f"{scale * best.gain.mean:{form}}"
        line = [one.method, one.conclusion, one.measure.text(one.figure), gain, ends, over]
        lines.append([one.partition, *line] if len(columns) > len(line) else line)
    return Table("Verdict", columns, lines)


def deciding(scenario: Scenario, rows: Sequence[ComparisonRow]) -> Table | None:
    """The compared figure alone, a row for each method.

    None for a comparison of several seeds or partitions, with published figures or a target: its tables are for papers.
    """
    compare = section(scenario)
    if len(compare.seeds) > 1 or compare.partitions or compare.published or compare.target:
        return None
    for one in fields(scenario, rows):
        lines = []
        for method, by_seed in one.rows.items():
            [row] = by_seed.values()
            lines.append(
                [method, one.measure.text(one.figure(method)), str(row["clusters"] or NONE)]
            )
        titles = ["method", TITLES[one.mode], "models"]
        title = f"{one.measure.title}, mean over agents"
        return Table(title, columns_of(titles), lines)
    return None


def _gain_text(one: Field, method: str, other: str) -> str:
    """A gain with its interval, such as "+1.20 (0.35 to 2.05)"; positive is better whatever the measure."""
    gain = None if method == other else one.gain(method, other)
    if gain is None:
        return NONE
    scale = one.measure.scale
    text = (
        f"{scale * gain.mean:+.2f}"
        if scale == PERCENT
        else f"{'+' if gain.mean >= 0 else '-'}{plain(abs(gain.mean))}"
    )
    if gain.half is None:
        return text
    form = ".2f" if scale == PERCENT else ".3g"
    return f"{text} ({scale * gain.low:{form}} to {scale * gain.high:{form}})"


def gain_of(
    pairs: Sequence[tuple[ComparisonRow, ComparisonRow | None]], column: str, measure: Measure
) -> Gain:
    """The gain of the first rows over the second ones, or over zero, one pair for each seed."""
    sign = -1.0 if measure.lower_is_better else 1.0
    means = [sign * (own[column] - (other[column] if other else 0.0)) for own, other in pairs]
    by_seed = []  # the gains of single agents, of seeds with two or more
    for own, other in pairs:
        agents = sorted(own.agents.keys() & (other or own).agents.keys())
        if len(agents) > 1:
            by_seed.append(
                [sign * (own.agents[a] - (other.agents[a] if other else 0.0)) for a in agents]
            )
    halves = []
    if len(means) > 1:
        halves.append(_half(statistics.variance(means) / len(means), len(means) - 1))
    if len(by_seed) == len(means):
        variance = sum(statistics.variance(gains) / len(gains) for gains in by_seed)
        halves.append(_half(variance / len(by_seed) ** 2, sum(len(g) - 1 for g in by_seed)))
    return Gain(
        mean=statistics.fmean(means),
        half=max(halves, default=None),
        agents=sum(map(len, by_seed)),
        seeds=len(means),
    )


def _half(variance: float, freedom: int) -> float:
    """Half of an interval's width, from the variance of a mean and its degrees of freedom."""
    from scipy.special import stdtrit  # as `scipy.stats.t.ppf`, whose import takes a second

    return float(stdtrit(freedom, QUANTILE)) * math.sqrt(variance)
