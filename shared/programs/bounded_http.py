"""HTTP servers that take a bounded part of their process: at most some connections, and seconds for each request."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from email.message import Message
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from covey.shared.errors import UserError

HOST = "127.0.0.1"
MOST_DIGITS = 20  # of a length
PAUSE_S = 0.1  # until the next attempt where no descriptor is left for a connection


class Bounded(ThreadingMixIn, TCPServer):
    """A mix-in: one thread for each connection; those above `max_connections` are closed at once.

    A connection ends `request_s` after its beginning, unless its handler calls `keep` before.
    """

    daemon_threads = True
    request_queue_size = 128  # a client waits a second where the queue is full
    max_connections: int
    request_s: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._open: dict[socket.socket, float] = {}  # when each must have ended
        self._lock = threading.Lock()
        self.now: Callable[[], float] = time.monotonic
        super().__init__(*args, **kwargs)

    def keep(self, request: socket.socket) -> None:
        """Let a connection last: its client has shown the right to it."""
        with self._lock:
            if request in self._open:
                self._open[request] = float("inf")

    def get_request(self) -> tuple[socket.socket, Any]:
        """The next connection. OSError, after a pause, where no descriptor is left for it."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(PAUSE_S)  # it still waits: without a pause this thread would spin
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection a thread, or close it."""
        with self._lock:
            has_room = len(self._open) < self.max_connections
            if has_room:
                self._open[request] = self.now() + self.request_s
        if has_room:
            super().process_request(request, client_address)
        else:
            super().shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """The connection has ended."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End the connections whose time is over; their threads wake up with an end of file."""
        now = self.now()
        with self._lock:
            late = [request for request, until in self._open.items() if until <= now]
            for request in late:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle of a reply is no error."""


class BoundedOnThisMachine(Bounded, HTTPServer):
    """A bounded server for programs of this machine. Port 0 takes any free one.

    Raises:
        UserError: the port is taken.
    """

    allow_reuse_address = True

    def __init__(self, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        try:
            super().__init__((HOST, port), handler)
        except OSError as error:
            raise UserError(
                f"port {port} of {HOST}: {error.strerror}; choose another with --port, 0 takes any free one"
            ) from None

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return int(self.server_address[1])

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that a request may name: a web page cannot reach the server under a name of its own."""
        return (f"{HOST}:{self.port}", f"localhost:{self.port}")

    def is_own_page(self, origin: str | None) -> bool:
        """Whether a request comes from a page of this server. A browser names the origin of every POST; programs name none."""
        return origin in [f"http://{host}" for host in self.hosts]


def body_length(headers: Message, most: int) -> int:
    """The bytes of a request's body. Raises UserError for a length that is none, or above `most`."""
    length = headers.get("Content-Length") or "0"
    if not (length.isascii() and length.isdecimal() and len(length) < MOST_DIGITS):
        raise UserError("Content-Length is not a number of bytes")
    if int(length) > most:
        raise UserError(f"the request has {int(length)} bytes; at most {most} are read")
    return int(length)
