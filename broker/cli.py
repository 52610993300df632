"""The `broker` command: run a broker here, examine one anywhere."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ipaddress
import signal
import sys
import tempfile
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from covey.broker import expulsion
from covey.broker.access import members, passwords
from covey.broker.access.acl import ANY
from covey.broker.access.members import Entry
from covey.broker.doctor import Doctor, Finding
from covey.broker.folder import AUTHORITY_DAYS, DEFAULT_FEDERATION, SERVER_DAYS, BrokerFolder
from covey.broker.limits import DEFAULT_AGENTS, Limits
from covey.broker.programs.embedded import EmbeddedBroker, until_closed
from covey.broker.programs.mosquitto import Mosquitto
from covey.broker.programs.options import Options
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

app = program("broker", "The broker in the middle of a Covey federation.")
HOME = Path("broker-home")
HomeFolder = Annotated[Path, typer.Option("--home", help="the broker's folder")]
Names = Annotated[list[str], typer.Argument(help="the users' names; an agent's id")]
EnrolledRole = Literal["agent", "coordinator", "observer"]
RELOAD_S = 1.0
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
            help="0: any free port  [default: 1883, or the home's]",
            show_default=False,
        ),
    ] = None,
    home: Annotated[
        Path | None,
        typer.Option(help="a folder of `broker init`: certificate, users, retained messages"),
    ] = None,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="the pure Python broker, even beside mosquitto")
    ] = False,
    data: Annotated[
        Path | None, typer.Option(help="folder that keeps retained messages over restarts")
    ] = None,
    log: Annotated[Path | None, typer.Option(help="log file")] = None,
    user: Annotated[
        str | None, typer.Option(help="with --password: the one user who may connect")
    ] = None,
    password: Annotated[
        str | None, typer.Option(envvar="COVEY_BROKER_PASSWORD", help="with --user")
    ] = None,
    fleet_password: Annotated[
        str | None,
        typer.Option(
            envvar="COVEY_FLEET_PASSWORD",
            help="with --user: of a second user, fleet, who may do what agents may",
        ),
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(
            help="users as mosquitto_passwd writes them: coordinator, and one per agent id"
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="PEM certificate of this broker: listen with TLS")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="its private key")] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            help="clients must show a certificate of this authority; the name in it (CN) is the user"
        ),
    ] = None,
    agents: Annotated[
        int, typer.Option(help="how many agents to expect: connections and queues follow")
    ] = DEFAULT_AGENTS,
    max_packet: Annotated[
        int | None,
        typer.Option(
            help="bytes of the longest packet; at least wire.part_bytes of the scenario and 4096  [default: 540672]",
            show_default=False,
        ),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(
            help="MiB that the broker may take  [default: half of the machine's]",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="say where it listens as one line of JSON")
    ] = False,
    until_stdin_closes: Annotated[
        bool, typer.Option(help="also stop when standard input ends")
    ] = False,
) -> None:
    """Run a broker until Ctrl-C: Mosquitto where it is installed, else the embedded one."""
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
            limits=Limits(agents, max_packet, None if memory is None else memory << 20),
        )
        if home is not None:
            if users or tls_cert or tls_ca:
                raise UserError(
                    "--home has users and certificates of its own: leave the others out"
                )
            options = BrokerFolder(home).options(
                options, host=host, port=port, keeps_retained=kind.keeps_retained
            )
            for warning in BrokerFolder(home).warnings():
                _say(warning)
        if data and not kind.keeps_retained:
            raise UserError(
                "the embedded broker keeps nothing on disk: leave --data out, or install mosquitto"
            )
        for warning in warnings(options):
            _say(warning)
        died = asyncio.run(
            _run(kind(options), as_json=as_json, until_stdin_closes=until_stdin_closes)
        )
        if died is not None:
            _say(died)
            raise typer.Exit(1)


async def _run(
    broker: Mosquitto | EmbeddedBroker, *, as_json: bool, until_stdin_closes: bool
) -> str | None:
    """Run until told to stop (None), or until the broker ends by itself (how, in words)."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    files = [
        path
        for path in (broker.options.passwords, broker.options.members, broker.options.tls_cert)
        if path
    ]
    known = _changed(files)  # before it reads them
    async with broker:
        if as_json:
            print(
                json_text.dumps({"url": str(broker.url), "broker": broker.name, "pid": broker.pid}),
                flush=True,
            )
        else:
            print(f"{broker.name} listens at {broker.url} (Ctrl-C stops it)", flush=True)
        ends: list[Coroutine[Any, Any, Any]] = [stop.wait()]
        if until_stdin_closes:
            ends.append(until_closed(sys.stdin))
        if files:
            ends.append(_reloads(broker, files, known))
        died = asyncio.create_task(broker.wait())
        tasks = [died, *(asyncio.create_task(end) for end in ends)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        if not died.done() or died.cancelled():
            return None
        return "\n".join(
            filter(
                None,
                [
                    f"{broker.name} ended by itself with exit code {died.result()}",
                    broker.log_tail(),
                ],
            )
        )


async def _reloads(
    broker: Mosquitto | EmbeddedBroker, files: Sequence[Path], known: list[int]
) -> None:
    """Until cancelled: have the broker read users, roles and certificate again when one of the files has changed."""
    while True:
        await asyncio.sleep(RELOAD_S)
        if (now := _changed(files)) != known:
            known = now
            try:
                broker.reload()
            except UserError as error:
                _say(f"users stay as they were: {error}")


def _changed(files: Sequence[Path]) -> list[int]:
    """When each file was last written, in nanoseconds."""
    return [file.stat().st_mtime_ns if file.exists() else 0 for file in files]


@app.command()
def init(
    host: Annotated[
        list[str],
        typer.Option(help="how devices reach this machine, a name or an address; repeatable"),
    ],
    home: HomeFolder = HOME,
    port: Annotated[int, typer.Option(min=1, max=65535)] = PORTS["mqtts"],
    days: Annotated[
        int, typer.Option(min=1, help="how long the broker's certificate is good for")
    ] = SERVER_DAYS,
    ca_days: Annotated[
        int, typer.Option(min=1, help="how long the authority is good for")
    ] = AUTHORITY_DAYS,
) -> None:
    """Make a folder for a broker with TLS, passwords and access rules: certificates, and the coordinator's credentials."""
    made = BrokerFolder.create(home, host, port, days, ca_days)
    print(
        f"{home}: `broker up --home {home}` runs it, `broker enroll NAME --home {home}` lets an agent in"
    )
    print(f"the coordinator's credentials: {made.file(COORDINATOR)}")


@app.command()
def enroll(
    names: Names,
    home: HomeFolder = HOME,
    role: Annotated[
        EnrolledRole,
        typer.Option(help="observer: may read statuses, roster and metrics, and write nothing"),
    ] = "agent",
    federation: Annotated[
        str, typer.Option(help=f"the federation that they may take part in, or {ANY} for any")
    ] = DEFAULT_FEDERATION,
) -> None:
    """Let users in: one file each, with all that `--credentials` needs. A broker that runs takes them in."""
    for file in BrokerFolder(home).enroll_all(names, role, federation):
        print(file)


@app.command()
def expel(names: Names, home: HomeFolder = HOME) -> None:
    """Revoke credentials. A broker that runs ends their connections, and the coordinator hears that they are gone."""
    own = BrokerFolder(home)
    gone = own.expel_all(names)
    _say_gone(own, gone, EXPELLED)


@app.command()
def rotate(names: Names, home: HomeFolder = HOME) -> None:
    """Replace credentials, also the coordinator's: a new password in a new file; the old file is void at once."""
    own = BrokerFolder(home)
    known = own.entries()
    for name in names:
        print(own.rotate(name))
    _say_gone(own, {name: known[name] for name in names}, ROTATED)


@app.command()
def renew(
    home: HomeFolder = HOME,
    days: Annotated[
        int, typer.Option(min=1, help="how long the new certificate is good for")
    ] = SERVER_DAYS,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="names and addresses in it; repeatable  [default: as before]", show_default=False
        ),
    ] = None,
) -> None:
    """A new certificate for the broker from the same authority: every device's credentials stay good."""
    until = BrokerFolder(home).renew(days, host or [])
    print(
        f"{home / 'server.pem'} is good until {until:%Y-%m-%d}; a broker that runs shows it to new connections"
    )


@app.command("list")
def list_users(
    home: HomeFolder = HOME,
    as_json: Json = False,
) -> None:
    """List the users with role, federation and the age of their credentials, and when the certificates expire."""
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
        print(f"{name} is good until {until}")


def _say_gone(home: BrokerFolder, users: Mapping[str, Entry], why: str) -> None:
    """Publish that agents are offline; a line where that could not be done."""
    agents = {name: entry.federation for name, entry in users.items() if entry.role == "agent"}
    if not agents:
        return
    missed = asyncio.run(expulsion.publish(home, agents, why))
    if missed:
        _say(f"note: {missed}")


@app.command()
@with_connection(Annotated[str | None, typer.Argument(metavar="url", help=ADDRESS)])
def doctor(
    *,
    connection: Connection,
    patience_s: Annotated[
        float, typer.Option(min=0.1, help="how long to wait for each answer")
    ] = 5.0,
    as_json: Json = False,
) -> None:
    """Check that a broker does what Covey relies on. Exit code 1 where something is missing."""
    if connection.broker is None:
        raise UserError(f"which broker? Give its address, {ADDRESS}, or --credentials")
    address = connection.url()
    role = ""
    federation = ""
    if connection.credentials is not None:
        credentials = read_credentials(connection.credentials)
        role = credentials.role
        federation = credentials.federation
    doctor = Doctor(address, patience_s=patience_s, role=role, federation=federation)
    findings = asyncio.run(doctor.examine())
    if as_json:
        print(json_text.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
    else:
        _show(address, findings)
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(1)


def _show(address: BrokerUrl, findings: list[Finding]) -> None:
    table = Table("check", "", "seen", "what it means", title=str(address))
    for finding in findings:
        table.add_row(
            finding.check, Text(finding.state, COLOURS[finding.state]), finding.seen, finding.means
        )
    Terminal().print(table)


@contextlib.contextmanager
def _single_user(
    user: str | None, password: str | None, file: Path | None, fleet: str | None = None
) -> Iterator[tuple[Path | None, Path | None]]:
    """The password file given (roles go by name), or files that hold the one user, who may use every topic of Covey's.

    `fleet`: the password of another one, who hosts the agents of a simulation and may do what they may.
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
        users, roles = Path(folder) / "passwords", Path(folder) / "members.json"
        known, entries = {user: password}, {user: members.Entry(role="coordinator")}
        if fleet is not None:
            known[FLEET] = fleet
            entries[FLEET] = members.Entry(role="fleet")
        passwords.write(users, known)
        members.save(roles, entries)
        yield users, roles


def warnings(options: Options) -> list[str]:
    """What the operator should know before the broker listens."""
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
        return False  # a name may lead anywhere


def _say(text: str) -> None:
    print(printable_lines(f"broker: {text}"), file=sys.stderr, flush=True)


def main() -> None:
    """The entry point of the `broker` command."""
    app()


if __name__ == "__main__":
    main()
