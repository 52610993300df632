"""The results of finished runs in words: one table, and sentences below it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from covey.coordinator.compare.tables import TextTable
from covey.coordinator.report.privacy import epsilons
from covey.coordinator.run.modes import MODE_TITLES

Result = Mapping[str, Any]  # as result.json has it
Figures = Mapping[str, Any]  # the averages of one mode: "agents", and "accuracy" or "mse"

NONE = "–"
MAX_NAMES = 20  # agents that a sentence lists
UNITS = {"accuracy": "accuracy in %", "mse": "mean squared error"}
NO_FIGURES: Figures = {}


def labels(folders: Sequence[Path], found: Sequence[Result]) -> list[str]:
    """A name for each run: its method, or what differs in the paths if two runs have the same method."""
    names = [str(result["method"]) for result in found]
    if len(set(names)) == len(names):
        return names
    paths = [folder.resolve().parts for folder in folders]
    shortest = min(len(path) for path in paths)
    common = shortest - 1  # leading parts that all paths share, at most all but the last
    for place in range(shortest):
        parts = {path[place] for path in paths}
        if len(parts) > 1:
            common = place
            break
    return ["/".join(path[common:]) for path in paths]


def results(found: Sequence[Result], runs: Sequence[str] = ()) -> TextTable:
    """A line for each result: accuracy (in percent) or error by mode, clusters, rounds, bytes on the wire.

    `runs` are names for the results, as `labels` makes them; they are shown if they are not the methods.
    """
    columns = _columns(found)
    headers = list(columns)
    lines = []
    for result in found:
        line = [words(result) for words in columns.values()]
        lines.append(line)
    methods = [result["method"] for result in found]
    if runs and list(runs) != methods:
        headers = ["run", *headers]
        lines = [[name, *line] for name, line in zip(runs, lines, strict=True)]
    return TextTable(_title(found), headers, lines)


def _columns(found: Sequence[Result]) -> dict[str, Callable[[Result], str]]:
    """The words of a result in each column, by header."""
    columns: dict[str, Callable[[Result], str]] = {"method": lambda result: str(result["method"])}
    for mode in _modes(found):
        columns[MODE_TITLES[mode]] = _figure_in(mode)
    columns["clusters"] = lambda result: str(result["clusters"] or NONE)
    columns["ARI"] = _ari
    columns["rounds"] = lambda result: str(result["rounds"])
    if any(result.get("privacy") for result in found):
        columns["privacy"] = lambda result: epsilons(result.get("privacy")) or NONE
    columns["MB down / up"] = _wire
    columns["s"] = lambda result: f"{result['seconds']:.1f}"
    return columns


def _modes(found: Iterable[Result]) -> list[str]:
    """The modes in which any result has agents."""
    there = set()
    for result in found:
        for mode in MODE_TITLES:
            if _figures(result, mode).get("agents"):
                there.add(mode)
    return [mode for mode in MODE_TITLES if mode in there]


def _figures(result: Result, mode: str) -> Figures:
    figures: Figures = result["accuracy"].get(mode, NO_FIGURES)
    return figures


def _figure_in(mode: str) -> Callable[[Result], str]:
    return lambda result: _figure(_figures(result, mode))


def _figure(figures: Figures) -> str:
    """The micro and the macro average of one mode."""
    if "accuracy" in figures:
        accuracy = figures["accuracy"]
        micro = 100 * accuracy["micro"]
        macro = 100 * accuracy["macro"]
        return f"{micro:.2f} / {macro:.2f}"
    if "mse" in figures:
        mse = figures["mse"]
        return f"mse {mse['micro']:.4g} / {mse['macro']:.4g}"
    return NONE


def _ari(result: Result) -> str:
    ari = result["ari"]
    return NONE if ari is None else f"{ari:.2f}"


def _wire(result: Result) -> str:
    """Megabytes down and up; a run without a broker has none."""
    traffic = result["bytes"]
    if not traffic["wire_up"]:
        return NONE
    down = traffic["wire_down"] / 1e6
    up = traffic["wire_up"] / 1e6
    return f"{down:.2f} / {up:.2f}"


def _title(found: Sequence[Result]) -> str:
    """What all results have in common (the scenario's name, the number of agents), and what the figures are."""
    common: list[str] = []
    names = {str(result["name"]) for result in found}
    if len(names) == 1:
        common += names
    agents = {result["agents"] for result in found}
    if len(agents) == 1:
        common += [f"{count} agents" for count in agents]
    kinds: set[str] = set()
    modes = _modes(found)
    for result in found:
        for mode in modes:
            kinds |= _figures(result, mode).keys()
    title = [", ".join(common)] if common else []
    units = [unit for kind, unit in UNITS.items() if kind in kinds]
    if units:
        title.append(f"{' or '.join(units)}, micro / macro")
    return "; ".join(title)


def participation(result: Result) -> str:
    """E-last of the agents that a training round drew, and of the others by name; empty if all were drawn."""
    undrawn = result["never_trained"]
    if not undrawn:
        return ""
    names = ", ".join(undrawn[:MAX_NAMES])
    if len(undrawn) > MAX_NAMES:
        names += f" and {len(undrawn) - MAX_NAMES} more"
    drawn = _figure(_figures(result, "last_of_participants"))
    others = _figure(_figures(result, "last_of_undrawn"))
    count = len(result["took_part"])
    return (
        f"E-last over the {count} agents that took part: {drawn}\n"
        f"{len(undrawn)} of {result['agents']} agents were drawn for no round: E-last {others} "
        f"(the model of a phase before the rounds, else E-server): {names}"
    )


def newcomers(result: Result) -> str:
    """The figures of agents that joined after the last round; empty if there are none."""
    late = result.get("newcomers")
    if late is None:
        return ""
    figures = []
    for mode, title in MODE_TITLES.items():
        if mode in late["accuracy"]:
            figures.append(f"{title} {_figure(late['accuracy'][mode])}")
    count = len(late["agents"])
    return f"{count} newcomers after the last round: {', '.join(figures)}"
