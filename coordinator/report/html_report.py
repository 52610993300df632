"""`coordinator report`: finished runs as one page, complete in itself, with pictures as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from covey.coordinator.report import html_tables
from covey.coordinator.report.curves import Curves
from covey.coordinator.report.explanations import terms
from covey.coordinator.report.figure_pictures import Group, Picture
from covey.coordinator.report.html_page import Fact, Page, Section, Tile, html
from covey.coordinator.report.pictures import pictures
from covey.coordinator.report.run_facts import (
    RunFacts,
    device_words,
    facts_of,
    moment,
    version_words,
)
from covey.coordinator.report.tables import (
    baseline,
    newcomers,
    own_models,
    participation,
    results,
    unevaluated,
)
from covey.coordinator.view.svg import document
from covey.coordinator.view.words import MODE_TITLES, epsilons
from covey.shared.errors import UserError
from covey.shared.files import write_atomically
from covey.shared.numerics.measures import Measure
from covey.shared.sentences import counted

Result = Mapping[str, Any]  # as result.json has it


def page(runs: Sequence[Curves], folders: Sequence[Path]) -> str:
    """The HTML of these runs, which lie in these folders. Raises UserError if files are damaged."""
    found = [run.result for run in runs]
    facts = [facts_of(folder) for folder in folders]
    if len(runs) == 1:
        [run] = runs
        [own] = facts
        return html(_page_of_one(run, own))
    table = results(found, [run.label for run in runs])
    sections = []
    for run, own in zip(runs, facts, strict=True):
        sections.append(_section(run.label, run, own))
    shown = Page(
        title=f"{_common_name(found)}: {len(runs)} runs",
        subtitle=table.title,
        kind="run",
        tiles=(),
        tables=[table],
        remarks=(),
        terms=terms(MODE_TITLES, has_groups=_has_groups(found)),
        pictures=drawn(runs),
        sections=sections,
    )
    return html(shown)


def drawn(runs: Sequence[Curves]) -> list[Picture]:
    """All pictures of these runs, most important first."""
    return pictures([Group(run.label, [run]) for run in runs])


def write_pictures(runs: Sequence[Curves], wanted: Iterable[str]) -> None:
    """Write pictures to files of their own, each given as NAME=FILE.

    Raises UserError if these runs have no picture of that name.
    """
    found = {picture.name: picture for picture in drawn(runs)}
    for text in wanted:
        name, _, file = text.partition("=")
        if not file:
            raise UserError(f"--svg {text}: expected NAME=FILE, such as accuracy=accuracy.svg")
        if name not in found:
            known = ", ".join(found)
            raise UserError(f"--svg {text}: these runs have no picture {name!r}; they have {known}")
        content = document(found[name].drawing)
        write_atomically(Path(file), content.encode())


# -- a page of one run -----------------------------------------------------------------------------


def _page_of_one(run: Curves, facts: RunFacts) -> Page:
    result = run.result
    method = result["method"]
    agents = result["agents"]
    seed = result["seed"]
    ended = moment(facts.ended)
    words = [method, counted(agents, "agent"), f"seed {seed}", ended]
    remarks = [_stop(result), newcomers(result)]
    for sentences in (
        baseline(result),
        own_models(result),
        participation(result),
        unevaluated(result),
    ):
        remarks.extend(sentences.splitlines())
    modes = html_tables.shown_modes(result)
    return Page(
        title=str(result["name"]),
        subtitle=" · ".join(words),
        kind="run",
        tiles=_tiles(result, run.measure),
        tables=[html_tables.figures_by_mode(result)],
        remarks=[remark for remark in remarks if remark],
        terms=terms(modes, has_groups=_has_groups([result])),
        pictures=drawn([run]),
        sections=[_section("", run, facts)],
    )


def _tiles(result: Result, measure: Measure) -> list[Tile]:
    """The figures that matter most: macro averages by mode, clusters, rounds, traffic, time."""
    tiles = []
    shown = html_tables.shown_modes(result)
    for mode, title in MODE_TITLES.items():
        if mode not in shown:
            continue
        figure = result["accuracy"].get(mode, {}).get(measure.name, {}).get("macro")
        if figure is not None:
            label = f"{title}, {measure.title}, mean over agents"
            tiles.append(Tile(measure.text(figure), label))
    clusters = result["clusters"]
    if clusters:
        label = "cluster" if clusters == 1 else "clusters"
        ari = result["ari"]
        if ari is not None:
            label += f"; ARI {ari:.2f} with the planted groups"
        tiles.append(Tile(str(clusters), label))
    tiles.append(Tile(str(result["rounds"]), "rounds"))
    sent = result["bytes"]
    if sent["wire_up"]:
        total = (sent["wire_up"] + sent["wire_down"]) / 1e6
        tiles.append(Tile(f"{total:.2f}", "MB on the wire"))
    seconds = result["seconds"]
    tiles.append(Tile(f"{seconds:.1f}", "seconds"))
    spent = epsilons(result.get("privacy"))
    if spent:
        tiles.append(Tile("ε", spent))
    return tiles


def _stop(result: Result) -> str:
    """Why the run ended before its last round; empty if it did not."""
    reason = result.get("stopped")
    if not reason:
        return ""
    rounds = result["rounds"]
    return f"The run stopped after round {rounds}: {reason}."


def _section(title: str, run: Curves, facts: RunFacts) -> Section:
    """The tables of a run, and where it comes from."""
    classes = html_tables.classes_table(facts, run.result)
    decisions = html_tables.decisions_table(facts.record)
    clusters = html_tables.clusters_table(facts, run.measure)
    sums = html_tables.sums_table(facts.record)
    tables = [table for table in (classes, decisions, clusters, sums) if table is not None]
    tables.append(html_tables.agents_table(facts, run.measure))
    tables.append(html_tables.traffic_table(run.result))
    tables.append(html_tables.incidents_table(facts, run.result))
    return Section(
        title, tables, _origin(run.result, facts), facts.command, facts.remarks, facts.scenario
    )


def _origin(result: Result, facts: RunFacts) -> list[Fact]:
    """When, where and with what a run was made."""
    found = [
        Fact("run", facts.run),
        Fact("method", result["method"]),
        Fact("seed", str(result["seed"])),
        Fact("began", moment(facts.began)),
        Fact("ended", moment(facts.ended)),
        Fact("folder", str(facts.folder)),
        Fact("tested on", facts.tested_on),
        Fact("computed on", device_words(result)),
        Fact("versions", version_words(result)),
    ]
    return [fact for fact in found if fact.value]


def _common_name(found: Sequence[Result]) -> str:
    return ", ".join(list(dict.fromkeys(str(result["name"]) for result in found)))


def _has_groups(found: Sequence[Result]) -> bool:
    """Whether the clusters of any run were compared with planted groups."""
    return any(result["ari"] is not None for result in found)
