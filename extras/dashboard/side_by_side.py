"""Two runs side by side: which one is better, agent by agent, and which keys of their scenarios differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from covey.coordinator.view.table import NONE, Column, Table
from covey.extras.dashboard import plots
from covey.extras.dashboard.figure_pictures import Picture
from covey.extras.dashboard.run_facts import RunFacts
from covey.extras.dashboard.svg import Drawing, around, other, rounds_axis
from covey.shared.numerics.measures import PERCENT, Measure, plain
from covey.shared.sentences import counted, some

Gains = Mapping[str, float]  # by agent


def who_loses(
    gains: Mapping[str, Gains], over: str, numbers: Mapping[str, int], measure: Measure
) -> Picture:
    """A line for each method: the gain of every agent over what it has with another one, sorted; below zero somebody loses.

    Args:
        gains: by method.
        over: the other method, in words.
        numbers: the colours and marks of the methods.
        measure: of the figures.
    """
    series, remarks, values = [], [], [0.0]
    for method, found in gains.items():
        in_order = sorted(found, key=lambda agent: (found[agent], agent))
        points = [(place, measure.scale * found[agent]) for place, agent in enumerate(in_order, 1)]
        series.append(plots.Series(method, other(numbers[method]), points))
        values += [gain for _, gain in points]
        losers = [agent for agent in in_order if found[agent] < 0]
        whom = f": {some(losers)}" if losers else ""
        remarks.append(f"with {method} {counted(len(losers), 'agent')} of {len(found)}{whom}")
    most = max(len(found) for found in gains.values())
    y = around(values, f"gain over {over}, {unit_of(measure)}; above 0 is better")
    zero = plots.Series("", None, [(1, 0.0), (most, 0.0)])
    x = rounds_axis(range(1, most + 1), "agents, sorted by their gain", low=1.0)
    drawing = Drawing([plots.lines("", [zero, *series], x, y)], plots.legend_of(series))
    return Picture(
        "gains", "Who gains, and who loses", drawing, f"Worse off: {'; '.join(remarks)}."
    )


def unit_of(measure: Measure) -> str:
    """The unit of a gain."""
    return "points" if measure.scale == PERCENT else measure.label


def gains_of(first: RunFacts, second: RunFacts, measure: Measure) -> Gains:
    """How much better each agent of both runs is off with the second one, in what it uses."""
    figures = []
    for facts in (first, second):
        column = f"delivered_{measure.name}"
        if all(row.get(column) is None for row in facts.agents):
            column = f"server_{measure.name}"  # nothing was judged: the served model is in use
        figures.append({row["agent"]: row[column] for row in facts.agents})
    before, after = figures
    sign = -1.0 if measure.lower_is_better else 1.0
    pairs = {agent: (before[agent], after[agent]) for agent in before.keys() & after.keys()}
    return {
        agent: sign * (new - old)
        for agent, (old, new) in sorted(pairs.items())
        if old is not None and new is not None
    }


def sentence_of(labels: Sequence[str], gains: Gains, measure: Measure) -> str:
    """The difference in words, with what a single pair of runs cannot show."""
    first, second = labels
    mean = measure.scale * sum(gains.values()) / len(gains)
    better = sum(gain > 0 for gain in gains.values())
    worse = sum(gain < 0 for gain in gains.values())
    is_better = "better" if mean >= 0 else "worse"
    return (
        f"{second} is {plain(abs(mean))} {unit_of(measure)} {is_better} than {first} in what is in use: better for {better} of "
        f"{counted(len(gains), 'agent')}, worse for {worse}. It is one run of each: coordinator compare repeats both with "
        "several seeds, and states whether a difference is shown."
    )


def differences(labels: Sequence[str], facts: Sequence[RunFacts]) -> Table | None:
    """The keys whose values differ between the scenarios of two runs; None if there is none.

    Keys that the method of one run has alone add nothing to its name, and are left out.
    """
    first, second = (dict(_flat("", yaml.safe_load(one.scenario) or {})) for one in facts)
    rows = [
        [key, first.get(key, NONE), second.get(key, NONE)]
        for key in sorted(first.keys() | second.keys())
        if first.get(key) != second.get(key)
        and (not key.startswith("strategy.") or key in first.keys() & second.keys())
    ]
    if not rows:
        return None
    columns = [Column("key of the scenario"), *map(Column, labels)]
    return Table("What differs in the scenarios", columns, rows)


def _flat(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """The keys of a scenario with dots between the levels, and their values as text."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _flat(f"{key}.{name}" if key else str(name), inner)
    else:
        yield key, str(value)
