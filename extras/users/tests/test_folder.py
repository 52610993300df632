"""`broker init`, `enroll` and `expel`: a broker that knows its users, and files with which they connect."""

from __future__ import annotations

import asyncio
import datetime
import json
import re
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from covey.agent.cli.device import Membership
from covey.agent.cli.program import app as agent
from covey.broker.access import members, passwords
from covey.broker.access.acl import allows, render
from covey.broker.access.members import StoredUser
from covey.broker.cli.program import app
from covey.broker.programs.options import BrokerOptions
from covey.coordinator.cli.program import app as coordinator
from covey.extras.audit.check import verify
from covey.extras.users.authority import Authority, expiry, hosts_of
from covey.extras.users.folder import AUDIT_OWNER, BrokerFolder
from covey.extras.users.seen import LastSeen, retained
from covey.shared.errors import UserError
from covey.shared.mqtt import credentials
from covey.shared.mqtt.broker_url import BrokerUrl, Tls
from covey.shared.mqtt.link import Down, Received
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.wire.documents import AgentStatus, RosterMessage
from covey.shared.wire.topics import Topics
from tests import clock
from tests.conformance.test_links import down, message, up
from tests.kit.memory_broker import MemoryBroker
from tests.processes import ROOT, free_port, needs_mosquitto, until

EVIL = b'{"id": "pi\\nExecStartPre=/bin/sh", "broker": "mqtts://h"}\n-----BEGIN CERTIFICATE-----'
ORDER = "covey/f/agents/pi-7/order"
WAYS = [["--embedded"], pytest.param([], marks=[pytest.mark.broker, needs_mosquitto])]


def typed(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def home(tmp_path: Path) -> BrokerFolder:
    done = typed("init", "--home", tmp_path / "home", "--host", "localhost", "--port", free_port())
    assert done.exit_code == 0, done.output
    assert str(tmp_path / "home" / "users" / "coordinator.pem") in done.stdout
    return BrokerFolder(tmp_path / "home")


def url_of(file: Path) -> BrokerUrl:
    return credentials.read(file).url


@contextmanager
def running(home: BrokerFolder, *options: str) -> Iterator[None]:
    """`broker up` of that folder, from the moment that it listens."""
    command = [
        sys.executable,
        "-m",
        "covey.broker.cli",
        "up",
        "--home",
        str(home.folder),
        "--host",
        "127.0.0.1",
        "--json",
    ]
    with subprocess.Popen(
        [*command, *options], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert (
                json.loads(process.stdout.readline())["url"] == f"mqtts://127.0.0.1:{home.url.port}"
            )
            yield
        finally:
            process.terminate()


@pytest.mark.processes
@pytest.mark.parametrize("way", WAYS)
async def test_a_running_broker_accepts_enrolled_users_and_disconnects_expelled_ones(
    way: list[str], home: BrokerFolder
) -> None:
    with running(home, *way):
        file = home.enroll("pi-7", federation="f")
        async with (
            MqttLink(url_of(home.file("coordinator")), client_id="c") as owner,
            MqttLink(url_of(file), client_id="p") as pi,
        ):
            await up(owner, pi)
            certificate = (home.folder / "server.pem").read_bytes()
            assert owner.certificate_until == expiry(certificate).timestamp()
            await pi.subscribe([ORDER])
            await owner.publish(ORDER, b"work")
            assert await message(pi) == Received(ORDER, b"work")
            home.expel("pi-7")
            await down(pi)
            async with asyncio.timeout(60):
                told = await anext(pi.incoming())
            assert isinstance(told, Down)
            assert "does not accept this user and password" in told.why
            await owner.subscribe([ORDER])  # everybody else stays connected
            await owner.publish(ORDER, b"more work")
            assert await message(owner) == Received(ORDER, b"more work")


@pytest.mark.processes
def test_the_doctor_examines_it_as_one_of_its_users(home: BrokerFolder) -> None:
    with running(home, "--embedded"):
        done = typed("doctor", "--credentials", home.file("coordinator"), "--json")
    assert done.exit_code == 0, done.output
    assert {finding["state"] for finding in json.loads(done.stdout)} == {"ok"}


@pytest.mark.processes
@pytest.mark.parametrize("way", WAYS)
def test_the_doctor_reports_that_the_rules_restrict_an_agent_to_its_own_topics(
    way: list[str], home: BrokerFolder
) -> None:
    file = home.enroll("pi-7")
    with running(home, *way):
        done = typed("doctor", "--credentials", file, "--json")
    assert done.exit_code == 1
    *_, last = json.loads(done.stdout)
    assert (last["check"], last["state"]) == ("publish and subscribe", "missing")
    assert "the access rules restrict pi-7 to" in last["seen"]
    assert "coordinator's credentials" in last["means"]


def test_the_certificate_is_for_the_hosts_that_were_named(tmp_path: Path) -> None:
    made = BrokerFolder.create(
        tmp_path / "home", ["server.local", "10.0.0.7", "::1"], 8883, days=30
    )
    assert str(made.url) == "mqtts://server.local:8883"
    for host, fits in {
        "server.local": True,
        "10.0.0.7": True,
        "::1": True,
        "localhost": False,
    }.items():
        assert shakes_hands(made, host) is fits


def shakes_hands(home: BrokerFolder, host: str, trusts: Path | None = None) -> bool:
    """Whether a client that trusts the credentials takes the broker for `host`. Without a network."""
    ours = ssl.create_default_context(cafile=trusts or home.file("coordinator"))
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(home.folder / "server.pem", home.folder / "server.key")
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ours.wrap_bio(down, up, server_hostname=host)
    server = theirs.wrap_bio(up, down, server_side=True)
    try:
        for side in (client, server, client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    except ssl.SSLCertVerificationError:
        return False
    return client.getpeercert() is not None


def test_only_the_owner_may_read_keys_passwords_and_credentials(home: BrokerFolder) -> None:
    home.enroll("pi-7")
    for path in (home.folder, *home.folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_password_is_in_its_owners_file_only(home: BrokerFolder) -> None:
    password = url_of(home.enroll("pi-7")).password
    assert password is not None
    assert [path.name for path in home.folder.rglob("*.*") if password in path.read_text()] == [
        "pi-7.pem"
    ]
    assert passwords.verify(passwords.read(home.passwords)["pi-7"], password)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("enroll pi-7", "pi-7 is enrolled"),
        ("enroll pi/8", "'pi/8': expected an id"),
        ("enroll coordinator", "not coordinator"),
        ("expel pi-8", "pi-8: no such agent; enrolled are pi-7"),
        ("expel coordinator", "no such agent"),
        ("init --host again", "is not empty"),
        ("up --user ann --password x", "--home contains users and certificates"),
    ],
)
def test_a_mistake_changes_nothing(line: str, words: str, home: BrokerFolder) -> None:
    home.enroll("pi-7")
    before = {path: path.read_bytes() for path in home.folder.rglob("*.*")}
    done = typed(*line.split(), "--home", home.folder)
    assert done.exit_code == 2
    assert words in done.stderr
    assert {path: path.read_bytes() for path in home.folder.rglob("*.*")} == before


@pytest.mark.parametrize("command", ["up", "enroll pi-7", "expel pi-7"])
def test_an_error_names_a_folder_that_is_not_a_brokers_and_the_command_that_creates_one(
    command: str, tmp_path: Path
) -> None:
    done = typed(*command.split(), "--home", tmp_path)
    assert done.exit_code == 2
    assert f"create one with `broker init --home {tmp_path} --host NAME`" in done.stderr


def test_credentials_can_be_revoked(home: BrokerFolder) -> None:
    home.file("coordinator").unlink()
    home.enroll("pi-7").unlink()
    home.expel("pi-7")
    assert set(passwords.read(home.passwords)) == {"coordinator"}


@pytest.mark.parametrize("line", ["init --host h", "enroll pi-7", "up"])
def test_a_file_is_named_if_a_folder_is_expected(line: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = typed(*line.split(), "--home", tmp_path / "file")
    assert done.exit_code == 2, done.output
    assert str(tmp_path / "file") in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("host", ["", "a b", "two/parts", "bücher.example"])
def test_a_host_that_no_url_can_contain_is_refused(host: str, tmp_path: Path) -> None:
    done = typed("init", "--home", tmp_path / "home", "--host", host)
    assert done.exit_code == 2, done.output
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"rubbish", b"\xff\xfe", b'{"id": "a", "broker": "http://x"}\n-----BEGIN', EVIL],
)
def test_a_file_that_holds_no_credentials_is_named(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_bytes(text)
    with pytest.raises(UserError, match=r"x\.pem: .* expected one that `broker enroll` wrote"):
        credentials.read(tmp_path / "x.pem")


def test_credentials_replace_the_options_for_broker_authority_and_id(
    home: BrokerFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, BrokerUrl]] = []

    async def start(memberships: list[Membership], *_: object) -> None:
        [one] = memberships
        [url] = one.urls
        seen.append((one.identity.agent, url))

    monkeypatch.setattr("covey.agent.cli.device.run_agents", start)
    file = home.enroll("pi-7")
    line = ["start", "--data", str(tmp_path), "--credentials", str(file)]
    assert CliRunner().invoke(agent, line).exit_code == 0
    assert (
        CliRunner()
        .invoke(agent, [*line, "--id", "other", "--broker", "mqtts://elsewhere"])
        .exit_code
        == 0
    )
    (first, second) = seen
    assert first == ("pi-7", url_of(file))
    assert (second[0], second[1].host) == ("other", "elsewhere")  # what was typed goes before
    assert second[1].user is None  # the password is another agent's


def test_the_login_of_credentials_opens_every_encrypted_broker(
    home: BrokerFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[BrokerUrl] = []

    async def start(memberships: list[Membership], *_: object) -> None:
        [one] = memberships
        seen.extend(one.urls)

    monkeypatch.setattr("covey.agent.cli.device.run_agents", start)
    own = url_of(home.enroll("pi-7"))
    brokers = ["mqtts://one", "mqtts://ann:pw@two"]
    typed = [word for broker in brokers for word in ("--broker", broker)]
    line = ["start", "--data", str(tmp_path), "--credentials", str(home.file("pi-7")), *typed]
    assert CliRunner().invoke(agent, line, catch_exceptions=False).exit_code == 0
    (one, two) = seen
    assert (one.host, one.user, one.password) == ("one", own.user, own.password)
    assert (two.host, two.user, two.password) == ("two", "ann", "pw")
    assert one.tls == two.tls == own.tls


def test_two_brokers_at_once_are_refused(
    home: BrokerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COVEY_BROKER", "mqtt://elsewhere")
    done = CliRunner().invoke(
        coordinator, ["status", "--credentials", str(home.file("coordinator"))]
    )
    assert done.exit_code == 2
    assert "and COVEY_BROKER another one" in done.stderr


@pytest.mark.parametrize("file", ["nowhere.pem", "."])
def test_credentials_that_cannot_be_read_are_a_mistake_not_a_crash(
    file: str, tmp_path: Path
) -> None:
    done = CliRunner().invoke(coordinator, ["status", "--credentials", str(tmp_path / file)])
    assert done.exit_code == 2
    assert str(tmp_path) in done.stderr.replace("\n", "")
    assert "Traceback" not in done.output


def test_role_and_federation_are_stored_and_limit_the_rights_of_a_user(home: BrokerFolder) -> None:
    done = typed(
        "enroll", "watch", "--role", "observer", "--federation", "g", "--home", home.folder
    )
    assert done.exit_code == 0, done.output
    typed("enroll", "pi-7", "--home", home.folder)
    members = home.options(BrokerOptions(), host=None, port=None, keeps_retained=False).roles()
    assert members is not None
    assert allows("watch", "read", "covey/g/run/metrics", members)
    assert not allows("watch", "read", "covey/default/run/metrics", members)
    assert not allows("watch", "write", "covey/g/agents/watch/status", members)
    assert allows("pi-7", "write", "covey/default/agents/pi-7/status", members)
    assert not allows("pi-7", "write", "covey/g/agents/pi-7/status", members)
    assert credentials.read(home.file("watch")).federation == "g"


def test_list_shows_roles_and_when_certificates_expire(home: BrokerFolder) -> None:
    typed("enroll", "watch", "--role", "observer", "--home", home.folder)
    listed = json.loads(typed("list", "--json", "--home", home.folder).stdout)
    assert listed["users"]["watch"]["role"] == "observer"
    assert listed["users"]["coordinator"]["federation"] == "+"
    assert set(listed["certificates"]) == {"server.pem", "ca.pem"}
    assert "observer" in typed("list", "--home", home.folder).stdout


@clock.virtual(within_s=60)
async def test_the_list_shows_who_is_online_and_when_the_coordinator_heard_each_last() -> None:
    broker = MemoryBroker()
    entries = {
        "pi-7": StoredUser(federation="f"),
        "pi-7@g": StoredUser(federation="g"),
        "pi-8": StoredUser(federation="f"),
        "watch": StoredUser(role="observer", federation="f"),
    }
    roster = RosterMessage(agents={"pi-7": {"online": True, "seen": 1e9}, "stranger": {}})
    broker.retained.keep(Topics("f").roster, roster.to_bytes())
    for federation, online in (("f", True), ("g", False)):
        status = AgentStatus(agent="pi-7", session="s", online=online)
        broker.retained.keep(Topics(federation).status("pi-7"), status.to_bytes())
    broker.retained.keep(Topics("f").status("pi-8"), b"nonsense")
    async with broker.link("c") as link:
        await up(link)
        found = await retained(link, entries)
    assert found == {"pi-7": LastSeen(True, 1e9), "pi-7@g": LastSeen(False, None)}


def test_a_list_of_a_broker_that_does_not_run_shows_the_users_and_a_note(
    home: BrokerFolder,
) -> None:
    done = typed("list", "--home", home.folder)
    assert done.exit_code == 0
    assert "the list does not show who is online" in done.stderr
    assert "last seen" in done.stdout


def test_a_table_enrolls_agents_with_federations_and_keys(
    home: BrokerFolder, tmp_path: Path
) -> None:
    table = tmp_path / "fleet.csv"
    table.write_text("id,federation,key\npi-1,north,\npi-2,,\npi-1,south,\n")
    done = typed("enroll", "--csv", table, "--home", home.folder)
    assert done.exit_code == 0, done.output
    assert len(done.stdout.split()) == 3
    federations = {name: entry.federation for name, entry in home.entries().items()}
    assert federations == {
        "coordinator": "+",
        "pi-1": "north",
        "pi-2": "default",
        "pi-1@south": "south",
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name\npi-1\n", "a column `id`"),
        ("", "no rows"),
        ("id,colour\npi-1,red\n", "a column `id`"),
        ("id\npi-1\npi-1\n", "pi-1 twice"),
        ("id,key\npi-1,xyz\n", "line 2: expected the 64 digits"),
        ("id\n/etc\n", "expected an id"),
    ],
)
def test_a_table_with_a_mistake_enrolls_no_agent(
    text: str, words: str, home: BrokerFolder, tmp_path: Path
) -> None:
    table = tmp_path / "fleet.csv"
    table.write_text(text)
    done = typed("enroll", "--csv", table, "--home", home.folder)
    assert done.exit_code == 2
    assert words in done.stderr
    assert set(home.entries()) == {"coordinator"}


def test_devices_of_one_id_in_two_federations_have_users_and_rights_of_their_own(
    home: BrokerFolder,
) -> None:
    home.enroll("pi-7", federation="north")
    file = home.enroll("pi-7", federation="south")
    own = credentials.read(file)
    assert (own.id, own.federation, BrokerUrl.parse(own.broker).user) == (
        "pi-7",
        "south",
        "pi-7@south",
    )
    rights = members.read(home.members)
    for federation, other in (("north", "south"), ("south", "north")):
        user = "pi-7" if federation == "north" else "pi-7@south"
        assert allows(user, "write", Topics(federation).status("pi-7"), rights)
        assert not allows(user, "write", Topics(other).status("pi-7"), rights)
    rules = render(rights)
    assert "user pi-7@south\ntopic deny covey/north/agents/pi-7@south/status\n" in rules
    assert "topic write covey/south/agents/pi-7/status\n" in rules
    with pytest.raises(UserError, match="enrolled already"):
        home.enroll("pi-7", federation="south")
    home.rotate("pi-7@south")
    home.expel("pi-7@south")
    assert set(home.entries()) == {"coordinator", "pi-7"}


@pytest.mark.parametrize("user", ["pi-7", "coordinator"])
def test_rotate_revokes_the_old_password(home: BrokerFolder, user: str) -> None:
    if user == "pi-7":
        home.enroll(user)
    before = url_of(home.file(user)).password or ""
    done = typed("lab", "rotate", user, "--home", home.folder)
    assert done.exit_code == 0, done.output
    after = url_of(home.file(user)).password or ""
    made = passwords.read(home.passwords)[user]
    assert passwords.verify(made, after)
    assert not passwords.verify(made, before)


def test_a_certificate_for_longer_than_any_date_lasts_as_long_as_its_authority(
    home: BrokerFolder, tmp_path: Path
) -> None:
    done = typed("lab", "renew", "--home", home.folder, "--days", 10**20)
    assert (done.exit_code, home.certificates()["server.pem"]) == (0, home.certificates()["ca.pem"])
    days = ["--days", 99_999_999, "--ca-days", 10**20]
    done = typed("init", "--home", tmp_path / "eternal", "--host", "localhost", *days)
    assert done.exit_code == 0
    assert BrokerFolder(tmp_path / "eternal").certificates()["ca.pem"] > "9999-"


def test_renew_refuses_a_host_that_init_refuses(home: BrokerFolder) -> None:
    done = typed("lab", "renew", "--home", home.folder, "--host", "localhost", "--host", "a b")
    assert done.exit_code == 2
    assert "names no host" in done.stderr


def test_renew_makes_a_certificate_that_the_old_credentials_trust(home: BrokerFolder) -> None:
    before = (home.folder / "server.pem").read_bytes()
    done = typed("lab", "renew", "--home", home.folder, "--days", "30")
    assert done.exit_code == 0, done.output
    assert (home.folder / "server.pem").read_bytes() != before
    assert shakes_hands(home, "localhost")
    assert hosts_of((home.folder / "server.pem").read_bytes()) == ["localhost"]


def test_an_authority_in_the_second_half_of_its_time_is_renewed_and_old_credentials_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = BrokerFolder.create(tmp_path / "home", ["localhost"], free_port(), authority_days=60)
    for user in ("pi-7", "pi-8"):
        home.enroll(user)
    home.file("pi-8").unlink()
    device = tmp_path / "device.pem"
    device.write_bytes(home.file("pi-7").read_bytes())
    former = home.certificates()["ca.pem"]
    done = typed("lab", "renew", "--home", home.folder)
    assert "ca.pem" not in done.output, "half of its time is left"

    monkeypatch.setattr(Authority, "is_old", lambda *_: True)
    monkeypatch.setattr(Authority, "days", 365)
    done = typed("lab", "renew", "--home", home.folder)
    assert done.exit_code == 0, done.output
    assert f"before {former}" in done.stdout
    assert str(home.file("pi-7")) in done.stdout
    assert "broker lab rotate pi-8" in done.stderr
    assert home.certificates()["ca.pem"] > home.certificates()["server.pem"] > former
    assert url_of(home.file("pi-7")).password == url_of(device).password
    assert home.file("pi-7").read_bytes() != device.read_bytes()
    for trusts in (device, home.file("pi-7")):
        assert shakes_hands(home, "localhost", trusts)


def test_an_authority_is_old_once_half_of_its_time_is_over() -> None:
    authority = Authority.create("a", 100)
    assert authority.days == 100
    for days, is_old in (49, False), (51, True), (200, True):
        at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
        assert authority.is_old(at) is is_old


@pytest.mark.processes
@pytest.mark.parametrize("way", WAYS)
def test_a_broker_that_runs_shows_the_renewed_certificate(
    way: list[str], home: BrokerFolder
) -> None:
    place = ("127.0.0.1", home.url.port)
    with running(home, *way):
        before = ssl.get_server_certificate(place)
        home.renew()
        renewed = (home.folder / "server.pem").read_text()
        assert before != renewed
        until(lambda: ssl.get_server_certificate(place) == renewed)


def test_a_server_certificate_lives_for_ninety_days_and_warns_for_the_last_fourteen(
    tmp_path: Path,
) -> None:
    made = BrokerFolder.create(tmp_path / "home", ["localhost"], 8883)
    until = expiry((made.folder / "server.pem").read_bytes())
    days_left = (until - datetime.datetime.now(datetime.UTC)).days
    assert days_left in (89, 90)
    assert made.warnings() == []
    made.renew(days=13)
    (warning,) = made.warnings()
    assert "expires in 12 days" in warning
    assert "broker lab renew" in warning


def test_the_audit_log_of_the_folder_holds_every_change(home: BrokerFolder) -> None:
    home.enroll("pi-7")
    home.rotate("pi-7")
    home.expel("pi-7")
    verdict = verify(home.folder / "audit.jsonl", owner=AUDIT_OWNER)
    assert verdict.whole
    assert {
        event: verdict.events[event] for event in ("init", "enroll", "rotate", "expel")
    } == dict.fromkeys(("init", "enroll", "rotate", "expel"), 1)


def test_a_host_with_an_umlaut_is_answered_with_its_form_in_the_dns(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"write böse\.local as xn--bse-sna\.local"):
        BrokerFolder.create(tmp_path / "home", ["127.0.0.1", "böse.local"], 8883)


def test_a_hint_about_a_folder_with_a_space_can_be_typed(tmp_path: Path) -> None:
    folder = tmp_path / "our broker"
    made = CliRunner().invoke(app, ["init", "--home", str(folder), "--host", "127.0.0.1"])
    assert f"`broker up --home '{folder}'`" in made.stdout
    with pytest.raises(UserError, match=r"--home 'a b' --host NAME"):
        BrokerFolder(Path("a b"))


def test_the_file_for_a_broker_of_somebody_else_is_read_as_its_page_shows_it(
    tmp_path: Path,
) -> None:
    page = (ROOT / "docs" / "brokers.md").read_text("utf-8")
    [shown] = re.findall(r"```text\n(\{.*?)```", page, re.DOTALL)
    (tmp_path / "pi-7.pem").write_text(shown)
    own = credentials.read(tmp_path / "pi-7.pem")
    assert (own.id, own.url.user, own.url.password) == ("pi-7", "pi-7", "password")
    assert own.tls == Tls(
        tmp_path / "pi-7.pem",
        tmp_path / "pi-7.crt",
        tmp_path / "pi-7.key",
        source=tmp_path / "pi-7.pem",
    )


def test_a_file_without_certificates_trusts_those_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "pi-7.json").write_text('{"id": "pi-7", "broker": "mqtts://pi-7:pw@host"}')
    url = credentials.read(tmp_path / "pi-7.json").url
    assert url.tls is not None
    assert url.tls.ca is None
    assert url.tls_context() is not None


@pytest.mark.parametrize("heading", ['"cert": 7', '"key": ["a"]'])
def test_a_certificate_in_credentials_is_a_file_name(heading: str, tmp_path: Path) -> None:
    file = tmp_path / "x.pem"
    file.write_text(f'{{"id": "pi-7", "broker": "mqtts://host", {heading}}}')
    with pytest.raises(UserError, match="this is not a credentials file"):
        credentials.read(file)
