"""The state of the embedded broker: sessions, subscriptions, retained messages, and who may use them.

It knows no sockets. `Connection` calls it for each packet, and it calls the connections of those whom a message reaches.

A client's session on the embedded broker: its queue, and the messages that it has not acknowledged.

Pure state without sockets. Messages leave in the order of their arrival (MQTT 3.1.1, section 4.6).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from covey.broker.access import acl, passwords
from covey.broker.limits import SESSION_HOURS, Limits
from covey.broker.topic_filters import Retained, Subscriptions, has_wildcard, is_filter
from covey.extras.embedded.packets import PublishPacket
from covey.shared.mqtt.throttle import Bucket

MAX_IN_FLIGHT = 200  # messages that were sent to a client and not acknowledged
SLOW_BYTES = 64 << 20  # a longer queue slows down those who publish to the client
MAX_BYTES = 1 << 30  # a longer queue loses its oldest messages; a broker sets its own limit
MAX_MESSAGES = 1 << 20  # the same, in messages
MAX_OFFLINE_MESSAGES = 1000  # in the queue of a persistent session without a connection
LAST_PACKET_ID = 65535


@dataclass(frozen=True)
class QueuedMessage:
    """A message in the queue of one client."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


@dataclass(frozen=True)
class Sending:
    """A message to be sent now."""

    message: QueuedMessage
    packet_id: int | None  # None at QoS 0
    again: bool = False  # it was sent before, without an acknowledgement


class ClientSession:
    """What the broker keeps for a client id. A persistent session (`clean` False) outlives its connection."""

    def __init__(
        self,
        client_id: str,
        *,
        clean: bool,
        max_bytes: int = MAX_BYTES,
        max_messages: int = MAX_MESSAGES,
    ) -> None:
        self.client_id = client_id
        self.max_bytes = max_bytes  # of the queue
        self.max_messages = max_messages  # in the queue, while the client is connected
        self.clean = clean
        self.online = True
        self.user = ""  # the owner of the session; "" at an open broker
        self.subscriptions: dict[str, int] = {}  # QoS by topic filter
        self.wildcards = 0  # how many of the subscriptions contain a wildcard
        self.sends: Bucket | None = None  # messages that its user may send; None: any number
        per_s, at_once = WALKED
        self.walked = Bucket(per_s, at_once, at=0.0)
        self.dropped = 0  # messages that a full queue lost since the last warning
        self.waiting_bytes = 0  # sum of the payloads in the queue
        self._queue: deque[QueuedMessage] = deque()  # not yet sent, oldest first
        self._in_flight: dict[int, QueuedMessage] = {}  # sent and not acknowledged, by packet id
        self._again: deque[int] = deque()  # ids of `_in_flight` to be sent once more
        self._last_id = 0  # the packet id used last; 0: none yet

    def __repr__(self) -> str:
        state = "online" if self.online else "offline"
        counts = f"{len(self._queue)} waiting, {len(self._in_flight)} in flight"
        return f"<Session {self.client_id!r}: {state}, {counts}>"

    @property
    def is_slow(self) -> bool:
        """Whether the queue is so long that those who publish to the client should wait."""
        return self.waiting_bytes > SLOW_BYTES

    def add(self, message: QueuedMessage) -> None:
        """Queue a message. A queue that is too long loses its oldest messages."""
        if not self.online and message.qos == 0:
            return
        self._queue.append(message)
        self.waiting_bytes += len(message.payload)
        max_messages = self.max_messages if self.online else MAX_OFFLINE_MESSAGES
        while self.waiting_bytes > self.max_bytes or len(self._queue) > max_messages:
            oldest = self._queue.popleft()
            self.waiting_bytes -= len(oldest.payload)
            self.dropped += 1

    def next(self) -> Sending | None:
        """The next message to send; None if the queue is empty or too many messages are unacknowledged."""
        if self._again:
            packet_id = self._again.popleft()
            return Sending(self._in_flight[packet_id], packet_id, again=True)
        if not self._queue or len(self._in_flight) >= MAX_IN_FLIGHT:
            return None
        message = self._queue.popleft()
        self.waiting_bytes -= len(message.payload)
        if message.qos == 0:
            return Sending(message, None)
        packet_id = self._free_id()
        self._in_flight[packet_id] = message
        return Sending(message, packet_id)

    def acknowledge(self, packet_id: int) -> None:
        """The client has received it. An unknown id is ignored, because a client may acknowledge twice."""
        self._in_flight.pop(packet_id, None)

    def resume(self) -> None:
        """A new connection: unacknowledged messages are sent again, before everything else."""
        self.online = True
        self._again = deque(self._in_flight)

    def _free_id(self) -> int:
        while True:
            self._last_id = self._last_id % LAST_PACKET_ID + 1
            if self._last_id not in self._in_flight:
                return self._last_id


log = logging.getLogger(__name__)

MAX_FILTERS = 20_000  # subscriptions of one session; an agent holds one for each part of its models
MAX_WILDCARDS = 8  # of these with wildcards: every message is compared to all of them
MAX_LEVELS = 16  # of a topic or filter; Covey's have at most six
# each: per second, at once
MESSAGES = (100.0, 1000.0)  # of one user in the role of an agent
WALKED = (20_000.0, 100_000.0)  # retained messages that the filters of one session are compared to
MAX_CACHED_ANSWERS = 1 << 16  # of the access rules
MAX_QOS = 1  # that subscribers get
SESSION_S = 3600 * SESSION_HOURS
REFUSED = 0x80  # return code of a SUBACK

Question = tuple[str, acl.Action, str]  # may this user do this with this topic?


class Client(Protocol):
    """What the hub needs of a connection."""

    def pump(self) -> None:
        """Send what is queued, as far as the client keeps up."""

    def end(self, why: str) -> None:
        """End the connection and publish its last will."""

    def expel(self, why: str) -> None:
        """End the connection without its last will."""

    def add_sender(self, sender: Client) -> None:
        """Have a sender wait until this client has caught up."""

    def resume_reading(self) -> None:
        """The client that this one waited for has caught up."""


@dataclass(frozen=True)
class Users:
    """Who may connect, and in which role."""

    hashes: Mapping[str, str] | None  # of the passwords; None: TLS has checked a certificate
    members: acl.Members | None = None  # None: roles by name

    def accepts(self, user: str, password: str) -> bool:
        """Whether it is a user, with the right password if passwords count."""
        if acl.member_of(user, self.members) is None:
            return False
        if self.hashes is None:
            return True
        stored = self.hashes.get(user)
        return stored is not None and passwords.verify(stored, password)

    def has_same(self, user: str, other: Users) -> bool:
        """Whether the other users hold this one with the same role and password."""
        if acl.member_of(user, self.members) != acl.member_of(user, other.members):
            return False
        own_hashes = self.hashes
        other_hashes = other.hashes
        if own_hashes is None or other_hashes is None:
            return own_hashes is other_hashes
        return own_hashes.get(user) == other_hashes.get(user)


class Hub:
    """All that the broker knows. Without `users` it is open: anyone may connect and use any topic."""

    def __init__(self, users: Users | None = None, limits: Limits | None = None) -> None:
        self.users = users
        self.limits = limits or Limits()
        self.retained = Retained()
        # by client id: the sessions of connected clients, and the persistent ones of others
        self.sessions: dict[str, ClientSession] = {}
        # by client id; each of them has a session
        self.connections: dict[str, Client] = {}
        # the filters of all sessions, held by client ids
        self.subscriptions: Subscriptions[str] = Subscriptions()
        # number of open connections, before and after their CONNECT
        self.sockets = 0
        # by client id: persistent sessions without a connection, since when; the oldest first
        self._away: dict[str, float] = {}
        self._sends: dict[str, Bucket] = {}  # by user, in the role of an agent
        # answers of the access rules, valid for the present users
        self._allowed: dict[Question, bool] = {}

    def __repr__(self) -> str:
        kind = "open" if self.users is None else "with users"
        connections = len(self.connections)
        sessions = len(self.sessions)
        return f"<Hub {kind}: {connections} connections, {sessions} sessions, {self.retained!r}>"

    # -- who may what ------------------------------------------------------------------------------

    @property
    def by_certificate(self) -> bool:
        """Whether the user of a connection is the name in its certificate, whatever its CONNECT contains."""
        return self.users is not None and self.users.hashes is None

    def authenticate(self, user: str | None, password: str | None) -> bool:
        """Whether this user may connect with this password."""
        if self.users is None:
            return True
        return self.users.accepts(user or "", password or "")

    def set_users(self, users: Users) -> None:
        """Accept only these users from now on.

        Ends the connections of users who were removed, or who have another password or role now. Their last wills are
        not published, as with Mosquitto: an expelled user sends nothing more.
        """
        before = self.users
        self.users = users
        self._allowed.clear()
        for client_id, connection in list(self.connections.items()):
            user = self.sessions[client_id].user
            may_stay = (
                before is not None
                and before.has_same(user, users)
                and acl.member_of(user, users.members) is not None
            )
            if may_stay:
                continue
            connection.expel(f"user {user!r} was removed, or has another password or role")

    def authorize(self, user: str, action: acl.Action, topic: str) -> bool:
        """Whether the user may write to the topic, or receive a message of it. Answers are cached."""
        if _is_long(topic):
            return False
        if self.users is None:
            return True
        question = (user, action, topic)
        answer = self._allowed.get(question)
        if answer is None:
            if len(self._allowed) >= MAX_CACHED_ANSWERS:
                self._allowed.clear()
            answer = acl.allows(user, action, topic, self.users.members)
            self._allowed[question] = answer
        return answer

    def _role(self, user: str) -> acl.Role | None:
        """At an open broker, everyone has a coordinator's rights."""
        if self.users is None:
            return "coordinator"
        member = acl.member_of(user, self.users.members)
        return None if member is None else member.role

    # -- sessions ----------------------------------------------------------------------------------

    def open(
        self, connection: Client, client_id: str, user: str, *, clean: bool
    ) -> tuple[ClientSession, bool]:
        """The client's session, and whether it existed before. An older connection with this id ends.

        A session belongs to its user: another user with the same client id gets a new one.
        """
        self._forget_sessions()
        older = self.connections.pop(client_id, None)
        if older is not None:
            log.info("%s: another connection takes the client id over", client_id)
            older.end("taken over")
        session = self.sessions.get(client_id)
        is_resumed = False
        if session is not None:
            is_resumed = not clean and session.user == user
            if not is_resumed:
                self._discard(session)
        if session is None or not is_resumed:
            session = self._new_session(client_id, user, clean=clean)
            self.sessions[client_id] = session
        self._away.pop(client_id, None)
        self.connections[client_id] = connection
        return session, is_resumed

    def _new_session(self, client_id: str, user: str, *, clean: bool) -> ClientSession:
        role = self._role(user)
        max_bytes = self.limits.queued_bytes
        if role != "coordinator":
            max_bytes //= 4
        session = ClientSession(
            client_id, clean=clean, max_bytes=max_bytes, max_messages=self.limits.queued_messages
        )
        session.user = user
        if role == "agent":
            per_s, at_once = MESSAGES
            session.sends = self._sends.setdefault(user, Bucket(per_s, at_once, at=0.0))
        return session

    def close(self, connection: Client, session: ClientSession) -> None:
        """The connection has ended. Its session ends too, unless it is a persistent one."""
        client_id = session.client_id
        if self.connections.get(client_id) is connection:
            del self.connections[client_id]
        session.online = False
        if session.dropped:
            log.warning(
                "%s did not read: its %d oldest messages were dropped", client_id, session.dropped
            )
            session.dropped = 0
        if session.clean:
            self._discard(session)
        else:
            self._away[client_id] = asyncio.get_running_loop().time()

    def _forget_sessions(self) -> None:
        """Drop persistent sessions whose clients stay away for too long, and the oldest if there are too many."""
        expired = asyncio.get_running_loop().time() - SESSION_S
        max_away = self.limits.connections
        while self._away:
            oldest = next(iter(self._away))
            if self._away[oldest] > expired and len(self._away) <= max_away:
                return
            del self._away[oldest]
            if oldest in self.connections:
                continue
            session = self.sessions.get(oldest)
            if session is not None:
                self._discard(session)

    def _discard(self, session: ClientSession) -> None:
        client_id = session.client_id
        for pattern in session.subscriptions:
            self.subscriptions.remove(pattern, client_id)
        session.subscriptions.clear()
        if self.sessions.get(client_id) is session:
            del self.sessions[client_id]

    # -- subscriptions -----------------------------------------------------------------------------

    def subscribe(self, session: ClientSession, pattern: str, qos: int) -> int:
        """The return code: the QoS granted, or `REFUSED`."""
        if qos > 2 or not is_filter(pattern):
            return REFUSED
        if not self._allows_subscription(session, pattern):
            return REFUSED
        if pattern not in session.subscriptions:
            session.wildcards += has_wildcard(pattern)
        granted = min(qos, MAX_QOS)
        session.subscriptions[pattern] = granted
        self.subscriptions.add(pattern, session.client_id, granted)
        return granted

    def _allows_subscription(self, session: ClientSession, pattern: str) -> bool:
        """Whether the session is below its limits, and the rules cover the filter."""
        held = session.subscriptions
        if pattern in held:
            return True
        if len(held) >= MAX_FILTERS or _is_long(pattern):
            return False
        if has_wildcard(pattern) and session.wildcards >= MAX_WILDCARDS:
            return False
        if self.users is None:
            return True
        return acl.allows_subscription(session.user, pattern, self.users.members)

    def unsubscribe(self, session: ClientSession, pattern: str) -> None:
        """End a subscription. Without such a subscription, nothing happens."""
        held = session.subscriptions
        if pattern in held:
            del held[pattern]
            session.wildcards -= has_wildcard(pattern)
        self.subscriptions.remove(pattern, session.client_id)

    # -- messages ----------------------------------------------------------------------------------

    def resend(self, session: ClientSession, granted: Mapping[str, int]) -> float:
        """Queue the retained messages that match new subscriptions, once for each QoS.

        Args:
            session: gets them.
            granted: the QoS by topic filter.

        Returns:
            How long to wait before the client may subscribe again (s).
        """
        user = session.user
        wait_s = 0.0
        for qos in set(granted.values()):
            patterns = [pattern for pattern, one in granted.items() if one == qos]
            for topic, payload in self.retained.matching(*patterns):
                if self.authorize(user, "read", topic):
                    session.add(QueuedMessage(topic=topic, payload=payload, qos=qos, retain=True))
            if any(map(has_wildcard, patterns)):
                now = asyncio.get_running_loop().time()
                wait_s = session.walked.owe(len(self.retained), now)
        return wait_s

    def route(self, user: str, message: PublishPacket) -> list[Client]:
        """Retain a message if it asks for that, and pass it on to its subscribers.

        Returns:
            The connections of those subscribers whose queues are long already.
        """
        topic = message.topic
        if not self.authorize(user, "write", topic):
            log.warning("%s may not write to %s", user, topic[: acl.MAX_TOPIC_LENGTH])
            return []
        if message.retain and not self._retain(message):
            return []
        slow = []
        for client_id, granted in self.subscriptions.holders_of(topic).items():
            session = self.sessions[client_id]
            if not self.authorize(session.user, "read", topic):
                continue
            waiting = QueuedMessage(
                topic=topic,
                payload=message.payload,
                qos=min(granted, message.qos, MAX_QOS),
                retain=False,
            )
            session.add(waiting)
            connection = self.connections.get(client_id)
            if connection is None:
                continue
            connection.pump()
            if session.is_slow:
                slow.append(connection)
        return slow

    def _retain(self, message: PublishPacket) -> bool:
        """Retain a message, unless all of them would be too many, or take more than half of the memory."""
        topic = message.topic
        payload = message.payload
        retained = self.retained
        size_bytes = retained.size_bytes + len(payload)
        max_bytes = self.limits.memory_bytes // 2
        if payload and size_bytes > max_bytes:
            log.warning("%s is not retained: retained messages fill their share of --memory", topic)
            return False
        if payload and topic not in retained and len(retained) >= self.limits.retained_messages:
            log.warning(
                "%s is not retained: %d messages are already (--agents)", topic, len(retained)
            )
            return False
        retained.keep(topic, payload)
        return True


def _is_long(topic: str) -> bool:
    """Whether it is longer, or has more levels, than a topic or filter may have."""
    return len(topic) > acl.MAX_TOPIC_LENGTH or topic.count("/") >= MAX_LEVELS
