"""The tables of a page: figures by mode, clusters, agents one by one, traffic, faults and refusals. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from covey.coordinator.compare.tables import TextTable
from covey.coordinator.report.explanations import MODES, MODES_OF_AGENTS
from covey.coordinator.report.run_facts import RunFacts
from covey.shared.numerics.measures import MEASURES, Measure

NONE = "–"
MAX_DETAILS = 200  # characters of a reason that somebody else wrote
Row = Mapping[str, Any]  # of one agent, as agents.parquet has it


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str
    is_number: bool = False
    hint: str = ""  # shown under the pointer


@dataclass(frozen=True)
class HtmlTable:
    """A table of a page. Its words are text; the template escapes them."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    is_long: bool = False  # can be sorted and searched
    remarks: Sequence[str] = field(default=())


def without_empty_columns(table: HtmlTable) -> HtmlTable:
    """The table without columns that have no word in any row."""
    kept = []
    for place in range(len(table.columns)):
        if any(row[place] not in ("", NONE) for row in table.rows):
            kept.append(place)
    columns = [table.columns[place] for place in kept]
    rows = []
    for row in table.rows:
        rows.append([row[place] for place in kept])
    return replace(table, columns=columns, rows=rows)


def from_text(table: TextTable) -> HtmlTable:
    """A table of words, whose first column alone is no number."""
    columns = [Column(header, is_number=place > 0) for place, header in enumerate(table.headers)]
    return HtmlTable(table.title, columns, table.lines)


def shown_modes(result: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The averages of each mode of evaluation that has agents of its own, in the order of tables."""
    averages = dict(result["accuracy"])
    newcomers = result.get("newcomers") or {}
    for mode, figures in newcomers.get("accuracy", {}).items():
        averages[f"newcomers_{mode}"] = figures
    if not result["never_trained"]:
        averages.pop("last_of_participants", None)  # it is E-last
    return {mode: averages[mode] for mode in MODES if averages.get(mode, {}).get("agents")}


def figures_by_mode(result: Mapping[str, Any]) -> HtmlTable:
    """A line for each mode of evaluation, with both averages of each measure."""
    shown = shown_modes(result)
    measures = _measures_in(shown.values())
    columns = [Column("model"), Column("agents", is_number=True)]
    for measure in measures:
        for average in ("macro", "micro"):
            columns.append(Column(f"{measure.title}, {average}", is_number=True))
    rows = []
    for mode, figures in shown.items():
        row = [MODES[mode].title, str(figures["agents"])]
        for measure in measures:
            of_measure = figures.get(measure.name, {})
            row.append(_text(measure, of_measure.get("macro")))
            row.append(_text(measure, of_measure.get("micro")))
        rows.append(row)
    return HtmlTable("Results", columns, rows)


def _measures_in(modes: Iterable[Mapping[str, Any]]) -> list[Measure]:
    present: set[str] = set()
    for figures in modes:
        present.update(figures)
    return [measure for name, measure in MEASURES.items() if name in present]


def _text(measure: Measure, figure: float | None) -> str:
    return NONE if figure is None else measure.text(figure)


def agents_table(facts: RunFacts, measure: Measure) -> HtmlTable:
    """A line for each agent: its cluster, data, figures in each mode, part in the run, and trouble."""
    rows = facts.agents
    modes = [mode for mode in MODES_OF_AGENTS if _has(rows, f"{mode}_{measure.name}")]
    has_groups = _has(rows, "truth")
    has_devices = len({row.get("device") for row in rows} - {None}) > 1
    columns = [Column("agent"), Column("cluster", is_number=True)]
    if has_groups:
        columns.append(Column("group", is_number=True, hint="planted group of a simulated fleet"))
    columns.append(Column("training samples", is_number=True))
    columns.append(Column("test samples", is_number=True))
    for mode in modes:
        title = f"{MODES[mode].title}, {measure.title}"
        columns.append(Column(title, is_number=True))
    columns.append(Column("reports", is_number=True, hint="accepted reports of orders received"))
    columns.append(Column("last trained", is_number=True, hint="round, counted from 1"))
    if has_devices:
        columns.append(Column("device"))
    columns.append(Column("trouble"))
    lines = []
    for row in rows:
        agent = row["agent"]
        line = [agent, _whole(row.get("cluster"))]
        if has_groups:
            line.append(_whole(row.get("truth")))
        line.append(_whole(row.get("samples")))
        line.append(_whole(row.get("test_samples")))
        for mode in modes:
            line.append(_text(measure, row.get(f"{mode}_{measure.name}")))
        line.append(f"{facts.reported[agent]} of {facts.invited[agent]}")
        last = row.get("last_round")
        line.append(NONE if last is None else str(last + 1))
        if has_devices:
            line.append(row.get("device") or NONE)
        line.append(facts.trouble.get(agent, ""))
        lines.append(line)
    return without_empty_columns(HtmlTable("Agents", columns, lines, is_long=True))


def _has(rows: Iterable[Row], key: str) -> bool:
    return any(row.get(key) is not None for row in rows)


def _whole(number: int | None) -> str:
    return NONE if number is None else str(number)


def clusters_table(facts: RunFacts, measure: Measure) -> HtmlTable | None:
    """A line for each cluster: its agents, their data, and their figures in E-server; None without clusters."""
    by_cluster: dict[int, list[Row]] = {}
    for row in facts.agents:
        if row.get("cluster") is not None:
            by_cluster.setdefault(row["cluster"], []).append(row)
    if not by_cluster:
        return None
    name = f"E-server, {measure.title}"
    titles = ["cluster", "agents", "training samples", "test samples"]
    titles += [f"{name}: mean", "lowest agent", "highest agent"]
    rows = []
    for cluster in sorted(by_cluster):
        own = by_cluster[cluster]
        figures = [row.get(f"server_{measure.name}") for row in own]
        known = [figure for figure in figures if figure is not None]
        line = [str(cluster), str(len(own))]
        line.append(str(sum(row.get("samples") or 0 for row in own)))
        line.append(str(sum(row.get("test_samples") or 0 for row in own)))
        for average in (fmean, min, max):
            line.append(measure.text(average(known)) if known else NONE)
        rows.append(line)
    columns = [Column(title, is_number=True) for title in titles]
    return HtmlTable("Clusters", columns, rows)


def traffic_table(result: Mapping[str, Any]) -> HtmlTable:
    """Bytes in both directions, and per round and agent."""
    sent = result["bytes"]
    rounds = max(result["rounds"], 1)
    agents = max(result["agents"], 1)
    kinds = [("model values as float32", sent["vectors_down"], sent["vectors_up"])]
    remarks = ["down: from the coordinator to agents; up: from agents. 1 MB is 1 000 000 bytes."]
    if sent["wire_up"]:
        kinds.insert(0, ("MQTT packets on the wire", sent["wire_down"], sent["wire_up"]))
    else:
        remarks.append("The run had no broker, so nothing was on the wire.")
    rows = []
    for kind, down, up in kinds:
        total = down + up
        row = [kind]
        for amount in (down, up, total, total / rounds):
            row.append(f"{amount / 1e6:.2f}")
        row.append(f"{total / agents / 1e6:.3f}")
        rows.append(row)
    titles = ["MB down", "MB up", "MB in all", "MB per round", "MB per agent"]
    columns = [Column("")] + [Column(title, is_number=True) for title in titles]
    return HtmlTable("Traffic", columns, rows, remarks=remarks)


def incidents_table(facts: RunFacts, result: Mapping[str, Any]) -> HtmlTable:
    """How often something went wrong, with the newest reason of each kind."""
    rows = []
    absent = sum(facts.invited.values()) - sum(facts.reported.values())
    if absent:
        reason = "offline, too slow, or not needed any more once enough had reported"
        rows.append(["orders without an accepted report", str(absent), reason])
    for kind, title in INCIDENTS.items():
        lines = [line for line in facts.record if line["event"] == kind]
        if lines:
            rows.append([title, str(len(lines)), _details(lines[-1])])
    refused: Counter[str] = Counter(facts.refusals)
    for reason, count in refused.most_common():
        rows.append([f"refused messages: {reason}", str(count), ""])
    for agent, failure in result.get("failures", {}).items():
        rows.append([f"work failed on {agent}", str(failure["times"]), failure["why"]])
    columns = [Column("kind"), Column("number", is_number=True), Column("newest, or remark")]
    remarks = []
    if not rows:
        remarks.append("None: every order was answered, and no message was refused.")
    if facts.simulated_faults:
        remarks.append(f"The scenario simulates faults: {facts.simulated_faults}.")
    return HtmlTable("Faults and refusals", columns, rows, remarks=remarks)


INCIDENTS = {
    "void": "steps that were drawn again",
    "set_aside": "reports set aside",
    "quarantined": "agents put in quarantine",
    "released": "agents released from quarantine",
    "lost lines": "losses of record lines",
}


def _details(line: Mapping[str, Any]) -> str:
    words = []
    if "agent" in line:
        words.append(str(line["agent"]))
    if "round" in line:
        words.append(f"round {line['round'] + 1}")
    why = str(line.get("why", ""))
    if len(why) > MAX_DETAILS:
        why = why[:MAX_DETAILS] + "…"
    if why:
        words.append(why)
    return ", ".join(words)
