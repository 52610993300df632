"""The link over MQTT 3.1.1. The only file that imports aiomqtt: another client library would change this one alone.

Every connection is a new aiomqtt client, so nothing half-sent survives a lost one. Messages are taken from
aiomqtt at the moment they arrive (`queue_type`), not one task per message as its iterator does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiomqtt
from aiomqtt.exceptions import MqttConnectError

from covey.shared.mqtt.backoff import Backoff
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.inbox import Inbox
from covey.shared.mqtt.link import Down, Incoming, Message, Up, Will

__all__ = ["BrokerUrl", "MqttLink"]

log = logging.getLogger(__name__)
_wire = logging.getLogger(
    f"{__name__}.wire"
)  # what aiomqtt and paho say: silent unless somebody adds a handler
_wire.addHandler(logging.NullHandler())
_wire.propagate = False

MAX_CONCURRENT_CALLS = 64  # publishes under way at once; more wait their turn, in order
CONNECT_S = 10.0  # for the broker's answer to CONNECT, and for ours to DISCONNECT
SUBACK_FAILURE = 0x80  # return code of a SUBACK
AUTH_FAILURE_CODES = (134, 135)  # bad user name or password, not authorized
HUNG_UP = "the broker hung up before it answered"
TIMED_OUT = "Operation timed out"  # aiomqtt's words for CONNECT_S without an answer


@dataclass(frozen=True)
class _End:
    """How a connection ended, or that none came about; `refused`: the broker said so itself."""

    why: str
    connected: bool = False
    refused: bool = False


class MqttLink:
    """A `shared.link.Link` to a real broker, as `async with MqttLink(url, client_id=...) as link`.

    It is entered at once and connects in the background, again and again for as long as it is open. The
    first failed attempt says `Down`; later ones are silent, but for a broker that is back and lets us in no more, which
    says why. Leaving the block says goodbye (no last will).
    Where more than `inbox_bytes` wait to be read, the link hangs up (`Down`), and connects again once
    half of them were read: a slow reader never fills the memory, and loses nothing in silence.
    `ack_s`: a broker that leaves a message unacknowledged for so long counts as lost.
    A url that cannot be used (unreadable TLS files) raises UserError.
    """

    def __init__(
        self,
        url: BrokerUrl | str,
        *,
        client_id: str,
        will: Will | None = None,
        keepalive_s: int = 30,
        clean_session: bool = True,
        ack_s: float = 120.0,
        inbox_bytes: int = 1 << 28,
        backoff: Backoff | None = None,
    ) -> None:
        self.url = BrokerUrl.parse(url) if isinstance(url, str) else url
        self.client_id = client_id
        self._tls = self.url.tls_context()
        self._will = will
        self._keepalive_s = keepalive_s
        self._clean_session = clean_session
        self._ack_s = ack_s
        self._inbox_bytes = inbox_bytes
        self._backoff = backoff or Backoff()
        self._inbox = Inbox()
        self._told_down = ""  # why, as it was told
        self._client: aiomqtt.Client | None = None  # None while the link is down
        self._calls: set[asyncio.Task[Any]] = (
            set()
        )  # publishes and (un)subscribes that wait for the broker
        self._stop = asyncio.Event()
        self._full = asyncio.Event()
        self._aborted = False
        self._runner: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._runner = asyncio.create_task(self._run(), name=f"link {self.client_id}")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._end()

    async def abort(self) -> None:
        """Cut the connection without a goodbye and close this link for good; its owner makes a new one."""
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
        done, _ = await self._call(
            lambda client: client.publish(topic, payload, 1, retain, timeout=self._ack_s)
        )
        return done

    async def subscribe(self, topics: Sequence[str]) -> bool:
        """Also False where the broker refuses one of the topics, which is logged."""
        wanted = [(topic, 1) for topic in topics]
        done, codes = await self._call(lambda client: client.subscribe(wanted, timeout=self._ack_s))
        refused = [
            topic
            for topic, code in zip(topics, codes or (), strict=False)
            if code == SUBACK_FAILURE
        ]
        if refused:
            log.warning(
                "%s refuses %s the subscription to %s", self.url, self.client_id, ", ".join(refused)
            )
        return done and not refused

    async def unsubscribe(self, topics: Sequence[str]) -> bool:
        done, _ = await self._call(
            lambda client: client.unsubscribe(list(topics), timeout=self._ack_s)
        )
        return done

    async def _call(
        self, start: Callable[[aiomqtt.Client], Coroutine[Any, Any, Any]]
    ) -> tuple[bool, Any]:
        """Run one exchange with the broker: (True, its answer), or (False, None) when the link is or goes down.

        aiomqtt lets a call wait for its timeout when the connection breaks; so it is a task that we can cancel.
        """
        client = self._client
        if client is None:
            return False, None
        task = asyncio.create_task(start(client))
        self._calls.add(task)
        try:
            await asyncio.wait({task})
        finally:
            self._calls.discard(task)
            task.cancel()
        if task.cancelled():
            return False, None
        if (error := task.exception()) is None:
            return True, task.result()
        if not isinstance(error, aiomqtt.MqttError):
            raise error
        _cut(
            client
        )  # unacknowledged or half-sent: only a new connection makes the state certain again
        return False, None

    async def _run(self) -> None:
        try:
            while not self._stop.is_set():
                began = asyncio.get_running_loop().time()
                end = await self._connection()
                news = not self._told_down or (end.refused and end.why != self._told_down)
                if news and not self._stop.is_set():
                    self._inbox.put(Down(end.why))
                    self._told_down = end.why
                lasted_s = asyncio.get_running_loop().time() - began if end.connected else 0.0
                await self._rest(self._backoff.delay(lasted_s))
        finally:
            self._inbox.close()

    async def _rest(self, delay_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), delay_s)
        while self._inbox.size_bytes > self._inbox_bytes // 2 and not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), 0.1)
        self._full.clear()

    async def _connection(self) -> _End:
        """One connection from start to end."""
        client = self._new_client()
        try:
            # never cancelled: paho connects in a thread, which would leave a live connection behind
            await client.__aenter__()
        except (aiomqtt.MqttError, OSError, ValueError) as error:
            _cut(client)
            refused = isinstance(error, MqttConnectError)
            return _End(f"{self.url}: {_reason(error)}{self._advice(error)}", refused=refused)
        self._rise(client)
        why = await self._watch(client)
        self._client = None
        for call in self._calls:
            call.cancel()
        return _End(f"{self.url}: {why}", connected=True)

    def _advice(self, error: BaseException) -> str:
        """A broker that wants TLS, or a certificate of ours, does not say so: it hangs up, or is silent."""
        if (
            isinstance(error, MqttConnectError)
            and getattr(error.rc, "value", None) in AUTH_FAILURE_CODES
        ):
            return "; it does not know this user and password, or knows them no more"
        if str(error) not in (HUNG_UP, TIMED_OUT):
            return ""
        if self.url.tls is None:
            return "; if it speaks TLS, mqtts:// is wanted"
        if self.url.tls.cert is None:
            return "; if it wants a certificate of its clients, give --cert and --key"
        return f"; is {self.url.tls.cert} signed by an authority that it trusts?"

    def _rise(self, client: aiomqtt.Client) -> None:
        if self._client is not client:
            self._client = client
            self._told_down = ""
            self._inbox.put(Up())

    async def _watch(self, client: aiomqtt.Client) -> str:
        """Wait until the connection ends or is to be ended; end it properly; say why."""
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
        return lost.result() if lost.done() and not lost.cancelled() else "closed"

    def _new_client(self) -> aiomqtt.Client:
        will = (
            aiomqtt.Will(self._will.topic, self._will.payload, qos=1, retain=True)
            if self._will
            else None
        )
        client = aiomqtt.Client(
            self.url.host,
            self.url.port,
            username=self.url.user,
            password=self.url.password,
            logger=_wire,
            identifier=self.client_id,
            queue_type=_queue_into(lambda message: self._arrived(client, message)),
            protocol=aiomqtt.ProtocolVersion.V311,
            will=will,
            clean_session=self._clean_session,
            timeout=CONNECT_S,
            keepalive=self._keepalive_s,
            max_inflight_messages=MAX_CONCURRENT_CALLS,
            max_concurrent_outgoing_calls=MAX_CONCURRENT_CALLS,
            tls_context=self._tls,
            socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        )
        client.pending_calls_threshold = MAX_CONCURRENT_CALLS  # aiomqtt warns above it
        _hear_of_hanging_up(client)
        return client

    def _arrived(self, client: aiomqtt.Client, message: aiomqtt.Message) -> None:
        self._rise(
            client
        )  # a persistent session's first message may overtake our own notice of the connection
        payload = message.payload if isinstance(message.payload, bytes) else b""
        if not self._full.is_set():
            self._inbox.put(Message(message.topic.value, payload, message.retain))
        if self._inbox.size_bytes > self._inbox_bytes:
            self._full.set()


def _queue_into(deliver: Callable[[aiomqtt.Message], None]) -> type[asyncio.Queue[aiomqtt.Message]]:
    class Diverted(asyncio.Queue[aiomqtt.Message]):
        def put_nowait(self, item: aiomqtt.Message) -> None:
            deliver(item)

    return Diverted


def _hear_of_hanging_up(client: aiomqtt.Client) -> None:
    """Fail as soon as the broker hangs up without an answer to CONNECT: aiomqtt would wait for its timeout."""
    loop, told, connecting = (
        asyncio.get_running_loop(),
        client._client.on_disconnect,
        client._connected,
    )

    def fail() -> None:
        if not connecting.done():
            connecting.set_exception(aiomqtt.MqttError(HUNG_UP))
            connecting.exception()  # asyncio complains of one that nobody looks at, and perhaps nobody waits any more

    def ended(*args: Any) -> None:
        loop.call_soon_threadsafe(fail)  # paho connects, and may fail, in a thread of its own
        if told is not None:
            told(*args)

    client._client.on_disconnect = ended


async def _lost(client: aiomqtt.Client) -> str:
    """Wait for the end of the connection: the queue stays empty, so the iterator ends with it and not before."""
    try:
        async for _ in client.messages:
            pass
    except aiomqtt.MqttError as error:
        return _reason(error.__cause__ or error)
    return "closed"


async def _goodbye(client: aiomqtt.Client) -> None:
    try:
        await client.__aexit__(None, None, None)
    except Exception as error:
        log.debug("no goodbye: %s", error)
        _cut(client)


def _cut(client: aiomqtt.Client) -> None:
    """End the TCP connection at once. paho then sees its end and cleans up (reader, timer task)."""
    connection = (
        client._client.socket()
    )  # aiomqtt offers no other way to hang up without DISCONNECT
    if isinstance(connection, socket.socket):
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def _reason(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return (
        "the connection was lost" if text.endswith("Unspecified error") else text
    )  # paho's word for it
