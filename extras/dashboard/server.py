"""The local web server of the dashboard: one page, a stream of updates, and the operator's commands.

What protects it:

- It listens on 127.0.0.1. A request must name that address (or localhost) as its host, so that a web page cannot reach
  it under a name of its own (DNS rebinding); a command must come from the dashboard's own origin.
- Updates and commands need a key in a header, which another web page cannot send. The key is part of the address that
  the command prints, after `#`: browsers do not send that part, so the key is in no log.
- The page loads nothing from elsewhere and runs no inline script (Content-Security-Policy). Its sections arrive as HTML
  in which every text is escaped, and are parsed without running scripts; everything else is JSON and shown as text.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib import resources
from typing import Any, Protocol
from urllib.parse import parse_qs

from pydantic import ValidationError

from covey.coordinator.view.table import Table
from covey.extras.dashboard import svg
from covey.extras.dashboard.hub import LiveState, Update
from covey.extras.dashboard.sections import list_sections, sections
from covey.extras.runs.folder_reader import FolderReader
from covey.shared.errors import UserError
from covey.shared.programs.bounded_http import HOST, BoundedOnThisMachine, body_length
from covey.shared.storage import json_text
from covey.shared.wire.documents import Control

KEY_HEADER = "X-Covey-Key"
MAX_BODY_BYTES = 4096
MAX_STREAMS = 16  # open pages
SHUTDOWN_POLL_S = 0.05  # the end of the dashboard takes at most so long
LIST_S = 2.0  # between two looks at a list of runs
ALIVE_S = 10.0  # between two signs of life on a stream
FACTS = (  # of the state, which the scripts of the page need
    "name",
    "state",
    "problem",
    "connected",
    "rounds_done",
    "rounds",
    "measure_title",
    "percent",
)
COMMANDS = ("pause", "resume", "stop", "release", "forget")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

# Publishes a command: None if it was sent, else why not.
Send = Callable[[Control], str | None]


@cache
def files() -> dict[str, tuple[str, bytes]]:
    """The parts of the page: content type and content, by path."""
    folder = resources.files("covey.extras.dashboard")
    style = svg.css() + svg.chosen_css() + (folder / "page.css").read_text(encoding="utf-8")
    page = (folder / "page.html").read_bytes()
    scripts = [(folder / name).read_bytes() for name in ("map.js", "page.js")]
    return {
        "/": ("text/html; charset=utf-8", page),
        "/page.css": ("text/css; charset=utf-8", style.encode()),
        "/page.js": ("text/javascript; charset=utf-8", b"\n".join(scripts)),
    }


class Runs(Protocol):
    """The runs in a folder."""

    def table(self) -> Table:
        """A row for each run, whose first word is its title."""

    def reader(self, title: str) -> FolderReader | None:
        """A reader of the run with this title; None if there is no such run."""


class DashboardServer(BoundedOnThisMachine):
    """Serves one hub, or a list of runs with a page for each, whose hub lasts as long as the page is open.

    Each page that is open keeps one thread; a connection without the key ends after some seconds.
    """

    max_connections = 64
    request_s = 10.0

    def __init__(self, shown: LiveState | Runs, port: int, send: Send | None) -> None:
        self.shown = shown
        self.over = threading.Event()
        self.send = send  # None: this dashboard only shows
        self.key = secrets.token_urlsafe(24)
        self.streams = threading.BoundedSemaphore(MAX_STREAMS)
        super().__init__(port, Handler)

    @property
    def address(self) -> str:
        """The address to open in a browser, with the key."""
        return f"http://{HOST}:{self.port}/#{self.key}"


@contextmanager
def serving(
    shown: LiveState | Runs, port: int, send: Send | None = None
) -> Iterator[DashboardServer]:
    """Serve the dashboard for as long as the block lasts. Raises UserError if the port is taken."""
    server = DashboardServer(shown, port, send)
    thread = threading.Thread(
        target=server.serve_forever, args=(SHUTDOWN_POLL_S,), name="dashboard server", daemon=True
    )
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()


class Handler(BaseHTTPRequestHandler):
    """One connection of a browser."""

    server: DashboardServer
    protocol_version = "HTTP/1.1"
    timeout = 60.0

    def version_string(self) -> str:
        """The Server header, without versions."""
        return "covey"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged: the terminal belongs to the operator."""

    def do_GET(self) -> None:
        """The page, its parts, and the stream of updates."""
        if not self._is_for_us():
            return
        path, _, query = self.path.partition("?")
        if path == "/events":
            if self._has_key():
                self._show(parse_qs(query).get("run", [""])[0])
            return
        found = files().get(path)
        if found is None:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")
            return
        kind, content = found
        self._reply(HTTPStatus.OK, content, kind)

    def do_POST(self) -> None:
        """A command of the operator: {"command": "forget", "agent": "pi-7"}."""
        self.close_connection = True  # what follows an unread body is no request
        if not self._is_for_us() or not self._is_from_us() or not self._has_key():
            return
        if self.path != "/control":
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such command")
            return
        control = self._control()
        if control is None:
            self._refuse(HTTPStatus.BAD_REQUEST, "this is not a command")
            return
        if self.server.send is None:
            self._refuse(HTTPStatus.FORBIDDEN, "this dashboard has no credentials of a coordinator")
            return
        why = self.server.send(control)
        if why is not None:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, why)
            return
        self._reply(HTTPStatus.ACCEPTED, b"{}", "application/json")

    # -- who asks ----------------------------------------------------------------------------------

    def _is_for_us(self) -> bool:
        """Whether the request names our address. Otherwise another name was made to point here."""
        if self.headers.get("Host") in self.server.hosts:
            return True
        self._refuse(HTTPStatus.FORBIDDEN, "this host is not served")
        return False

    def _is_from_us(self) -> bool:
        """Whether the request comes from our own page, and not from another one."""
        kind = self.headers.get("Content-Type", "")
        if self.server.is_own_page(self.headers.get("Origin")) and kind == "application/json":
            return True
        self._refuse(HTTPStatus.FORBIDDEN, "commands come from the dashboard's own page only")
        return False

    def _has_key(self) -> bool:
        if hmac.compare_digest(self.headers.get(KEY_HEADER, "").encode(), self.server.key.encode()):
            self.server.keep(self.connection)
            return True
        self._refuse(HTTPStatus.UNAUTHORIZED, "open the address that the command printed")
        return False

    def _control(self) -> Control | None:
        """The command in the body; None if there is none that the dashboard may send."""
        try:
            body = self.rfile.read(body_length(self.headers, MAX_BODY_BYTES))
            control = Control.model_validate(json_text.loads(body))
        except (ValueError, ValidationError, UserError):
            return None
        needs_agent = control.command in ("release", "forget")
        has_agent = control.agent is not None
        is_known = control.command in COMMANDS
        return control if is_known and needs_agent == has_agent else None

    # -- replies -----------------------------------------------------------------------------------

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.close_connection = True
        self._reply(status, json.dumps({"error": why}).encode(), "application/json")

    def _reply(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self._end_headers()
        self.wfile.write(content)

    def _end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()

    def _show(self, title: str) -> None:
        """Stream what a page shows: the only run, the one with this title, or without a title the list."""
        shown = self.server.shown
        if isinstance(shown, LiveState):
            self._stream(lambda: self._send_updates(shown))
            return
        if not title:
            self._stream(lambda: self._send_list(shown))
            return
        reader = shown.reader(title)
        if reader is None:
            self._refuse(HTTPStatus.NOT_FOUND, f"{title}: no such run; it may have been removed")
            return
        with LiveState(reader) as hub:
            self._stream(lambda: self._send_updates(hub))

    def _stream(self, send: Callable[[], None]) -> None:
        """Server-sent events until the page is closed: the whole state first, then what changes."""
        if not self.server.streams.acquire(blocking=False):
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many pages are open; close some")
            return
        try:
            self.close_connection = True
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self._end_headers()
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with suppress(OSError):  # the page was closed
                send()
        finally:
            self.server.streams.release()

    def _send_list(self, runs: Runs) -> None:
        before: dict[str, str] = {}
        while True:
            found = list_sections(runs.table())
            if found != before:
                self._send_event("sections", found)
                before = found
            else:
                self.wfile.write(b": alive\n\n")
            if self.server.over.wait(LIST_S):
                return

    def _send_updates(self, hub: LiveState) -> None:
        self._send_event("controls", {"allowed": self.server.send is not None})
        version = -1
        digests: dict[str, bytes] = {}  # of the sections as the page has them
        while not hub.closed and not self.server.over.is_set():
            update = hub.update_after(version, ALIVE_S)
            if update is None:
                self.wfile.write(b": alive\n\n")
                continue
            self._send_update(update, digests)
            version = update.version

    def _send_update(self, update: Update, digests: dict[str, bytes]) -> None:
        if update.agents is not None:
            self._send_event("agents", update.agents)
        changed = {}
        for name, text in sections(update.state).items():
            digest = hashlib.sha256(text.encode()).digest()
            if digests.get(name) != digest:
                digests[name] = digest
                changed[name] = text
        if changed:
            self._send_event("sections", changed)
        self._send_event("state", {name: getattr(update.state, name) for name in FACTS})

    def _send_event(self, name: str, data: Any) -> None:
        text = json.dumps(data, allow_nan=False, separators=(",", ":"))
        self.wfile.write(f"event: {name}\ndata: {text}\n\n".encode())
