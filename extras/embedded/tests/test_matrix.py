"""Who may do what at the broker: what needs `embedded`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from covey.broker.access import members, passwords
from covey.broker.access.members import StoredUser
from covey.broker.programs.mosquitto import Mosquitto
from covey.broker.programs.options import BrokerOptions
from covey.extras.embedded.program import EmbeddedBroker
from covey.shared.mqtt.broker_url import BrokerUrl, Tls
from tests.broker.test_matrix import FEDERATION, TABLE, WHO
from tests.brokers import hosted
from tests.certificates import Authority
from tests.processes import needs_mosquitto
from tests.raw_mqtt import Raw

KINDS = [EmbeddedBroker, pytest.param(Mosquitto, marks=[pytest.mark.broker, needs_mosquitto])]
NAMES = {
    "coordinator": "coordinator",
    "agent pi-7": "pi-7",
    "another agent": "pi-8",
    "agent of another federation": "far",
    "observer": "watch",
    "aggregator": "sum",
    "expelled": "gone",
    "nobody": "",
}
MEMBERS = {
    "coordinator": StoredUser(role="coordinator"),
    "pi-7": StoredUser(federation="default"),
    "pi-8": StoredUser(federation="default"),
    "far": StoredUser(federation="elsewhere"),
    "watch": StoredUser(role="observer", federation="default"),
    "sum": StoredUser(role="aggregator", federation="default"),
    "gone": StoredUser(federation="default"),
}
Open = Callable[..., Raw]


@contextmanager
def by_password(
    kind: type[EmbeddedBroker] | type[Mosquitto], folder: Path
) -> Iterator[dict[str, Open]]:
    """A broker with users as `broker enroll` makes them, one of them expelled while it ran; how each connects."""
    users, roles = folder / "users", folder / "members.json"
    passwords.write(users, dict.fromkeys(MEMBERS, "secret"))
    members.save(roles, MEMBERS)
    made: list[EmbeddedBroker | Mosquitto] = []

    def make() -> EmbeddedBroker | Mosquitto:
        made.append(kind(BrokerOptions(passwords=users, members=roles)))
        return made[0]

    with hosted(make) as address:
        url = BrokerUrl.parse(address)

        def opener(name: str) -> Open:
            password = "secret" if name else ""
            return lambda client_id, will=None: Raw(url, client_id, name, password, will)

        connect = {who: opener(name) for who, name in NAMES.items()}
        own_will = (f"{FEDERATION}/agents/gone/status", b"last word")
        with (
            connect["coordinator"]("witness") as witness,
            connect["expelled"]("victim", will=own_will) as victim,
        ):
            assert victim.code == 0
            witness.subscribe("covey/+/#")
            remaining = {name: entry for name, entry in MEMBERS.items() if name != "gone"}
            hashes = passwords.read(users)
            passwords.save(users, {name: hashes[name] for name in remaining})
            members.save(roles, remaining)
            made[0].reload()
            until_refused(connect["expelled"])
            assert victim.ping() is False  # its connection has ended
            assert (
                _came(witness, b"last word", connect["coordinator"]) is False
            )  # without a last word
        yield connect


def until_refused(connect: Open) -> None:
    """The broker has read its users again."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with connect("again") as client:
            if client.code == 5:
                return
        time.sleep(0.05)
    raise AssertionError("an expelled user is still let in")


@contextmanager
def by_certificate(
    kind: type[EmbeddedBroker] | type[Mosquitto], folder: Path
) -> Iterator[dict[str, Open]]:
    """A broker that asks for certificates; the user in a CONNECT (coordinator) does not count."""
    authority = Authority(folder)
    server = authority.sign("server")
    options = BrokerOptions(tls_cert=server.cert, tls_key=server.key, tls_ca=authority.cert)

    def opener(name: str, address: str) -> Open:
        own = authority.sign(name)
        url = BrokerUrl.parse(address, Tls(authority.cert, own.cert, own.key))
        return lambda client_id, will=None: Raw(url, client_id, "coordinator", "x", will)

    with hosted(lambda: kind(options)) as address:
        plain = BrokerUrl.parse(address, Tls(authority.cert))
        yield {
            "certificate, CN pi-7": opener("pi-7", address),
            "certificate, CN coordinator": opener("coordinator", address),
            "nobody": lambda client_id, will=None: Raw(plain, client_id, "coordinator", "x", will),
        }


@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
def test_every_cell_for_users_with_passwords(
    kind: type[EmbeddedBroker] | type[Mosquitto], tmp_path: Path
) -> None:
    with by_password(kind, tmp_path) as connect:
        owner = connect["coordinator"]
        seen = tried(connect, owner=owner)
        assert seen == {who: column(who) for who in connect}
        with owner("listener") as listener:
            listener.subscribe("covey/+/#")
            for who, name in (("observer", "watch"), ("agent of another federation", "far")):
                # what an agent of that name could write
                status = f"{FEDERATION}/agents/{name}/status"
                assert _written(connect[who], who, status, listener, owner) == "", who


@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
def test_every_cell_for_users_with_certificates(
    kind: type[EmbeddedBroker] | type[Mosquitto], tmp_path: Path
) -> None:
    with by_certificate(kind, tmp_path) as connect:
        seen = tried(connect, owner=connect["certificate, CN coordinator"])
    assert seen == {who: column(who) for who in connect}


def column(who: str) -> dict[str, str]:
    """What the table promises one identity, by topic."""
    return {topic: cells[WHO.index(who)] for topic, cells in TABLE.items()}


def tried(connect: dict[str, Open], owner: Open) -> dict[str, dict[str, str]]:
    """The same as the broker has it: every identity tries every topic."""
    seen = {who: dict.fromkeys(TABLE, "") for who in connect}
    for who, topics in _read(connect, owner).items():
        for topic in topics:
            seen[who][topic] += "R"
    with owner("listener") as listener:
        listener.subscribe("covey/+/#")
        for who, open_as in connect.items():
            for topic in TABLE:
                seen[who][topic] += _written(open_as, who, topic, listener, owner)
    return seen


def _read(connect: dict[str, Open], owner: Open) -> dict[str, set[str]]:
    """The topics of which each identity is sent a message."""
    with ExitStack() as stack:
        readers = {
            who: stack.enter_context(open_as(f"reader-{number}"))
            for number, (who, open_as) in enumerate(connect.items())
        }
        admitted = {who: reader for who, reader in readers.items() if reader.code == 0}
        for reader in admitted.values():
            for topic in TABLE:
                reader.subscribe(topic)
        writer = stack.enter_context(owner("writer"))
        for topic in TABLE:
            assert writer.publish(topic, b"for everybody")
        for reader in admitted.values():
            reader.ping()
        return {who: {message.topic for message in reader.heard} for who, reader in readers.items()}


def _written(open_as: Open, who: str, topic: str, listener: Raw, owner: Open) -> str:
    """W, T and L as far as this identity may publish, retain and leave a last will there."""
    mark = f"{who} {topic}".encode()
    with open_as("will", will=(topic, b"will " + mark)) as client:
        if client.code != 0:
            return ""
        accepted = client.publish(topic, b"sent " + mark, retain=True)
        assert accepted in (
            True,
            False,
        )  # Mosquitto hangs up on who may not, the embedded broker ignores it
    with owner("fresh") as fresh:
        fresh.subscribe(topic)
        fresh.ping()
        retained = any(
            message.retained and message.payload == b"sent " + mark for message in fresh.heard
        )
        will_came = _came(listener, b"will " + mark, owner)
        fresh.publish(topic, b"", retain=True)
    listener.ping()
    sent = any(message.payload == b"sent " + mark for message in listener.heard)
    listener.heard.clear()
    return "W" * sent + "T" * retained + "L" * will_came


def _came(listener: Raw, payload: bytes, owner: Open) -> bool:
    """Whether a last will came. The will of a connection that was cut later marks the time at which it must be there."""
    marker = f"{FEDERATION}/control"
    with owner("marker", will=(marker, b"marker")):
        pass
    end = time.monotonic() + 30
    while time.monotonic() < end:
        listener.ping()
        if any(message.payload == b"marker" for message in listener.heard):
            return any(message.payload == payload for message in listener.heard)
        time.sleep(0.002)
    raise AssertionError("the marker's last will did not come")
