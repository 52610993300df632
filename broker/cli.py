"""The `broker` command: runs a broker on this machine, manages its users, examines any broker."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ipaddress
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from covey.broker import expulsion, shards
from covey.broker.access import members, passwords
from covey.broker.access.acl import ANY
from covey.broker.access.members import Entry
from covey.broker.doctor import Doctor, Finding
from covey.broker.doctor_between import CHECK, Between, examine_between
from covey.broker.folder import AUTHORITY_DAYS, DEFAULT_FEDERATION, SERVER_DAYS, BrokerFolder
from covey.broker.limits import DEFAULT_AGENTS, MIB, Limits
from covey.broker.programs.embedded import EmbeddedBroker
from covey.broker.programs.options import Options
from covey.broker.programs.run import run
from covey.broker.programs.start import available_broker
from covey.shared import json_text
from covey.shared.cli import Connection, Json, program, with_connection
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import ADDRESS, PORTS, BrokerUrl
from covey.shared.mqtt.credentials import COORDINATOR, FLEET
from covey.shared.mqtt.credentials import read as read_credentials
from covey.shared.printable import printable_lines
from covey.shared.terminal import Terminal
from covey.shared.wire.messages import EXPELLED, ROTATED
from covey.shared.wire.topics import is_name

app = program("broker", "Run and secure the MQTT broker of a Covey federation.")
HOME = Path("broker-home")
HomeFolder = Annotated[Path, typer.Option("--home", help="the broker's folder")]
Names = Annotated[list[str], typer.Argument(help="names of the users; for an agent, its id")]
EnrolledRole = Literal["agent", "coordinator", "observer", "aggregator"]
COLOURS = {"ok": "green", "missing": "red", "note": "yellow"}


@app.command()
def up(
    host: Annotated[
        str | None,
        typer.Option(
            help="address to listen on  [default: 127.0.0.1; with --home 0.0.0.0, all]",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="0: any free port  [default: 1883; with --home its own]",
            show_default=False,
        ),
    ] = None,
    websocket_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="also accept MQTT over websockets at this port (ws://HOST:PORT/mqtt, wss:// with TLS); 0: any free one",
            show_default=False,
        ),
    ] = None,
    home: Annotated[
        Path | None,
        typer.Option(help="folder made by `broker init`: certificate, users, retained messages"),
    ] = None,
    embedded: Annotated[
        bool,
        typer.Option(
            "--embedded", help="use the pure Python broker even if mosquitto is installed"
        ),
    ] = False,
    data: Annotated[
        Path | None, typer.Option(help="keep retained messages over restarts in this folder")
    ] = None,
    log: Annotated[Path | None, typer.Option(help="log file")] = None,
    user: Annotated[
        str | None, typer.Option(help="the only user who may connect; requires --password")
    ] = None,
    password: Annotated[
        str | None, typer.Option(envvar="COVEY_BROKER_PASSWORD", help="password of --user")
    ] = None,
    fleet_password: Annotated[
        str | None,
        typer.Option(
            envvar="COVEY_FLEET_PASSWORD",
            help="with --user: password of a second user, fleet, who has the rights of agents",
        ),
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(
            help="password file of mosquitto_passwd; users are coordinator and the agents' ids"
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="listen with TLS; PEM certificate of the broker")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="private key of --tls-cert")] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            help="require client certificates of this authority; the name in them (CN) is the user"
        ),
    ] = None,
    agents: Annotated[
        int,
        typer.Option(help="number of agents to expect; sets the limits of connections and queues"),
    ] = DEFAULT_AGENTS,
    max_packet: Annotated[
        int | None,
        typer.Option(
            help="longest packet in bytes; at least wire.part_bytes of the scenario plus 4096  [default: 540672]",
            show_default=False,
        ),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(
            help="memory of the broker in MiB  [default: half of the machine's]",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print the address as one line of JSON")
    ] = False,
    until_stdin_closes: Annotated[
        bool, typer.Option(help="also stop at the end of standard input")
    ] = False,
) -> None:
    """Run a broker until Ctrl-C: Mosquitto if it is installed, else the embedded one."""
    with _single_user(user, password, password_file, fleet_password) as (users, members):
        kind = EmbeddedBroker if embedded else available_broker(_say)
        options = Options(
            host=host or "127.0.0.1",
            port=1883 if port is None else port,
            data=data,
            log=log,
            passwords=users,
            members=members,
            tls_cert=tls_cert,
            tls_key=tls_key,
            tls_ca=tls_ca,
            limits=Limits(agents, max_packet, None if memory is None else memory * MIB),
        )
        if home is not None:
            if users or tls_cert or tls_ca:
                raise UserError(
                    "--home contains users and certificates; omit the options for users and TLS"
                )
            folder = BrokerFolder(home)
            options = folder.options(
                options, host=host, port=port, keeps_retained=kind.keeps_retained
            )
            for warning in folder.warnings():
                _say(warning)
        if data and not kind.keeps_retained:
            raise UserError(
                "the embedded broker keeps nothing on disk: omit --data, or install mosquitto"
            )
        for warning in warnings(options):
            _say(warning)
        running = run(
            kind(options),
            _say,
            as_json=as_json,
            until_stdin_closes=until_stdin_closes,
            websocket_port=websocket_port,
        )
        problem = asyncio.run(running)
        if problem:
            _say(problem)
            raise typer.Exit(1)


@app.command()
def init(
    host: Annotated[
        list[str],
        typer.Option(help="name or address of this machine as devices use it; repeatable"),
    ],
    home: HomeFolder = HOME,
    port: Annotated[int, typer.Option(min=1, max=65535)] = PORTS["mqtts"],
    days: Annotated[
        int, typer.Option(min=1, help="days for which the broker's certificate is valid")
    ] = SERVER_DAYS,
    ca_days: Annotated[
        int, typer.Option(min=1, help="days for which the certificate authority is valid")
    ] = AUTHORITY_DAYS,
) -> None:
    """Create the folder of a broker with TLS, passwords and access rules, and the coordinator's credentials."""
    made = BrokerFolder.create(home, host, port, days, ca_days)
    typed = shlex.quote(str(home))
    print(
        f"created {home}; run `broker up --home {typed}`, add an agent with `broker enroll NAME --home {typed}`"
    )
    print(f"the coordinator's credentials: {made.file(COORDINATOR)}")


@app.command()
def enroll(
    names: Names,
    homes: Annotated[
        list[Path] | None,
        typer.Option(
            "--home",
            help="the broker's folder; repeat it for several brokers (shards), in the order of their numbers, and each user "
            f"is enrolled at one of them  [default: {HOME}]",
            show_default=False,
        ),
    ] = None,
    shard: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="with several --home: the number of the broker, counted from 0  [default: by a hash of each name]",
            show_default=False,
        ),
    ] = None,
    role: Annotated[
        EnrolledRole,
        typer.Option(
            help="observer: read statuses, roster and metrics, write nothing; aggregator: add up reports for the "
            "coordinator (`coordinator aggregate`)"
        ),
    ] = "agent",
    federation: Annotated[
        str, typer.Option(help=f"the federation of the users; {ANY} for any")
    ] = DEFAULT_FEDERATION,
) -> None:
    """Add users and write a file for the --credentials of each. A running broker accepts them at once."""
    folders = [BrokerFolder(home) for home in homes or [HOME]]
    for file in shards.enroll_all(folders, names, role, federation, shard):
        print(file)


@app.command()
def expel(names: Names, home: HomeFolder = HOME) -> None:
    """Revoke agents' credentials. A running broker ends their connections and informs the coordinator."""
    own = BrokerFolder(home)
    gone = own.expel_all(names)
    _publish_offline(own, gone, EXPELLED)


@app.command()
def rotate(names: Names, home: HomeFolder = HOME) -> None:
    """Replace credentials, also the coordinator's: a new password in a new file. The old file stops working at once."""
    own = BrokerFolder(home)
    known = own.entries()
    for name in names:
        print(own.rotate(name))
    _publish_offline(own, {name: known[name] for name in names}, ROTATED)


@app.command()
def renew(
    home: HomeFolder = HOME,
    days: Annotated[
        int, typer.Option(min=1, help="days for which the new certificate is valid")
    ] = SERVER_DAYS,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="name or address in the certificate; repeatable  [default: as before]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Replace the broker's certificate by the same authority. The devices' credentials stay valid."""
    until = BrokerFolder(home).renew(days, host or [])
    print(
        f"{home / 'server.pem'} is valid until {until:%Y-%m-%d}; a running broker uses it for new connections"
    )


@app.command("list")
def list_users(
    home: HomeFolder = HOME,
    as_json: Json = False,
) -> None:
    """List users with role, federation and age of their credentials, and the certificates' expiry dates."""
    own = BrokerFolder(home)
    entries, certificates = own.entries(), own.certificates()
    if as_json:
        users = {name: entry.model_dump() for name, entry in sorted(entries.items())}
        print(json_text.dumps({"users": users, "certificates": certificates}, indent=1))
        return
    table = Table("user", "role", "federation", "credentials of")
    for name, entry in sorted(entries.items()):
        table.add_row(
            name,
            entry.role,
            "any" if entry.federation == ANY else entry.federation,
            entry.since or "–",
        )
    Terminal().print(table)
    for name, until in certificates.items():
        print(f"{name} is valid until {until}")


def _publish_offline(home: BrokerFolder, users: Mapping[str, Entry], why: str) -> None:
    """Publish that these agents are offline. If that fails, print a note."""
    agents = {}
    for name, entry in users.items():
        if entry.role == "agent":
            agents[name] = entry.federation
    if not agents:
        return
    problem = asyncio.run(expulsion.publish(home, agents, why))
    if problem:
        _say(f"note: {problem}")


ADDRESSES = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="url...",
        help=f"{ADDRESS}; with several, also what they are to each other: one broker, or independent ones",
        show_default=False,
    ),
]


@app.command()
@with_connection(ADDRESSES)
def doctor(
    *,
    connection: Connection,
    patience_s: Annotated[
        float, typer.Option(min=0.1, help="seconds to wait for each answer")
    ] = 5.0,
    as_json: Json = False,
) -> None:
    """Check that a broker provides what Covey needs. Exit code 1 if something is missing."""
    if not connection.brokers:
        raise UserError(f"expected the address of a broker, {ADDRESS}, or --credentials")
    user = ""
    role = ""
    federation = ""
    if connection.credentials is not None:
        credentials = read_credentials(connection.credentials)
        user = credentials.id
        role = credentials.role
        federation = credentials.federation
    urls = connection.urls(user)
    examined: list[tuple[BrokerUrl, list[Finding]]] = []
    for url in urls:
        one = Doctor(url, patience_s=patience_s, role=role, federation=federation)
        examined.append((url, asyncio.run(one.examine())))
    everything = [finding for _, findings in examined for finding in findings]
    between = None
    if len(urls) > 1 and not any(finding.state == "missing" for finding in everything):
        examining = examine_between(urls, patience_s=patience_s, federation=federation)
        between = asyncio.run(examining)
        everything += between.findings
    if as_json:
        print(json_text.dumps(_as_json(examined, between), indent=2))
    else:
        for url, findings in examined:
            _show(str(url), findings)
        if between is not None:
            _show(CHECK, between.findings)
    if any(finding.state == "missing" for finding in everything):
        raise typer.Exit(1)


def _as_json(
    examined: list[tuple[BrokerUrl, list[Finding]]], between: Between | None
) -> list[dict[str, Any]] | dict[str, Any]:
    """The findings about one broker; about several, those of each, and what they are to each other."""
    if len(examined) == 1:
        _, findings = examined[0]
        return [dataclasses.asdict(finding) for finding in findings]
    brokers = []
    for url, findings in examined:
        rows = [dataclasses.asdict(finding) for finding in findings]
        brokers.append({"broker": str(url), "findings": rows})
    found = [] if between is None else between.findings
    return {
        "brokers": brokers,
        "between": [dataclasses.asdict(finding) for finding in found],
        "shards": [] if between is None else between.groups,
    }


def _show(title: str, findings: list[Finding]) -> None:
    table = Table("check", "", "seen", "what it means", title=title)
    for finding in findings:
        table.add_row(
            finding.check, Text(finding.state, COLOURS[finding.state]), finding.seen, finding.means
        )
    Terminal().print(table)


@contextlib.contextmanager
def _single_user(
    user: str | None, password: str | None, file: Path | None, fleet: str | None = None
) -> Iterator[tuple[Path | None, Path | None]]:
    """The paths of a password file and of a file with roles, for `broker up` without a folder.

    Args:
        user: the only user, with the rights of a coordinator; its files are temporary.
        password: of the user.
        file: a password file of the operator's own; roles then follow from names.
        fleet: password of a second user, who hosts the agents of a simulation and has their rights.
    """
    if (user is None) != (password is None):
        raise UserError("--user and --password belong together: give both or neither")
    if user is None or password is None:
        yield file, None
        return
    if file is not None:
        raise UserError("give either --user and --password or --password-file, not both")
    if not is_name(user):
        raise UserError(f"--user {user!r}: expected letters, digits, '.', '_' and '-', at most 64")
    with tempfile.TemporaryDirectory(prefix="covey-broker-") as folder:
        password_file = Path(folder) / "passwords"
        members_file = Path(folder) / "members.json"
        known = {user: password}
        entries = {user: members.Entry(role="coordinator")}
        if fleet is not None:
            known[FLEET] = fleet
            entries[FLEET] = members.Entry(role="fleet")
        passwords.write(password_file, known)
        members.save(members_file, entries)
        yield password_file, members_file


def warnings(options: Options) -> list[str]:
    """Warnings for the operator, before the broker listens."""
    found = []
    if not options.rules and not _is_loopback(options.host):
        found.append(
            f"warning: this broker accepts anyone who can reach {options.host}, with every right: they can give agents "
            "orders and read every model. Secure it: `broker init --host NAME`, then `broker up --home broker-home`"
        )
    return found


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name can resolve to any address


def _say(text: str) -> None:
    print(printable_lines(f"broker: {text}"), file=sys.stderr, flush=True)


def main() -> None:
    """The entry point of the `broker` command."""
    app()


if __name__ == "__main__":
    main()
