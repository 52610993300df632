"""The link over MQTT 3.1.1, or MQTT 5 where the profile of the broker has it. This is the only file that imports aiomqtt: another client library would change only it.

Every connection is a new aiomqtt client, so nothing half-sent survives a lost one. Messages are taken from aiomqtt at
the moment they arrive (`queue_type`), instead of with one task per message as its iterator does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import aiomqtt
from aiomqtt.exceptions import MqttConnectError
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from covey.shared.errors import UserError
from covey.shared.mqtt.acknowledgements import Acknowledgements, Inbox, Losses
from covey.shared.mqtt.backoff import EVERY_S, Backoff, Failover, Reasons, tls_failure
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.link import UNANSWERED, Down, Echo, Incoming, Received, Subscribed, Up, Will
from covey.shared.mqtt.profiles import Profile
from covey.shared.mqtt.read_back import LOOK_S, ReadBack, delivered, swallowed
from covey.shared.mqtt.throttle import Throttle

__all__ = ["BrokerUrl", "MqttLink"]

log = logging.getLogger(__name__)
_library_log = logging.getLogger(
    f"{__name__}.wire"
)  # of aiomqtt and paho: silent without a handler
_library_log.addHandler(logging.NullHandler())
_library_log.propagate = False

# publishes that wait for the broker at once; more wait their turn, in order
MAX_CONCURRENT_CALLS = 64
CONNECT_S = 10.0  # for the broker's answer to CONNECT, and for ours to DISCONNECT
RETRY_FULL_S = 0.1  # between two looks at a full inbox
SUBACK_FAILURE = 0x80  # this return code, and with MQTT 5 any above, refuses a subscription
GOODBYE_S = 5.0  # for the broker to close the connection after our DISCONNECT
DISCARDED_BYTES = 1 << 16  # read at once of what still comes after DISCONNECT
READ_BYTES = 1 << 14  # read at once where paho asks for less
KEPT_S = 3600  # how long a broker of MQTT 5 keeps a session that is not clean
AUTH_FAILURE_CODES = (134, 135)  # bad user name or password, not authorized
NO_ANSWER = "the broker closed the connection without an answer"
LOST = "the connection was lost"
TIMED_OUT = "Operation timed out"  # aiomqtt's words for no answer within CONNECT_S
ERROR_NUMBER = re.compile(r"\[Errno -?\d+\] ")  # before the system's words for an error
NO_DELAY = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
NO_WEBSOCKET = "WebSocket handshake error"  # how paho's words for a server without websockets begin

# one exchange with the broker
Ask = Callable[[Acknowledgements, Sequence[str]], Coroutine[Any, Any, Sequence[Any] | None]]


@dataclass(frozen=True)
class _End:
    """How a connection ended, or why there was none."""

    why: str  # for people
    connected: bool = False  # there was a connection
    refused: bool = False  # the broker answered, and refused us
    given: bool = False  # the broker itself gave the reason
    mute: bool = False  # it ended the connection without an answer


class MqttLink:
    """A `covey.shared.mqtt.link.Link` to a real broker: `async with MqttLink(url, client_id=...) as link`.

    The block is entered at once; the link connects in the background, again and again as long as it is open. The first
    failed attempt reports `Down`, and later ones do where the reason has changed (see `reasons`). A broker that drops what it
    acknowledges is reported as `Echo` (see `read_back`). Leaving the block disconnects properly, without the last will.

    If more than `inbox_bytes` wait to be read, the link disconnects (`Down`), and connects again once half of them
    were read: a slow reader never fills the memory, and loses nothing unnoticed.

    Args:
        url: the broker, with user and password; or several brokers, of which `Failover` chooses one.
        client_id: the MQTT client id.
        fixed_id: the one for brokers that know a device by its client id; empty: `client_id`.
        will: published by the broker if the connection is lost.
        keepalive_s: time without traffic after which the broker is pinged.
        clean_session: whether the broker forgets our session when the connection ends.
        ack_s: a broker that leaves a message unacknowledged for this long counts as lost.
        inbox_bytes: limit of the messages that wait to be read.
        backoff: waiting times between attempts.

    Raises:
        UserError: the url cannot be used (unreadable TLS files, a client id that is too long for the broker).
    """

    def __init__(
        self,
        url: BrokerUrl | str | Sequence[BrokerUrl],
        *,
        client_id: str,
        fixed_id: str = "",
        will: Will | None = None,
        keepalive_s: int = 30,
        clean_session: bool = True,
        ack_s: float = 120.0,
        inbox_bytes: int = 1 << 28,
        backoff: Backoff | None = None,
    ) -> None:
        self._failover = Failover(_brokers(url))
        self.client_id = client_id
        self._fixed_id = fixed_id
        for broker in self._failover.brokers:
            _check_id(self._id_at(broker), broker)
        # a file that cannot be read is reported before anything connects
        self._tls = {broker: broker.tls_context() for broker in self._failover.brokers}
        self._will = will
        self._keepalive_s = keepalive_s
        self._clean_session = clean_session
        self._ack_s = ack_s
        self._inbox_bytes = inbox_bytes
        self._backoff = backoff or Backoff()
        self._inbox = Inbox()
        self._reasons: dict[BrokerUrl, Reasons] = {}  # of each `Down` since the latest `Up`
        self._losses = Losses()
        # when a broker was asked for its limits, and what it allows
        self._answers: dict[BrokerUrl, tuple[float, Profile]] = {}
        self._read_back = ReadBack()  # of the newest connection
        self._look: asyncio.TimerHandle | None = None  # the next one at what has not come back
        self._client: aiomqtt.Client | None = None  # None while the link is down
        self._was_up = False  # there was a connection
        self._acknowledgements: Acknowledgements | None = None  # of that client's messages
        self._throttle: Throttle | None = None  # of that client's connection
        self._profile = self.url.profile  # of the newest connection
        # seconds since 1970; None: no TLS, or not verified
        self.certificate_until: float | None = None
        self._stop = asyncio.Event()  # set once, when the link is closed
        self._full = asyncio.Event()  # set while the inbox is too full for a connection
        self._aborted = False  # closed without a goodbye
        self._runner: asyncio.Task[None] | None = None  # connects again and again

    @property
    def url(self) -> BrokerUrl:
        """The broker of the connection, or of the next attempt."""
        return self._failover.current

    @property
    def profile(self) -> Profile:
        """What the broker of the newest connection allows."""
        return self._profile

    def _id_at(self, broker: BrokerUrl) -> str:
        return (
            self._fixed_id if broker.profile.fixed_client_id and self._fixed_id else self.client_id
        )

    def __repr__(self) -> str:
        state = "down" if self._client is None else "up"
        return f"MqttLink({self.url}, client_id={self.client_id!r}, {state}, {len(self)} messages)"

    async def __aenter__(self) -> Self:
        self._runner = asyncio.create_task(self._run(), name=f"link {self.client_id}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def abort(self) -> None:
        """Cut the connection without a goodbye, and close this link. Its owner makes a new one."""
        self._aborted = True
        if self._client is not None:
            _cut(self._client)
        await self._end()

    async def _end(self) -> None:
        self._stop.set()
        if self._runner is not None:
            await asyncio.wait({self._runner})
            self._runner.result()

    def incoming(self) -> AsyncIterator[Incoming]:
        return self._inbox

    def __len__(self) -> int:
        return len(self._inbox)

    async def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        client = self._client
        acknowledgements = self._acknowledgements
        throttle = self._throttle
        if client is None or acknowledgements is None or throttle is None:
            return False
        if throttle.keeps_back(topic, len(payload), retain):
            return False
        read_back = self._read_back
        if retain:
            read_back.published(topic, payload)
        taken, losses = False, self._losses
        losses.leaves(topic, len(payload))
        try:
            taken = await acknowledgements.publish(topic, payload, retain)
        finally:
            losses.left(topic, len(payload), taken=taken)
        if taken and retain:
            read_back.acknowledged(topic, payload)
            self._look_soon()
        if not taken and client is self._client:
            # unacknowledged or half-sent: only a new connection makes the state certain again
            _cut(client)
        return taken

    async def subscribe(self, topics: Sequence[str]) -> Subscribed:
        """As in `Link`. A refusal is logged."""
        if self._throttle is None:
            return UNANSWERED
        answer = await self._throttle.subscribe(topics, self._subscribe)
        if answer.refused:
            names = ", ".join(answer.refused)
            log.warning("%s refuses %s the subscription to %s", self.url, self.client_id, names)
        return answer

    async def _subscribe(self, topics: Sequence[str]) -> Subscribed:
        codes = await self._exchange(Acknowledgements.subscribe, topics)
        if codes is None:
            return UNANSWERED
        answers = zip(topics, codes, strict=False)
        refused = [topic for topic, code in answers if code.value >= SUBACK_FAILURE]
        self._read_back.subscribed(set(topics) - set(refused))
        return Subscribed(refused=tuple(refused))

    async def unsubscribe(self, topics: Sequence[str]) -> bool:
        return self._throttle is not None and await self._throttle.unsubscribe(
            topics, self._unsubscribe
        )

    async def _unsubscribe(self, topics: Sequence[str]) -> bool:
        codes = await self._exchange(Acknowledgements.unsubscribe, topics)
        self._read_back.unsubscribed(set(topics))
        return codes is not None

    async def _exchange(self, ask: Ask, topics: Sequence[str]) -> Sequence[Any] | None:
        """The broker's codes; None if the link is or goes down."""
        client = self._client
        acknowledgements = self._acknowledgements
        if client is None or acknowledgements is None:
            return None
        codes = await ask(acknowledgements, topics)
        if codes is None and client is self._client:
            # unanswered or half-sent: only a new connection makes the state certain again
            _cut(client)
        return codes

    async def _run(self) -> None:
        """Connect again and again until the link is closed."""
        loop = asyncio.get_running_loop()
        try:
            while not self._stop.is_set():
                started = loop.time()
                end = await self._explained(await self._connection())
                self._report_down(end)
                lasted_s = loop.time() - started if end.connected else 0.0
                lasted_s = self._failover.ended(lasted_s)
                least_s = self.url.profile.connect_every_s
                await self._rest(max(self._backoff.delay(lasted_s, refused=end.refused), least_s))
        finally:
            self._inbox.close()

    def _report_down(self, end: _End) -> None:
        """Report a reason that is new to people; never our own goodbye."""
        if self._stop.is_set():
            return
        reasons = self._reasons.setdefault(self.url, Reasons())
        if reasons.reports(end.why, asyncio.get_running_loop().time(), given=end.given):
            self._inbox.put(Down(end.why, broker=str(self.url)))

    def _look_soon(self) -> None:
        """Look again whether what was published has come back, as long as some of it has not."""
        if self._look is None and self._client is not None and self._read_back.waits:
            self._look = asyncio.get_running_loop().call_later(LOOK_S, self._look_back)

    def _look_back(self) -> None:
        self._look = None
        if self._read_back.look():
            self._inbox.put(Echo(f"{self.url}: {swallowed(self._read_back.missing)}"))
        self._look_soon()

    async def _rest(self, delay_s: float) -> None:
        """Wait before the next attempt, and until half of a full inbox was read."""
        await self._wait_for_stop(delay_s)
        while self._inbox.size_bytes > self._inbox_bytes // 2 and not self._stop.is_set():
            await self._wait_for_stop(RETRY_FULL_S)
        self._full.clear()

    async def _wait_for_stop(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), timeout_s)

    async def _connection(self) -> _End:
        """One connection, from the attempt to its end."""
        client = self._new_client()
        connack = _connack_of(client)
        try:
            # never cancelled: paho connects in a thread, and a cancelled one would leave a live connection
            await client.__aenter__()
        except (aiomqtt.MqttError, OSError, ValueError) as error:
            _cut(client)
            refused = isinstance(error, MqttConnectError)
            reason = _reason(error)
            if reason == NO_ANSWER:
                reason = _alert_of(client) or reason
            tls = tls_failure(reason, self.url)
            return _End(
                tls or f"{reason}{self._advice(error)}",
                refused=refused,
                given=refused or tls is not None,
                mute=str(error) == NO_ANSWER and tls is None,
            )
        if self.url.path:
            _prepare_websocket(client._client.socket())
        self._profile = self.url.profile.narrowed(connack)
        if self._profile.unusable:
            await _goodbye(client)
            return _End(self._profile.unusable, refused=True, given=True)
        self.certificate_until = _certificate_until(client)
        _remember_loss(client)
        self._rise(client)
        why = await self._watch(client)
        self._client = None
        self._throttle = None
        self._losses.ended()
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if self._acknowledgements is not None:
            self._acknowledgements.end()
        return _End(why, connected=True)

    async def _explained(self, end: _End) -> _End:
        """An end over which MQTT 3.1.1 is silent, with what the broker names of its limits when it is asked in MQTT 5."""
        is_suspect = end.connected and self._losses.is_suspect
        is_mute = end.mute and self._will is not None  # it may refuse what is retained, or QoS 1
        if self._stop.is_set() or self.url.profile.mqtt5 or not (is_suspect or is_mute):
            return end
        profile = await self._asked()
        if profile.unusable:
            return replace(end, why=profile.unusable, given=True)
        if is_suspect:
            return replace(end, why=f"{end.why}, {self._losses.why(profile.payload_bytes)}")
        return end

    async def _asked(self) -> Profile:
        """The profile within the limits that the broker names in MQTT 5, if it has that. It is asked once a minute at most."""
        now, url = asyncio.get_running_loop().time(), self.url
        asked_at, profile = self._answers.get(url, (-EVERY_S, url.profile))
        if now < asked_at + EVERY_S:
            return profile
        client = self._new_client(asks=True)
        connack = _connack_of(client)
        try:
            await client.__aenter__()
        except (aiomqtt.MqttError, OSError, ValueError):
            _cut(client)
        else:
            await _goodbye(client)
        profile = url.profile.narrowed(connack)
        self._answers[url] = now, profile
        return profile

    def _advice(self, error: BaseException) -> str:
        """What the user can do.

        A broker that expects TLS, or a certificate of ours, only closes the connection. So does a node of a cluster that has
        lost others (NATS): it is the cause once there was a connection.
        """
        if isinstance(error, MqttConnectError):
            answer_code = getattr(error.rc, "value", None)
            if answer_code in AUTH_FAILURE_CODES:
                return (
                    "; it does not accept this user and password: the broker knows a new user about a second "
                    "after `broker enroll`; otherwise check both, or enroll again"
                )
        if str(error).startswith(NO_WEBSOCKET):
            return f"; no MQTT over websockets answers at {self.url.path}, check port and path"
        if str(error) not in (NO_ANSWER, TIMED_OUT):
            return ""
        if self._was_up:
            return "; a node of a cluster does so while too few of the others are up"
        if self.url.tls is None:
            return f"; if it expects TLS, use {self.url.scheme}s://"
        if self.url.tls.cert is None:
            return "; if it expects a certificate of its clients, name cert and key in the credentials file"
        return f"; check that {self.url.tls.cert} is signed by an authority that it trusts"

    def _rise(self, client: aiomqtt.Client) -> None:
        """The connection of `client` is up. It is reported once."""
        if self._client is not client:
            self._client = client
            self._was_up = True
            self._throttle = Throttle(self._profile, MAX_CONCURRENT_CALLS)
            self._acknowledgements = Acknowledgements(client, self._throttle, within_s=self._ack_s)
            self._reasons.clear()
            self._read_back = ReadBack()
            self._inbox.put(Up(str(self.url), profile=self._profile))

    async def _watch(self, client: aiomqtt.Client) -> str:
        """Wait until the connection ends or must end, and end it properly. Returns the reason."""
        if self._aborted:
            _cut(client)
        lost = asyncio.create_task(_lost(client))
        ends = [asyncio.create_task(event.wait()) for event in (self._stop, self._full)]
        await asyncio.wait({lost, *ends}, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        if not lost.done() and not self._aborted:
            await _goodbye(client)
        await asyncio.wait({lost}, timeout=1.0)
        lost.cancel()
        if self._full.is_set():
            return f"more than {self._inbox_bytes} bytes wait to be read"
        if lost.done() and not lost.cancelled():
            return lost.result()
        return "closed"

    def _new_client(self, *, asks: bool = False) -> aiomqtt.Client:
        """A client for one connection.

        Args:
            asks: the connection only asks for the broker's limits, in MQTT 5 and without our last will.
        """
        will = None
        if self._will and not asks:
            will = aiomqtt.Will(self._will.topic, self._will.payload, qos=1, retain=True)
        client = aiomqtt.Client(
            self.url.host,
            self.url.port,
            username=self.url.user,
            password=self.url.password,
            logger=_Wire(),
            identifier=f"{self.client_id}-5" if asks else self._id_at(self.url),
            queue_type=_queue_into(lambda message: self._arrived(client, message)),
            **self._session_options(asks=asks),
            will=will,
            timeout=CONNECT_S,
            keepalive=self._keepalive_s,
            max_inflight_messages=MAX_CONCURRENT_CALLS,
            max_concurrent_outgoing_calls=MAX_CONCURRENT_CALLS,
            tls_context=self._newest_tls(),
            transport="websockets" if self.url.path else "tcp",
            websocket_path=self.url.path or None,
            websocket_headers=_without_origin,
        )
        client.pending_calls_threshold = MAX_CONCURRENT_CALLS  # aiomqtt warns above it
        _fail_on_disconnect(client)
        _write_at_once(client)
        _read_ahead(client)
        return client

    def _newest_tls(self) -> ssl.SSLContext | None:
        """The certificates as the files have them now, for they are renewed while programs run; where one cannot be read, such
        as a new certificate whose key is still under way, those from before."""
        with contextlib.suppress(UserError):
            self._tls[self.url] = self.url.tls_context()
        return self._tls[self.url]

    def _session_options(self, *, asks: bool) -> dict[str, Any]:
        """Arguments of the client for the version of MQTT, and for a session that is clean or not."""
        if not (self.url.profile.mqtt5 or asks):
            version = aiomqtt.ProtocolVersion.V311
            return {"protocol": version, "clean_session": self._clean_session}
        properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        if not self._clean_session and not asks:
            properties.SessionExpiryInterval = KEPT_S
        return {
            "protocol": aiomqtt.ProtocolVersion.V5,
            "clean_start": self._clean_session or asks,
            "properties": properties,
        }

    def _arrived(self, client: aiomqtt.Client, message: aiomqtt.Message) -> None:
        # the first message of a persistent session may overtake our own notice of the connection
        self._rise(client)
        payload = message.payload if isinstance(message.payload, bytes) else b""
        if self._read_back.arrived(message.topic.value, payload):
            self._inbox.put(Echo(f"{self.url}: {delivered(message.topic.value)}", works=True))
        if not self._full.is_set():
            self._inbox.put(Received(message.topic.value, payload, message.retain))
        if self._inbox.size_bytes > self._inbox_bytes:
            self._full.set()


def _brokers(url: BrokerUrl | str | Sequence[BrokerUrl]) -> list[BrokerUrl]:
    """One address or several, as a list."""
    if isinstance(url, str):
        url = BrokerUrl.parse(url)
    return [url] if isinstance(url, BrokerUrl) else list(url)


def _queue_into(deliver: Callable[[aiomqtt.Message], None]) -> type[asyncio.Queue[aiomqtt.Message]]:
    """A queue that stays empty: it delivers every message at once."""

    class Diverted(asyncio.Queue[aiomqtt.Message]):
        def put_nowait(self, item: aiomqtt.Message) -> None:
            deliver(item)

    return Diverted


def _fail_on_disconnect(client: aiomqtt.Client) -> None:
    """Fail as soon as the broker closes the connection without an answer to CONNECT: aiomqtt waits for its timeout."""
    loop = asyncio.get_running_loop()
    connecting = client._connected
    library_handler = client._client.on_disconnect

    def fail() -> None:
        if connecting.done():
            return
        connecting.set_exception(aiomqtt.MqttError(NO_ANSWER))
        connecting.exception()  # mark it as seen: asyncio complains otherwise if it is no longer awaited

    def on_disconnect(*args: Any) -> None:
        loop.call_soon_threadsafe(fail)  # paho connects, and may fail, in a thread of its own
        if library_handler is not None:
            library_handler(*args)

    client._client.on_disconnect = on_disconnect


class _Wire(logging.Logger):
    """The library's log of one connection: the only place at which it gives the broker's TLS alert. With TLS 1.3 a broker looks at
    our certificate when the handshake is over for us, so the alert comes as the first answer."""

    def __init__(self) -> None:
        super().__init__(_library_log.name, _library_log.getEffectiveLevel())
        self.alert = ""

    def handle(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        if "_ALERT_" in said:
            self.alert = said[said.find("[SSL") :]
        _library_log.handle(record)


def _alert_of(client: aiomqtt.Client) -> str:
    """The alert with which the broker ended the connection; "" if there was none."""
    wire = client._client._logger
    return wire.alert if isinstance(wire, _Wire) else ""


def _connack_of(client: aiomqtt.Client) -> dict[str, Any]:
    """The properties of the broker's CONNACK, by name; empty until it comes, and with MQTT 3.1.1."""
    found: dict[str, Any] = {}
    library_handler = client._client.on_connect

    def on_connect(*args: Any) -> None:
        properties: Any = args[-1]
        if isinstance(properties, Properties):
            found.update(vars(properties))
        if library_handler is not None:
            library_handler(*args)

    client._client.on_connect = on_connect
    return found


def _certificate_until(client: aiomqtt.Client) -> float | None:
    """When the broker's certificate expires, in seconds since 1970; None without one that was verified."""
    connection: Any = client._client.socket()
    connection = getattr(connection, "_socket", None)  # what a wrapper wraps
    if not isinstance(connection, ssl.SSLSocket):
        return None
    certificate = connection.getpeercert() or {}
    until = certificate.get("notAfter")
    return ssl.cert_time_to_seconds(until) if isinstance(until, str) else None


def _check_id(client_id: str, broker: BrokerUrl) -> None:
    """UserError if the broker takes no client id of this length."""
    most = broker.profile.client_id_bytes
    if len(client_id.encode()) > most:
        raise UserError(
            f"{broker}: the client id {client_id} is longer than the {most} bytes that broker profile {broker.profile} allows; "
            "shorten --id or the name of the federation"
        )


def _write_at_once(client: aiomqtt.Client) -> None:
    """Write a packet when paho has it, and have the event loop watch the socket only for what the socket did not take.

    aiomqtt has the loop watch the socket for each packet, a moment after paho asks for it, which costs as much as the
    packet. And if the broker has died in between, the loop prints a traceback ("Bad file descriptor", or -1 in place of a
    descriptor), although the link reports the loss itself.
    """
    loop = asyncio.get_running_loop()
    of_loop = threading.get_ident()
    paho = client._client
    write = _guarded(client, paho.loop_write)

    def on_socket_register_write(_client: Any, _userdata: Any, connection: Any) -> None:
        def watch() -> None:
            with contextlib.suppress(OSError, ValueError):
                loop.add_writer(connection.fileno(), write)

        if threading.get_ident() != of_loop:  # paho connects in a thread of its own
            loop.call_soon_threadsafe(watch)
            return
        write()
        if paho.want_write():
            watch()

    def on_socket_unregister_write(_client: Any, _userdata: Any, connection: Any) -> None:
        with contextlib.suppress(OSError, ValueError):
            loop.remove_writer(connection.fileno())

    paho.on_socket_register_write = on_socket_register_write
    paho.on_socket_unregister_write = on_socket_unregister_write


def _guarded(client: aiomqtt.Client, work: Callable[[], object]) -> Callable[[], None]:
    """As in aiomqtt: an error in this work is the end of the connection."""

    def guarded() -> None:
        try:
            work()
        except Exception as error:
            if not client._disconnected.done():
                client._disconnected.set_exception(error)

    return guarded


class _Ahead:
    """A socket that is read in larger pieces: paho asks for single bytes."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._read = b""
        self._at = 0  # of it, what comes next

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    @property
    def has_more(self) -> bool:
        """Whether bytes are here of which the event loop learns nothing."""
        of_tls = self._socket.pending() if isinstance(self._socket, ssl.SSLSocket) else 0
        return self._at < len(self._read) or of_tls > 0

    def recv(self, size: int) -> bytes:
        if self._at == len(self._read):
            self._read, self._at = self._socket.recv(max(size, READ_BYTES)), 0
        found = self._read[self._at : self._at + size]
        self._at += len(found)
        return found


def _read_ahead(client: aiomqtt.Client) -> None:
    """Read all that the socket has, in one turn of the event loop: aiomqtt reads one packet, and paho each byte of its head.

    Paho's wrapper of a websocket reads ahead by itself.
    """
    loop = asyncio.get_running_loop()
    paho: Any = client._client
    library_handler = paho.on_socket_open

    def on_socket_open(_client: Any, _userdata: Any, connection: Any) -> None:
        library_handler(_client, _userdata, connection)
        if not isinstance(connection, socket.socket):
            return
        connection.setsockopt(*NO_DELAY)  # aiomqtt sets no option of what is wrapped
        ahead = paho._sock = _Ahead(connection)

        def read() -> None:
            paho.loop_read()
            while paho._sock is ahead and ahead.has_more:
                paho.loop_read()

        loop.call_soon_threadsafe(loop.add_reader, connection.fileno(), _guarded(client, read))

    paho.on_socket_open = on_socket_open


def _remember_loss(client: aiomqtt.Client) -> None:
    """A connection that ended right after the broker's CONNACK is lost: entering aiomqtt's client forgets that."""
    if not client._client.is_connected() and not client._disconnected.done():
        client._disconnected.set_exception(aiomqtt.MqttError(LOST))


async def _lost(client: aiomqtt.Client) -> str:
    """Wait for the end of the connection, and return its reason. The queue stays empty, so the iterator ends with it."""
    try:
        async for _ in client.messages:
            pass
    except aiomqtt.MqttError as error:
        return _reason(error.__cause__ or error)
    return "closed"


async def _goodbye(client: aiomqtt.Client) -> None:
    """Disconnect properly, so that the broker does not publish the last will.

    paho closes its socket as soon as DISCONNECT is written. TCP then answers with a reset to whatever is unread or still
    on its way to us, and a broker that meets the reset first takes the connection for lost. A duplicate of the socket
    keeps our end open for reading until the broker, which has then read DISCONNECT, closes its own.
    """
    connection: Any = client._client.socket()
    try:
        duplicate = socket.socket(fileno=os.dup(connection.fileno()))
    except (AttributeError, OSError):
        _cut(client)  # it is closed already
        return
    with duplicate:
        try:
            await client.__aexit__(None, None, None)
        except Exception as error:
            log.debug("no goodbye: %s", error)
            _cut(client)
        duplicate.settimeout(0.0)
        with contextlib.suppress(OSError):  # a reset, or no end in time
            duplicate.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(GOODBYE_S):
                while await asyncio.get_running_loop().sock_recv(duplicate, DISCARDED_BYTES):
                    pass


def _without_origin(headers: dict[str, str]) -> dict[str, str]:
    """The headers of a program: paho adds an Origin as if it were a web page, and an open broker checks pages."""
    return {name: value for name, value in headers.items() if name != "Origin"}


def _prepare_websocket(connection: Any) -> None:
    """Correct two faults of paho's and aiomqtt's websockets: each of them is nothing over TCP.

    - If the socket takes a frame in part, paho's wrapper returns 0, upon which paho drops the packet and breaks the
      stream. BlockingIOError is the answer that has it send the rest later.
    - It sends without TCP_NODELAY: each exchange takes 40 ms more.
    """
    send: Callable[[bytes], int] = connection.send

    def send_or_wait(data: bytes) -> int:
        sent = send(data)
        if sent == 0:
            raise BlockingIOError
        return sent

    connection.send = send_or_wait
    connection._socket.setsockopt(*NO_DELAY)


def _cut(client: aiomqtt.Client) -> None:
    """End the TCP connection at once. paho notices the end and cleans up (reader, timer task)."""
    # aiomqtt has no way to close a connection without DISCONNECT
    connection: Any = getattr(client._client.socket(), "_socket", None)  # what a wrapper wraps
    if isinstance(connection, socket.socket):
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def _reason(error: BaseException) -> str:
    text = ERROR_NUMBER.sub("", str(error)) or type(error).__name__
    if text.endswith("Unspecified error"):  # paho's words for a lost connection
        return LOST
    return text
