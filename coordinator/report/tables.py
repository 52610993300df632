"""The results of finished runs in words: one table, and sentences below it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from covey.coordinator.view.table import NONE, Table, columns_of
from covey.coordinator.view.words import MODE_TITLES, epsilons
from covey.shared.candidate_names import NONE as NO_MODEL
from covey.shared.candidate_names import in_words
from covey.shared.numerics.measures import (
    ACCURACY,
    MEASURES,
    OF_CLASSIFICATION,
    SHOWN_OF_REGRESSION,
    Measure,
    plain,
    shown_measure,
)
from covey.shared.sentences import counted, some

Result = Mapping[str, Any]  # as result.json has it
Figures = Mapping[str, Any]  # the averages of one mode: "agents", and averages by measure
Words = Callable[[Result], str]  # the text of a result in one column

MAX_NAMES = 20  # agents that a sentence lists
LEAST_SHOWN = 0.005  # of the answers
NO_FIGURES: Figures = {}


def labels(folders: Sequence[Path], found: Sequence[Result]) -> list[str]:
    """A name for each run: its method, or what differs in the paths if two runs have the same method."""
    methods = [_method(result) for result in found]
    if len(set(methods)) == len(methods):
        return methods
    paths = [folder.resolve().parts for folder in folders]
    common = _common_parts(paths)
    return ["/".join(path[common:]) for path in paths]


def _common_parts(paths: Sequence[Sequence[str]]) -> int:
    """How many leading parts all paths share; at most all but the last part of the shortest path."""
    shortest = min(len(path) for path in paths)
    for place in range(shortest):
        if len({path[place] for path in paths}) > 1:
            return place
    return shortest - 1


def results(found: Sequence[Result], runs: Sequence[str] = (), *, modes: bool = False) -> Table:
    """A line for each result: accuracy (in percent) or error, clusters, rounds, bytes on the wire.

    Args:
        found: the results.
        runs: names for them, as `labels` makes them; they are shown if they are not the methods.
        modes: all modes of evaluation with both averages, and not only what devices use, as the mean over agents.
    """
    columns = _columns(found, modes)
    headers = list(columns)
    lines = []
    for result in found:
        line = [words(result) for words in columns.values()]
        lines.append(line)
    methods = [result["method"] for result in found]
    names = list(runs)
    if names and names != methods:
        headers.insert(0, "run")
        for name, line in zip(names, lines, strict=True):
            line.insert(0, name)
    return Table(_title(found), columns_of(headers), lines)


# -- columns -------------------------------------------------------------------------------------------------------


def _columns(found: Sequence[Result], modes: bool) -> dict[str, Words]:
    """The columns of these results, by header."""
    columns: dict[str, Words] = {"method": _method}
    is_mixed = len(_units(found)) > 1  # else the title names the measure
    if modes:
        for mode in _modes(found):
            columns[MODE_TITLES[mode]] = _figure_in(mode, with_label=is_mixed)
    elif _modes(found):
        used = "delivered" if any(has_judges(result) for result in found) else "server"
        columns[MODE_TITLES[used]] = _figure_in_use(with_label=is_mixed)
    if any(_is_incomplete(result) for result in found):
        columns["evaluated"] = _evaluated
    columns["groups"] = _clusters
    columns["ARI"] = _ari
    columns["rounds"] = _rounds
    if any(result.get("privacy") for result in found):
        columns["privacy"] = _privacy
    columns["MB down / up"] = _wire
    columns["s"] = _seconds
    return columns


def _modes(found: Iterable[Result]) -> list[str]:
    """The modes in which any result has agents, in the order of all tables."""
    present = set()
    for result in found:
        for mode in MODE_TITLES:
            figures = _figures(result, mode)
            if mode == "delivered" and not has_judges(result):
                continue  # agents use what they are served
            if figures.get("agents") or figures.get("diverged"):
                present.add(mode)
    return [mode for mode in MODE_TITLES if mode in present]


def has_judges(result: Mapping[str, Any]) -> bool:
    """Whether agents have decided what they answer with; of single agents nothing may be known."""
    return bool(result.get("uses") or result.get("fleet"))


def _figures(result: Result, mode: str) -> Figures:
    figures: Figures = result["accuracy"].get(mode, NO_FIGURES)
    return figures


def mode_in_use(result: Result) -> str:
    """The mode of what devices use."""
    return "delivered" if has_judges(result) else "server"


def _figure_in_use(*, with_label: bool) -> Words:
    """The mean over agents of what devices use."""

    def words(result: Result) -> str:
        figures, wanted = _figures(result, mode_in_use(result)), result.get("measure")
        return _figure(figures, wanted, with_label=with_label)

    return words


def _figure_in(mode: str, *, with_label: bool) -> Words:
    """The column of one mode of evaluation."""

    def words(result: Result) -> str:
        return _figure(_figures(result, mode), result.get("measure"), with_label=with_label)

    return words


def _figure(figures: Figures, wanted: str | None = None, *, with_label: bool = True) -> str:
    """The mean over agents of one mode, and how many agents are in none.

    `with_label`: name the measure, unless it is the accuracy.
    """
    words = NONE
    measure = shown_measure(figures, wanted)
    if measure is not None:
        words = _mean(measure, figures[measure.name])
        if with_label and measure != ACCURACY:
            words = f"{measure.label} {words}"
    diverged = figures.get("diverged", ())
    if diverged:
        words = f"{words} ({len(diverged)} diverged)"
    return words


def _mean(measure: Measure, found: Mapping[str, float]) -> str:
    """The mean over agents; R2 has none if all test targets are equal."""
    figure = found.get("macro")
    return NONE if figure is None else measure.text(figure)


def _method(result: Result) -> str:
    return str(result["method"])


def _is_incomplete(result: Result) -> bool:
    """Whether figures of some agents are missing, or of an earlier round."""
    return any(result.get(key) for key in ("unevaluated", "kept_back", "stale"))


def _evaluated(result: Result) -> str:
    """How many agents were evaluated at the end, and how many of the figures are of an earlier round."""
    agents = result["agents"]
    unevaluated_agents = result.get("unevaluated", ())
    stale_agents = result.get("stale", ())
    missing = len(unevaluated_agents) + len(result.get("kept_back", ()))
    stale = len(stale_agents)
    at_the_end = agents - missing - stale
    words = f"{at_the_end} of {agents}"
    if stale:
        words += f", {stale} earlier"
    return words


def _clusters(result: Result) -> str:
    """The number of clusters; a method without clusters has none."""
    clusters = result["clusters"]
    if not clusters:
        return NONE
    return str(clusters)


def _ari(result: Result) -> str:
    """The adjusted Rand index; a run without planted groups has none."""
    ari = result["ari"]
    if ari is None:
        return NONE
    return f"{ari:.2f}"


def _rounds(result: Result) -> str:
    return str(result["rounds"])


def _privacy(result: Result) -> str:
    return epsilons(result.get("privacy")) or NONE


def _seconds(result: Result) -> str:
    seconds = result["seconds"]
    return f"{seconds:.1f}"


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
        common.append(counted(agents.pop(), "agent"))
    title = []
    if common:
        title.append(", ".join(common))
    units = _units(found)
    if units:
        either = " or ".join(units)
        title.append(f"{either}, mean over agents")
    return "; ".join(title)


def _units(found: Sequence[Result]) -> list[str]:
    """The titles of all measures that the table shows."""
    shown: set[str] = set()
    modes = _modes(found)
    for result in found:
        for mode in modes:
            measure = shown_measure(_figures(result, mode), result.get("measure"))
            if measure is not None:
                shown.add(measure.name)
    return [measure.title for name, measure in MEASURES.items() if name in shown]


# -- sentences below the table -------------------------------------------------------------------------------------


def regression(result: Result, *, modes: bool = False) -> str:
    """RMSE, MAE and R2 of a regression, of what devices use or in all modes; empty for a classification."""
    sentences = []
    for mode in _modes([result]) if modes else [mode_in_use(result)]:
        figures = _figures(result, mode)
        words = []
        for name in SHOWN_OF_REGRESSION:
            if name in figures:
                measure = MEASURES[name]
                words.append(f"{measure.label} {_mean(measure, figures[name])}")
        if figures.get("maes"):
            steps = ", ".join(plain(mae) for mae in figures["maes"])
            words.append(f"MAE by step {steps}")
        if words:
            listed = ", ".join(words)
            sentences.append(f"{MODE_TITLES[mode]}: {listed}")
    return "\n".join(sentences)


def unevaluated(result: Result) -> str:
    """Why the figures are not those of all agents at the end of the run; empty if they are."""
    sentences = []
    agents = result["agents"]
    late = result.get("unevaluated", ())
    if late:
        were = "was" if len(late) == 1 else "were"
        sentences.append(
            f"{len(late)} of {agents} agents {were} never evaluated: {some(late, MAX_NAMES)}"
        )
    kept = result.get("kept_back", ())
    if kept:
        keep = "keeps its" if len(kept) == 1 else "keep their"
        sentences.append(
            f"{len(kept)} of {agents} agents {keep} figures: the owners of these devices demand sums or noise, or under "
            f"privacy.local the method measures models that trained without noise: {some(kept, MAX_NAMES)}"
        )
    left_out = result.get("left_out", ())
    if left_out:
        titles = ", ".join(MODE_TITLES.get(mode, mode) for mode in left_out)
        sentences.append(
            f"not under privacy.local, as they read training samples without noise: {titles}"
        )
    stale = result.get("stale", {})
    if stale:
        dated = [f"{agent} (round {round_})" for agent, round_ in stale.items()]
        sentences.append(
            f"{len(stale)} of {agents} agents did not report the last evaluation; their figures are of an "
            f"earlier one: {some(dated, MAX_NAMES)}"
        )
    for mode in _modes_with_divergence(result):
        diverged = _figures(result, mode)["diverged"]
        if len(diverged) == 1:
            whose = "one agent"
            excluded = "it is"
        else:
            whose = f"{len(diverged)} agents"
            excluded = "they are"
        sentences.append(
            f"{MODE_TITLES[mode]}: the model of {whose} diverged (its outputs are not finite); "
            f"{excluded} in no average: {some(diverged, MAX_NAMES)}"
        )
    for agent, failure in result.get("failures", {}).items():
        count = failure["times"]
        times = f"{count} times"
        if count == 1:
            times = "once"
        last = failure["round"]
        why = failure["why"].removeprefix(f"{agent}: ")
        sentences.append(f"{agent} could not do its work {times}, last in round {last}: {why}")
    return "\n".join(sentences)


def baseline(result: Result) -> str:
    """Whether the served models are better than one constant answer for each agent; empty if they are."""
    served, constant = _figures(result, "server"), _figures(result, "baseline")
    measure = shown_measure(served, result.get("measure"))
    if measure is None or not constant.get("agents"):
        return ""
    mine, other = served[measure.name]["macro"], constant[measure.name]["macro"]
    if measure.is_better(mine, other):
        return ""
    answer = "most frequent class" if measure.name in OF_CLASSIFICATION else "mean target"
    return (
        f"what is served is not better than no model: the {answer} of each agent's training data as the only answer has "
        f"{measure.label} {measure.text(other)}"
    )


def used(result: Result) -> str:
    """What the agents use after the run, on average, and those that use no model; empty where all use the served one."""
    uses: Mapping[str, Mapping[str, float]] = result.get("uses") or {}
    if not uses and (fleet := result.get("fleet")):  # of secure sums
        return (
            f"the agents weigh what they can have, on average: {in_words(_shown(fleet['weights']))}"
        )
    if not uses:
        return ""
    shares: dict[str, float] = {}
    for weights in uses.values():
        for name, weight in weights.items():
            shares[name] = shares.get(name, 0.0) + weight / len(uses)
    sentence = f"the agents use, on average: {in_words(_shown(shares))}"
    without = sorted(agent for agent, weights in uses.items() if set(weights) == {NO_MODEL})
    if without:
        what = f"{len(without)} of {len(uses)} agents use no model"
        sentence += f"; {what}, because none is better than the constant there: {some(without)}"
    return sentence


def _shown(weights: Mapping[str, float]) -> dict[str, float]:
    return {name: weight for name, weight in weights.items() if weight >= LEAST_SHOWN}


def _modes_with_divergence(result: Result) -> list[str]:
    return [mode for mode in MODE_TITLES if _figures(result, mode).get("diverged")]


def none_evaluated(result: Result) -> str:
    """The sentence about a run that came to nothing, or has not a single figure; empty if any agent was evaluated."""
    if result.get("failure"):
        return str(result["failure"])
    if _figures(result, "server").get("agents"):
        return ""
    return (
        "no agent was evaluated: this run has no figures. An agent is evaluated if it has test data, is present at the "
        "end, and its model's outputs are finite. See the remarks above, and `coordinator lab story AGENT RUN` for one agent"
    )


def participation(result: Result) -> str:
    """Own last models of the agents that a training round drew, and of the others by name; empty if all were drawn."""
    undrawn = result["never_trained"]
    if not undrawn:
        return ""
    count = len(undrawn)
    names = some(undrawn, MAX_NAMES)
    of_participants = _figures(result, "last_of_participants")
    of_undrawn = _figures(result, "last_of_undrawn")
    drawn = _figure(of_participants)
    others = _figure(of_undrawn)
    participants = len(result["took_part"])
    agents = result["agents"]
    were = "was" if count == 1 else "were"
    return (
        f"own last, over the {participants} agents that took part: {drawn}\n"
        f"{count} of {agents} agents {were} drawn for no round: own last {others} "
        f"(the model of a phase before the rounds, else the served one): {names}"
    )


def newcomers(result: Result) -> str:
    """The figures of agents that joined after the last round; empty if there are none."""
    late = result.get("newcomers")
    if late is None:
        return ""
    by_mode = late["accuracy"]
    count = len(late["agents"])
    listed = ", ".join(
        f"{title} {_figure(by_mode[mode])}"
        for mode, title in MODE_TITLES.items()
        if mode in by_mode
    )
    noun = "newcomer" if count == 1 else "newcomers"
    return f"{count} {noun} after the last round: {listed}"
