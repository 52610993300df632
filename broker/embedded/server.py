"""The embedded broker's server: MQTT 3.1.1 over asyncio. Sessions and routing live in `Hub`, the wire in `Connection`.

QoS 2 is accepted from publishers; subscribers get at most QoS 1. A publisher waits while a client that it
publishes to has plenty to read (`sessions.PLENTY_BYTES`), at most `STALL_S` per chunk that it sends.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from amqtt.mqtt import connack, packet, suback
from amqtt.mqtt.connect import ConnectPacket

from covey.broker.access import acl, passwords
from covey.broker.embedded.packets import (
    PacketReader,
    ProtocolError,
    Publish,
    answer,
    count_filters,
    decode,
    decode_publish,
    packet_id_of,
    publish_head,
)
from covey.broker.embedded.sessions import Session, Waiting
from covey.broker.limits import SESSION_HOURS, Limits
from covey.broker.topic_filters import Retained, Subscriptions, is_filter, is_topic

log = logging.getLogger(__name__)

CONNECT_S = 10.0
CONNECT_BYTES = 140 << 10  # of a CONNECT: two texts and a last will of 64 KiB at most, and names
STALL_S = 2.0
WRITE_BUFFER_BYTES = 1 << 20
MAX_FILTERS = 20_000  # subscriptions of one session; an agent holds one for each part of its models
MAX_WILDCARDS = (
    8  # of these, for everybody but a coordinator: each costs a walk over all retained messages
)
MAX_REMEMBERED = 1 << 16  # answers of the rules that are kept
REFUSED = 0x80  # return code of a SUBACK
PONG = bytes([packet.PINGRESP << 4, 0])


@dataclass(frozen=True)
class Users:
    """Who may connect, and as what. `hashes` None: whoever shows a certificate. `members` None: roles by name."""

    hashes: Mapping[str, str] | None
    members: acl.Members | None = None

    def admits(self, user: str, password: str) -> bool:
        """Is it a user, with the right password where passwords count?"""
        if acl.member_of(user, self.members) is None:
            return False
        if self.hashes is None:  # TLS has seen to it
            return True
        made = self.hashes.get(user)
        return made is not None and passwords.verify(made, password)

    def same(self, user: str, other: Users) -> bool:
        """May `user` stay connected where `other` takes the place of these users?"""
        if acl.member_of(user, self.members) != acl.member_of(user, other.members):
            return False
        if self.hashes is None or other.hashes is None:
            return self.hashes is other.hashes
        return self.hashes.get(user) == other.hashes.get(user)


@dataclass
class Hub:
    """What the broker knows. `users` None: anyone may connect and use any topic; else users are held to `broker.acl`."""

    users: Users | None = None
    limits: Limits = field(default_factory=Limits)
    retained: Retained = field(default_factory=Retained)
    sessions: dict[str, Session] = field(default_factory=dict)
    connections: dict[str, Connection] = field(default_factory=dict)
    subscriptions: Subscriptions[str] = field(default_factory=Subscriptions)
    sockets: int = 0  # open ones, before and after their CONNECT
    _away: dict[str, float] = field(
        default_factory=dict
    )  # persistent sessions without a client: since when, in order
    _allowed: dict[tuple[str, acl.Action, str], bool] = field(default_factory=dict)

    @property
    def by_certificate(self) -> bool:
        """Is a user the name in its certificate, whatever it says of itself?"""
        return self.users is not None and self.users.hashes is None

    def authenticate(self, user: str | None, password: str | None) -> bool:
        return self.users is None or self.users.admits(user or "", password or "")

    def set_users(self, users: Users) -> None:
        """Only these users from now on: the connections of others end, and of those whose password or role changed.

        Their last wills are not published, as with Mosquitto: whoever is expelled has no last word.
        """
        known, self.users = self.users, users
        self._allowed.clear()
        for client_id, connection in list(self.connections.items()):
            user = self.sessions[client_id].user
            if (
                known is None
                or not known.same(user, users)
                or acl.member_of(user, users.members) is None
            ):
                connection.expel(
                    f"user {user!r} is no longer known, or has another password or role"
                )

    def authorize(self, user: str, action: acl.Action, topic: str) -> bool:
        """May the user write to the topic, or be sent a message of it? The answer is remembered."""
        if self.users is None:
            return True
        if len(topic) > acl.MAX_TOPIC_LENGTH:
            return False
        question = (user, action, topic)
        if question not in self._allowed:
            if len(self._allowed) >= MAX_REMEMBERED:
                self._allowed.clear()
            self._allowed[question] = acl.allows(user, action, topic, self.users.members)
        return self._allowed[question]

    def open(
        self, connection: Connection, client_id: str, user: str, *, clean: bool
    ) -> tuple[Session, bool]:
        """The client's session, and whether it was there before. An older connection of the same id ends.

        A session belongs to its user: to another one it is as if it were not there.
        """
        self._forget_sessions()
        if older := self.connections.pop(client_id, None):
            log.info("%s: another connection takes the client id over", client_id)
            older.end("taken over")
        session = self.sessions.get(client_id)
        known = session is not None and not clean and session.user == user
        if session is not None and not known:
            self._discard(session)
        if session is None or not known:
            session = self.sessions[client_id] = self._new_session(client_id, user, clean=clean)
        self._away.pop(client_id, None)
        self.connections[client_id] = connection
        return session, known

    def _new_session(self, client_id: str, user: str, *, clean: bool) -> Session:
        max_bytes = (
            self.limits.queued_bytes
            if self._is_coordinator(user)
            else self.limits.queued_bytes // 4
        )
        session = Session(
            client_id, clean=clean, max_bytes=max_bytes, max_messages=self.limits.queued_messages
        )
        session.user = user
        return session

    def _is_coordinator(self, user: str) -> bool:
        """Everybody is one at an open broker."""
        if self.users is None:
            return True
        member = acl.member_of(user, self.users.members)
        return member is not None and member.role == "coordinator"

    def close(self, connection: Connection, session: Session) -> None:
        """The connection is gone; so is its session, unless it is a persistent one."""
        if self.connections.get(session.client_id) is connection:
            del self.connections[session.client_id]
        session.online = False
        if session.dropped:
            log.warning(
                "%s did not read: its %d oldest messages were dropped",
                session.client_id,
                session.dropped,
            )
            session.dropped = 0
        if session.clean:
            self._discard(session)
        else:
            self._away[session.client_id] = asyncio.get_running_loop().time()

    def _forget_sessions(self) -> None:
        """Drop persistent sessions whose clients stay away for long, and the oldest ones where there are too many."""
        expired = asyncio.get_running_loop().time() - SESSION_HOURS * 3600
        while self._away:
            client_id, since = next(iter(self._away.items()))
            if since > expired and len(self._away) <= self.limits.connections:
                return
            del self._away[client_id]
            if client_id not in self.connections and client_id in self.sessions:
                self._discard(self.sessions[client_id])

    def _discard(self, session: Session) -> None:
        for pattern in session.subscriptions:
            self.subscriptions.remove(pattern, session.client_id)
        session.subscriptions.clear()
        if self.sessions.get(session.client_id) is session:
            del self.sessions[session.client_id]

    def subscribe(self, session: Session, pattern: str, qos: int) -> int:
        """The return code: the QoS granted, or 0x80."""
        if not is_filter(pattern) or qos > 2 or not self._may_subscribe(session, pattern):
            return REFUSED
        if pattern not in session.subscriptions:
            session.wildcards += _has_wildcard(pattern)
        session.subscriptions[pattern] = min(qos, 1)
        self.subscriptions.add(pattern, session.client_id, min(qos, 1))
        return min(qos, 1)

    def _may_subscribe(self, session: Session, pattern: str) -> bool:
        """Not more than its share, and nothing that the rules could never let through."""
        held = session.subscriptions
        if pattern in held:
            return True
        if len(held) >= MAX_FILTERS:
            return False
        if self.users is None:
            return True
        if not acl.allows_subscription(session.user, pattern, self.users.members):
            return False
        if self._is_coordinator(session.user) or not _has_wildcard(pattern):
            return True
        return session.wildcards < MAX_WILDCARDS

    def unsubscribe(self, session: Session, pattern: str) -> None:
        if session.subscriptions.pop(pattern, None) is not None:
            session.wildcards -= _has_wildcard(pattern)
        self.subscriptions.remove(pattern, session.client_id)

    def resend(self, session: Session, pattern: str, qos: int) -> None:
        """Queue the retained messages that a subscription asks for."""
        for topic, payload in self.retained.matching(pattern):
            if self.authorize(session.user, "read", topic):
                session.add(Waiting(topic, payload, qos, retain=True))

    def route(self, user: str, message: Publish) -> list[Connection]:
        """Keep and pass on a message; returns the connections that have plenty to read already."""
        if not self.authorize(user, "write", message.topic):
            log.warning("%s may not write to %s", user, message.topic[: acl.MAX_TOPIC_LENGTH])
            return []
        if message.retain and not self._keep(message):
            return []
        slow = []
        for client_id, qos in self.subscriptions.holders_of(message.topic).items():
            session = self.sessions[client_id]
            if not self.authorize(session.user, "read", message.topic):
                continue
            session.add(
                Waiting(message.topic, message.payload, min(qos, message.qos, 1), retain=False)
            )
            if connection := self.connections.get(client_id):
                connection.pump()
                if session.plenty:
                    slow.append(connection)
        return slow

    def _keep(self, message: Publish) -> bool:
        """Retain a message, unless all of them together would take more than half of the memory."""
        if (
            message.payload
            and self.retained.size_bytes + len(message.payload) > self.limits.memory_bytes // 2
        ):
            log.warning(
                "%s is not retained: retained messages fill their share of --memory", message.topic
            )
            return False
        self.retained.keep(message.topic, message.payload)
        return True


def _has_wildcard(pattern: str) -> bool:
    return "+" in pattern or "#" in pattern


class Connection(asyncio.Protocol):
    """One client's TCP connection. Nothing of it survives; its `Session` may."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._reader = PacketReader(min(CONNECT_BYTES, hub.limits.packet_bytes))
        self._transport: asyncio.Transport
        self._session: Session | None = None
        self._will: Publish | None = None
        self._keepalive_s = 0
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._senders: set[Connection] = set()  # who waits until we have read more
        self._blocked = False  # the transport's buffer is full
        self._unfinished: set[int] = (
            set()
        )  # ids of QoS 2 messages that were routed and not released
        self._over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  asyncio's own promise
        self._transport = transport
        self._hub.sockets += 1
        if self._hub.sockets > self._hub.limits.connections:
            log.warning(
                "a connection is refused: %d are open (--agents)", self._hub.limits.connections
            )
            self._over = True
            transport.abort()
            return
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._timer = asyncio.get_running_loop().call_later(CONNECT_S, self._silent)

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
        try:
            self._reader.add(data)
            while not self._over and (whole := self._reader.next()):
                self._packet(*whole)
        except ProtocolError as error:
            log.warning("%s: %s", self._name, error)
            self.end("protocol error")

    @property
    def _name(self) -> str:
        return (
            self._session.client_id
            if self._session
            else str(self._transport.get_extra_info("peername"))
        )

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

    def expel(self, why: str) -> None:
        """End the connection of a user that is one no more; its last will is void."""
        self._will = None
        self.end(why)

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
        user = self._user(connect)
        if not self._hub.authenticate(user, connect.password):
            log.warning("user %r is refused: no such user, or another password", user[:64])
            return self._refuse(connack.NOT_AUTHORIZED)
        if connect.will_flag:
            if (
                not is_topic(connect.will_topic or "")
                or connect.will_message is None
                or connect.will_qos > 2
            ):
                raise ProtocolError("a last will without a topic or a message")
            will = bytes(connect.will_message)
            self._will = Publish(
                connect.will_topic, will, connect.will_qos, connect.will_retain_flag, None
            )
        client_id = uuid.uuid4().hex if nameless else connect.client_id
        self._session, known = self._hub.open(
            self, client_id, user, clean=bool(connect.clean_session_flag)
        )
        self._reader.largest_bytes = self._hub.limits.packet_bytes
        self._keepalive_s = connect.keep_alive
        self._watch_keepalive()
        self._transport.write(
            connack.ConnackPacket.build(int(known), connack.CONNECTION_ACCEPTED).to_bytes()
        )
        self._session.resume()
        return self.pump()

    def _user(self, connect: ConnectPacket) -> str:
        """Who connects: the name in its certificate where users go by certificates, else what it says."""
        if not self._hub.by_certificate:
            return connect.username or ""
        return _common_name(self._transport.get_extra_info("peercert"))

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
        if count_filters(body, after=1) > MAX_FILTERS:
            raise ProtocolError(f"a SUBSCRIBE with more than {MAX_FILTERS} filters")
        request = decode(packet.SUBSCRIBE, flags, body)
        wanted = request.payload.topics
        if not wanted or flags != 2:
            raise ProtocolError("a SUBSCRIBE without topics or with wrong flags")
        codes = [self._hub.subscribe(self._session, pattern, qos) for pattern, qos in wanted]
        self._transport.write(
            suback.SubackPacket.build(request.variable_header.packet_id, codes).to_bytes()
        )
        for (pattern, _), code in zip(wanted, codes, strict=True):
            if code < 0x80:
                self._hub.resend(self._session, pattern, code)
        self.pump()

    def _on_unsubscribe(self, flags: int, body: bytes) -> None:
        assert self._session is not None  # noqa: S101  `_packet` saw to it
        if count_filters(body, after=0) > MAX_FILTERS:
            raise ProtocolError(f"an UNSUBSCRIBE with more than {MAX_FILTERS} filters")
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


def _common_name(certificate: Mapping[str, Any] | None) -> str:
    """The CN of a certificate as `ssl` gives it; empty without one, or with several."""
    subject = (certificate or {}).get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    return names[0] if len(names) == 1 else ""
