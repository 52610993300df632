"""The tables of a comparison, in words: for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from covey.coordinator.compare.grid import section, splits
from covey.coordinator.compare.metrics import METRICS, TITLES
from covey.coordinator.compare.mixture_columns import mixture_columns
from covey.coordinator.compare.rows import TUNING
from covey.coordinator.compare.summaries import Summary
from covey.shared.scenario.compare import Compare, Metric, Split
from covey.shared.scenario.scenario import Scenario

Column = Callable[[Summary], str]  # the words of a summary in one column
Columns = dict[str, Column]  # by header, in order

NONE = "–"
TUNED = ("tuned", "newcomers_tuned")  # modes after fine-tuning


@dataclass(frozen=True)
class TextTable:
    """Words in columns."""

    title: str
    headers: list[str]
    lines: list[list[str]]  # the words of each line, one for each header

    def markdown(self) -> str:
        """The table in Markdown: the first column to the left, the others to the right."""
        rule = ["--:"] * len(self.headers)
        rule[0] = ":--"
        rows = [f"**{self.title}**", ""]
        for words in (self.headers, rule, *self.lines):
            joined = " | ".join(words)
            rows.append(f"| {joined} |")
        rows.append("")
        return "\n".join(rows)


def tables(scenario: Scenario, found: Sequence[Summary], average: str = "macro") -> list[TextTable]:
    """A table of the methods for each partition that has results.

    Args:
        scenario: the comparison
        found: its summaries
        average: of accuracies, "macro" (mean over agents) or "micro" (by samples)
    """
    made = []
    for split in splits(scenario):
        own = [one for one in found if one.partition == split.label]
        if own:
            table = _table(scenario, split, own, average)
            made.append(table)
    return made


def markdown(scenario: Scenario, found: Sequence[Summary]) -> str:
    """The tables of all partitions, once with each average if the layout shows one average at a time."""
    averages = ["macro"]
    compare = section(scenario)
    if compare.layout == "modes":
        averages.append("micro")
    texts = []
    for average in averages:
        for table in tables(scenario, found, average):
            text = table.markdown()
            texts.append(text)
    return "\n".join(texts)


def _table(scenario: Scenario, split: Split, found: Sequence[Summary], average: str) -> TextTable:
    compare = section(scenario)
    if compare.layout == "averages":
        title, figures = _both_averages(compare.metric)
    else:
        title, figures = _modes(found, average)
    columns: Columns = {}
    columns["method"] = _method
    columns["seeds"] = _seeds
    columns |= figures
    if _shows_tuned(compare, figures):
        columns |= _tuning(found)
    columns |= _published_and_clusters(split, found)
    columns |= _traffic(split, found)
    name = scenario.name
    if split.label:
        name = f"{name}, {split.label}"
    heading = f"{name}: {title}; mean ± population deviation over seeds"
    lines = []
    for one in found:
        line = [column(one) for column in columns.values()]
        lines.append(line)
    headers = list(columns)
    return TextTable(heading, headers, lines)


# -- groups of columns ---------------------------------------------------------------------------------------------


def _modes(found: Sequence[Summary], average: str) -> tuple[str, Columns]:
    """What the figures are, and a column for each mode of evaluation that any summary has."""
    columns: Columns = {}
    for mode, header in TITLES.items():
        key = f"{mode}_accuracy_{average}"
        if _has(found, key):
            columns[header] = _percent(key)
    if columns:
        title = f"accuracy in %, {average} average"
        return title, columns
    for mode, header in TITLES.items():
        key = f"{mode}_mse_{average}"
        if _has(found, key):
            columns[header] = _spread(key, 4)
    title = f"mean squared error, {average} average"
    return title, columns


def _both_averages(metric: Metric) -> tuple[str, Columns]:
    """The four columns of FeSEM's tables, in one mode of evaluation."""
    mode, _ = METRICS[metric]
    columns = {
        "Micro-Acc": _percent(f"{mode}_accuracy_micro"),
        "Micro-F1": _percent(f"{mode}_f1_micro"),
        "Macro-Acc": _percent(f"{mode}_accuracy_macro"),
        "Macro-F1": _percent(f"{mode}_f1_macro"),
    }
    title = TITLES[mode]
    return f"{title} in %", columns


def _shows_tuned(compare: Compare, columns: Columns) -> bool:
    """Does any of these columns depend on fine-tuning?"""
    mode, _ = METRICS[compare.metric]
    if mode in TUNED:
        return True
    for tuned in TUNED:
        header = TITLES[tuned]
        if header in columns:
            return True
    return False


def _tuning(found: Sequence[Summary]) -> Columns:
    """The settings of fine-tuning in which summaries differ: there E-tuned does not compare methods alone.

    Cells of one comparison are tuned alike; an earlier version tuned with each method's own training.
    """
    columns: Columns = {}
    for key in TUNING:
        values: set[Any] = set()
        for one in found:
            values.update(one.tuning[key])
        values.discard(None)
        if len(values) > 1:
            setting = key.removeprefix("tune_")
            header = f"tuned with {setting}"
            columns[header] = _setting(key)
    return columns


def _published_and_clusters(split: Split, found: Sequence[Summary]) -> Columns:
    """Published figures, and what is known about the clusters."""
    columns: Columns = {}
    if split.published:
        columns["published (ours)"] = _published
    keys: set[str] = set()
    for one in found:
        keys.update(one.figures)
    for mixture in mixture_columns(keys):
        columns[mixture.header] = _spread(mixture.key, mixture.digits, mixture.scale)
    if "J" in keys:
        columns["J"] = _mean("J", 4)
    if "ari" in keys:
        columns["ARI"] = _spread("ari", 2)
    columns["clusters"] = _clusters
    return columns


def _traffic(split: Split, found: Sequence[Summary]) -> Columns:
    """Rounds and traffic to the target, and the whole traffic."""
    columns: Columns = {}
    if split.target is not None:
        percent = 100 * split.target
        header = f"rounds to {percent:g} %"
        columns[header] = _rounds_to_target
        columns["Mbit to it"] = _mean("mbit_to_target", 2)
        if _has(found, "mb_wire_to_target"):
            columns["wire MB to it"] = _mean("mb_wire_to_target", 1)
    columns["Mbit per agent"] = _mean("mbit_per_agent", 2)
    if _has(found, "mb_wire"):
        columns["MB on the wire"] = _mean("mb_wire", 1)
    return columns


def _has(found: Sequence[Summary], figure: str) -> bool:
    """Does any summary have this figure?"""
    return any(figure in one.figures for one in found)


# -- columns -------------------------------------------------------------------------------------------------------


def _percent(key: str) -> Column:
    """Mean and deviation of a share, in percent."""
    return _spread(key, 2, 100.0)


def _spread(key: str, digits: int, scale: float = 1.0) -> Column:
    """Mean and deviation of a figure; of one seed the figure alone."""

    def words(one: Summary) -> str:
        spread = one.figures.get(key)
        if spread is None:
            return NONE
        mean = _rounded(scale * spread.mean, digits)
        if spread.n == 1:
            return mean
        deviation = _rounded(scale * spread.std, digits)
        return f"{mean}±{deviation}"

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


def _setting(key: str) -> Column:
    """A setting of fine-tuning."""

    def words(one: Summary) -> str:
        values = one.tuning[key]
        return _per_seed(values)

    return words


def _method(one: Summary) -> str:
    return one.method


def _seeds(one: Summary) -> str:
    """How many seeds the figures are the mean of."""
    count = len(one.seeds)
    return str(count)


def _clusters(one: Summary) -> str:
    return _per_seed(one.clusters)


def _rounds_to_target(one: Summary) -> str:
    """The rounds until each seed reached the target."""
    rounds = one.reached or []
    return _per_seed(rounds)


def _published(one: Summary) -> str:
    """The published figure, and ours in the metric that it is compared with."""
    if one.published is None:
        return NONE
    ours = NONE
    figure = one.figures.get("figure")
    if figure is not None:
        percent = 100 * figure.mean
        ours = f"{one.metric} {percent:.2f}"
    return f"{one.published:.2f} ({ours})"


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
    different = set(words)
    if len(different) == 1:
        return words[0]
    return ", ".join(words)
