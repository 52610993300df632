"""MQTT over websockets: to the real Mosquitto through the gateway, with and without TLS."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin, Subprotocol

from covey.broker.limits import Limits
from covey.broker.programs.mosquitto import Mosquitto, find
from covey.broker.programs.options import BrokerOptions
from covey.extras.doctor.broker import Doctor
from covey.extras.embedded import websocket_gateway
from covey.extras.embedded.program import EmbeddedBroker
from covey.extras.embedded.websocket_gateway import WebsocketGateway
from covey.extras.users.folder import BrokerFolder
from covey.shared.errors import UserError
from covey.shared.mqtt import credentials
from covey.shared.mqtt.backoff import Backoff
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.link import Down, Will
from covey.shared.mqtt.mqtt_link import NO_DELAY, MqttLink
from tests.conformance.test_links import message, up

LARGE = 3 << 20  # bytes of a message: many TCP segments, and more than a socket's buffer
ROOMY = BrokerOptions(limits=Limits(packet=4 << 20))
needs_mosquitto = pytest.mark.skipif(find() is None, reason="mosquitto is not installed")


@pytest.mark.broker
@needs_mosquitto
async def test_a_link_over_websockets_reaches_the_real_mosquitto() -> None:
    async with (
        asyncio.timeout(60),
        Mosquitto(ROOMY) as broker,
        WebsocketGateway(ROOMY, 0, broker.url) as gateway,
    ):
        assert gateway.url.scheme == "ws"
        will = Will("gone", b"a")
        lost = MqttLink(gateway.url, client_id="a", will=will, backoff=Backoff(first_s=60))
        async with lost as web, MqttLink(broker.url, client_id="b") as tcp:
            await up(web, tcp)
            assert await web.subscribe(["large"])
            assert await tcp.subscribe(["large", "gone"])
            for sender, receiver in ((web, tcp), (tcp, web)):
                content = bytes(range(256)) * (LARGE // 256)
                assert await sender.publish("large", content)
                for link in (sender, receiver):
                    assert (await message(link)).payload == content
            await web.abort()
            assert (await message(tcp)).topic == "gone"  # the broker saw the connection end
        findings = await Doctor(gateway.url, patience_s=60.0).examine()
        assert {finding.check for finding in findings if finding.state == "missing"} == set()


@pytest.mark.broker
@needs_mosquitto
async def test_with_tls_the_login_of_an_enrolled_agent_is_checked(tmp_path: Path) -> None:
    home = BrokerFolder.create(tmp_path / "home", ["127.0.0.1"], 8883)
    own = credentials.read(home.enroll("pi-7"))
    options = home.options(BrokerOptions(), host="127.0.0.1", port=0, keeps_retained=True)
    async with (
        asyncio.timeout(60),
        Mosquitto(options) as broker,
        WebsocketGateway(options, 0, broker.url) as gateway,
    ):
        login = BrokerUrl.parse(own.broker)
        place = gateway.url
        assert place.scheme == "wss"
        for password, is_right in ((login.password, True), ("wrong", False)):
            url = BrokerUrl(place.host, place.port, own.tls, "pi-7", password, place.path)
            async with MqttLink(url, client_id="pi-7") as link:
                first = await anext(link.incoming())
            assert isinstance(first, Down) != is_right


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "ws", "wss"])
async def test_no_small_packet_waits_until_tcp_has_acknowledged_the_one_before_it(
    scheme: str, tmp_path: Path
) -> None:
    options, tls = BrokerOptions(), None
    user: str | None = None
    password: str | None = None
    if scheme in ("mqtts", "wss"):
        home = BrokerFolder.create(tmp_path / "home", ["127.0.0.1"], 8883)
        own = credentials.read(home.enroll("pi-7"))
        login, tls = BrokerUrl.parse(own.broker), own.tls
        user, password = login.user, login.password
        options = home.options(BrokerOptions(), host="127.0.0.1", port=0, keeps_retained=True)
    async with (
        asyncio.timeout(60),
        EmbeddedBroker(options) as broker,
        WebsocketGateway(options, 0, broker.url) as gateway,
    ):
        place = gateway.url if scheme.startswith("ws") else broker.url
        assert place.scheme == scheme
        url = BrokerUrl(place.host, place.port, tls, user, password, place.path)
        async with MqttLink(url, client_id="pi-7") as link:
            await up(link)
            assert link._client is not None
            wrapped: Any = link._client._client.socket()
            assert wrapped._socket.getsockopt(*NO_DELAY[:2])


async def test_a_connection_without_mqtt_over_websockets_is_refused() -> None:
    options = BrokerOptions()
    async with (
        asyncio.timeout(60),
        EmbeddedBroker(options) as broker,
        WebsocketGateway(options, 0, broker.url) as gateway,
    ):
        place = f"ws://127.0.0.1:{gateway.url.port}"
        mqtt = [Subprotocol("mqtt")]
        for path, subprotocols, origin, status in (
            ("/", mqtt, None, 404),
            ("/mqtt", None, None, 400),
            ("/mqtt", mqtt, Origin("http://evil.example"), 403),
        ):
            with pytest.raises(InvalidStatus) as refusal:
                await connect(place + path, subprotocols=subprotocols, origin=origin)
            assert refusal.value.response.status_code == status
        async with connect(f"{place}/mqtt", subprotocols=mqtt) as client:
            await client.send("text")
            await client.wait_closed()
        wrong = BrokerUrl(gateway.url.host, gateway.url.port, path="/elsewhere")
        async with MqttLink(wrong, client_id="a") as link:
            first = await anext(link.incoming())
            assert isinstance(first, Down)
            assert "no MQTT over websockets answers at /elsewhere" in first.why


def rebound(name: str) -> dict[str, str]:
    """The headers of a page whose name was made to point at this machine."""
    return {"Origin": f"http://{name}:9001", "Host": f"{name}:9001"}


@pytest.mark.parametrize(
    ("name", "host", "is_served"),
    [
        ("evil.example", "127.0.0.1", False),
        ("evil.example", "::", False),
        ("10.0.0.9", "127.0.0.1", False),
        ("10.0.0.9", "::", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("localhost", "127.0.0.1", True),
        ("Broker.lan", "127.0.0.1", True),
    ],
)
def test_a_name_that_was_made_to_point_here_opens_no_broker(
    name: str, host: str, is_served: bool
) -> None:
    headers = rebound(name)
    options = BrokerOptions(host=host, websocket_hosts=("broker.LAN",))
    why = websocket_gateway._refuses_page(headers["Origin"], headers["Host"], options)
    assert (why is None) == is_served


async def test_an_agent_may_use_any_name_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paho sends the headers of a web page."""
    origins: list[str | None] = []

    def note(origin: str | None, _host: str, _options: BrokerOptions) -> None:
        origins.append(origin)

    monkeypatch.setattr(websocket_gateway, "_refuses_page", note)
    options = BrokerOptions()
    async with (
        asyncio.timeout(60),
        EmbeddedBroker(options) as broker,
        WebsocketGateway(options, 0, broker.url) as gateway,
        MqttLink(gateway.url, client_id="a") as link,
    ):
        await up(link)
    assert origins == [None]


async def test_a_rebound_page_is_refused_before_mqtt_begins() -> None:
    options = BrokerOptions()
    async with (
        asyncio.timeout(60),
        EmbeddedBroker(options) as broker,
        WebsocketGateway(options, 0, broker.url) as gateway,
    ):
        for name, status in (("evil.example", "403"), ("127.0.0.1", "101")):
            lines = [f"{key}: {value}" for key, value in rebound(name).items()]
            lines += ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"]
            lines += ["Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Protocol: mqtt"]
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.url.port)
            writer.write("\r\n".join(["GET /mqtt HTTP/1.1", *lines, "", ""]).encode())
            assert (await reader.readline()).decode().split()[1] == status
            writer.close()


async def test_a_websocket_without_connect_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """It kept one for 95 s before, until Mosquitto cut it."""
    monkeypatch.setattr(websocket_gateway, "CONNECT_S", 0.5)
    monkeypatch.setattr("covey.extras.embedded.connection.CONNECT_S", 600.0)  # it cuts as well
    options = BrokerOptions()
    async with (
        asyncio.timeout(60),
        EmbeddedBroker(options) as broker,
        WebsocketGateway(options, 0, broker.url) as gateway,
        MqttLink(gateway.url, client_id="b") as used,
    ):
        await up(used)
        place = f"ws://127.0.0.1:{gateway.url.port}/mqtt"
        async with connect(place, subprotocols=[Subprotocol("mqtt")]) as idle:
            await idle.send(b"\x10")
            await idle.wait_closed()
        assert await used.subscribe(["still/here"])


def test_client_certificates_cannot_pass_a_gateway(tmp_path: Path) -> None:
    home = BrokerFolder.create(tmp_path / "home", ["127.0.0.1"], 8883)
    folder = home.folder
    options = BrokerOptions(
        tls_cert=folder / "server.pem", tls_key=folder / "server.key", tls_ca=folder / "ca.pem"
    )
    with pytest.raises(UserError, match="--websocket-port and --tls-ca"):
        WebsocketGateway(options, 0, BrokerUrl("127.0.0.1"))
