"""The same run on a terminal: `coordinator status --watch`. It fits 80 columns.

Rows come from the lines that the page is made of. Nothing that agents write is interpreted as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table as Grid
from rich.text import Text

from covey.coordinator.view.lines import Line
from covey.coordinator.view.printed import bare
from covey.coordinator.view.table import NONE, Table, numbers
from covey.coordinator.view.words import (
    bytes_text,
    duration_text,
    faults_words,
    fleet_words,
    sizes_text,
)
from covey.extras.dashboard.hub import BrokerWatcher, LiveState
from covey.extras.runs.folder_reader import FolderReader
from covey.extras.runs.state import OVER, DashboardState, Points, RoundRow, history
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.numerics.measures import MEASURES, PERCENT, Measure, plain
from covey.shared.sentences import printable

EVERY_S = 1.0  # longest time between two looks at the news


@contextmanager
def opened(folder: Path | None, url: BrokerUrl | None, federation: str) -> Iterator[LiveState]:
    """The news of a run, from its folder or from its broker. Raises UserError if the folder is a file."""
    if folder is not None and folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: this is a file; expected the folder of a run")
    hub = LiveState(FolderReader(folder) if folder is not None else None)
    with ExitStack() as stack:
        if url is not None:
            hub.watcher = BrokerWatcher(url, federation, hub.wake)
            stack.enter_context(hub.watcher)
        yield stack.enter_context(hub)


def watch(hub: LiveState, console: Console, emit: Callable[[Any], None] | None = None) -> None:
    """Show each change until the run is over; `emit` gets each state as JSON, and the console stays empty then."""
    with ExitStack() as stack:
        live: Live | None = None
        if emit is None:
            live = stack.enter_context(Live(console=console, auto_refresh=False))
        version = -1
        is_over = False
        while not is_over:
            update = hub.update_after(version, EVERY_S)
            if update is None:
                continue
            version = update.version
            is_over = update.state.state in OVER
            if emit is not None:
                emit(update.state.to_json())
            if live is not None:
                view = watch_view(update.state, hub.sources.lines, console.height)
                live.update(view, refresh=True)
    if emit is None and not console.is_terminal:
        console.print()  # ends the line of the view, which was written once


WIDTH = 78  # fits 80 columns
OTHER_LINES = 16  # of the view, besides rounds
MIN_ROWS = 3  # rounds that are shown at least, the newest last
MAX_EVENTS = 4
MAX_SINGLY = 4  # more clusters than these share a column: lowest to highest
COLOURS = {
    "running": "green",
    "paused": "yellow",
    "waiting": "yellow",
    "offline": "red",
    "stopped": "red",
}


def watch_view(state: DashboardState, lines: Sequence[Line], height: int = 24) -> RenderableType:
    """All that is shown, for a terminal of 80 columns and this many lines."""
    parts: list[RenderableType] = [_title(state), _bar(state), Text("")]
    parts += _facts(state)
    rows = history(lines)
    if rows:
        room = max(height - OTHER_LINES, MIN_ROWS)
        parts.append(bare(_table(rows[-room:], MEASURES[state.measure])))
    for event in state.events[:MAX_EVENTS]:
        when = f"round {event.round} or before" if event.or_before else f"round {event.round}"
        parts.append(_line(printable(f"{when}: {event.text}"), "yellow"))
    if state.problem:
        parts.append(_line(printable(state.problem), "red"))
    return Group(*parts)


def _title(state: DashboardState) -> Text:
    name = ", ".join([name for name in (state.name, state.method) if name]) or "Covey"
    title = Text(printable(name), style="bold")
    title.append(f"  {state.state}", style=COLOURS.get(state.state, ""))
    words: list[str] = []
    if state.headline:
        words.append(state.headline)
    if state.phase:
        words.append(f"now: {printable(state.phase)}")
    if state.eta_s is not None:
        words.append(f"about {duration_text(state.eta_s)} left")
    remark = ", ".join(words)
    title.append(f"  {remark}", style="dim")
    title.truncate(2 * WIDTH, overflow="ellipsis")
    return title


def _bar(state: DashboardState) -> Grid:
    bar = Grid.grid(padding=(0, 1))
    drawn = ProgressBar(total=max(state.rounds, 1), completed=state.rounds_done, width=40)
    bar.add_row(drawn, Text(f"{state.rounds_done} of {state.rounds} rounds"))
    return bar


def _facts(state: DashboardState) -> list[RenderableType]:
    sent = bytes_text(_newest(state.sent))
    received = bytes_text(_newest(state.received))
    reasons = ", ".join([f"{reason} {count}" for reason, count in state.refusals.items()]) or "none"
    facts = {
        "agents": fleet_words(state.fleet),
        "groups": sizes_text(state.sizes) or NONE,
        "traffic": f"{sent} to agents, {received} from agents",
        "faults": faults_words(state.faults),
        "refused": printable(reasons),
    }
    return [_line(f"{name:<9} {words}", "") for name, words in facts.items()]


def _newest(points: Points) -> float:
    if not points:
        return 0.0
    _, value = points[-1]
    return value


def _table(rows: Sequence[RoundRow], measure: Measure) -> Table:
    """The newest rounds."""
    unit = " %" if measure.scale == PERCENT else ""
    title = next((row.title for row in reversed(rows) if row.title), measure.label)
    titles = ["round", f"{title}{unit}", f"by group{unit}", "loss", "reports", "s"]
    return Table("", numbers(titles), [_cells(row, measure) for row in rows])


def _cells(row: RoundRow, measure: Measure) -> list[str]:
    figure = NONE
    if row.figure is not None:
        figure = _short(row.figure, measure)
    loss = NONE
    if row.loss is not None:
        loss = f"{row.loss:.3f}"
    clusters = _clusters(row.by_cluster, measure)
    return [
        str(row.number),
        figure,
        clusters,
        loss,
        f"{row.reported}/{row.invited}",
        f"{row.seconds:.1f}",
    ]


def _clusters(figures: Sequence[float], measure: Measure) -> str:
    """Each cluster's figure, or of many clusters the lowest and the highest."""
    if not figures:
        return NONE
    if len(figures) > MAX_SINGLY:
        return f"{_short(min(figures), measure)} to {_short(max(figures), measure)}"
    return "  ".join([_short(figure, measure) for figure in figures])


def _short(figure: float, measure: Measure) -> str:
    shown = figure * measure.scale
    if measure.scale == PERCENT:
        return f"{shown:.1f}"
    return plain(shown)


def _line(text: str, style: str) -> Text:
    line = Text(text, style=style, no_wrap=True, overflow="ellipsis")
    line.truncate(WIDTH, overflow="ellipsis")
    return line
