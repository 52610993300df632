"""What a person sees: progress while a run goes on, tables when it is over. Nothing else prints.

Much of it was written by others: agents, files, the broker. It is shown as it is and never read as markup.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from covey.coordinator.compare.tables import Table as Words
from covey.coordinator.run.modes import MODE_TITLES
from covey.coordinator.run.notices import (
    AgentExcluded,
    AgentQuarantined,
    AgentReleased,
    BrokerReady,
    ControlReceived,
    LinkDown,
    Notice,
    PhaseFolded,
    ReportRefused,
    ReportSetAside,
    RoundsStopped,
    RoundVoid,
    RunWaits,
    SubscriptionsRefused,
    WorkFailed,
)

NONE = "–"
PRIVACY = {"client": "client-level", "signatures": "signatures", "local": "example-level"}
MOST_REMARKS = 1000  # shown once each: agents write some of them


class Progressing:
    """Shows the lines of a run's record as a progress bar with remarks above it."""

    def __init__(self, console: Console, rounds: int) -> None:
        self.console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[remark]}", markup=False),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._bar.add_task("rounds", total=rounds, remark="starting")
        self._warned: set[str] = set()

    def __enter__(self) -> Progressing:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, notice: Notice) -> None:
        match notice:
            case PhaseFolded():
                self._phase(notice)
            case BrokerReady(broker=broker, url=url, note=note):
                self._say(f"broker: {broker} at {url}")
                if note:
                    self._say(note)
            case RoundVoid(round=number, why=why):
                self._warn(f"round {number + 1}: void, drawn again ({why})")
            case RoundsStopped(round=number, rounds=rounds, why=why):
                self._bar.update(self._task, total=number)
                self._say(f"ended after round {number} of {rounds}: {why}")
            case RunWaits(why=why):
                self._warn(f"waiting: {why}")
            case ControlReceived(command="pause", topic=topic):
                resume = '{"command": "resume"}'
                self._warn(f"paused; to resume, publish {resume} on {topic}")
            case ControlReceived():
                self._say("resumed")
            case SubscriptionsRefused(refused=[]):
                self._say("the broker accepts all subscriptions again")
            case SubscriptionsRefused(refused=topics):
                names = ", ".join(topics)
                self._warn(
                    f"the broker refuses the subscription to {names}; trying again. Check its access rules"
                )
            case LinkDown(why=why):
                self._warn(f"broker: {why}; trying again")
            case _:
                self._about_agent(notice)

    def _about_agent(self, notice: Notice) -> None:
        """Remarks about one agent, or about its report."""
        match notice:
            case AgentExcluded(agent=agent, why=why):
                self._once(f"{agent} is excluded: {why}")
            case WorkFailed(agent=agent, why=why):
                self._warn(f"{agent} could not do its work: {why}")
            case ReportRefused(agent=agent, why=why):
                self._warn(f"a report of {agent} was refused: {why}")
            case ReportSetAside(agent=agent, why=why):
                self._warn(
                    f"a report of {agent} was set aside, the round is folded without it: {why}"
                )
            case AgentQuarantined(agent=agent, refused=refused, why=why):
                self._warn(
                    f"{agent} is in quarantine after {refused} refused reports: {why}. "
                    f"To invite it again: coordinator release {agent}"
                )
            case AgentReleased(agent=agent):
                self._say(f"{agent} is out of quarantine")

    def _phase(self, phase: PhaseFolded) -> None:
        remark = f"{phase.phase}: {len(phase.reported)}/{len(phase.invited)} agents"
        if phase.means.loss is not None:
            remark += f", loss {phase.means.loss:.3f}"
        if phase.cluster_sizes:
            remark += ", clusters " + "+".join(map(str, phase.cluster_sizes.values()))
        if spent := epsilons(phase.privacy):
            remark += f", {spent}"
        done = phase.rounds_done
        self._bar.update(self._task, completed=done, remark=remark)
        if not self.console.is_terminal:
            self._say(f"round {done:>3}  {remark}")
        for key, text in phase.notes.items():
            if key.startswith("warning"):
                self._once(text)

    def _once(self, text: str) -> None:
        if text not in self._warned and len(self._warned) < MOST_REMARKS:
            self._warned.add(text)
            self._warn(text)

    def _warn(self, text: str) -> None:
        self._say(text, style="yellow")

    def _say(self, text: str, style: str | None = None) -> None:
        self._bar.console.print(text, style=style, highlight=False)


def labels(folders: Sequence[Path], found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The methods' names where they tell the runs apart, else what differs in the paths."""
    names = [str(one["method"]) for one in found]
    if len(set(names)) == len(names):
        return names
    parts = [folder.resolve().parts for folder in folders]
    common = next(
        (i for i, level in enumerate(zip(*parts, strict=False)) if len(set(level)) > 1),
        min(map(len, parts)) - 1,
    )
    return ["/".join(path[common:]) for path in parts]


def results(found: Sequence[Mapping[str, Any]], runs: Sequence[str] = ()) -> Words:
    """Methods side by side: accuracy (in percent) or error by mode, cluster recovery, rounds, bytes on the wire.

    `runs` are names for the results, as `labels` gives them; they are shown where the methods' names do not do.
    """
    modes = [
        mode
        for mode in MODE_TITLES
        if any(one["accuracy"].get(mode, {}).get("agents") for one in found)
    ]
    names = list(runs) if list(runs) != [one["method"] for one in found] else []
    headers = [*(["run"] if names else []), "method", *(MODE_TITLES[mode] for mode in modes)]
    private = any(one.get("privacy") for one in found)
    headers += ["clusters", "ARI", "rounds", *(["privacy"] if private else []), "MB down / up", "s"]
    lines = [
        [
            *names[i : i + 1],
            one["method"],
            *(_figure(one["accuracy"].get(mode, {})) for mode in modes),
            str(one["clusters"] or NONE),
            NONE if one["ari"] is None else f"{one['ari']:.2f}",
            str(one["rounds"]),
            *([epsilons(one.get("privacy")) or NONE] if private else []),
            _wire(one["bytes"]),
            f"{one['seconds']:.1f}",
        ]
        for i, one in enumerate(found)
    ]
    return Words(_title(found, modes), headers, lines)


def epsilons(spent: Mapping[str, Any] | None) -> str:
    """The privacy account in a few words: epsilon at delta for each kind of privacy; empty where there is none."""
    if not spent:
        return ""
    shown = (_epsilon(words, spent.get(kind)) for kind, words in PRIVACY.items())
    return "; ".join(filter(None, shown))


def _epsilon(words: str, account: Any) -> str:
    """One kind's epsilon; empty where there is no such account, or none that makes sense (it may come from a broker)."""
    if not isinstance(account, Mapping):
        return ""
    match account.get("epsilon"), account.get("delta"):
        case None, _:
            return f"{words} no bound"
        case int() | float() as value, int() | float() as delta:
            return f"{words} ε {value:.2f} at δ {delta:g}"
    return ""


def _title(found: Sequence[Mapping[str, Any]], modes: Sequence[str]) -> str:
    """What all results have in common: the scenario's name, how many agents; and what their figures are."""
    shared = (
        _shared(str(one["name"]) for one in found),
        _shared(f"{one['agents']} agents" for one in found),
    )
    shown = [one["accuracy"].get(mode, {}) for one in found for mode in modes]
    units = {"accuracy": "accuracy in %", "mse": "mean squared error"}
    figures = " or ".join(
        unit for figure, unit in units.items() if any(figure in one for one in shown)
    )
    return "; ".join(
        filter(None, (", ".join(filter(None, shared)), figures and f"{figures}, micro / macro"))
    )


def _shared(words: Iterable[str]) -> str:
    """The word that all are; empty where they differ."""
    first, *others = set(words)
    return "" if others else first


def results_table(found: Sequence[Mapping[str, Any]], runs: Sequence[str] = ()) -> Table:
    """The same for the terminal."""
    words = results(found, runs)
    return _filled(Table(title=words.title), words, titles_wrap=False)


def words_table(words: Words) -> Table:
    """A comparison for the terminal."""
    table = Table(title=words.title, box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    return _filled(table, words, titles_wrap=True)


def _filled(table: Table, words: Words, *, titles_wrap: bool) -> Table:
    """With a column for each header; what stands below is never cut or wrapped."""
    for i, (title, *column) in enumerate(zip(words.headers, *words.lines, strict=True)):
        width = max(map(len, column if titles_wrap else (title, *column)))
        table.add_column(
            title, justify="right" if i else "left", no_wrap=not titles_wrap, min_width=width
        )
    for line in words.lines:
        table.add_row(*line)
    return table


def show(console: Console, table: Table) -> None:
    """Print a table with every word of it, also where the terminal is too narrow and breaks its lines."""
    unbounded = console.options.update(max_width=sys.maxsize)
    wanted = Measurement.get(console, unbounded, table).minimum
    console.print(table, width=max(console.width, wanted), crop=False)


def _wire(traffic: Mapping[str, int]) -> str:
    """Megabytes down and up; a run without a broker has none."""
    if not traffic["wire_up"]:
        return NONE
    return f"{traffic['wire_down'] / 1e6:.2f} / {traffic['wire_up'] / 1e6:.2f}"


def _figure(mode: Mapping[str, Any]) -> str:
    if "accuracy" in mode:
        return f"{100 * mode['accuracy']['micro']:.2f} / {100 * mode['accuracy']['macro']:.2f}"
    if "mse" in mode:
        return f"mse {mode['mse']['micro']:.4g} / {mode['mse']['macro']:.4g}"
    return "–"


def participation(result: Mapping[str, Any]) -> str:
    """E-last of those that a training round has drawn, and of the others by name; empty where all were drawn."""
    names = result["never_trained"]
    if not names:
        return ""
    shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    accuracy = result["accuracy"]
    figure, others = (
        _figure(accuracy["last_of_participants"]),
        _figure(accuracy.get("last_of_undrawn", {})),
    )
    return (
        f"E-last over the {len(result['took_part'])} agents that took part: {figure}\n"
        f"{len(names)} of {result['agents']} agents were drawn for no round: E-last {others} (the model of a phase before "
        f"the rounds, else E-server): {shown}"
    )


def newcomers(result: Mapping[str, Any]) -> str:
    """What agents reach that came after the last round; empty where there are none."""
    late = result.get("newcomers")
    if late is None:
        return ""
    figures = ", ".join(
        f"{MODE_TITLES[mode]} {_figure(late['accuracy'][mode])}"
        for mode in MODE_TITLES
        if mode in late["accuracy"]
    )
    return f"{len(late['agents'])} newcomers after the last round: {figures}"


def _state(row: Mapping[str, Any]) -> Text:
    if not row["online"]:
        return Text("gone", "red")
    if row["problem"]:
        return Text("out", "yellow")
    if row.get("quarantined"):
        return Text("in quarantine", "red")
    if not row["takes_part"]:
        return Text("checking its data")
    return Text("busy" if row["busy"] else "idle")


def _why_out(row: Mapping[str, Any]) -> str:
    failed = row.get("failed")
    newest = f"its newest failure: {failed}" if failed else ""
    return str(row["problem"] or row.get("quarantined") or newest)


def _moment(seconds: float) -> str:
    """A time of day, with the date where that is not today's."""
    then, now = time.localtime(seconds), time.localtime()
    return time.strftime("%H:%M:%S" if then[:3] == now[:3] else "%Y-%m-%d %H:%M:%S", then)


def standing(seen: Mapping[str, Any]) -> list[str]:
    """What `coordinator status` says above the roster: what runs, and whether the roster is what a coordinator left."""
    status = seen["status"]
    if status is None:
        ended = "the run is finished; " if seen["finished"] else ""
        account = filter(None, [epsilons(seen.get("privacy"))])
        return [
            f"{ended}this is what its coordinator wrote last, at {_moment(seen['written'])}",
            *account,
        ]
    spent = epsilons(seen.get("privacy"))
    told = [
        status["state"],
        f"round {status['round']} of {status['rounds']}",
        status["phase"],
        spent,
    ]
    first = (
        [f"{status['name']}: {', '.join(filter(None, told))}"] if status["name"] else []
    )  # a last will has no name
    if status["online"] and status["state"] not in ("finished", "stopped"):
        return first
    return [*first, "no coordinator is at work here: this is what the last one left when it ended"]


def roster_table(roster: Mapping[str, Any]) -> Table:
    """Everybody the coordinator knows: `RosterMessage` as a table."""
    table = Table(title=f"run {roster['run']}: {len(roster['agents'])} agents")
    for column in (
        "agent",
        "state",
        "cluster",
        "last seen",
        "train / test",
        "classes",
        "refusals",
        "why it stays out",
    ):
        table.add_column(column)
    for agent, row in roster["agents"].items():
        state = _state(row)
        seen = _moment(row["seen"])
        refusals = ", ".join(f"{reason} {count}" for reason, count in row["refusals"].items())
        cluster = NONE if row["cluster"] is None else str(row["cluster"])
        counts = f"{row['samples']} / {row['test_samples']}"
        table.add_row(
            agent, state, cluster, seen, counts, str(row["labels"]), refusals, _why_out(row)
        )
    return table


def audit_lines(found: Mapping[str, Any]) -> list[str]:
    """What `coordinator audit` says above its table: the verdict, what it rests on, and repairs."""
    if found["whole"]:
        verdict = f"the audit log of run {found['run']} is whole: {found['lines']} lines"
    else:
        verdict = f"the audit log is broken at line {found['broken_line']}: {found['why']}"
    lines = [verdict, *found["notes"]]
    if found["whole"] and not found["anchored"]:
        lines.append(
            "no checkpoint and no --head: lines that were cut off at the end would not be missed"
        )
    if found["head"]:
        lines.append(
            f"newest line: {found['head']} (keep it elsewhere and compare later with --head)"
        )
    return lines


def audit_table(found: Mapping[str, Any]) -> Table:
    """How often each event is in the part of the log that is whole."""
    period = f"{found['first_time']} to {found['last_time']}"
    table = Table(title=period if found["lines"] else "no line is whole")
    table.add_column("event")
    table.add_column("lines", justify="right")
    for event, count in found["events"].items():
        table.add_row(event, str(count))
    return table


def json_notice(notice: Notice) -> None:
    """A notice of a run for programs, as `json_line` prints it."""
    json_line(notice.to_json())


def json_line(row: Mapping[str, Any]) -> None:
    """For programs: one JSON object per line on standard output."""
    print(json.dumps(row, allow_nan=False), flush=True)
