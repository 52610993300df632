"""The tables of a comparison, in words: for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from covey.coordinator.compare.grid import METRICS, TUNING, Row, section, splits
from covey.coordinator.run import mixtures
from covey.shared.scenario.compare import Compare, Metric, Split
from covey.shared.scenario.scenario import Scenario

Columns = dict[str, Callable[[Row], str]]

NONE = "–"
TITLES = {
    "last": "E-last",
    "server": "E-server",
    "tuned": "E-tuned",
    "newcomers_server": "newcomers, as served",
    "newcomers_tuned": "newcomers, tuned",
}
SHORT = {"Acc": "accuracy", "F1": "f1"}


@dataclass(frozen=True)
class Table:
    """Words in columns."""

    title: str
    headers: list[str]
    lines: list[list[str]]

    def markdown(self) -> str:
        rule = [":--", *["--:"] * (len(self.headers) - 1)]
        rows = "\n".join(f"| {' | '.join(words)} |" for words in (self.headers, rule, *self.lines))
        return f"**{self.title}**\n\n{rows}\n"


def tables(scenario: Scenario, found: Sequence[Row], average: str = "macro") -> list[Table]:
    """One per partition with methods side by side; `average` of accuracies: macro (mean over agents), micro (by samples)."""
    there = [
        (split, [one for one in found if one["partition"] == split.label])
        for split in splits(scenario)
    ]
    return [_table(scenario, split, mine, average) for split, mine in there if mine]


def markdown(scenario: Scenario, found: Sequence[Row]) -> str:
    """Every partition's table, one with each average where the layout shows one at a time."""
    averages = ("macro", "micro") if section(scenario).layout == "modes" else ("macro",)
    return "\n".join(
        one.markdown() for average in averages for one in tables(scenario, found, average)
    )


def _table(scenario: Scenario, split: Split, found: Sequence[Row], average: str) -> Table:
    compare = section(scenario)
    title, columns = (
        _both_averages(compare.metric) if compare.layout == "averages" else _modes(found, average)
    )
    before: Columns = {
        "method": lambda one: str(one["method"]),
        "seeds": lambda one: str(len(one["seeds"])),
    }
    shown = before | columns | _tuning(found, _shows_tuned(compare, columns)) | _rest(split, found)
    place = f"{scenario.name}, {split.label}" if split.label else scenario.name
    words = f"{place}: {title}; mean ± population deviation over seeds"
    return Table(words, list(shown), [[column(one) for column in shown.values()] for one in found])


def _modes(found: Sequence[Row], average: str) -> tuple[str, Columns]:
    """A column per mode of evaluation that any row has."""
    accuracies = any(f"{mode}_accuracy_{average}" in one for one in found for mode in TITLES)
    figure, scale, digits = ("accuracy", 100.0, 2) if accuracies else ("mse", 1.0, 4)
    keys = {title: f"{mode}_{figure}_{average}" for mode, title in TITLES.items()}
    there = {title: key for title, key in keys.items() if any(key in one for one in found)}
    unit = "accuracy in %" if accuracies else "mean squared error"
    return f"{unit}, {average} average", {
        title: _spread(key, digits, scale) for title, key in there.items()
    }


def _both_averages(metric: Metric) -> tuple[str, Columns]:
    """FeSEM's four columns, in one mode of evaluation."""
    mode = METRICS[metric][0]
    names = {
        f"{a}-{short}": f"{mode}_{figure}_{a.lower()}"
        for a in ("Micro", "Macro")
        for short, figure in SHORT.items()
    }
    return f"{TITLES[mode]} in %", {title: _spread(key, 2, 100.0) for title, key in names.items()}


def _shows_tuned(compare: Compare, columns: Columns) -> bool:
    tuned = [title for mode, title in TITLES.items() if mode.endswith("tuned")]
    return any(title in columns for title in tuned) or METRICS[compare.metric][0].endswith("tuned")


def _tuning(found: Sequence[Row], shows_tuned: bool) -> Columns:
    """Settings of fine-tuning in which rows differ: E-tuned of such rows does not compare methods alone.

    Rows of one comparison are tuned alike; those of an earlier version were tuned with their method's own training.
    """
    columns: Columns = {}
    for key in TUNING if shows_tuned else ():
        values = {value for one in found for value in one.get(key, []) if value is not None}
        if len(values) > 1:
            columns[f"tuned with {key.removeprefix('tune_')}"] = _each(key)
    return columns


def _rest(split: Split, found: Sequence[Row]) -> Columns:
    """Published figures, clusters, traffic: what the rows have of them."""
    columns: Columns = {}
    if split.published:
        columns["published (ours)"] = _published
    for key, (header, places, factor) in mixtures.columns(found).items():
        columns[header] = _spread(key, places, factor)
    if any("J" in one for one in found):
        columns["J"] = _mean("J", 4)
    if any("ari" in one for one in found):
        columns["ARI"] = _spread("ari", 2)
    columns["clusters"] = lambda one: _listed(one["clusters"])
    if split.target is not None:
        columns[f"rounds to {100 * split.target:g} %"] = lambda one: _listed(one["reached"])
        columns["Mbit to it"] = _mean("mbit_to_target", 2)
        if any("mb_wire_to_target" in one for one in found):
            columns["wire MB to it"] = _mean("mb_wire_to_target", 1)
    columns["Mbit per agent"] = _mean("mbit_per_agent", 2)
    if any("mb_wire" in one for one in found):
        columns["MB on the wire"] = _mean("mb_wire", 1)
    return columns


def _spread(key: str, digits: int, scale: float = 1.0) -> Callable[[Row], str]:
    """Mean and deviation; of one seed the figure alone."""

    def words(one: Row) -> str:
        if key not in one:
            return NONE
        mean = f"{scale * one[key]['mean']:.{digits}f}"
        return mean if one[key]["n"] == 1 else f"{mean}±{scale * one[key]['std']:.{digits}f}"

    return words


def _mean(key: str, digits: int) -> Callable[[Row], str]:
    """With a remark where not every seed has the figure."""

    def words(one: Row) -> str:
        if key not in one:
            return NONE
        few = one[key]["n"] < len(one["seeds"])
        return f"{one[key]['mean']:.{digits}f}" + (
            f" ({one[key]['n']} of {len(one['seeds'])})" if few else ""
        )

    return words


def _each(key: str) -> Callable[[Row], str]:
    """Each seed's value, or the one that all have."""
    return lambda one: _listed(one[key])


def _published(one: Row) -> str:
    """The published figure, and ours in the metric that it is held against."""
    if one["published"] is None:
        return NONE
    ours = f"{one['metric']} {100 * one['figure']['mean']:.2f}" if "figure" in one else NONE
    return f"{one['published']:.2f} ({ours})"


def _listed(values: Sequence[Any]) -> str:
    """One value where all are the same, else each seed's."""
    words = [NONE if value is None else str(value) for value in values]
    return words[0] if len(set(words)) == 1 else ", ".join(words)
