"""The command `broker up`: a broker on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from covey.broker.access import members, passwords
from covey.broker.cli.options import show
from covey.broker.limits import DEFAULT_AGENTS, MIB, Limits
from covey.broker.programs.options import BrokerOptions
from covey.broker.programs.run import available_broker, run
from covey.shared import extras
from covey.shared.errors import UserError
from covey.shared.mqtt.credentials import FLEET
from covey.shared.wire.topics import is_name


def up(
    *,
    host: Annotated[
        str | None,
        typer.Option(help="address to listen on  [default: 127.0.0.1; with --home 0.0.0.0, all]"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="port; 0: any free one  [default: 1883; with --home its own]"
        ),
    ] = None,
    websocket_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="also accept MQTT over websockets at this port (ws://HOST:PORT/mqtt, wss:// with TLS); 0 takes any free one",
        ),
    ] = None,
    websocket_host: Annotated[
        list[str] | None,
        typer.Option(
            help="without users: a name of this machine under which web pages may use the websockets; repeatable"
        ),
    ] = None,
    home: Annotated[
        Path | None,
        typer.Option(help="folder made by `broker init`: certificate, users, retained messages"),
    ] = None,
    embedded: Annotated[
        bool,
        typer.Option("--embedded", help="use the broker in Python, even if Mosquitto is there"),
    ] = False,
    data: Annotated[
        Path | None, typer.Option(help="folder in which retained messages survive a restart")
    ] = None,
    log: Annotated[Path | None, typer.Option(help="write the broker's log to this file")] = None,
    user: Annotated[
        str | None, typer.Option(help="the only user who may connect; requires --password")
    ] = None,
    password: Annotated[
        str | None, typer.Option(envvar="COVEY_BROKER_PASSWORD", help="password of --user")
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(
            help="password file from mosquitto_passwd; its users are coordinator and the agents' ids"
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
        int, typer.Option(help="agents to expect; sets the limits of connections and queues")
    ] = DEFAULT_AGENTS,
    max_packet: Annotated[
        int | None,
        typer.Option(
            help="longest packet in bytes, at least wire.part_bytes plus 4096  [default: 540672; more from 1311 --agents]"
        ),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(help="memory of the broker in MiB  [default: half of the machine's]"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print the address as one line of JSON")
    ] = False,
    until_stdin_closes: Annotated[
        bool, typer.Option("--until-stdin-closes", help="also stop when standard input ends")
    ] = False,
) -> None:
    """Run a broker until Ctrl-C: Mosquitto if it is installed, else the embedded one."""
    # with --user: of a second user, who has the rights of agents; a run gives it to its own broker
    fleet_password = os.environ.get("COVEY_FLEET_PASSWORD")
    with _single_user(user, password, password_file, fleet_password) as (users, members):
        kind = available_broker(show, embedded=embedded)
        options = BrokerOptions(
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
            websocket_hosts=tuple(websocket_host or ()),
        )
        expiring: Callable[[], Sequence[str]] = list
        if home is not None:
            if users or tls_cert or tls_ca:
                raise UserError(
                    "--home contains users and certificates; omit the options for users and TLS"
                )
            folder = extras.part("users", "folder", "--home").BrokerFolder(home)
            options = folder.options(
                options, host=host, port=port, keeps_retained=kind.keeps_retained
            )
            expiring = folder.warnings
        if data and not kind.keeps_retained:
            raise UserError(
                f"--data {data}: the embedded broker keeps nothing on disk; omit it, or install mosquitto"
            )
        for warning in (*expiring(), *warnings(options)):
            show(warning)
        running = run(
            kind(options),
            show,
            as_json=as_json,
            until_stdin_closes=until_stdin_closes,
            websocket_port=websocket_port,
            warnings=expiring,
        )
        problem = asyncio.run(running)
        if problem:
            show(problem)
            raise typer.Exit(1)


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
        entries = {user: members.StoredUser(role="coordinator")}
        if fleet is not None:
            known[FLEET] = fleet
            entries[FLEET] = members.StoredUser(role="fleet")
        passwords.write(password_file, known)
        members.save(members_file, entries)
        yield password_file, members_file


def warnings(options: BrokerOptions) -> list[str]:
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
