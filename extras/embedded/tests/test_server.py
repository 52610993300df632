"""The embedded broker's connections over a fake transport, on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from paho.mqtt.enums import MessageType
from paho.mqtt.matcher import MQTTMatcher

from covey.broker import topic_filters
from covey.broker.access import passwords
from covey.broker.limits import MIN_MEMORY_BYTES, SESSION_HOURS, Limits
from covey.extras.embedded import hub as sessions
from covey.extras.embedded.connection import CONNECT_BYTES, CONNECT_S, STALL_S, Connection
from covey.extras.embedded.hub import MAX_FILTERS, Hub, Users
from covey.extras.embedded.packets import (
    PacketReader,
    ProtocolError,
    PublishPacket,
    answer,
    decode_publish,
    publish_head,
)
from covey.shared.mqtt.throttle import Bucket
from tests.clock import run
from tests.raw_mqtt import connect_packet, packet, subscribe_packet, text

CONNACK, PUBLISH, PUBACK, PUBREC = (
    MessageType.CONNACK,
    MessageType.PUBLISH,
    MessageType.PUBACK,
    MessageType.PUBREC,
)
PUBREL, SUBACK = MessageType.PUBREL, MessageType.SUBACK
FOR_A_BROKER = {
    PUBLISH,
    PUBACK,
    PUBREL,
    MessageType.SUBSCRIBE,
    MessageType.UNSUBSCRIBE,
    MessageType.PINGREQ,
}  # from a client that is connected and stays so


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = False
        self.paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default


class Client:
    """The other end of a connection."""

    def __init__(self, hub: Hub) -> None:
        self.wire = Wire()
        self.connection = Connection(hub)
        self.connection.connection_made(self.wire)

    def connect(
        self,
        client_id: str,
        *,
        clean: bool = True,
        keepalive_s: int = 0,
        username: str = "",
        password: str = "",
        will_topic: str = "",
    ) -> Client:
        will = (will_topic, b"gone") if will_topic else None
        self.send(
            connect_packet(
                client_id, username, password, will, clean=clean, keepalive_s=keepalive_s
            )
        )
        return self

    def send(self, data: bytes) -> None:
        self.connection.data_received(data)

    def subscribe(self, topic: str, qos: int = 1) -> None:
        self.send(subscribe_packet([topic], qos))

    def publish(self, topic: str, payload: bytes = b"x", qos: int = 1, packet_id: int = 7) -> None:
        head = publish_head(
            topic,
            len(payload),
            qos=qos,
            retain=False,
            packet_id=packet_id if qos else None,
            again=False,
        )
        self.send(head + payload)

    def heard(self) -> list[tuple[int, int, bytes]]:
        packets = PacketReader(1 << 28).feed(bytes(self.wire.written))
        self.wire.written.clear()
        return packets

    def payloads(self) -> list[bytes]:
        return [
            decode_publish(flags, body).payload
            for kind, flags, body in self.heard()
            if kind == PUBLISH
        ]


def on_a_loop(test: Callable[[], None]) -> Callable[[], None]:
    async def program() -> None:
        test()

    def wrapped() -> None:
        run(program())

    wrapped.__name__ = test.__name__
    return wrapped


@given(st.lists(st.binary(max_size=300), max_size=6), st.data())
def test_packets_are_the_same_however_the_stream_is_cut(
    bodies: list[bytes], data: st.DataObject
) -> None:
    heads = [
        publish_head("t", len(body), qos=1, retain=False, packet_id=9, again=False)
        for body in bodies
    ]
    stream = b"".join(head + body for head, body in zip(heads, bodies, strict=True))
    reader, got, position = PacketReader(1 << 20), [], 0
    while position < len(stream):
        size = data.draw(st.integers(1, len(stream) - position))
        got += reader.feed(stream[position : position + size])
        position += size
    assert [decode_publish(flags, body).payload for _, flags, body in got] == bodies


def kinds(data: bytes, most: int) -> set[int] | None:
    """The types of the packets that have arrived whole; None where the bytes can be no packets of `most` bytes at most."""
    try:
        return {kind for kind, _, _ in PacketReader(most).feed(data)}
    except ProtocolError:
        return None


PACKET = st.builds(
    lambda first, body: bytes([first, len(body)]) + body,
    st.integers(0, 255),
    st.binary(max_size=60),
)  # of any type, of the length in its header


@given(st.binary(max_size=60) | st.lists(PACKET, max_size=3).map(b"".join))
@example(b"\x00\x80\x80\t")  # too long for who has not said CONNECT, and not for who has
def test_random_bytes_end_a_connection_and_raise_nothing(data: bytes) -> None:
    async def program() -> None:
        hub = Hub()
        arrived = kinds(data, CONNECT_BYTES)
        stranger = Client(hub)
        stranger.send(data)
        if not hub.connections:  # nothing in them was a CONNECT
            assert stranger.wire.closed == (arrived != set())
            await asyncio.sleep(CONNECT_S + 1)
            assert stranger.wire.closed
        known = Client(Hub()).connect("a")
        known.send(data)
        arrived = kinds(data, hub.limits.packet_bytes)
        if arrived is None or arrived - FOR_A_BROKER:
            assert known.wire.closed
        if arrived == set():
            assert not known.wire.closed  # the rest may be on its way

    run(program())


def test_a_packet_larger_than_allowed_is_refused_before_it_arrived() -> None:
    with pytest.raises(ProtocolError, match="at most 1000"):
        PacketReader(1000).feed(bytes([0x30, 0xFF, 0xFF, 0x7F]))


@on_a_loop
def test_the_first_packet_must_be_connect_and_a_second_connect_ends_it() -> None:
    early = Client(Hub())
    early.publish("t")
    assert early.wire.closed
    twice = Client(Hub()).connect("a")
    twice.connect("a")
    assert twice.wire.closed


def test_a_silent_client_is_gone_after_one_and_a_half_keepalives_and_its_will_is_published() -> (
    None
):
    async def program() -> None:
        hub = Hub()
        reader = Client(hub).connect("r")
        reader.subscribe("w")
        silent = Client(hub).connect("a", keepalive_s=10, will_topic="w")
        await asyncio.sleep(14)
        assert not silent.wire.closed
        silent.send(bytes([0xC0, 0]))  # PINGREQ
        await asyncio.sleep(14)
        assert not silent.wire.closed
        await asyncio.sleep(2)
        assert silent.wire.closed
        assert reader.payloads() == [b"gone"]

    run(program())


def test_a_client_that_connects_and_sends_nothing_is_cut_off() -> None:
    async def program() -> None:
        client = Client(Hub())
        await asyncio.sleep(11)
        assert client.wire.closed

    run(program())


def test_a_connect_that_comes_byte_by_byte_is_cut_off_too() -> None:
    async def program() -> None:
        client = Client(Hub())
        client.send(b"\x10\xff\x01")
        for _ in range(11):
            client.send(b"A")
            await asyncio.sleep(1)
        assert client.wire.closed

    run(program())


def test_the_length_of_a_packet_before_connect_is_limited() -> None:
    async def program() -> None:
        client = Client(Hub())
        client.send(bytes([0x10, 0x80, 0x80, 0x40]))  # a CONNECT of 1 MiB is announced
        assert client.wire.closed

    run(program())


def test_a_session_of_another_user_is_not_resumed() -> None:
    async def program() -> None:
        hub = Hub(
            users=Users({"ann": passwords.hash_password("a"), "bob": passwords.hash_password("b")})
        )
        Client(hub).connect(
            "shared", clean=False, username="ann", password="a"
        ).connection.connection_lost(None)
        bob = Client(hub).connect("shared", clean=False, username="bob", password="b")
        assert bob.heard()[0] == (CONNACK, 0, b"\0\0")  # no session present

    run(program())


def test_a_session_whose_client_stays_away_is_forgotten() -> None:
    async def program() -> None:
        hub = Hub()
        Client(hub).connect("p", clean=False).connection.connection_lost(None)
        await asyncio.sleep(SESSION_HOURS * 3600 + 1)
        Client(hub).connect("other")
        assert set(hub.sessions) == {"other"}

    run(program())


def test_retained_messages_take_half_of_the_memory_and_no_more() -> None:
    async def program() -> None:
        hub = Hub(limits=Limits(memory=MIN_MEMORY_BYTES))
        for number in range(3):
            hub.route("", PublishPacket(f"t/{number}", bytes(MIN_MEMORY_BYTES // 5), 1, True, 1))
        assert [topic for topic, _ in hub.retained.matching("t/+")] == ["t/0", "t/1"]
        hub.route("", PublishPacket("t/0", b"", 1, True, 1))
        hub.route("", PublishPacket("t/2", bytes(MIN_MEMORY_BYTES // 5), 1, True, 1))
        assert [topic for topic, _ in hub.retained.matching("t/+")] == ["t/1", "t/2"]

    run(program())


@on_a_loop
def test_a_qos_2_message_sent_twice_is_delivered_once() -> None:
    hub = Hub()
    reader, sender = Client(hub).connect("r"), Client(hub).connect("s")
    reader.subscribe("t", qos=2)
    assert (SUBACK, 0, b"\0\1\1") in reader.heard()
    sender.publish("t", qos=2)
    sender.publish("t", qos=2)
    assert [kind for kind, _, _ in sender.heard()] == [CONNACK, PUBREC, PUBREC]
    sender.send(answer(PUBREL | 2, 7))
    sender.publish("t", b"next", qos=2)
    assert reader.payloads() == [b"x", b"next"]


@on_a_loop
def test_a_persistent_session_gets_what_it_missed_and_again_what_it_did_not_acknowledge() -> None:
    hub = Hub()
    sleeper, sender = Client(hub).connect("p", clean=False), Client(hub).connect("s")
    sleeper.subscribe("t")
    sender.publish("t", b"unacknowledged")
    sleeper.connection.connection_lost(None)
    sender.publish("t", b"missed")
    sender.publish("t", b"missed at qos 0", qos=0)
    again = Client(hub).connect("p", clean=False)
    connack, first, second = again.heard()
    assert connack[2] == b"\1\0"  # session present
    assert decode_publish(*first[1:]).payload == b"unacknowledged"
    assert first[1] & 8  # marked as a duplicate
    assert decode_publish(*second[1:]).payload == b"missed"
    clean = Client(hub).connect("p")
    assert clean.heard()[0][2] == b"\0\0"
    sender.publish("t", b"unheard")
    assert clean.payloads() == []


@on_a_loop
def test_messages_in_flight_are_bounded_and_follow_acknowledgements() -> None:
    hub = Hub()
    reader, sender = Client(hub).connect("r"), Client(hub).connect("s")
    reader.subscribe("t")
    for number in range(sessions.MAX_IN_FLIGHT + 5):
        sender.publish("t", str(number).encode())
    got = [packet for packet in reader.heard() if packet[0] == PUBLISH]
    assert len(got) == sessions.MAX_IN_FLIGHT
    reader.send(answer(PUBACK, decode_publish(*got[0][1:]).packet_id or 0))
    assert reader.payloads() == [str(sessions.MAX_IN_FLIGHT).encode()]


def test_a_publisher_waits_for_a_slow_reader_for_a_limited_time() -> None:
    async def program() -> None:
        hub = Hub(limits=Limits(packet=sessions.SLOW_BYTES))
        reader, sender = Client(hub).connect("r"), Client(hub).connect("s")
        reader.subscribe("t")
        reader.connection.pause_writing()
        for _ in range(9):
            sender.publish("t", bytes(sessions.SLOW_BYTES // 8))
        assert sender.wire.paused
        await asyncio.sleep(STALL_S + 1)
        assert not sender.wire.paused
        sender.publish("t")
        assert sender.wire.paused
        reader.connection.resume_writing()
        await asyncio.sleep(0)
        assert not sender.wire.paused

    run(program())


def test_a_session_that_is_never_read_drops_its_oldest_messages_and_counts_them() -> None:
    session = sessions.ClientSession("a", clean=False)
    session.online = False
    for number in range(sessions.MAX_OFFLINE_MESSAGES + 3):
        session.add(sessions.QueuedMessage("t", str(number).encode(), 1, retain=False))
    assert session.dropped == 3
    first = session.next()
    assert first is not None
    assert first.message.payload == b"3"


@on_a_loop
def test_a_wrong_password_is_refused_with_the_reason() -> None:
    users = {"ann": passwords.hash_password("secret")}
    wrong = Client(Hub(users=Users(users))).connect("a", username="ann", password="guess")
    assert wrong.heard() == [(CONNACK, 0, b"\0\5")]
    assert wrong.wire.closed
    right = Client(Hub(users=Users(users))).connect("a", username="ann", password="secret")
    assert right.heard() == [(CONNACK, 0, b"\0\0")]
    nothing = Client(Hub(users=Users(users))).connect("a")
    assert nothing.wire.closed


@pytest.mark.parametrize(
    "hello",
    [
        connect_packet("a", level=5),
        packet(0x10, text("MQTT") + b"\x05\x02\0\x3c\0" + text("a")),
        packet(0x10, text("MQIsdp") + b"\x03\x02\0\x3c" + text("a")),
        packet(0x10, text("MQTT") + b"\x05"),
    ],
    ids=["level 5", "with properties", "3.1", "cut after the level"],
)
def test_another_version_of_mqtt_is_refused_with_the_reason(hello: bytes) -> None:
    async def program() -> None:
        client = Client(Hub())
        client.send(hello)
        assert client.heard() == [(CONNACK, 0, b"\0\1")]
        assert client.wire.closed

    run(program())


HELLO = connect_packet("a", "ann", "secret", ("w", b"gone"))
SUBSCRIBING = subscribe_packet(["t", "u/v"])
UNSUBSCRIBING = packet(0xA2, b"\0\1" + text("t") + text("u/v"))


@pytest.mark.parametrize(
    ("whole", "ends"),
    [
        (HELLO, {len(HELLO) - 2}),
        (SUBSCRIBING, {2 + 4, len(SUBSCRIBING) - 2}),
        (UNSUBSCRIBING, {2 + 3, len(UNSUBSCRIBING) - 2}),
        (packet(0x32, text("t") + b"\0\1"), {5}),
        (answer(PUBACK, 1), {2}),
    ],
    ids=["CONNECT", "SUBSCRIBE", "UNSUBSCRIBE", "PUBLISH", "PUBACK"],
)
def test_a_packet_that_ends_within_a_field_ends_its_connection(
    whole: bytes, ends: set[int]
) -> None:
    """It is taken at no length but at the `ends`, where a field and what must follow it are whole."""

    async def program() -> None:
        taken = set()
        for length in range(len(whole) - 1):
            client = Client(Hub())
            if whole is not HELLO:
                client.connect("a")
            client.send(packet(whole[0], whole[2:][:length]))
            if not client.wire.closed:
                taken.add(length)
        assert taken == ends

    run(program())


def expect_the_end_after(wrong: bytes) -> None:
    """A client that sends this packet, its CONNECT or a later one, has its connection ended."""

    async def program() -> None:
        client = Client(Hub())
        if wrong[0] != MessageType.CONNECT:
            client.connect("a")
        client.send(wrong)
        assert client.wire.closed

    run(program())


@pytest.mark.parametrize(
    "wrong",
    [
        packet(0x10, text("MQTT") + b"\x04\x02\0\0" + text(b"\xff")),
        packet(0x30, text(b"\xff") + b"x"),
        packet(0x82, b"\0\1" + text(b"\xff") + b"\1"),
    ],
    ids=["CONNECT", "PUBLISH", "SUBSCRIBE"],
)
def test_a_text_that_is_no_utf_8_ends_its_connection(wrong: bytes) -> None:
    expect_the_end_after(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        packet(0x10, text("MQTT") + b"\x04\x03\0\0" + text("a")),
        packet(0x10, text("MQTT") + b"\x04\x06\0\0" + text("a") + text("w/#") + text("gone")),
        packet(0x10, text("MQTT") + b"\x04\x1e\0\0" + text("a") + text("w") + text("gone")),
        packet(0x36, text("t") + b"\0\1"),
        packet(0x32, text("t") + b"\0\0"),
        packet(0x80, b"\0\1" + text("t") + b"\1"),
        subscribe_packet([]),
        subscribe_packet(["t"] * (MAX_FILTERS + 1)),
    ],
    ids=[
        "reserved flag",
        "last will to a filter",
        "last will at QoS 3",
        "PUBLISH at QoS 3",
        "packet id 0",
        "flags of a request",
        "no filters",
        "too many filters",
    ],
)
def test_a_packet_that_breaks_a_rule_ends_its_connection(wrong: bytes) -> None:
    expect_the_end_after(wrong)


@on_a_loop
def test_a_session_without_a_name_is_for_one_connection() -> None:
    assert Client(Hub()).connect("").heard() == [(CONNACK, 0, b"\0\0")]
    assert Client(Hub()).connect("", clean=False).heard() == [(CONNACK, 0, b"\0\2")]


@on_a_loop
def test_a_last_will_is_retained_if_it_asks_for_that() -> None:
    hub = Hub()
    for flags, kept in ((0x06, []), (0x26, [("w", b"gone")])):
        body = text("MQTT") + bytes([4, flags, 0, 0]) + text("a") + text("w") + text("gone")
        client = Client(hub)
        client.send(packet(0x10, body))
        client.connection.connection_lost(None)
        assert list(hub.retained.matching("w")) == kept


# -- what one packet may cost ------------------------------------------------------------------------------------------


def retaining(topics: int, limits: Limits | None = None) -> Hub:
    hub = Hub(limits=limits)
    for number in range(topics):
        hub.retained.keep(f"a/b/{number}", b"x")
    return hub


@on_a_loop
def test_filters_of_one_packet_are_compared_to_each_retained_message_once() -> None:
    """Before: once for each of 200 filters, at an open broker: 12 s with 18 000 messages."""
    compared: list[str] = []
    match = topic_filters._has_match

    def counted(matcher: MQTTMatcher, topic: str) -> bool:
        compared.append(topic)
        return match(matcher, topic)

    client = Client(retaining(50)).connect("c")
    client.heard()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_filters, "_has_match", counted)
        client.send(subscribe_packet(["+/" * levels + "#" for levels in range(200)]))
    (_, _, codes), *got = client.heard()
    refused = 200 - sessions.MAX_WILDCARDS
    assert codes[2:] == bytes([1] * sessions.MAX_WILDCARDS + [sessions.REFUSED] * refused)
    assert len(got) == len(compared) == 50


def test_who_has_the_broker_search_again_and_again_is_read_more_seldom() -> None:
    async def program() -> None:
        per_s, at_once = sessions.WALKED
        client = Client(retaining(1000)).connect("c")
        for _ in range(int(at_once) // 1000):
            client.subscribe("#")
        assert not client.wire.paused
        client.subscribe("#")
        assert client.wire.paused
        client.heard()
        client.send(subscribe_packet(["t"]))
        assert not client.heard()
        await asyncio.sleep(1000 / per_s + 0.01)
        assert not client.wire.paused
        assert [kind for kind, *_ in client.heard()] == [SUBACK]

    run(program())


@pytest.mark.parametrize("name", ["/".join("x" * (sessions.MAX_LEVELS + 1)), "x" * 513])
def test_topics_and_filters_have_few_levels_also_at_an_open_broker(name: str) -> None:
    """Before: a filter of 64 KiB took a tree of 32 768 nodes."""

    async def program() -> None:
        hub = Hub()
        client = Client(hub).connect("c")
        client.subscribe(name)
        assert client.heard()[-1][2][2:] == bytes([sessions.REFUSED])
        hub.route("", PublishPacket(name, b"x", 0, True, None))
        assert not len(hub.retained)

    run(program())


@on_a_loop
def test_retained_messages_are_limited_by_number_and_the_newest_of_each_stays() -> None:
    limits = Limits(agents=1)
    hub = retaining(limits.retained_messages, limits)
    for topic in ("new", "a/b/7"):
        hub.route("", PublishPacket(topic, b"y", 0, True, None))
    assert "new" not in hub.retained
    assert list(hub.retained.matching("a/b/7")) == [("a/b/7", b"y")]


def test_an_agent_that_floods_is_read_at_a_steady_rate_and_loses_nothing() -> None:
    async def program() -> None:
        per_s, at_once = sessions.MESSAGES
        users = dict.fromkeys(("pi-7", "coordinator"), passwords.hash_password("p"))
        hub = Hub(users=Users(users))
        agent = Client(hub).connect("a", username="pi-7", password="p")
        head = Client(hub).connect("c", username="coordinator", password="p")
        topic, all_of_it = "covey/f/agents/pi-7/status", int(at_once + 5 * per_s)
        head.subscribe(topic)
        head.heard()
        one = publish_head(topic, 1, qos=0, retain=False, packet_id=None, again=False) + b"x"
        agent.send(one * all_of_it)
        assert len(head.heard()) in (at_once, at_once + 1)
        assert agent.wire.paused
        await asyncio.sleep(2.0)
        assert 0.8 * per_s < len(head.heard()) / 2.0 < 1.2 * per_s
        await asyncio.sleep(4.0)
        assert not agent.wire.paused
        head.send(one * all_of_it)
        assert not head.wire.paused
        assert len(head.heard()) > all_of_it

    run(program())


def test_a_reader_that_catches_up_does_not_wake_who_must_rest() -> None:
    async def program() -> None:
        hub = Hub(limits=Limits(packet=2 * sessions.SLOW_BYTES))
        reader, sender = Client(hub).connect("r"), Client(hub).connect("s")
        hub.sessions["s"].sends = Bucket(per_s=1.0, burst=0.0, at=0.0)
        reader.subscribe("t")
        reader.connection.pause_writing()
        for _ in range(2):
            sender.publish("t", bytes(sessions.SLOW_BYTES - 100))
            await asyncio.sleep(3)
        sender.publish("t")
        assert sender.wire.paused
        reader.connection.resume_writing()
        await asyncio.sleep(0)
        assert sender.wire.paused
        await asyncio.sleep(1.1)
        assert not sender.wire.paused

    run(program())
