"""MQTT over websockets for a broker that listens on TCP alone, such as Debian's Mosquitto and the embedded broker.

Each websocket becomes one TCP connection to the broker: bytes pass in both directions as they are (MQTT 3.1.1,
section 6). Users, rules and limits remain those of the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import ssl
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from covey.broker.programs.options import BrokerOptions
from covey.broker.programs.process import PortTakenError, cannot_listen, start_on_port
from covey.shared.errors import UserError, install
from covey.shared.mqtt.broker_url import DEFAULT_PATH, BrokerUrl, Tls

if TYPE_CHECKING:
    from websockets.asyncio.server import Server, ServerConnection
    from websockets.http11 import Request, Response

CHUNK_BYTES = 1 << 16  # read from the broker at once
HANDSHAKE_S = 10.0  # for TLS and the request to upgrade
CONNECT_S = 10.0  # then the broker must have answered a complete CONNECT
SUBPROTOCOL = "mqtt"
OPTION = "--websocket-port"


class WebsocketGateway:
    """Accepts websockets and connects each of them to a broker: `async with WebsocketGateway(...)` inside the broker's.

    Args:
        options: of the broker; the gateway listens at the same address, with the same certificate.
        port: to listen on; 0: any free one.
        broker: the running broker, on this machine.

    Raises:
        UserError: the port is taken, a library is missing, or the broker identifies clients by certificates, which a
            gateway cannot pass on.
    """

    def __init__(self, options: BrokerOptions, port: int, broker: BrokerUrl) -> None:
        if options.tls_ca is not None:
            raise UserError(
                "--websocket-port and --tls-ca: clients over websockets show the broker no certificate; use passwords, "
                "or a Mosquitto that listens on websockets itself"
            )
        self.url: BrokerUrl  # set once it listens
        self._options = options
        self._port = port
        self._broker = broker
        self._tls = options.tls_context()
        # the broker is our own child: its certificate may be for another name than this address
        self._broker_tls = Tls(insecure=True).context() if broker.tls else None
        self._server: Server | None = None  # None while it does not listen

    def __repr__(self) -> str:
        return f"<WebsocketGateway to {self._broker}>"

    async def __aenter__(self) -> Self:
        port = await start_on_port(replace(self._options, port=self._port), self._listen, OPTION)
        self.url = replace(self._options.url(port), path=DEFAULT_PATH)
        return self

    async def _listen(self, port: int) -> None:
        try:
            from websockets.asyncio.server import serve
            from websockets.typing import Subprotocol
        except ImportError:
            raise UserError(f"MQTT over websockets needs websockets: {install('broker')}") from None
        host = self._options.host
        try:
            self._server = await serve(
                self._serve,
                host,
                port,
                ssl=self._tls,
                subprotocols=[Subprotocol(SUBPROTOCOL)],
                process_request=self._refuse,
                open_timeout=HANDSHAKE_S,
                max_size=self._options.limits.packet_bytes,  # a frame holds a packet, or less
                compression=None,  # weights do not shrink
                ping_interval=None,  # MQTT has a keep-alive of its own
                server_header=None,
            )
        except OSError as error:
            message = cannot_listen(host, port, error, OPTION)
            kind = PortTakenError if error.errno == errno.EADDRINUSE else UserError
            raise kind(message) from None

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def reload(self) -> None:
        """Read the certificate again, for new connections. One that cannot be read leaves the old one in use."""
        if self._tls is None or self._options.tls_cert is None:
            return
        with contextlib.suppress(OSError, ssl.SSLError):
            self._tls.load_cert_chain(self._options.tls_cert, self._options.tls_key, password="")

    def _refuse(self, connection: ServerConnection, request: Request) -> Response | None:
        """The answer to a request that gets no websocket; None if it gets one."""
        if request.path != DEFAULT_PATH:
            return connection.respond(HTTPStatus.NOT_FOUND, f"MQTT answers at {DEFAULT_PATH}\n")
        open_connections = len(self._server.connections) if self._server is not None else 0
        if open_connections > self._options.limits.connections:
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections\n")
        if not self._options.rules:
            # a page of another site, in a browser on this machine, could otherwise use a broker without passwords
            why = _refuses_page(
                request.headers.get("Origin"), request.headers.get("Host", ""), self._options
            )
            if why is not None:
                return connection.respond(HTTPStatus.FORBIDDEN, f"{why}\n")
        return None

    async def _serve(self, client: ServerConnection) -> None:
        """Connect one websocket to the broker, until one of both ends."""
        broker = self._broker
        try:
            reader, writer = await asyncio.open_connection(
                broker.host, broker.port, ssl=self._broker_tls
            )
        except OSError:
            return  # the broker is stopping, or full: the client tries again later
        ways = [
            asyncio.create_task(_to_broker(client, writer)),
            asyncio.create_task(_to_client(reader, client)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            writer.close()


def _refuses_page(origin: str | None, host: str, options: BrokerOptions) -> str | None:
    """Why a web page may not use an open broker; None for a page of this machine, and for a client that is no browser.

    The owner of a name can make it point here while a browser shows a page of that name (DNS rebinding). So the host must be the
    address that the gateway listens on, localhost, or a name that the operator gave.
    """
    if origin is None:
        return None
    if urlsplit(origin).netloc != host:
        return "the origin is another host"
    name = urlsplit(f"//{host}").hostname or ""
    if name in ("localhost", options.host) or name in map(str.lower, options.websocket_hosts):
        return None
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return f"this host is not served; expected {options.host}, localhost or a name of --websocket-host"
    is_everywhere = options.host in ("0.0.0.0", "::")  # noqa: S104  compared, not bound
    return None if is_everywhere else "this host is not served"


async def _to_broker(client: ServerConnection, writer: asyncio.StreamWriter) -> None:
    async for frame in client:
        if isinstance(frame, str):  # MQTT travels in binary frames: section 6 closes the connection
            return
        writer.write(frame)
        await writer.drain()


async def _to_client(reader: asyncio.StreamReader, client: ServerConnection) -> None:
    async with asyncio.timeout(CONNECT_S):  # a client that sends no CONNECT would keep its place
        chunk = await reader.read(CHUNK_BYTES)
    while chunk:
        await client.send(chunk)
        chunk = await reader.read(CHUNK_BYTES)
