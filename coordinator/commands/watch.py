"""`coordinator status --watch`: show a run on the terminal until it is over, or until Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from covey.coordinator.dashboard.broker_watcher import BrokerWatcher
from covey.coordinator.dashboard.folder_reader import FolderReader
from covey.coordinator.dashboard.hub import Hub
from covey.coordinator.dashboard.terminal import watch_view
from covey.coordinator.view.state import OVER
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import BrokerUrl

EVERY_S = 1.0  # longest time between two looks at the news


@contextmanager
def opened(folder: Path | None, url: BrokerUrl | None, federation: str) -> Iterator[Hub]:
    """The news of a run, from its folder or from its broker. Raises UserError if the folder is a file."""
    if folder is not None and folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: this is a file; expected the folder of a run")
    hub = Hub(FolderReader(folder) if folder is not None else None)
    with ExitStack() as stack:
        if url is not None:
            hub.watcher = BrokerWatcher(url, federation, hub.wake)
            stack.enter_context(hub.watcher)
        yield stack.enter_context(hub)


def watch(hub: Hub, console: Console, emit: Callable[[Any], None] | None = None) -> None:
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
