"""The tables of a comparison, in words: for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from covey.coordinator.view.table import NONE, Table, columns_of
from covey.extras.compare.grid import section, splits
from covey.extras.compare.rows import METRICS, TITLES, Summary, measure_of
from covey.shared.numerics.measures import (
    ACCURACY,
    MEASURES,
    OF_REGRESSION,
    PERCENT,
    SHOWN_OF_REGRESSION,
    Measure,
)
from covey.shared.scenario.compare import ComparedPartition, Metric
from covey.shared.scenario.scenario import Scenario

Column = Callable[[Summary], str]  # the words of a summary in one column
Columns = dict[str, Column]  # by header, in order


def tables(scenario: Scenario, found: Sequence[Summary], *, modes: bool = True) -> list[Table]:
    """A table of the methods for each partition that has results.

    Args:
        scenario: the comparison
        found: its summaries
        modes: all modes of evaluation, and not only the compared one
    """
    made = []
    for split in splits(scenario):
        own = [one for one in found if one.partition == split.label]
        if own:
            made.append(_table(scenario, split, own, modes))
    return made


def markdown(scenario: Scenario, found: Sequence[Summary]) -> str:
    """The tables of all partitions."""
    return "\n".join(table.markdown() for table in tables(scenario, found))


def _table(
    scenario: Scenario, split: ComparedPartition, found: Sequence[Summary], modes: bool
) -> Table:
    compare = section(scenario)
    measure = measure_of(compare, scenario.task)
    if compare.layout == "averages":
        title, figures = _both_averages(compare.metric, measure)
    else:
        compared, _ = METRICS[compare.metric]
        title, figures = _modes(found, measure, TITLES if modes else (compared,))
        figures |= _other_errors(found, measure, compare.metric)
    columns: Columns = {}
    columns["method"] = _method
    columns["seeds"] = _seeds
    columns |= figures
    columns |= _published_and_clusters(split, found)
    columns |= _traffic(split, found, measure)
    name = scenario.name
    if split.label:
        name = f"{name}, {split.label}"
    spread = "; ± standard deviation over seeds" if any(len(one.seeds) > 1 for one in found) else ""
    heading = f"{name}: {title}{spread}"
    lines = []
    for one in found:
        lines.append([column(one) for column in columns.values()])
    return Table(heading, columns_of(columns), lines)


# -- groups of columns ---------------------------------------------------------------------------------------------


def _modes(
    found: Sequence[Summary], measure: Measure, modes: Collection[str]
) -> tuple[str, Columns]:
    """What the figures are, and a column for each of these modes of evaluation that any summary has."""
    columns: Columns = {}
    for mode, header in TITLES.items():
        key = f"{mode}_{measure.name}_macro"
        is_double = mode == "delivered" and "server" in modes and _is_as_served(found, key)
        if mode not in modes:
            continue
        if _has(found, key) and not is_double:
            columns[header] = _figure(key, measure)
        diverged = f"{mode}_diverged"
        if _has(found, diverged):
            count_header = f"{header}, diverged"
            columns[count_header] = _mean(diverged, 1)
    return f"{measure.title}, mean over agents", columns


def _other_errors(found: Sequence[Summary], measure: Measure, metric: Metric) -> Columns:
    """The other usual measures of a regression, in the mode that is compared."""
    mode, _ = METRICS[metric]
    columns: Columns = {}
    title = TITLES[mode]
    for name in SHOWN_OF_REGRESSION:
        if name == measure.name:
            continue
        key = f"{mode}_{name}_macro"
        if _has(found, key):
            other = MEASURES[name]
            header = f"{title} {other.label}"
            columns[header] = _figure(key, other)
    return columns


def _both_averages(metric: Metric, measure: Measure) -> tuple[str, Columns]:
    """The four columns of FeSEM's tables, in one mode of evaluation; six for a regression."""
    mode, _ = METRICS[metric]
    labels = {"accuracy": "Acc", "f1": "F1"}
    unit = "in %"
    if measure.name in OF_REGRESSION:
        labels = _labels_of_regression()
        unit = measure.unit
    columns: Columns = {}
    for average in ("micro", "macro"):
        for name, label in labels.items():
            header = f"{average.capitalize()}-{label}"
            columns[header] = _figure(f"{mode}_{name}_{average}", MEASURES[name])
    return f"{TITLES[mode]} {unit}", columns


def _labels_of_regression() -> dict[str, str]:
    return {name: MEASURES[name].label for name in SHOWN_OF_REGRESSION}


def _published_and_clusters(split: ComparedPartition, found: Sequence[Summary]) -> Columns:
    """Published figures, and what is known about the clusters."""
    columns: Columns = {}
    if split.published:
        columns["published (ours)"] = _published
    keys: set[str] = set()
    for one in found:
        keys.update(one.figures)
    if "ari" in keys:
        columns["ARI"] = _spread("ari", 2)
    columns["groups"] = _clusters
    return columns


def _traffic(split: ComparedPartition, found: Sequence[Summary], measure: Measure) -> Columns:
    """Rounds and traffic to the target, and the whole traffic."""
    columns: Columns = {}
    if split.target is not None:
        target = measure.target_text(split.target)
        header = f"rounds to {target}"
        if measure != ACCURACY:
            header = f"rounds to {measure.label} {target}"
        columns[header] = _rounds_to_target
        columns["Mbit to it"] = _mean("mbit_to_target", 2)
        if _has(found, "mb_wire_to_target"):
            columns["wire MB to it"] = _mean("mb_wire_to_target", 1)
    columns["Mbit per agent"] = _mean("mbit_per_agent", 2)
    if _has(found, "mb_wire"):
        columns["MB on the wire"] = _mean("mb_wire", 1)
    return columns


def _has(found: Sequence[Summary], figure: str) -> bool:
    """Whether any summary has this figure."""
    return any(figure in one.figures for one in found)


def _is_as_served(found: Sequence[Summary], key: str) -> bool:
    """Whether all agents use what they are served: the two columns are one."""
    served = key.replace("delivered", "server", 1)
    return all(one.figures.get(key) in (None, one.figures.get(served)) for one in found)


# -- columns -------------------------------------------------------------------------------------------------------


def _figure(key: str, measure: Measure) -> Column:
    """Mean and deviation of a figure of this measure: percentages have two digits, others four."""
    return _spread(key, 2 if measure.scale == PERCENT else 4, measure.scale)


def _spread(key: str, digits: int, scale: float = 1.0) -> Column:
    """Mean and deviation of a figure; of one seed the figure alone."""

    def words(one: Summary) -> str:
        spread = one.figures.get(key)
        if spread is None:
            return NONE
        mean = _rounded(scale * spread.mean, digits)
        if spread.n == 1:
            return mean
        return f"{mean}±{_rounded(scale * spread.std, digits)}"

    return words


def _mean(key: str, digits: int) -> Column:
    """The mean of a figure, with a remark if not every seed has it."""

    def words(one: Summary) -> str:
        spread = one.figures.get(key)
        if spread is None:
            return NONE
        mean = _rounded(spread.mean, digits)
        seeds = len(one.seeds)
        if spread.n < seeds:
            return f"{mean} ({spread.n} of {seeds})"
        return mean

    return words


def _method(one: Summary) -> str:
    return one.method


def _seeds(one: Summary) -> str:
    """How many seeds the figures are the mean of."""
    return str(len(one.seeds))


def _clusters(one: Summary) -> str:
    return _per_seed(one.clusters)


def _rounds_to_target(one: Summary) -> str:
    """The rounds until each seed reached the target."""
    return _per_seed(one.reached or [])


def _published(one: Summary) -> str:
    """The published figure, and ours in the metric that it is compared with."""
    if one.published is None:
        return NONE
    ours = NONE
    figure = one.figures.get("figure")
    measure = MEASURES[one.measure]
    if figure is not None:
        name = one.metric if one.metric == "global" else TITLES[METRICS[one.metric][0]]
        ours = f"{name} {measure.text(figure.mean)}"
    return f"{measure.text(one.published / measure.scale)} ({ours})"


def _rounded(value: float, digits: int) -> str:
    return f"{value:.{digits}f}"


def _per_seed(values: Sequence[Any]) -> str:
    """One value if all seeds have the same, else each seed's."""
    words = []
    for value in values:
        text = str(value)
        if value is None:
            text = NONE
        words.append(text)
    if len(set(words)) == 1:
        return words[0]
    return ", ".join(words)
