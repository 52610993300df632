"""What the dashboard shows: one pure function from the record, the roster and the status to a typed state.

The state has no agents: of a large fleet they are many, and only those that change are sent, see `agents`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from covey.coordinator.odd import Odd
from covey.coordinator.view.lines import (
    DECISION,
    WARNING,
    EventLine,
    Line,
    PhaseLine,
    SumLine,
    TimeLeft,
)
from covey.coordinator.view.words import FaultCounts, FleetCounts
from covey.shared.numerics.measures import ACCURACY, is_regression, main_measure, measured
from covey.shared.wire.documents import CoordinatorStatus, RosterMessage

MAX_POINTS = 400  # of one curve
MAX_EVENTS = 200  # the newest are shown
OVER = ("finished", "stopped")
PRESENT = ("busy", "idle")  # states of agents that take part
STATE_WORDS = {"quarantine": "in quarantine", "checking": "checking its data"}  # others as they are
MAX_REASON = 500  # characters
OWN_WORD = "Agents state themselves what they are; group and figure are of the last run."
TOOK_PART = "took part"  # the state of an agent of a run that is over and had no broker
AWAY = {"unknown": "offline"}  # of devices that are not there, for a table
UNTESTED = "no test samples: no figure counts it"
Cells = tuple[Any, ...]  # one agent, without its name, in the order of `COLUMNS`
COLUMNS = ("state", "cluster", "figure", "seen", "samples", "refusals", "reason", "takes")

Point = tuple[float, float]
Points = Sequence[Point]


@dataclass(frozen=True)
class RunPlan:
    """What a run's folder holds from the start; all empty where only the broker is known."""

    name: str = ""
    method: str = ""
    rounds: int = 0
    agents: int = 0  # that the run waits for at its start; 0: unknown
    evaluates_every: int | None = None  # rounds; 0: only at the end; None: unknown
    over_select: float = 1.0  # invited agents per report that a round needs
    regression: bool | None = None  # None: unknown


@dataclass(frozen=True)
class Sources:
    """All that the dashboard has read so far."""

    plan: RunPlan
    lines: Sequence[Line] = ()
    status: CoordinatorStatus | None = None
    roster: RosterMessage | None = None
    finished: bool = False  # the folder has a result
    connected: bool | None = None  # to the broker; None: there is none, only a folder
    problem: str = ""  # why nothing can be read
    updated: float = 0.0  # when something was read last, in seconds since 1970
    odd: Sequence[Odd] = ()  # what `coordinator doctor` lists
    is_left: bool = False  # no coordinator is at work: the devices state themselves what they are


@dataclass(frozen=True)
class LiveSeries:
    """One curve; `cluster` is None for all agents together."""

    cluster: str | None
    points: Points


@dataclass(frozen=True)
class PhaseReports:
    """The reports of one phase."""

    round: int
    phase: str
    reported: int
    missing: int


@dataclass(frozen=True)
class DashboardState:
    """The page, without its agents."""

    name: str
    method: str
    run: str
    state: str  # waiting, running, paused, finished, stopped, offline or unknown
    headline: str  # one sentence for people
    problem: str
    connected: bool | None
    rounds_done: int
    rounds: int
    phase: str
    eta_s: float | None
    measure: str
    measure_title: str  # of the newest figure, with its mode
    curves_title: str  # of the figures over rounds
    percent: bool  # figures are shares
    newest_figure: float | None
    earlier_figure: float | None  # the same after an earlier round
    evaluates_every: int | None
    figures: Sequence[LiveSeries]
    loss: Points
    bars: Sequence[PhaseReports]
    sent: Points  # bytes by rounds, to agents
    received: Points
    sizes: Mapping[str, int]
    moved: int  # agents that changed their cluster in the newest phase
    sums: Sequence[SumLine] = ()  # the newest secure sums, one for each group
    fleet: FleetCounts = field(default_factory=FleetCounts)
    faults: FaultCounts = field(default_factory=FaultCounts)
    refusals: Mapping[str, int] = field(default_factory=dict)
    events: Sequence[EventLine] = ()
    log: Sequence[EventLine] = ()  # the same with what went well
    odd: Sequence[Odd] = ()  # the most serious first
    updated: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The state as the page reads it."""
        return asdict(self)


def dashboard_state(sources: Sources) -> DashboardState:
    """The state of the page. The same sources give the same state."""
    phases = [line for line in sources.lines if isinstance(line, PhaseLine)]
    events = [line for line in sources.lines if isinstance(line, EventLine)]
    evaluated = [line for line in phases if line.mean is not None]
    newest = phases[-1] if phases else None
    newest_evaluated = evaluated[-1] if evaluated else None
    status = sources.status
    plan = sources.plan
    measure = main_measure(regression=_is_regression(sources))
    title = curves_title = measure.label
    earlier = None
    if newest_evaluated is not None:
        measure, title = newest_evaluated.measure, newest_evaluated.title
        curves_title, _ = newest_evaluated.served
        same = [
            line
            for line in evaluated
            if line.title == title and line.rounds < newest_evaluated.rounds
        ]
        earlier = same[-1].mean if same else None
    fleet = fleet_of(sources.roster, plan.agents)
    state = _state(sources, fleet, phases)
    done = _rounds_done(status, newest)
    total = _rounds_total(status, plan)
    refusals = dict(sources.roster.refusals) if sources.roster is not None else {}
    return DashboardState(
        name=(status.name if status is not None else "") or plan.name,
        method=plan.method,
        run=sources.roster.run if sources.roster is not None else "",
        state=state,
        headline=" ".join(
            [_headline(state, fleet, done, total), *([OWN_WORD] if sources.is_left else [])]
        ).strip(),
        problem=sources.problem,
        connected=sources.connected,
        rounds_done=done,
        rounds=total,
        phase=status.phase if status is not None and state == "running" else "",
        eta_s=eta_s(phases, total) if state == "running" else None,
        measure=measure.name,
        measure_title=title,
        curves_title=curves_title,
        percent=measure.unit == ACCURACY.unit,
        newest_figure=newest_evaluated.mean if newest_evaluated is not None else None,
        earlier_figure=earlier,
        evaluates_every=plan.evaluates_every,
        figures=_figures(evaluated),
        loss=_losses(phases),
        bars=_bars(phases),
        sent=_totals({line.rounds: line.sent for line in phases}),
        received=_totals({line.rounds: line.received for line in phases}),
        sizes=newest.sizes if newest is not None else {},
        moved=newest.moved if newest is not None else 0,
        sums=next((line.sums for line in reversed(phases) if line.sums), ()),
        fleet=fleet,
        faults=_faults(phases, events, sources.roster),
        refusals=refusals,
        events=_newest_events(sources.lines, plan.over_select),
        log=_newest_events(sources.lines, plan.over_select, with_rounds=True),
        odd=sources.odd,
        updated=sources.updated,
    )


def _is_regression(sources: Sources) -> bool:
    """Whether figures are errors: as the scenario or the published task has it, else by figures that are no shares."""
    task = sources.status.task if sources.status is not None else None
    if sources.plan.regression is not None:
        return sources.plan.regression
    if task is not None:
        return is_regression(task)
    rows = sources.roster.agents.values() if sources.roster is not None else ()
    figures = [row.get("figure") for row in rows]
    return any(isinstance(figure, float) and figure > 1 for figure in figures)


# -- the run as a whole ----------------------------------------------------------------------------


def _state(sources: Sources, fleet: FleetCounts, phases: Sequence[PhaseLine]) -> str:
    """The run's state in one word."""
    status = sources.status
    if status is None:
        if sources.finished:
            return "finished"
        return "waiting" if sources.roster is not None else "unknown"
    if status.state == "finished" or sources.finished:
        return "finished"
    if not status.online:  # its last will also has the state "stopped"
        return "offline"
    if status.state == "stopped":
        return "stopped"
    if status.state == "paused":
        return "paused"
    # the published status does not change when the first phase opens, but then agents are busy
    is_waiting = status.state == "gathering" and not phases and not fleet.busy
    return "waiting" if is_waiting else "running"


def _headline(state: str, fleet: FleetCounts, done: int, total: int) -> str:
    match state:
        case "waiting" if fleet.expected:
            return f"Waiting for the first round: {fleet.here} of {fleet.expected} agents are here."
        case "waiting":
            return f"Waiting for the first round: {fleet.here} agents are here."
        case "paused":
            return "Paused: the open phase ends, and no new one starts."
        case "finished":
            return f"Finished after {done} rounds."
        case "stopped":
            return f"Stopped after {done} of {total} rounds; `coordinator run --resume` continues."
        case "offline":
            return "The coordinator is offline; it continues with `coordinator run --resume`."
        case "unknown":
            return "No run yet: start one with `coordinator run`."
    return ""


def _rounds_done(status: CoordinatorStatus | None, newest: PhaseLine | None) -> int:
    of_status = status.round if status is not None else 0
    of_record = newest.rounds if newest is not None else 0
    return max(of_status, of_record)


def _rounds_total(status: CoordinatorStatus | None, plan: RunPlan) -> int:
    of_status = status.rounds if status is not None else 0
    return of_status or plan.rounds


def eta_s(phases: Sequence[PhaseLine], rounds: int) -> float | None:
    """Seconds until the last round ends, from the duration of the newest ones; None before the first round ended."""
    if not phases:
        return None
    time_left = TimeLeft()
    for line in phases:
        time_left.add(line.seconds, ends_round=line.ends_round)
    return time_left.left_s(rounds - phases[-1].rounds)


# -- rounds ---------------------------------------------------------------------------------------


@dataclass
class RoundRow:
    """One round of the history, with the phases before it."""

    number: int
    seconds: float = 0.0
    reported: int = 0  # in the phase that ended the round
    invited: int = 0
    loss: float | None = None
    figure: float | None = None  # mean over the agents, of what they are served
    title: str = ""  # of the figure
    by_cluster: Sequence[float] = ()


def history(lines: Sequence[Line]) -> list[RoundRow]:
    """The rounds that are over, in order; an evaluation belongs to the round before it."""
    rows: dict[int, RoundRow] = {}
    seconds = 0.0  # of phases before the round that is open
    for line in lines:
        if not isinstance(line, PhaseLine):
            continue
        seconds += line.seconds
        if line.ends_round:
            row = RoundRow(line.rounds, seconds, line.reported)
            row.invited = line.reported + line.missing
            row.loss = line.loss
            rows[line.rounds] = row
            seconds = 0.0
        if line.mean is not None and line.rounds in rows:
            row = rows[line.rounds]
            row.title, row.figure = line.served
            row.by_cluster = tuple(line.cluster_means.values())
    return list(rows.values())


# -- curves ----------------------------------------------------------------------------------------


def _figures(evaluated: Sequence[PhaseLine]) -> list[LiveSeries]:
    """The mean figure of all agents, then that of each cluster, against rounds."""
    if not evaluated:
        return []
    overall = list({line.rounds: line.served[1] for line in evaluated}.items())
    by_cluster: dict[str, dict[int, float]] = {}
    for line in evaluated:
        for cluster, figure in line.cluster_means.items():
            by_cluster.setdefault(cluster, {})[line.rounds] = figure
    series = [LiveSeries(None, _curve(overall))]
    for cluster in sorted(by_cluster, key=_by_number):
        series.append(LiveSeries(cluster, _curve(list(by_cluster[cluster].items()))))
    return series


def _by_number(cluster: str) -> tuple[int, str]:
    return (int(cluster) if cluster.isdecimal() else 0, cluster)


def _curve(points: Points) -> Points:
    """At most `MAX_POINTS` of the points, evenly spread, the last one included."""
    if len(points) <= MAX_POINTS:
        return tuple(points)
    step = len(points) / MAX_POINTS
    places = [int(number * step) for number in range(MAX_POINTS)]
    thinned = [points[place] for place in places]
    thinned[-1] = points[-1]
    return tuple(thinned)


def _losses(phases: Sequence[PhaseLine]) -> Points:
    """The training loss of each round. Phases between rounds train other agents or other models."""
    points = [
        (line.rounds, line.loss) for line in phases if line.ends_round and line.loss is not None
    ]
    return _curve(points)


def _totals(by_round: Mapping[int, int]) -> Points:
    """A total that grows, as it was at the end of each round."""
    return _curve(sorted(by_round.items()))


def _bars(phases: Sequence[PhaseLine]) -> list[PhaseReports]:
    """The reports of the newest phases; phases whose record names no agent are left out."""
    return [
        PhaseReports(line.rounds, line.phase, line.reported, line.missing)
        for line in phases[-MAX_POINTS:]
    ]


# -- agents and faults -----------------------------------------------------------------------------


def fleet_of(roster: RosterMessage | None, expected: int) -> FleetCounts:
    """How many agents the roster has of each kind."""
    if roster is None:
        return FleetCounts(expected=expected)
    kinds = Counter(agent_state(row) for row in roster.agents.values())
    busy = kinds["busy"]
    return FleetCounts(
        known=len(roster.agents),
        here=busy + kinds["idle"],
        busy=busy,
        offline=kinds["offline"],
        excluded=kinds["excluded"],
        quarantined=kinds["quarantine"],
        silent=kinds["silent"] + kinds["failing"],
        expected=expected,
        took_part=kinds[TOOK_PART],
    )


def agent_state(row: Mapping[str, Any]) -> str:
    """One word for the state of an agent, from its row of the roster, or as the device states it."""
    if "state" in row:
        return AWAY.get(str(row["state"]), str(row["state"]))
    if row.get("quarantined"):
        return "quarantine"
    if not row.get("online"):
        return "left" if row.get("left") else "offline"
    if row.get("problem"):
        return "excluded"
    if not row.get("takes_part"):
        return "checking"
    for kind in ("silent", "failing"):
        if row.get(kind):
            return kind
    return "busy" if row.get("busy") else "idle"


def _faults(
    phases: Sequence[PhaseLine], events: Sequence[EventLine], roster: RosterMessage | None
) -> FaultCounts:
    kinds = Counter(event.kind for event in events)
    failed = 0
    refused = 0
    if roster is not None:
        failed = sum(1 for row in roster.agents.values() if row.get("failed"))
        refused = sum(roster.refusals.values())
    return FaultCounts(
        missing=sum(line.missing for line in phases),
        void=kinds["void"],
        set_aside=kinds["set_aside"],
        quarantined=kinds["quarantined"],
        failed=failed,
        refused=refused,
    )


def _newest_events(
    lines: Sequence[Line], over_select: float, *, with_rounds: bool = False
) -> list[EventLine]:
    """What happened besides phases that went well, the newest first; `with_rounds`: these too."""
    events: list[EventLine] = []
    known: set[str] = set()  # each sentence is shown once
    first = next((line for line in lines if isinstance(line, PhaseLine)), None)
    done = 0
    for line in lines:
        if isinstance(line, EventLine):
            dated = line if line.round else replace(line, round=done)
            events.append(dated)
            continue
        done = line.rounds
        invited = line.reported + line.missing
        # a round closes without those that were invited in reserve: they are no fault
        needed = invited / over_select if line.ends_round else invited
        if line.reported < needed:
            text = f"{line.phase}: closed with {line.reported} of {invited} reports"
            events.append(EventLine("missing", line.round, text))
        elif with_rounds:
            events.append(EventLine("phase", line.round, _went_well(line)))
        events += [
            EventLine(
                "void",
                line.round,
                f"secure sums: one of group {one.cluster or '?'} is {one.end}: {one.why}",
            )
            for one in line.sums
            if not one.is_sum
        ]
        for kind, texts in ((WARNING, line.warnings), (DECISION, line.decisions)):
            for text in texts:
                if text not in known:
                    known.add(text)
                    # a broker keeps the newest line alone: its sentences may be as old as the run
                    may_be_older = line is first and line.round > 1
                    events.append(EventLine(kind, line.round, text, may_be_older))
    return events[-MAX_EVENTS:][::-1]


def _went_well(line: PhaseLine) -> str:
    """A phase in a few words."""
    words = f"{line.phase}: {line.reported} of {line.reported + line.missing} reports"
    if line.mean is not None:
        return f"{words}, mean {measured(line.measure, line.mean, line.title)}"
    return words if line.loss is None else f"{words}, loss {line.loss:.3g}"


# -- the table of agents ----------------------------------------------------------------------------


def agent_cells(roster: RosterMessage | None) -> dict[str, Cells]:
    """The cells of each agent, by name."""
    if roster is None:
        return {}
    return {agent: _cells(row) for agent, row in roster.agents.items()}


def _cells(row: Mapping[str, Any]) -> Cells:
    refusals = row.get("refusals")
    counts = refusals.values() if isinstance(refusals, dict) else ()
    refused = sum(count for count in counts if isinstance(count, int))
    return (
        agent_state(row),
        _number(row.get("cluster")),
        _number(row.get("figure")),
        _number(row.get("seen")),
        _number(row.get("samples")),
        refused,
        reason(row)[:MAX_REASON],
        _number(row.get("takes")),
    )


def reason(row: Mapping[str, Any]) -> str:
    """Why the agent is excluded, in quarantine or not invited for some rounds, else its newest failure, or that it has no tests."""
    for kind in ("problem", "quarantined", "silent", "failing"):
        if row.get(kind):
            return str(row[kind])
    failed = row.get("failed")
    if not failed:
        untested = row.get("samples") and row.get("test_samples") == 0
        return UNTESTED if untested else ""
    in_a_row = row.get("failures", 0)
    if isinstance(in_a_row, int) and in_a_row > 1:
        return f"failed {in_a_row} times in a row, the last time: {failed}"
    return f"its newest failure: {failed}"


def _number(value: Any) -> float | int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value
