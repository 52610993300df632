"""`coordinator report`: finished runs as one page, complete in itself, with pictures as SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from covey.coordinator.odd import read_odd
from covey.coordinator.report.tables import (
    baseline,
    has_judges,
    newcomers,
    none_evaluated,
    participation,
    results,
    unevaluated,
    used,
)
from covey.coordinator.view.lines import SumLine, phase_line
from covey.coordinator.view.table import NONE, Column, Table, columns_of, numbers
from covey.coordinator.view.words import MODE_TITLES, epsilons
from covey.extras.dashboard.curves import Curves
from covey.extras.dashboard.figure_pictures import Picture, RunGroup
from covey.extras.dashboard.html_page import (
    MODES,
    MODES_OF_AGENTS,
    Fact,
    Page,
    PageSection,
    Tile,
    html,
    pictures,
    terms,
)
from covey.extras.dashboard.run_facts import RunFacts, device_words, facts_of, moment, version_words
from covey.extras.dashboard.side_by_side import differences, gains_of, sentence_of, who_loses
from covey.extras.dashboard.svg import document
from covey.shared.errors import UserError
from covey.shared.numerics.measures import MEASURES, Measure, measured
from covey.shared.sentences import counted
from covey.shared.storage.files import write_atomically

MAX_DETAILS = 200  # characters of a reason that somebody else wrote
Row = Mapping[str, Any]  # of one agent, as agents.parquet has it


# -- figures ---------------------------------------------------------------------------------------


def shown_modes(result: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The averages of each mode of evaluation that has agents of its own, in the order of tables."""
    averages = dict(result["accuracy"])
    for mode, figures in (result.get("newcomers") or {}).get("accuracy", {}).items():
        averages[f"newcomers_{mode}"] = figures
    if not result["never_trained"]:
        averages.pop("last_of_participants", None)  # it is that of all
    if not has_judges(result):
        averages.pop("delivered", None)  # it is that of the served ones
        averages.pop("newcomers_delivered", None)
    shown = {}
    for mode in MODES:
        figures = averages.get(mode, {})
        if figures.get("agents"):
            shown[mode] = figures
    return shown


def figures_by_mode(result: Mapping[str, Any]) -> Table:
    """A line for each mode of evaluation, with the mean over agents of each measure."""
    shown = shown_modes(result)
    measures = _measures_in(shown.values())
    titles = ["agents"]
    titles += [measure.title for measure in measures]
    rows = []
    for mode, figures in shown.items():
        row = [MODES[mode].title, str(figures["agents"])]
        for measure in measures:
            row.append(_text(measure, figures.get(measure.name, {}).get("macro")))
        rows.append(row)
    return Table("Results, mean over agents", columns_of(["model", *titles]), rows)


def _measures_in(modes: Iterable[Mapping[str, Any]]) -> list[Measure]:
    """The measures that any of these modes has, in the order of all tables."""
    present: set[str] = set()
    for figures in modes:
        present.update(figures)
    return [measure for name, measure in MEASURES.items() if name in present]


def _text(measure: Measure, figure: float | None) -> str:
    if figure is None:
        return NONE
    return measure.text(figure)


# -- agents and clusters ---------------------------------------------------------------------------


def agents_table(facts: RunFacts, measure: Measure) -> Table:
    """A line for each agent: its cluster, data, figures in each mode, part in the run, and trouble."""
    columns = _columns_of_agents(facts, measure)
    lines = []
    for row in facts.agents:
        lines.append([words(row) for words in columns.values()])
    return Table("Agents", list(columns), lines, is_long=True).without_empty_columns()


def _columns_of_agents(facts: RunFacts, measure: Measure) -> dict[Column, Callable[[Row], str]]:
    """The columns, with what an agent has in each of them."""

    def reports(row: Row) -> str:
        agent = row["agent"]
        return f"{facts.reported[agent]} of {facts.invited[agent]}"

    def trouble(row: Row) -> str:
        return facts.trouble.get(row["agent"], "")

    columns: dict[Column, Callable[[Row], str]] = {}
    columns[Column("agent")] = _words_of("agent")
    columns[Column("group", is_number=True)] = _words_of("cluster")
    planted = Column(
        "planted", is_number=True, hint="the group that a simulated fleet was made with"
    )
    columns[planted] = _words_of("truth")
    columns[Column("training samples", is_number=True)] = _words_of("samples")
    columns[Column("test samples", is_number=True)] = _words_of("test_samples")
    for mode in MODES_OF_AGENTS:
        column = Column(f"{MODES[mode].title}, {measure.title}", is_number=True)
        columns[column] = _figure_of(mode, measure)
    columns[Column("reports", is_number=True, hint="accepted reports of orders received")] = reports
    last_trained = Column("last trained", is_number=True, hint="round, counted from 1")
    columns[last_trained] = _last_trained
    kinds = {row.get("device") for row in facts.agents}
    kinds.discard(None)  # it has not computed anything
    if len(kinds) > 1:
        columns[Column("device")] = _words_of("device")
    columns[Column("trouble")] = trouble
    return columns


def _words_of(key: str) -> Callable[[Row], str]:
    """The value under a key as it is."""

    def words(row: Row) -> str:
        value = row.get(key)
        return NONE if value is None else str(value)

    return words


def _figure_of(mode: str, measure: Measure) -> Callable[[Row], str]:
    """The figure of an agent in one mode."""
    key = f"{mode}_{measure.name}"

    def words(row: Row) -> str:
        return _text(measure, row.get(key))

    return words


def _last_trained(row: Row) -> str:
    """The last round that an agent trained in, counted from 1."""
    last = row.get("last_round")
    return NONE if last is None else str(last + 1)


def clusters_table(facts: RunFacts, measure: Measure) -> Table | None:
    """A line for each cluster: its agents, their data, and their figures as served; None without clusters."""
    by_cluster: dict[int, list[Row]] = {}
    for row in facts.agents:
        cluster = row.get("cluster")
        if cluster is not None:
            by_cluster.setdefault(cluster, []).append(row)
    if not by_cluster:
        return None
    name = f"served, {measure.title}"
    titles = ["group", "agents", "training samples", "test samples"]
    titles += [f"{name}: mean", "lowest agent", "highest agent"]
    rows = []
    for cluster in sorted(by_cluster):
        rows.append(_line_of_cluster(cluster, by_cluster[cluster], measure))
    return Table("Groups", numbers(titles), rows)


def _line_of_cluster(cluster: int, agents: Sequence[Row], measure: Measure) -> list[str]:
    line = [str(cluster), str(len(agents))]
    for key in ("samples", "test_samples"):
        line.append(str(sum(row.get(key) or 0 for row in agents)))
    figures = []
    for row in agents:
        figure = row.get(f"server_{measure.name}")
        if figure is not None:
            figures.append(figure)
    for average in (fmean, min, max):
        figure = average(figures) if figures else None
        line.append(_text(measure, figure))
    return line


def classes_table(facts: RunFacts, result: Row) -> Table | None:
    """A line for each class; None for a regression, and where agents sent no cards, which have these counts."""
    counts = result["notes"].get("classes")
    if not counts or len(counts) != len(facts.classes):
        return None
    total = sum(samples for samples, _ in counts)
    rows = [
        [name, str(samples), f"{100 * samples / total:.1f} %", str(agents)]
        for name, (samples, agents) in zip(facts.classes, counts, strict=True)
    ]
    columns = [Column("class"), *numbers(["training samples", "share", "agents that have some"])]
    return Table("Classes, as the agents counted them", columns, rows)


def decisions_table(record: Sequence[Row]) -> Table | None:
    """The findings and decisions of the method, each with its first round; None if its record has none."""
    rounds: dict[str, int] = {}
    for row in record:
        if row["event"] == "phase":
            line = phase_line(row)
            for text in line.decisions:
                rounds.setdefault(text, line.round)
    if not rounds:
        return None
    columns = [Column("round", is_number=True), Column("finding or decision")]
    return Table("Decisions", columns, [[str(number), text] for text, number in rounds.items()])


def sums_table(record: Sequence[Row]) -> Table | None:
    """How the secure sums of each round ended, for all groups of one cluster with the same end; None without such sums."""
    found: dict[tuple[str, str, str, str], list[SumLine]] = {}
    for row in record:
        if row["event"] == "phase":
            line = phase_line(row)
            for one in line.sums:
                what = f"{line.round}, evaluation" if line.is_evaluation else str(line.round)
                key = (what, one.cluster, one.end, one.why)
                found.setdefault(key, []).append(one)
    if not found:
        return None
    titles = ("round", "group", "end", "why", "sums", "reported", "missing")
    rows = [
        [
            *key,
            str(len(lines)),
            str(sum(one.reported for one in lines)),
            str(sum(one.missing for one in lines)),
        ]
        for key, lines in found.items()
    ]
    return Table("Secure sums", columns_of(titles), rows, is_long=True)


# -- traffic and trouble ---------------------------------------------------------------------------


def traffic_table(result: Mapping[str, Any]) -> Table:
    """Bytes in both directions, and per round and agent."""
    sent = result["bytes"]
    kinds = {"model values as float32": ("vectors_down", "vectors_up")}
    remarks = ["down: from the coordinator to agents; up: from agents. 1 MB is 1 000 000 bytes."]
    if sent["wire_up"]:
        kinds = {"MQTT packets on the wire": ("wire_down", "wire_up")} | kinds
    else:
        remarks.append("The run had no broker, so nothing was on the wire.")
    rounds = max(result["rounds"], 1)
    agents = max(result["agents"], 1)
    rows = []
    for kind, (down_key, up_key) in kinds.items():
        down = sent[down_key] / 1e6
        up = sent[up_key] / 1e6
        total = down + up
        row = [kind]
        for amount in (down, up, total, total / rounds):
            row.append(f"{amount:.2f}")
        per_agent = total / agents
        row.append(f"{per_agent:.3f}")
        rows.append(row)
    titles = ["MB down", "MB up", "MB in all", "MB per round", "MB per agent"]
    return Table("Traffic", columns_of(["", *titles]), rows, remarks=remarks)


def incidents_table(facts: RunFacts, result: Mapping[str, Any]) -> Table:
    """How often something went wrong, with the newest reason of each kind."""
    rows = []
    absent = facts.invited.total() - facts.reported.total()
    if absent:
        reason = "offline, too slow, or not needed any more once enough had reported"
        rows.append(["orders without an accepted report", str(absent), reason])
    for kind, title in INCIDENTS.items():
        lines = [line for line in facts.record if line["event"] == kind]
        if lines:
            rows.append([title, str(len(lines)), _details(lines[-1])])
    for reason, number in Counter(facts.refusals).most_common():
        rows.append([f"refused messages: {reason}", str(number), ""])
    for agent, failure in result.get("failures", {}).items():
        rows.append([f"work failed on {agent}", str(failure["times"]), _shortened(failure["why"])])
    remarks = []
    if not rows:
        remarks.append("None: every order was answered, and no message was refused.")
    if facts.simulated_faults:
        remarks.append(f"The scenario simulates faults: {facts.simulated_faults}.")
    columns = [Column("kind"), Column("number", is_number=True), Column("newest, or remark")]
    return Table("Faults and refusals", columns, rows, remarks=remarks)


# Kinds of events in the record.
INCIDENTS = {
    "void": "steps that were drawn again",
    "set_aside": "reports set aside",
    "quarantined": "agents put in quarantine",
    "resting": "agents not invited for some rounds",
    "released": "agents released from quarantine",
    "forgotten": "agents removed by the operator",
    "lost lines": "losses of record lines",
}


def _details(line: Mapping[str, Any]) -> str:
    """Whom an event was about, when, and why."""
    words = []
    if "agent" in line:
        words.append(str(line["agent"]))
    if "round" in line:
        number = line["round"] + 1
        words.append(f"round {number}")
    why = _shortened(line.get("why", ""))
    if why:
        words.append(why)
    return ", ".join(words)


def _shortened(reason: object) -> str:
    text = str(reason)
    if len(text) > MAX_DETAILS:
        return text[:MAX_DETAILS] + "…"
    return text


Result = Mapping[str, Any]  # as result.json has it


def page(runs: Sequence[Curves], folders: Sequence[Path]) -> str:
    """The HTML of these runs, which lie in these folders. Raises UserError if files are damaged."""
    found = [run.result for run in runs]
    facts = [facts_of(folder) for folder in folders]
    if len(runs) == 1:
        [run] = runs
        [own] = facts
        return html(_page_of_one(run, own))
    table = results(found, [run.label for run in runs], modes=True)
    sections = [_section(run.label, run, own) for run, own in zip(runs, facts, strict=True)]
    lead, first, more = _of_two(runs, facts)
    shown = Page(
        title=f"{_common_name(found)}: {len(runs)} runs",
        subtitle=table.title,
        kind="run",
        lead=lead,
        tiles=(),
        first=first,
        tables=[table],
        remarks=(),
        terms=terms(MODE_TITLES, has_groups=_has_groups(found)),
        pictures=[*more, *drawn(runs)],
        sections=sections,
    )
    return html(shown)


OTHER_DATA = "The agents of the two runs hold other data, so they are not compared one by one."


def _of_two(
    runs: Sequence[Curves], facts: Sequence[RunFacts]
) -> tuple[list[str], list[Table], list[Picture]]:
    """What a page of exactly two runs begins with: the difference in words, their settings, and who gains or loses."""
    if len(runs) != 2 or runs[0].figure != runs[1].figure:
        return [], [], []
    labels, measure = [run.label for run in runs], runs[1].measure
    tables = [table] if (table := differences(labels, facts)) is not None else []
    if runs[0].result.get("partition") != runs[1].result.get("partition"):
        return [OTHER_DATA], tables, []
    gains = gains_of(facts[0], facts[1], measure)
    if not gains:
        return [], tables, []
    picture = who_loses({labels[1]: gains}, labels[0], {labels[1]: 1}, measure)
    return [sentence_of(labels, gains, measure)], tables, [picture]


def drawn(runs: Sequence[Curves]) -> list[Picture]:
    """All pictures of these runs, most important first."""
    return pictures([RunGroup(run.label, [run]) for run in runs])


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
        write_atomically(Path(file), document(found[name].drawing).encode())


# -- a page of one run -----------------------------------------------------------------------------


def _page_of_one(run: Curves, facts: RunFacts) -> Page:
    result = run.result
    method = result["method"]
    agents = result["agents"]
    seed = result["seed"]
    ended = moment(facts.ended)
    words = [method, counted(agents, "agent"), f"seed {seed}", ended]
    stop = _stop(result)
    remarks = [newcomers(result)]
    for sentences in (used(result), participation(result), unevaluated(result)):
        remarks.extend(sentences.splitlines())
    lead = [headline(result, run.measure), baseline(result), stop]
    modes = shown_modes(result)
    return Page(
        title=str(result["name"]),
        subtitle=" · ".join(words),
        kind="run",
        lead=[sentence for sentence in lead if sentence],
        tiles=_tiles(result, run.measure),
        tables=[figures_by_mode(result)],
        remarks=[remark for remark in remarks if remark],
        terms=terms(modes, has_groups=_has_groups([result])),
        pictures=drawn([run]),
        sections=[_section("", run, facts)],
        odd=read_odd(result.get("odd", ())),
    )


def _deciding(result: Result, measure: Measure) -> tuple[str, float] | None:
    """The mode that devices use and its mean over the agents; None without an evaluated agent."""
    shown = shown_modes(result)
    mode = "delivered" if "delivered" in shown else "server"
    figure = shown.get(mode, {}).get(measure.name, {}).get("macro")
    return None if figure is None else (MODE_TITLES[mode], figure)


def headline(result: Result, measure: Measure) -> str:
    """The run in a sentence: the figure of what devices use, next to no model."""
    found = _deciding(result, measure)
    if found is None:
        return none_evaluated(result)
    title, figure = found
    clusters = f", {counted(result['clusters'], 'group')}" if result["clusters"] else ""
    shown = measured(measure, figure, f"{measure.label} {title}")
    sentence = f"{result['method']}{clusters}: {shown}"
    constant = result["accuracy"].get("baseline", {}).get(measure.name, {}).get("macro")
    if constant is not None:
        sentence += f"; one constant answer on each device has {measured(measure, constant)}"
    return f"{sentence} (mean over {counted(result['agents'], 'agent')})."


def _tiles(result: Result, measure: Measure) -> list[Tile]:
    """The figures that matter most: that of what devices use, clusters, rounds, traffic, time."""
    tiles = []
    if (found := _deciding(result, measure)) is not None:
        title, figure = found
        tiles.append(Tile(measure.text(figure), f"{title}, {measure.title}", decides=True))
    clusters = result["clusters"]
    if clusters:
        label = "group" if clusters == 1 else "groups"
        ari = result["ari"]
        if ari is not None:
            label += f"; ARI {ari:.2f} with the planted groups"
        tiles.append(Tile(str(clusters), label))
    tiles.append(Tile(str(result["rounds"]), "rounds"))
    sent = result["bytes"]
    if sent["wire_up"]:
        total = (sent["wire_up"] + sent["wire_down"]) / 1e6
        tiles.append(Tile(f"{total:.2f}", "MB on the wire"))
    tiles.append(Tile(f"{result['seconds']:.1f}", "seconds"))
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


def _section(title: str, run: Curves, facts: RunFacts) -> PageSection:
    """The tables of a run, and where it comes from."""
    classes = classes_table(facts, run.result)
    decisions = decisions_table(facts.record)
    clusters = clusters_table(facts, run.measure)
    sums = sums_table(facts.record)
    tables = [table for table in (classes, decisions, clusters, sums) if table is not None]
    tables.append(agents_table(facts, run.measure))
    tables.append(traffic_table(run.result))
    tables.append(incidents_table(facts, run.result))
    return PageSection(
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
