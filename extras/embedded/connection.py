"""A client's connection to the embedded broker: MQTT 3.1.1 over asyncio. What the broker knows lives in `Hub`.

Publishers may use QoS 2, subscribers get at most QoS 1. A publisher has to wait while the queue of a client that it
publishes to is long (`sessions.SLOW_BYTES`), for at most `STALL_S` per chunk that it sends.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from paho.mqtt.enums import ConnackCode, MessageType

from covey.broker.topic_filters import is_topic
from covey.extras.embedded.hub import MAX_FILTERS, REFUSED, Client, ClientSession, Hub, Sending
from covey.extras.embedded.packets import (
    Connect,
    PacketReader,
    ProtocolError,
    PublishPacket,
    SubscriptionPacket,
    VersionError,
    answer,
    connack,
    decode_connect,
    decode_publish,
    decode_request,
    packet_id_of,
    publish_head,
)

log = logging.getLogger(__name__)

CONNECT_S = 10.0  # a connection without a CONNECT ends after this time
CONNECT_BYTES = 140 << 10  # a CONNECT holds two texts and a last will of 64 KiB at most, and names
STALL_S = 2.0
WRITE_BUFFER_BYTES = 1 << 20
KEEPALIVES = 1.5  # how many a client may be silent for (MQTT 3.1.1, section 3.1.2.10)
MAX_LOGGED_NAME = 64
PONG = bytes([MessageType.PINGRESP, 0])


class Connection(asyncio.Protocol):
    """One client's TCP connection. Its `ClientSession` may outlive it."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._reader = PacketReader(min(CONNECT_BYTES, hub.limits.packet_bytes))
        self._transport: asyncio.Transport
        self._session: ClientSession | None = None  # None before the CONNECT was accepted
        self._will: PublishPacket | None = None  # None once it must not be published any more
        self._keepalive_s = 0  # 0: the client may be silent
        self._heard_at = 0.0  # loop time of the last bytes received
        self._timer: asyncio.TimerHandle | None = None  # ends a silent connection
        self._stall: asyncio.TimerHandle | None = None  # set while we do not read
        self._rested_at = 0.0  # loop time before which we do not read in any case
        self._senders: set[Client] = set()  # who waits until this client has read more
        self._blocked = False  # the transport's buffer is full
        self._unreleased: set[int] = set()  # ids of QoS 2 messages, routed and not released
        self._over = False  # set once; nothing is sent or handled afterwards

    def __repr__(self) -> str:
        state = "over" if self._over else "open"
        return f"<Connection {self._name}: {state}>"

    @property
    def _name(self) -> str:
        if self._session is not None:
            return self._session.client_id
        return str(self._transport.get_extra_info("peername"))

    # -- called by asyncio -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  asyncio's own promise
        self._transport = transport
        self._hub.sockets += 1
        allowed = self._hub.limits.connections
        if self._hub.sockets > allowed:
            log.warning("a connection is refused: %d are open (--agents)", allowed)
            self._over = True
            transport.abort()
            return
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._timer = asyncio.get_running_loop().call_later(CONNECT_S, self._end_silent)

    def connection_lost(self, exc: Exception | None) -> None:
        self._hub.sockets -= 1
        self.end("connection lost")

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        self.pump()

    def data_received(self, data: bytes) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        self._reader.add(data)
        self._read_on()

    def _read_on(self) -> None:
        """Handle the packets that are here, until one of them makes us wait."""
        try:
            while not self._over and self._stall is None:
                whole = self._reader.next()
                if whole is None:
                    self._transport.resume_reading()
                    break
                kind, flags, body = whole
                self._handle(kind, flags, body)
        except ProtocolError as error:
            log.warning("%s: %s", self._name, error)
            self.end("protocol error")

    # -- called by the hub -------------------------------------------------------------------------

    def end(self, why: str) -> None:
        """End the connection. Its last will is published, unless the client has disconnected properly."""
        if self._over:
            return
        self._over = True
        if self._blocked:
            self._transport.abort()
        else:
            self._transport.close()
        for timer in (self._timer, self._stall):
            if timer is not None:
                timer.cancel()
        self._release_senders()
        if self._session is not None:
            log.info("%s: %s", self._name, why)
            self._hub.close(self, self._session)
            if self._will is not None:
                self._hub.route(self._session.user, self._will)

    def expel(self, why: str) -> None:
        """End the connection of a user who was removed. Its last will is not published."""
        self._will = None
        self.end(why)

    def pump(self) -> None:
        """Send what is queued, as far as the client keeps up."""
        session = self._session
        if session is None:
            return
        while not self._blocked and not self._over:
            sending = session.next()
            if sending is None:
                break
            self._send(sending)
        if not session.is_slow:
            self._release_senders()

    def add_sender(self, sender: Client) -> None:
        """Have a sender wait until this client has caught up."""
        self._senders.add(sender)

    def resume_reading(self) -> None:
        """The client that this one waited for has caught up, or has had enough time."""
        if self._stall is None or self._over:
            return
        self._stall.cancel()
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        if self._heard_at < self._rested_at:
            self._stall = loop.call_at(self._rested_at, self.resume_reading)
            return
        self._stall = None
        loop.call_soon(self._read_on)

    def _send(self, sending: Sending) -> None:
        message = sending.message
        head = publish_head(
            message.topic,
            len(message.payload),
            qos=message.qos,
            retain=message.retain,
            packet_id=sending.packet_id,
            again=sending.again,
        )
        self._transport.write(head)
        self._transport.write(message.payload)

    def _release_senders(self) -> None:
        senders = self._senders
        self._senders = set()
        for sender in senders:
            sender.resume_reading()

    def _wait_for(self, slow: Sequence[Client]) -> None:
        """Stop reading from this client until one that it publishes to has caught up, or for `STALL_S`."""
        others = [client for client in slow if client is not self]
        if not others or self._stall is not None or self._over:
            return
        others[0].add_sender(self)
        self._pause(STALL_S)

    def _rest(self, wait_s: float) -> None:
        """Stop reading from a client that has sent more than it may, until it may send again."""
        if wait_s:
            self._rested_at = asyncio.get_running_loop().time() + wait_s
            self._pause(wait_s)

    def _pause(self, wait_s: float) -> None:
        if self._stall is None and not self._over:
            self._transport.pause_reading()
            self._stall = asyncio.get_running_loop().call_later(wait_s, self.resume_reading)

    # -- packets -----------------------------------------------------------------------------------

    def _handle(self, kind: int, flags: int, body: bytes) -> None:
        if self._session is None:
            if kind != MessageType.CONNECT:
                raise ProtocolError("the first packet must be a CONNECT")
            self._on_connect(body)
            return
        session = self._session
        match kind:
            case MessageType.CONNECT:
                raise ProtocolError("a second CONNECT")
            case MessageType.PUBLISH:
                self._on_publish(session, decode_publish(flags, body))
            case MessageType.PUBACK:
                session.acknowledge(packet_id_of(body))
                self.pump()
            case MessageType.PUBREL:
                self._on_release(packet_id_of(body))
            case MessageType.SUBSCRIBE:
                self._on_subscribe(session, decode_request(kind, flags, body, most=MAX_FILTERS))
            case MessageType.UNSUBSCRIBE:
                self._on_unsubscribe(session, decode_request(kind, flags, body, most=MAX_FILTERS))
            case MessageType.PINGREQ:
                self._transport.write(PONG)
            case MessageType.DISCONNECT:
                self._will = None
                self.end("disconnected")
            case _:
                raise ProtocolError(f"packet type {kind >> 4} is not for a broker")

    def _on_connect(self, body: bytes) -> None:
        try:
            connect = decode_connect(body)
        except VersionError:
            return self._refuse(ConnackCode.CONNACK_REFUSED_PROTOCOL_VERSION)
        will = connect.will
        if will is not None and (not is_topic(will.topic) or will.qos > 2):
            raise ProtocolError("a last will that could not be published")
        if not connect.client_id and not connect.clean:
            return self._refuse(ConnackCode.CONNACK_REFUSED_IDENTIFIER_REJECTED)
        user = self._user(connect)
        if not self._hub.authenticate(user, connect.password):
            log.warning(
                "user %r is refused: unknown user or wrong password", user[:MAX_LOGGED_NAME]
            )
            return self._refuse(ConnackCode.CONNACK_REFUSED_NOT_AUTHORIZED)
        self._will = will
        client_id = connect.client_id or uuid.uuid4().hex
        self._session, is_resumed = self._hub.open(self, client_id, user, clean=connect.clean)
        self._reader.largest_bytes = self._hub.limits.packet_bytes
        self._keepalive_s = connect.keepalive_s
        self._watch_keepalive()
        self._transport.write(connack(ConnackCode.CONNACK_ACCEPTED, is_resumed=is_resumed))
        self._session.resume()
        return self.pump()

    def _user(self, connect: Connect) -> str:
        """The name in the client's certificate if users are known by certificates, else the name in its CONNECT."""
        if not self._hub.by_certificate:
            return connect.user
        return _common_name(self._transport.get_extra_info("peercert"))

    def _refuse(self, code: ConnackCode) -> None:
        self._transport.write(connack(code))
        self.end("refused")

    def _on_publish(self, session: ClientSession, message: PublishPacket) -> None:
        if not is_topic(message.topic):
            raise ProtocolError(f"{message.topic!r} is not a topic to publish to")
        slow: list[Client] = []
        is_repeated = message.qos == 2 and message.packet_id in self._unreleased
        if not is_repeated:
            slow = self._hub.route(session.user, message)
        packet_id = message.packet_id
        if packet_id is not None:
            if message.qos == 1:
                self._transport.write(answer(MessageType.PUBACK, packet_id))
            else:
                self._unreleased.add(packet_id)
                self._transport.write(answer(MessageType.PUBREC, packet_id))
        self._wait_for(slow)
        if session.sends is not None:
            self._rest(session.sends.owe(1, self._heard_at))

    def _on_release(self, packet_id: int) -> None:
        self._unreleased.discard(packet_id)
        self._transport.write(answer(MessageType.PUBCOMP, packet_id))

    def _on_subscribe(self, session: ClientSession, request: SubscriptionPacket) -> None:
        codes = [self._hub.subscribe(session, pattern, qos) for pattern, qos in request.filters]
        self._transport.write(answer(MessageType.SUBACK, request.packet_id, bytes(codes)))
        answers = zip(request.filters, codes, strict=True)
        granted = {pattern: code for (pattern, _), code in answers if code != REFUSED}
        self._rest(self._hub.resend(session, granted))
        self.pump()

    def _on_unsubscribe(self, session: ClientSession, request: SubscriptionPacket) -> None:
        for pattern, _ in request.filters:
            self._hub.unsubscribe(session, pattern)
        self._transport.write(answer(MessageType.UNSUBACK, request.packet_id))

    # -- silence -----------------------------------------------------------------------------------

    def _watch_keepalive(self) -> None:
        """End the connection of a client that is silent for too long; look again when that could next be so."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._keepalive_s or self._over:
            return
        loop = asyncio.get_running_loop()
        allowed_s = KEEPALIVES * self._keepalive_s
        left_s = self._heard_at + allowed_s - loop.time()
        if self._stall is not None:  # we do not read, so its silence means nothing
            left_s = allowed_s
        if left_s <= 0:
            self._end_silent()
        else:
            self._timer = loop.call_later(left_s, self._watch_keepalive)

    def _end_silent(self) -> None:
        self._blocked = True  # the other end reads no more: discard what is unsent
        self.end("silent for too long")


def _common_name(certificate: Mapping[str, Any] | None) -> str:
    """The CN of a certificate as `ssl` represents it; empty if it has none, or several."""
    if certificate is None:
        return ""
    names = []
    for part in certificate.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                names.append(value)
    return names[0] if len(names) == 1 else ""
