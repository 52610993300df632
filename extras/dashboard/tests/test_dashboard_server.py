"""The dashboard's server answers its own page and nobody else, and sends what the operator commands."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from covey.extras.dashboard.dashboard import DashboardRequest, opened
from covey.extras.dashboard.hub import LiveState
from covey.extras.dashboard.server import KEY_HEADER, DashboardServer, serving
from covey.extras.runs.folder_reader import FolderReader
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.wire.documents import Control
from tests.coordinator import dashboards
from tests.coordinator.dashboards import agents, phase

Reply = tuple[int, dict[str, str], bytes]


@pytest.fixture
def sent() -> list[Control]:
    return []


@pytest.fixture
def server(tmp_path: Path, sent: list[Control]) -> Iterator[DashboardServer]:
    dashboards.write_plan(tmp_path)
    dashboards.write_roster(tmp_path, agents(3))

    def send(control: Control) -> str | None:
        sent.append(control)
        return None

    with LiveState(FolderReader(tmp_path)) as hub, serving(hub, 0, send) as server:
        yield server


def ask(
    server: DashboardServer, method: str, path: str, body: bytes = b"", **headers: Any
) -> Reply:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        connection.request(method, path, body or None, named)
        reply = connection.getresponse()
        return reply.status, dict(reply.headers), reply.read()
    finally:
        connection.close()


def command(server: DashboardServer, body: Any, **changes: str) -> int:
    headers = {
        "Origin": f"http://127.0.0.1:{server.port}",
        "Content_Type": "application/json",
        KEY_HEADER: server.key,
    }
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    merged: Any = {**headers, **changes}
    return ask(server, "POST", "/control", text, **merged)[0]


def test_the_page_is_complete_and_loads_nothing_from_elsewhere(server: DashboardServer) -> None:
    weight = 0
    for path, kind in (("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javas")):
        status, headers, content = ask(server, "GET", path)
        assert status == 200
        assert headers["Content-Type"].startswith(kind)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert server.key.encode() not in content
        addresses = content.replace(b"http://www.w3.org/2000/svg", b"")
        assert b"http:" not in addresses
        assert b"https:" not in addresses
        assert b"innerHTML" not in content
        weight += len(content)
    print(f"the page weighs {weight / 1000:.0f} kB")
    assert weight < 100_000


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil:80"])
@pytest.mark.parametrize("path", ["/", "/events", "/page.js"])
def test_another_host_name_is_not_served(server: DashboardServer, host: str, path: str) -> None:
    headers: Any = {"Host": host, KEY_HEADER: server.key}
    status, _, content = ask(server, "GET", path, **headers)
    assert status == 403
    assert b"hundred" not in content


@pytest.mark.parametrize("key", ["", "x", "\xe4"])
def test_updates_need_the_key(server: DashboardServer, key: str) -> None:
    headers: Any = {KEY_HEADER: key}
    status, _, content = ask(server, "GET", "/events", **headers)
    assert status == 401
    assert b"agent" not in content


def test_a_command_of_the_page_is_sent(server: DashboardServer, sent: list[Control]) -> None:
    assert command(server, {"command": "pause"}) == 202
    assert command(server, {"command": "forget", "agent": "pi-7"}) == 202
    assert sent == [Control(command="pause"), Control(command="forget", agent="pi-7")]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Content_Type": "text/plain"}, 403),
        ({"Host": "evil.example"}, 403),
        ({KEY_HEADER: "wrong"}, 401),
    ],
)
def test_a_command_from_elsewhere_is_refused(
    server: DashboardServer, sent: list[Control], changes: dict[str, str], status: int
) -> None:
    assert command(server, {"command": "stop"}, **changes) == status
    assert sent == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        {"command": "tell"},
        {"command": "reboot"},
        {"command": "forget"},
        {"command": "pause", "agent": "pi-7"},
        {"command": "forget", "agent": "../x"},
        {"command": "pause", "more": 1},
        b" " * 5000,
    ],
)
def test_a_body_without_a_command_is_refused(
    server: DashboardServer, sent: list[Control], body: Any
) -> None:
    assert command(server, body) == 400
    assert sent == []


def test_a_dashboard_without_credentials_sends_nothing(tmp_path: Path) -> None:
    with LiveState(FolderReader(tmp_path)) as hub, serving(hub, 0) as server:
        assert command(server, {"command": "pause"}) == 403


def test_unknown_paths_and_methods_are_refused(server: DashboardServer) -> None:
    assert ask(server, "GET", "/../server.py")[0] == 404
    assert ask(server, "PUT", "/control")[0] == 501


def stream(server: DashboardServer, query: str = "") -> Callable[[], tuple[str, Any]]:
    """Reads one event of the stream after another."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", f"/events{query}", headers={KEY_HEADER: server.key})
    reply = connection.getresponse()

    def event() -> tuple[str, Any]:
        name = reply.readline().decode().removeprefix("event: ").strip()
        data = json.loads(reply.readline().decode().removeprefix("data: "))
        assert reply.readline() == b"\n"
        return name, data

    return event


def test_a_folder_of_runs_is_a_list_with_a_page_for_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LIST_S", "ALIVE_S"):
        monkeypatch.setattr(f"covey.extras.dashboard.server.{name}", 0.01)
    for name in ("a", "b & c"):
        dashboards.write_plan(tmp_path / name, name=f"scenario of {name}")
        dashboards.append_lines(tmp_path / name, phase(1))
    (tmp_path / "notes").mkdir()
    with opened(DashboardRequest(tmp_path, None, "default", "", port=0)) as server:
        event = stream(server)
        name, data = event()
        assert (name, set(data)) == ("sections", {"head", "runs"})
        assert f"{tmp_path}: 2 runs" in data["head"]
        assert '<a href="/?run=b%20%26%20c" data-page>b &amp; c</a>' in data["runs"]
        page = stream(server, "?run=b%20%26%20c")
        assert page() == ("controls", {"allowed": False})
        while (found := page())[0] != "sections":
            pass
        assert "scenario of b &amp; c" in found[1]["head"]
        key: Any = {KEY_HEADER: server.key}
        for title in ("c", "..", "notes"):
            status, _, _ = ask(server, "GET", f"/events?run={title}", **key)
            assert status == 404
        assert command(server, {"command": "stop"}) == 403
    while any(thread.name == "dashboard" for thread in threading.enumerate()):
        time.sleep(0.01)  # the hub of the run's page ends with the dashboard
    url = BrokerUrl.parse("mqtt://127.0.0.1:1")
    with (
        pytest.raises(UserError, match=r"several runs; name the run .* such as .*/a"),
        opened(DashboardRequest(tmp_path, url, "default", "")),
    ):
        pass


def test_the_stream_begins_with_everything_and_continues_with_changes(
    server: DashboardServer, tmp_path: Path
) -> None:
    event = stream(server)
    assert event() == ("controls", {"allowed": True})
    name, data = event()
    assert name == "agents"
    assert len(data["rows"]) == 3
    name, whole = event()
    assert name == "sections"
    assert "Waiting for the first round: 3 of 10 agents are here." in whole["progress"]
    name, data = event()
    assert (name, data["rounds_done"]) == ("state", 0)
    dashboards.append_lines(tmp_path, phase(1))
    name, changed = event()
    assert name == "sections"
    assert set(changed) < set(whole), "a section that is as it was is not sent again"
    assert {"chart-loss", "chart-reports"} <= set(changed)
    assert "chart-figure" not in changed
    name, data = event()
    assert (name, data["rounds_done"]) == ("state", 1)


def test_a_port_that_is_taken_is_a_users_error(server: DashboardServer) -> None:
    with pytest.raises(UserError, match="choose another with --port"):
        DashboardServer(server.shown, server.port, None)


def test_a_dashboard_ends_with_its_block(tmp_path: Path) -> None:
    with LiveState(FolderReader(tmp_path)) as hub, serving(hub, 0):
        pass
    names = {thread.name for thread in threading.enumerate()}
    assert not names & {"dashboard", "dashboard server"}


@pytest.mark.parametrize(
    ("url", "role", "may"),
    [
        ("mqtt://127.0.0.1", "", True),
        ("mqtt://coordinator:x@127.0.0.1", "", True),
        ("mqtt://coordinator:x@127.0.0.1", "coordinator", True),
        ("mqtt://boss:x@127.0.0.1", "coordinator", True),
        ("mqtt://watcher:x@127.0.0.1", "observer", False),
        ("mqtt://pi-7:x@127.0.0.1", "", False),
    ],
)
def test_only_a_coordinators_credentials_give_buttons(url: str, role: str, may: bool) -> None:
    request = DashboardRequest(None, BrokerUrl.parse(url), "default", role)
    assert request.may_command == may
    assert not DashboardRequest(Path("runs/a"), None, "default", "").may_command


def test_unfinished_requests_without_the_key_hold_a_bounded_number_of_threads(
    server: DashboardServer,
) -> None:
    """600 of them held 380 threads before."""
    clock = [0.0]
    server.now = lambda: clock[0]
    before = threading.active_count()
    with ExitStack() as stack:
        for _ in range(200):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            client.sendall(b"GET /")
        assert threading.active_count() - before <= server.max_connections
        while threading.active_count() > before:
            clock[0] += server.request_s  # also for connections that the server takes only now
            time.sleep(0.05)
    assert ask(server, "GET", "/")[0] == 200
