"""`coordinator dashboard`: serve the page of a run until the operator ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from covey.coordinator.cli.options import READERS, ensure_role, show_line
from covey.coordinator.record.records import run_folders
from covey.extras.dashboard import terminal
from covey.extras.dashboard.hub import BrokerWatcher, is_other_run
from covey.extras.dashboard.server import DashboardServer, Send, serving
from covey.extras.runs.folder_reader import FolderReader
from covey.extras.runs.run_list import RunList
from covey.shared.cli import BrokerAddresses, broker_option, check_name, with_connection
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import DEFAULT_BROKER, BrokerUrl
from covey.shared.mqtt.credentials import COORDINATOR, read
from covey.shared.wire.documents import Control

PORT = 8470


@with_connection(broker_option("none with FOLDER, or " + DEFAULT_BROKER))
def dashboard(
    folder: Annotated[
        Path | None,
        typer.Argument(help="a run's folder, or one with runs in it  [default: ask the broker]"),
    ] = None,
    *,
    connection: BrokerAddresses,
    federation: Annotated[str, typer.Option(help="the federation to show")] = "default",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="port on 127.0.0.1; 0 takes any free one")
    ] = PORT,
) -> None:
    """Show a run in a browser while it happens: rounds, figures by group, agents, faults.

    The page is served on this machine only and needs no internet. It reads the run's folder, the broker, or both.
    With the coordinator's credentials it has buttons: pause, resume, stop, forget.
    """
    check_name("--federation", federation)
    url = None
    if connection.is_named or folder is None:
        ensure_role(connection, *READERS)
        url = connection.url()
    role = next((read(file).role for file in connection.credentials), "")
    with suppress(KeyboardInterrupt):
        serve(DashboardRequest(folder, url, federation, role, port), show_line)


@dataclass(frozen=True)
class DashboardRequest:
    """What to show, and where."""

    folder: Path | None  # of a run
    url: BrokerUrl | None  # of its broker; None: only the folder is read
    federation: str
    role: str  # of the credentials; empty if they name none
    port: int = PORT

    @property
    def may_command(self) -> bool:
        """Whether the dashboard connects as the coordinator. A broker without users has no roles."""
        if self.url is None:
            return False
        return COORDINATOR in (self.role, self.url.user) or (
            not self.role and self.url.user is None
        )


@contextmanager
def opened(request: DashboardRequest) -> Iterator[DashboardServer]:
    """Serve the dashboard for as long as the block lasts.

    A folder that has runs in it is shown as a list of them.

    Raises UserError if the folder is a file, if a list of runs is to be joined with a broker, or if the port is taken.
    """
    with ExitStack() as stack:
        folder = request.folder
        if folder is not None and _has_runs(folder):
            if request.url is not None:
                raise UserError(
                    f"{folder}: this folder has several runs; name the run to show with its broker, such as "
                    f"{run_folders(folder)[0]}"
                )
            yield stack.enter_context(serving(RunList(folder), request.port))
            return
        hub = stack.enter_context(terminal.opened(request.folder, request.url, request.federation))
        send: Send | None = None
        if hub.watcher is not None and request.may_command:
            send = _sender(hub.reader, hub.watcher)
        yield stack.enter_context(serving(hub, request.port, send))


def _has_runs(folder: Path) -> bool:
    """Whether a folder is none of a run, and has some in it."""
    return not (folder / "scenario.yaml").exists() and bool(run_folders(folder))


def _sender(reader: FolderReader | None, watcher: BrokerWatcher) -> Callable[[Control], str | None]:
    def send(control: Control) -> str | None:
        if is_other_run(reader, watcher):
            return "the broker shows another run than this folder"
        if not watcher.connected:
            return watcher.problem
        return None if watcher.publish(control) else "the broker did not take the command"

    return send


def serve(request: DashboardRequest, show: Callable[[str], None]) -> None:
    """Serve the dashboard until Ctrl-C; `show` prints a line."""
    with opened(request) as server:
        show(f"dashboard: {server.address}")
        if request.folder is not None and not request.folder.exists():
            show(
                f"{request.folder}: no such folder yet; the page shows a run once one begins there"
            )
        show(
            "open this address in a browser on this machine; Ctrl-C ends the dashboard, not the run"
        )
        if server.send is None:
            show(
                "it only shows runs; to pause, stop or forget from the page, add --broker or --credentials of the coordinator"
            )
        threading.Event().wait()
