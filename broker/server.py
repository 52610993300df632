"""The embedded broker's server: MQTT 3.1.1 over asyncio. Sessions and routing live in `Hub`, the wire in `Connection`.

QoS 2 is accepted from publishers; subscribers get at most QoS 1. A publisher waits while a client that it
publishes to has plenty to read (`sessions.PLENTY_BYTES`), at most `STALL_S` per chunk that it sends.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import uuid
from dataclasses import dataclass, field

from amqtt.mqtt import connack, packet, suback
from amqtt.mqtt.connect import ConnectPacket

from broker import acl, passwords
from broker.matching import Retained, Subscriptions, is_filter, is_topic
from broker.packets import (
    PacketReader,
    ProtocolError,
    Publish,
    answer,
    decode,
    decode_publish,
    packet_id_of,
    publish_head,
)
from broker.sessions import Session, Waiting

log = logging.getLogger(__name__)

LARGEST_BYTES = 64 << 20
CONNECT_S = 10.0
STALL_S = 2.0
WRITE_BUFFER_BYTES = 1 << 20
PONG = bytes([packet.PINGRESP << 4, 0])


@functools.lru_cache(maxsize=1 << 16)
def _allows(user: str, action: acl.Action, topic: str) -> bool:
    return acl.allows(user, action, topic)


@dataclass
class Hub:
    """What the broker knows. `users` None: anyone may connect. `rules`: hold users to `broker.acl`."""

    users: dict[str, str] | None = None
    rules: bool = False
    retained: Retained = field(default_factory=Retained)
    sessions: dict[str, Session] = field(default_factory=dict)
    connections: dict[str, Connection] = field(default_factory=dict)
    subscriptions: Subscriptions[str] = field(default_factory=Subscriptions)

    def welcome(self, user: str | None, password: str | None) -> bool:
        if self.users is None:
            return True
        made = self.users.get(user or "")
        return made is not None and passwords.fits(made, password or "")

    def know(self, users: dict[str, str]) -> None:
        """Only these users from now on: the connections of others end, and of those whose password changed."""
        known, self.users = self.users or {}, users
        for client_id, connection in list(self.connections.items()):
            user = self.sessions[client_id].user
            if users.get(user) is None or users[user] != known.get(user):
                connection.end(f"user {user!r} is no longer known, or has another password")

    def may(self, user: str, action: acl.Action, topic: str) -> bool:
        return not self.rules or _allows(user, action, topic)

    def open(self, connection: Connection, client_id: str, *, clean: bool) -> tuple[Session, bool]:
        """The client's session, and whether it was there before. An older connection of the same id ends."""
        if older := self.connections.pop(client_id, None):
            log.info("%s: another connection takes the client id over", client_id)
            older.end("taken over")
        session = self.sessions.get(client_id)
        known = session is not None and not clean
        if session is not None and clean:
            self._discard(session)
        if session is None or not known:
            session = self.sessions[client_id] = Session(client_id, clean=clean)
        self.connections[client_id] = connection
        return session, known

    def close(self, connection: Connection, session: Session) -> None:
        """The connection is gone; so is its session, unless it is a persistent one."""
        if self.connections.get(session.client_id) is connection:
            del self.connections[session.client_id]
        session.online = False
        if session.dropped:
            log.warning("%s did not read: its %d oldest messages were dropped", session.client_id, session.dropped)
            session.dropped = 0
        if session.clean:
            self._discard(session)

    def _discard(self, session: Session) -> None:
        for pattern in session.subscriptions:
            self.subscriptions.remove(pattern, session.client_id)
        session.subscriptions.clear()
        if self.sessions.get(session.client_id) is session:
            del self.sessions[session.client_id]

    def subscribe(self, session: Session, pattern: str, qos: int) -> int:
        """The return code: the QoS granted, or 0x80."""
        if not is_filter(pattern) or qos > 2:
            return 0x80
        session.subscriptions[pattern] = min(qos, 1)
        self.subscriptions.add(pattern, session.client_id, min(qos, 1))
        return min(qos, 1)

    def unsubscribe(self, session: Session, pattern: str) -> None:
        session.subscriptions.pop(pattern, None)
        self.subscriptions.remove(pattern, session.client_id)

    def resend(self, session: Session, pattern: str, qos: int) -> None:
        """Queue the retained messages that a subscription asks for."""
        for topic, payload in self.retained.matching(pattern):
            if self.may(session.user, "read", topic):
                session.add(Waiting(topic, payload, qos, retain=True))

    def route(self, user: str, message: Publish) -> list[Connection]:
        """Keep and pass on a message; returns the connections that have plenty to read already."""
        if not self.may(user, "write", message.topic):
            log.warning("%s may not write to %s", user, message.topic)
            return []
        if message.retain:
            self.retained.keep(message.topic, message.payload)
        slow = []
        for client_id, qos in self.subscriptions.to(message.topic).items():
            session = self.sessions[client_id]
            if not self.may(session.user, "read", message.topic):
                continue
            session.add(Waiting(message.topic, message.payload, min(qos, message.qos, 1), retain=False))
            if connection := self.connections.get(client_id):
                connection.pump()
                if session.plenty:
                    slow.append(connection)
        return slow


class Connection(asyncio.Protocol):
    """One client's TCP connection. Nothing of it survives; its `Session` may."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._reader = PacketReader(LARGEST_BYTES)
        self._transport: asyncio.Transport
        self._session: Session | None = None
        self._will: Publish | None = None
        self._keepalive_s = 0
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._senders: set[Connection] = set()  # who waits until we have read more
        self._blocked = False  # the transport's buffer is full
        self._unfinished: set[int] = set()  # ids of QoS 2 messages that were routed and not released
        self._over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  asyncio's own promise
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._timer = asyncio.get_running_loop().call_later(CONNECT_S, self._silent)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end("connection lost")

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        self.pump()

    def data_received(self, data: bytes) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        try:
            for kind, flags, body in self._reader.feed(data):
                if self._over:
                    return
                self._packet(kind, flags, body)
        except ProtocolError as error:
            log.warning("%s: %s", self._name, error)
            self.end("protocol error")

    @property
    def _name(self) -> str:
        return self._session.client_id if self._session else str(self._transport.get_extra_info("peername"))

    def end(self, why: str) -> None:
        """End the connection and publish its last will, unless the client said goodbye before."""
        if self._over:
            return
        self._over = True
        self._transport.abort() if self._blocked else self._transport.close()
        for timer in (self._timer, self._stall):
            if timer:
                timer.cancel()
        self._release_senders()
        if self._session is not None:
            log.info("%s: %s", self._name, why)
            self._hub.close(self, self._session)
            if self._will is not None:
                self._hub.route(self._session.user, self._will)

    def pump(self) -> None:
        """Send what waits, as far as the client keeps up."""
        session = self._session
        if session is None:
            return
        while not self._blocked and not self._over and (sending := session.next()):
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
        if not session.plenty:
            self._release_senders()

    def _release_senders(self) -> None:
        senders, self._senders = self._senders, set()
        for sender in senders:
            sender._go_on()

    def _wait_for(self, slow: list[Connection]) -> None:
        """Read no more from this client until those it publishes to have caught up, or for `STALL_S`."""
        others = [reader for reader in slow if reader is not self]
        if not others or self._stall is not None or self._over:
            return
        for reader in others[:1]:
            reader._senders.add(self)
        self._transport.pause_reading()
        self._stall = asyncio.get_running_loop().call_later(STALL_S, self._go_on)

    def _go_on(self) -> None:
        if self._stall is not None and not self._over:
            self._stall.cancel()
            self._stall = None
            self._heard_at = asyncio.get_running_loop().time()
            self._transport.resume_reading()

    def _packet(self, kind: int, flags: int, body: bytes) -> None:
        if (kind == packet.CONNECT) == (self._session is not None):
            raise ProtocolError("CONNECT is wanted first, and once")
        match kind:
            case packet.CONNECT:
                self._on_connect(decode(kind, flags, body))
            case packet.PUBLISH:
                self._on_publish(decode_publish(flags, body))
            case packet.PUBACK if self._session:
                self._session.acknowledge(packet_id_of(body))
                self.pump()
            case packet.PUBREL:
                packet_id = packet_id_of(body)
                self._unfinished.discard(packet_id)
                self._transport.write(answer(packet.PUBCOMP, packet_id))
            case packet.SUBSCRIBE:
                self._on_subscribe(flags, body)
            case packet.UNSUBSCRIBE:
                self._on_unsubscribe(flags, body)
            case packet.PINGREQ:
                self._transport.write(PONG)
            case packet.DISCONNECT:
                self._will = None
                self.end("goodbye")
            case _:
                raise ProtocolError(f"packet type {kind} is not for a broker")

    def _on_connect(self, connect: ConnectPacket) -> None:
        if connect.proto_name != "MQTT" or connect.proto_level != 4:
            return self._refuse(connack.UNACCEPTABLE_PROTOCOL_VERSION)
        if connect.variable_header.reserved_flag:
            raise ProtocolError("a reserved flag is set in CONNECT")
        nameless = connect.payload.client_id_is_random
        if nameless and not connect.clean_session_flag:
            return self._refuse(connack.IDENTIFIER_REJECTED)
        if not self._hub.welcome(connect.username, connect.password):
            log.warning("user %r is refused: no such user, or another password", connect.username)
            return self._refuse(connack.NOT_AUTHORIZED)
        if connect.will_flag:
            if not is_topic(connect.will_topic or "") or connect.will_message is None or connect.will_qos > 2:
                raise ProtocolError("a last will without a topic or a message")
            will = bytes(connect.will_message)
            self._will = Publish(connect.will_topic, will, connect.will_qos, connect.will_retain_flag, None)
        client_id = uuid.uuid4().hex if nameless else connect.client_id
        self._session, known = self._hub.open(self, client_id, clean=bool(connect.clean_session_flag))
        self._session.user = connect.username or ""
        self._keepalive_s = connect.keep_alive
        self._watch_keepalive()
        self._transport.write(connack.ConnackPacket.build(int(known), connack.CONNECTION_ACCEPTED).to_bytes())
        self._session.resume()
        return self.pump()

    def _refuse(self, code: int) -> None:
        self._transport.write(connack.ConnackPacket.build(0, code).to_bytes())
        self.end("refused")

    def _on_publish(self, message: Publish) -> None:
        assert self._session is not None  # noqa: S101  `_packet` saw to it
        if not is_topic(message.topic):
            raise ProtocolError(f"{message.topic!r} is no topic to publish to")
        slow: list[Connection] = []
        if message.qos < 2 or message.packet_id not in self._unfinished:
            slow = self._hub.route(self._session.user, message)
        if message.qos == 1 and message.packet_id is not None:
            self._transport.write(answer(packet.PUBACK, message.packet_id))
        elif message.packet_id is not None:
            self._unfinished.add(message.packet_id)
            self._transport.write(answer(packet.PUBREC, message.packet_id))
        self._wait_for(slow)

    def _on_subscribe(self, flags: int, body: bytes) -> None:
        assert self._session is not None  # noqa: S101  `_packet` saw to it
        request = decode(packet.SUBSCRIBE, flags, body)
        wanted = request.payload.topics
        if not wanted or flags != 2:
            raise ProtocolError("a SUBSCRIBE without topics or with wrong flags")
        codes = [self._hub.subscribe(self._session, pattern, qos) for pattern, qos in wanted]
        self._transport.write(suback.SubackPacket.build(request.variable_header.packet_id, codes).to_bytes())
        for (pattern, _), code in zip(wanted, codes, strict=True):
            if code < 0x80:
                self._hub.resend(self._session, pattern, code)
        self.pump()

    def _on_unsubscribe(self, flags: int, body: bytes) -> None:
        assert self._session is not None  # noqa: S101  `_packet` saw to it
        request = decode(packet.UNSUBSCRIBE, flags, body)
        if not request.payload.topics or flags != 2:
            raise ProtocolError("an UNSUBSCRIBE without topics or with wrong flags")
        for pattern in request.payload.topics:
            self._hub.unsubscribe(self._session, pattern)
        self._transport.write(answer(packet.UNSUBACK, request.variable_header.packet_id))

    def _watch_keepalive(self) -> None:
        """A client that is silent for one and a half times its keep-alive is gone (section 3.1.2.10)."""
        if self._timer:
            self._timer.cancel()
        if not self._keepalive_s or self._over:
            return
        loop = asyncio.get_running_loop()
        left_s = self._heard_at + 1.5 * self._keepalive_s - loop.time()
        if self._stall is not None:  # we do not listen to it now
            left_s = 1.5 * self._keepalive_s
        if left_s <= 0:
            self._silent()
        else:
            self._timer = loop.call_later(left_s, self._watch_keepalive)

    def _silent(self) -> None:
        self._blocked = True  # nobody reads there: leave what is unsent
        self.end("silent for too long")
