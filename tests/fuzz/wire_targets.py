"""What comes from the network: messages, parts, topics, packets, and sequences of them."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import numpy as np

from covey.agent.device import events as e
from covey.agent.device.session import Session
from covey.broker.access import acl
from covey.broker.limits import Limits
from covey.coordinator.serve.roster import Roster
from covey.extras.embedded.connection import Connection
from covey.extras.embedded.hub import Hub, Users
from covey.shared.errors import DecodeError, UserError
from covey.shared.mqtt.credentials import COORDINATOR
from covey.shared.mqtt.link import Down, Up
from covey.shared.numerics.accumulator import Accumulator
from covey.shared.numerics.vectors import Layout
from covey.shared.wire import documents, framing, messages
from covey.shared.wire.codec import Codec, decode
from covey.shared.wire.documents import AgentStatus, CoordinatorStatus
from covey.shared.wire.framing import Document, Packed
from covey.shared.wire.jobs import HEAD_BYTES, DeviceData, Perform, pack, unpack
from covey.shared.wire.messages import Encoded, OrderMessage, Part, ReportContent
from covey.shared.wire.parts import Assembler, Sink, split
from covey.shared.wire.topics import Topics
from tests.agent.orders import order, ref, status
from tests.fuzz.mutate import as_json, mutated, mutated_tree, packed, with_wild_number
from tests.fuzz.target import Target
from tests.shared.samples import SAMPLES


def sealed(sample: Packed, body: bytes) -> bytes:
    """A msgpack message of this kind with a right checksum, as a hostile peer sends it."""
    version = bytes([framing.VERSION])
    if isinstance(sample, ReportContent):
        return version + body
    data_bytes = len(sample.data) if isinstance(sample, Part) else 0
    return version + framing.checksum_of(body[: len(body) - data_bytes]) + body


def sealed_json(kind: type[Document], body: bytes) -> bytes:
    return body[:-1] + framing.check_key(body) if kind.checked and body else body


MAX_MESSAGE = 1 << 20  # bytes: a list of a list of lists, each 300 times over, only takes time

# -- single messages ---------------------------------------------------------------------------------------------------


def with_another_checksum(rng: Random, sample: Packed | Document, whole: bytes) -> bytes:
    """A message in which a single bit of the checksum is wrong, and nothing else."""
    damaged = bytearray(whole)
    place = rng.randrange(1, 9) if isinstance(sample, Packed) else len(whole) - rng.randrange(3, 19)
    damaged[place] ^= 1
    return bytes(damaged)


def hostile_message(sample: Packed | Document, rng: Random) -> bytes:
    """Raw bytes, a body with a right checksum, or a tree with a wrong leaf and a right checksum."""
    whole = sample.to_bytes()
    way = rng.random()
    if way < 0.05:
        return with_another_checksum(rng, sample, whole)
    if way < 0.1:
        return mutated(rng, [whole])
    if isinstance(sample, Packed):
        body = packed(sample.model_dump())
        tree = sample.model_dump()
        if way < 0.15:
            changed = packed(with_wild_number(rng, tree))
        else:
            changed = mutated(rng, [body]) if way < 0.45 else packed(mutated_tree(rng, tree))
        return sealed(sample, changed if len(changed) <= MAX_MESSAGE else mutated(rng, [body]))
    body = sample.model_dump_json().encode()
    changed = (
        mutated(rng, [body])
        if way < 0.45
        else as_json(mutated_tree(rng, sample.model_dump(mode="json")))
    )
    return sealed_json(type(sample), changed[:MAX_MESSAGE])


def read(kind: type[Packed | Document], payload: bytes) -> Packed | Document:
    """The message in a payload. A report is read as after a comparison of its digest."""
    if kind is ReportContent:
        return ReportContent.from_bytes(payload, verified=True)
    return kind.from_bytes(payload)


def is_whole(message: Packed | Document, payload: bytes) -> bool:
    """Whether the payload has the checksum that the protocol's page describes, computed here once more."""
    if isinstance(message, Document):
        before, key, after = payload.rpartition(b',"check":"')
        body = before + b"}"
        expected = blake2b(body, digest_size=8).hexdigest().encode() + b'"}'
        return not message.checked or (bool(key) and after == expected)
    if isinstance(message, ReportContent):  # its digest was compared, by our own words
        return True
    checked = payload[9:]
    if isinstance(message, Part):
        checked = checked[: len(checked) - len(message.data)]
    return payload[1:9] == blake2b(checked, digest_size=8).digest()


def is_finite(tree: Any) -> bool:
    if isinstance(tree, float):
        return math.isfinite(tree)
    if isinstance(tree, dict):
        tree = list(tree.values())
    return not isinstance(tree, list | tuple) or all(map(is_finite, tree))


def message_target(name: str) -> Target:
    sample = SAMPLES[name]

    def take(payload: bytes) -> str:
        message = read(type(sample), payload)
        if not is_whole(message, payload):
            raise AssertionError("a message was taken whose checksum is wrong")
        if not is_finite(message.model_dump()):
            raise AssertionError("a number was taken that is not finite")
        again = read(type(sample), message.to_bytes())  # what was taken can be passed on
        if again != message:
            raise AssertionError(
                "a message that was taken reads otherwise when it is written again"
            )
        return ""

    return Target(
        f"message.{name}",
        lambda rng: hostile_message(sample, rng),
        lambda _: take,
        (DecodeError,),
        6,
    )


# -- parts -------------------------------------------------------------------------------------------------------------


class MemorySink(Sink):
    """A content in memory that knows how much it may hold."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.hasher: list[tuple[int, bytes]] = []

    def write(self, offset: int, data: bytes) -> None:
        if offset < 0 or offset + len(data) > self.size:
            raise AssertionError("a part lies outside of its content")
        self.hasher.append((offset, data))

    def content(self) -> bytes:
        content = bytearray(self.size)
        for offset, data in self.hasher:
            content[offset : offset + len(data)] = data
        return bytes(content)

    def digest(self) -> bytes:
        return blake2b(self.content(), digest_size=16).digest()

    def discard(self) -> None:
        self.hasher.clear()


LARGEST, TOTAL = 4096, 20_000


def part_sequence(rng: Random) -> list[tuple[str, Part]]:
    """Parts of a few contents of three senders, out of order, doubled, and some of them lies."""
    parts: list[tuple[str, Part]] = []
    for _ in range(rng.randint(1, 4)):
        content = rng.randbytes(rng.randint(1, 300) if rng.random() < 0.9 else LARGEST + 1)
        import io

        name = messages.digest(content)
        sender = rng.choice("abc")
        about = rng.randrange(4)
        cut = rng.randint(20, 200) if len(content) < LARGEST else LARGEST
        whole = split(
            io.BytesIO(content), digest=name, size=len(content), part_bytes=cut, about=about
        )
        parts += [(sender, part) for part in whole]
    rng.shuffle(parts)
    for position in range(len(parts)):
        if rng.random() < 0.3:
            sender, part = parts[position]
            field = rng.choice(("digest", "index", "count", "size", "about", "data"))
            lie: Any = rng.choice((0, 1, 2, 3, 7, 300, 4096, 2**20, 2**39))
            if field in ("digest", "data"):
                lie = rng.randbytes(16 if field == "digest" else rng.randint(0, 300))
            parts.append((sender, part.model_copy(update={field: lie})))
    return parts


def assembler_target() -> Target:
    def ready(_: Path) -> Callable[[Any], str]:
        assembler = Assembler(
            lambda sender, part: MemorySink(part.size),
            largest_bytes=LARGEST,
            per_sender=3,
            total_bytes=TOTAL,
            max_age_s=10,
        )
        now = [0.0]

        def take(parts: list[tuple[str, Part]]) -> str:
            outcome = ""
            for sender, part in parts:
                now[0] += 0.1
                try:
                    part = Part.from_bytes(part.to_bytes())
                    whole = assembler.feed(sender, part, now[0])
                    if isinstance(whole, MemorySink) and whole.digest() != part.digest:
                        raise AssertionError("a content was taken that has another digest")
                    if isinstance(whole, MemorySink) and whole.size > LARGEST:
                        raise AssertionError("a content was taken that is too large")
                except DecodeError as error:
                    outcome = error.reason
            assembler.expire(now[0])
            pending = assembler.pending
            if sum(item.size for item in pending) > TOTAL or len(pending) > 9:
                raise AssertionError(
                    f"{len(pending)} contents are pending: more than the limits allow"
                )
            return outcome

        return take

    return Target("parts.assembler", part_sequence, ready, (DecodeError,), 2)


# -- vectors -----------------------------------------------------------------------------------------------------------


def encoded_vector(rng: Random) -> Any:
    length = rng.choice((0, 1, 2, 5, 64, 300, 301))
    codec = rng.choice(("float32", "float16", "bfloat16", "int8", "topk", "int8", "topk", "gzip"))
    width = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}.get(codec, 4)
    kept = rng.randint(0, length) if codec == "topk" else length
    index = sorted(rng.sample(range(length), kept)) if codec == "topk" else []
    if rng.random() < 0.3:  # in any order, repeated, and beyond the end
        index = [rng.randrange(length + 2) for _ in index]
    tree = {
        "codec": codec,
        "length": length,
        "base": rng.choice((b"", bytes(16))),
        "data": rng.randbytes(kept * width),
        "scale": rng.randbytes(4 * rng.randint(0, 3)) if codec == "int8" else b"",
        "index": b"".join(position.to_bytes(4, "little") for position in index),
    }
    return tree if rng.random() < 0.5 else mutated_tree(rng, tree)


def take_vector(tree: Any) -> str:
    import numpy as np

    encoded = Encoded.from_tree(tree) if hasattr(Encoded, "from_tree") else _encoded(tree)
    values = decode(encoded, length=-300, bases=lambda name: np.zeros(encoded.length, np.float32))
    if not np.isfinite(values).all() or values.size > 300:
        raise AssertionError("a vector that is not finite or too long was taken")
    positions = np.frombuffer(encoded.index, "<u4").astype(np.int64)
    if (np.diff(positions) <= 0).any() or (positions >= values.size).any():
        raise AssertionError("a vector was taken whose positions do not ascend below its length")
    return ""


def _encoded(tree: Any) -> Encoded:
    from pydantic import ValidationError

    try:
        return Encoded.model_validate(tree)
    except ValidationError:
        raise DecodeError("fields") from None


CODEC = Codec().to_wire()
LAYOUT = SAMPLES["order"].model_dump()["work"]["layout"]


def partial_sum(rng: Random) -> bytes:
    """Changed bytes of a sum, or its tree with a wrong leaf."""
    total = Accumulator()
    for key in ("0", "1"):
        total.add(key, np.array([0.5, -3.0, 1e-9], np.float32), 0.1)
    content = total.to_bytes()
    if rng.random() < 0.5:
        return mutated(rng, [content])
    return packed(mutated_tree(rng, msgpack.unpackb(content)))[:MAX_MESSAGE]


def take_partial_sum(content: bytes) -> str:
    total = Accumulator.from_bytes(content, max_values=1000)
    again = Accumulator.from_bytes(total.to_bytes())
    if again.to_bytes() != total.to_bytes():
        raise AssertionError("a sum that was taken has other bytes when it is written again")
    for key in total.keys:
        total.mean(key, np.zeros(1, np.float32))
    return ""


def take_codec(tree: Any) -> str:
    Codec.from_wire(tree)
    return ""


def take_layout(tree: Any) -> str:
    layout = Layout.from_wire(tree)
    layout.digest, layout.size, layout.modules  # noqa: B018 - to be computed
    return ""


# -- topics ------------------------------------------------------------------------------------------------------------

TREE = Topics("default")
TOPICS = [
    TREE.coordinator_status, TREE.metrics, TREE.roster, TREE.control, TREE.status("pi-7"), TREE.order("pi-7"),
    TREE.report("pi-7"), f"{TREE.model('3')}/0", f"{TREE.model('@pi-7')}/12",
]  # fmt: skip


def take_topic(data: bytes) -> str:
    TREE.parse(data.decode(errors="replace"))
    return ""


USERS = ("pi-7", "pi-8", "pi-8@default", COORDINATOR)


def user_and_topic(rng: Random) -> bytes:
    """A user of these and a topic, half of them changed."""
    both = f"{rng.choice(USERS)} {rng.choice(TOPICS)}".encode()
    return both if rng.random() < 0.5 else mutated(rng, [both])


def take_rule(data: bytes) -> str:
    """May a user read, write or subscribe? Any text is a topic here, and any is a name."""
    user, _, topic = data.decode(errors="replace").partition(" ")
    reads = acl.allows(user, "read", topic, None)
    writes = acl.allows(user, "write", topic, None)
    subscribes = acl.allows_subscription(user, topic, None)
    if user == COORDINATOR:
        return ""
    agents = re.match(r"covey/[^/]+/agents/([^/]+)/(.+)", topic, re.DOTALL)
    is_own = agents is not None and agents[1] == user.partition("@")[0]
    if writes and not (is_own and agents is not None and agents[2] in ("status", "report/0")):
        raise AssertionError(f"{user!r} may write to {topic!r}")
    if (reads or subscribes) and agents is not None and not is_own:
        raise AssertionError(f"{user!r} may read {topic!r} of another agent")
    return "" if reads or writes or subscribes else "refused"


# -- the agent's session -----------------------------------------------------------------------------------------------


def session_events(rng: Random) -> list[Any]:
    """Orders and statuses that decode, between events of the link and the clock."""
    events: list[Any] = []
    for _ in range(rng.randint(1, 4)):
        match rng.randrange(6):
            case 0:
                events.append(rng.choice((Up(), Down("gone"), e.Tick())))
            case 1:
                events.append((CoordinatorStatus, hostile_message(status(task=True), rng)))
            case 2:
                events.append((AgentStatus, hostile_message(SAMPLES["agent_status"], rng)))
            case 3:
                events.append(order(rng.randint(1, 4), ref(), run=rng.choice(("run-1", "run-2"))))
            case _:
                events.append((OrderMessage, hostile_message(order(rng.randint(1, 4), ref()), rng)))
    return events


def session_target() -> Target:
    def take(events: list[Any]) -> str:
        session = Session("pi-7", TREE, session="s1")
        outcome = ""
        for now, event in enumerate([Up(), *events]):
            if isinstance(event, tuple):
                kind, payload = event
                try:
                    event = kind.from_bytes(payload)
                except DecodeError as error:
                    outcome = error.reason
                    continue
            if isinstance(event, CoordinatorStatus):
                event = e.CoordinatorSeen(event)
            elif isinstance(event, AgentStatus):
                event = e.OwnStatusSeen(event)
            elif isinstance(event, OrderMessage):
                event = e.OrderSeen(event)
            actions = session.handle(event, float(now))
            session.status.to_bytes()
            topics = sum(
                len(action.topics) for action in actions if isinstance(action, e.Subscribe)
            )
            if topics > 70_000:
                raise AssertionError(f"one order makes {topics} subscriptions")
        return outcome

    return Target("covey.agent.device.session", session_events, lambda _: take, (DecodeError,), 3)


def roster_target() -> Target:
    def ready(_: Path) -> Callable[[Any], str]:
        roster = Roster("d1")

        def take(payload: bytes) -> str:
            told = AgentStatus.from_bytes(payload)
            roster.seen(
                told.model_copy(update={"agent": "pi-7"}), retained=False, epoch="e1", now=0.0
            )
            documents.RosterMessage(
                run="r", agents=roster.rows({}), refusals=dict(roster.refusals)
            ).to_bytes()
            return ""

        return take

    return Target(
        "covey.coordinator.serve.roster",
        lambda rng: hostile_message(SAMPLES["agent_status"], rng),
        ready,
        (DecodeError,),
        2,
    )


# -- the embedded broker -----------------------------------------------------------------------------------------------


def text(words: str) -> bytes:
    return len(words).to_bytes(2, "big") + words.encode()


def mqtt(first: int, body: bytes) -> bytes:
    head, length = bytearray([first]), len(body)
    while True:
        length, low = divmod(length, 128)
        head.append(low | (0x80 if length else 0))
        if not length:
            return bytes(head) + body


CONNECT = mqtt(0x10, text("MQTT") + b"\x04\x02\x00\x3c" + text("pi-7"))
WILL = text(TREE.status("pi-7")) + text("gone")
CONNECT_ALL = mqtt(
    0x10, text("MQTT") + b"\x04\xee\x00\x3c" + text("pi-7") + WILL + text("pi-7") + text("secret")
)
PACKETS = [
    mqtt(0x30, text(TREE.status("pi-7")) + b"hello"),
    mqtt(0x33, text(TREE.status("pi-7")) + b"\x00\x01hello"),
    mqtt(0x34, text(TREE.report("pi-7")) + b"\x00\x02hello"),
    mqtt(0x40, b"\x00\x01"),
    mqtt(0x62, b"\x00\x02"),
    mqtt(0x82, b"\x00\x03" + text(TREE.order("pi-7")) + b"\x01" + text("covey/#") + b"\x00"),
    mqtt(0xA2, b"\x00\x04" + text("covey/#")),
    mqtt(0xC0, b""),
    mqtt(0xE0, b""),
]


def stream(rng: Random) -> bytes:
    """A connection's bytes: most begin with a right CONNECT, and all have something wrong in them."""
    packets = [rng.choice((CONNECT, CONNECT, CONNECT_ALL))] + [
        rng.choice(PACKETS) for _ in range(rng.randint(1, 5))
    ]
    wrong = rng.randrange(0 if rng.random() < 0.3 else 1, len(packets))
    packets[wrong] = mutated(rng, [packets[wrong]])
    return b"".join(packets)


class FakeTransport(asyncio.Transport):
    """Takes what is written and counts it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    def write(self, data: Any) -> None:
        self.written += len(data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


def broker_target(name: str, users: Users | None) -> Target:
    def ready(_: Path) -> Callable[[Any], str]:
        logging.getLogger("covey.extras.embedded").setLevel(logging.CRITICAL)
        loop = asyncio.new_event_loop()
        hub = Hub(users, Limits())
        reader = _connected(loop, hub, CONNECT.replace(b"pi-7", b"pi-8") + PACKETS[5])

        async def converse(data: bytes) -> str:
            connection = Connection(hub)
            connection.connection_made(transport := FakeTransport())
            cut = len(data) // 2
            for chunk in (data[:cut], data[cut:]):
                connection.data_received(chunk)
            outcome = "ended" if connection._over else ""
            connection.connection_lost(None)
            if hub.sockets != 1 or len(hub.sessions) > 3 + hub.limits.connections:
                raise AssertionError(
                    f"{hub.sockets} sockets and {len(hub.sessions)} sessions are left"
                )
            hub.retained = type(hub.retained)()  # so that a campaign's end is like its beginning
            for left in [session for key, session in hub.sessions.items() if key != "pi-8"]:
                hub._discard(left)
                hub._away.pop(left.client_id, None)
            for session in hub.sessions.values():
                session.resume()
            reader.pump()
            if transport.written > 1 << 20:
                raise AssertionError(f"{transport.written} bytes are answered to {len(data)}")
            return outcome

        return lambda data: loop.run_until_complete(converse(data))

    return Target(name, stream, ready, (), 3)


def _connected(loop: asyncio.AbstractEventLoop, hub: Hub, data: bytes) -> Connection:
    async def connect() -> Connection:
        connection = Connection(hub)
        connection.connection_made(FakeTransport())
        connection.data_received(data)
        if connection._timer is not None:
            connection._timer.cancel()
        return connection

    return loop.run_until_complete(connect())


def take_frame(data: bytes) -> str:
    """Between a process and its own worker: whatever msgpack raises is the end of a worker that lost its mind."""
    unpack(data)
    return ""


def wire_targets() -> list[Target]:
    source, place = DeviceData(data="data.csv"), Path("report")
    job = Perform(
        order=b"order",
        client="a",
        source=source,
        models=[place],
        report_out=place,
        memory_out=place,
        durable=True,
    )
    frame = pack(job)[HEAD_BYTES:]
    simple: list[
        tuple[
            str, Callable[[Random], Any], Callable[[Any], str], tuple[type[Exception], ...], float
        ]
    ] = [
        ("vector.decode", encoded_vector, take_vector, (DecodeError,), 3),
        ("vector.codec", lambda rng: mutated_tree(rng, CODEC), take_codec, (DecodeError,), 1),
        (
            "vector.layout",
            lambda rng: mutated_tree(rng, LAYOUT),
            take_layout,
            (DecodeError, UserError),
            2,
        ),
        ("vector.partial_sum", partial_sum, take_partial_sum, (DecodeError,), 2),
        (
            "topic.parse",
            lambda rng: mutated(rng, [t.encode() for t in TOPICS]),
            take_topic,
            (DecodeError,),
            4,
        ),
        ("broker.rules", user_and_topic, take_rule, (), 3),
        ("worker.frame", lambda rng: mutated(rng, [frame]), take_frame, (ValueError, UserError), 1),
    ]
    return [
        *(message_target(name) for name in sorted(SAMPLES)),
        *(
            Target(name, make, lambda _, take=take: take, allowed, share)  # type: ignore[misc]
            for name, make, take, allowed, share in simple
        ),
        assembler_target(),
        session_target(),
        roster_target(),
        broker_target("broker.open", None),
        broker_target("broker.users", Users({"pi-7": "$7$101$c2FsdA==$aGFzaA=="})),
    ]
