"""An HTTP server of the product takes a bounded number of connections, each for a bounded time."""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from covey.coordinator.cli.run import raise_descriptor_limit
from covey.shared.programs.bounded_http import Bounded


class Small(Bounded, HTTPServer):
    max_connections = 3
    request_s = 5.0


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/stay":
            assert isinstance(self.server, Small)
            self.server.keep(self.connection)
            self.rfile.read(1)
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def small() -> Iterator[tuple[Small, ExitStack]]:
    with Small(("127.0.0.1", 0), Handler) as server, ExitStack() as stack:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server, stack
        finally:
            server.shutdown()
            thread.join()


def connected(server: Small, stack: ExitStack, text: bytes = b"GET") -> socket.socket:
    client = stack.enter_context(socket.create_connection(server.server_address[:2], timeout=10))  # type: ignore[arg-type]
    client.sendall(text)
    return client


def test_a_connection_above_the_limit_is_closed_at_once() -> None:
    with small() as (server, stack):
        held = [connected(server, stack) for _ in range(3)]
        assert connected(server, stack, b"").recv(1) == b""
        held[0].sendall(b" / HTTP/1.0\r\n\r\n")
        assert held[0].makefile("rb").read().startswith(b"HTTP/1.0 204")
        # its place is free again once its thread has ended
        while (after := answer(server, stack)) == b"":
            pass
        assert after.startswith(b"HTTP/1.0 204")


def answer(server: Small, stack: ExitStack) -> bytes:
    try:
        return connected(server, stack, b"GET / HTTP/1.0\r\n\r\n").makefile("rb").read()
    except OSError:
        return b""


def test_a_request_that_is_never_finished_ends_and_one_that_was_kept_does_not() -> None:
    with small() as (server, stack):
        clock = [0.0]
        server.now = lambda: clock[0]
        stays = connected(server, stack, b"GET /stay HTTP/1.0\r\n\r\n")
        unfinished = connected(server, stack)
        while float("inf") not in server._open.values() or len(server._open) < 2:
            pass
        clock[0] = 5.0
        assert unfinished.recv(1) == b""
        stays.sendall(b"x")
        assert stays.makefile("rb").read().startswith(b"HTTP/1.0 204")


def test_a_coordinator_raises_its_soft_limit_of_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
