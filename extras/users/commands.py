"""Commands for the folder of a broker: its certificates, its users and their credentials."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from covey.broker.access.acl import ANY
from covey.broker.access.members import StoredUser
from covey.broker.cli.options import show
from covey.extras.users.folder import AUTHORITY_DAYS, DEFAULT_FEDERATION, SERVER_DAYS, BrokerFolder
from covey.shared import extras
from covey.shared.cli import Json
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import PORTS
from covey.shared.mqtt.credentials import COORDINATOR
from covey.shared.programs.terminal import Terminal
from covey.shared.sentences import some
from covey.shared.storage import json_text
from covey.shared.wire.documents import EXPELLED, ROTATED

if TYPE_CHECKING:
    from covey.extras.users.seen import LastSeen

HOME = Path("broker-home")
JOIN_PORT = 8884  # next to that of MQTT over TLS
HomeFolder = Annotated[Path, typer.Option("--home", help="the broker's folder")]
Names = Annotated[list[str], typer.Argument(help="names of the users; for an agent, its id")]
MaybeNames = Annotated[
    list[str] | None, typer.Argument(help="names of the users; for an agent, its id")
]
Join = Annotated[
    bool,
    typer.Option(
        "--join",
        help="print a code for each user and wait: `agent join CODE` gets the credentials over TLS, once",
    ),
]
JoinPort = Annotated[
    int, typer.Option(min=0, max=65535, help="port for --join; 0 takes any free one")
]
EnrolledRole = Literal["agent", "coordinator", "observer", "aggregator"]


def init(
    host: Annotated[
        list[str],
        typer.Option(help="name or address of this machine as devices use it; repeatable"),
    ],
    home: HomeFolder = HOME,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="port that devices connect to")
    ] = PORTS["mqtts"],
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


def enroll(
    names: MaybeNames = None,
    *,
    csv: Annotated[
        Path | None,
        typer.Option(
            help="a table of the agents, instead of names: column `id`, and `federation` or `key` where they differ from the "
            "options"
        ),
    ] = None,
    homes: Annotated[
        list[Path] | None,
        typer.Option(
            "--home",
            help="the broker's folder; repeat it for several brokers (shards), in the order of their numbers, and each user "
            f"is enrolled at one of them  [default: {HOME}]",
        ),
    ] = None,
    shard: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="with several --home: the number of the broker, counted from 0  [default: by a hash of each name]",
        ),
    ] = None,
    role: Annotated[
        EnrolledRole,
        typer.Option(
            help="observer: read the statuses and figures of agents and runs, write nothing; aggregator: add up reports for the "
            "coordinator (`coordinator lab aggregate`)"
        ),
    ] = "agent",
    federation: Annotated[
        str, typer.Option(help=f"the federation of the users; {ANY} for any")
    ] = DEFAULT_FEDERATION,
    key: Annotated[
        str,
        typer.Option(
            help="for secure sums, the device's signing key, as `agent lab keys` prints it  [default: none]",
            show_default=False,
        ),
    ] = "",
    join: Join = False,
    join_port: JoinPort = JOIN_PORT,
) -> None:
    """Add users and write a credentials file for each. A running broker accepts them at once."""
    folders = [BrokerFolder(home) for home in homes or [HOME]]
    from covey.extras.users import shards

    try:
        signing_key = bytes.fromhex(key)
    except ValueError:
        raise UserError(
            f"--key {key}: expected the 64 digits that `agent lab keys` prints on the device"
        ) from None
    wanted = shards.Wanted(tuple(names or ()), role, federation, signing_key)
    if (csv is None) == (not names):
        raise UserError("expected names of users, or --csv with a table of them")
    if join and len(folders) > 1:
        raise UserError("--join hands over the credentials of one broker; give one --home")
    groups = [wanted] if csv is None else shards.read_table(csv, wanted)
    files = shards.enroll_all(folders, groups, shard)
    for file in files:
        print(file)
    if join:
        _hand_over(folders[0], files, join_port)


def _emit(line: str) -> None:
    print(line, flush=True)


def _hand_over(home: BrokerFolder, files: Sequence[Path], port: int) -> None:
    by_user = {file.stem: file for file in files}
    hand_over = extras.part("joining", "handing_over", "--join").hand_over
    left: list[str] = hand_over(home, by_user, port=port, emit=_emit, show=show)
    if left:
        show(
            f"{some(left)} did not join: copy the file, or `broker lab rotate --join` prints a new code"
        )
        raise typer.Exit(1)


def expel(names: Names, home: HomeFolder = HOME) -> None:
    """Revoke agents' credentials. A running broker ends their connections and informs the coordinator."""
    own = BrokerFolder(home)
    _publish_offline(own, own.expel_all(names), EXPELLED)
    if any(not signed for _, signed in own.expelled().values()):
        show(
            "note: run `broker lab sign` where the fleet key is, so that other devices refuse secure sums with these agents"
        )


def sign(home: HomeFolder = HOME) -> None:
    """Sign with the fleet key: entries for secure sums that end within 30 days, and the list of expelled ones.

    A folder without a fleet key gets one. Prints the credentials files that have changed: copy them to their devices.
    """
    for file in BrokerFolder(home).sign():
        print(file)


def rotate(
    names: Names, home: HomeFolder = HOME, *, join: Join = False, join_port: JoinPort = JOIN_PORT
) -> None:
    """Replace credentials, also the coordinator's: a new password in a new file. The old file stops working at once."""
    own = BrokerFolder(home)
    known = own.entries()
    files = [own.rotate(name) for name in names]
    for file in files:
        print(file)
    _publish_offline(own, {name: known[name] for name in names}, ROTATED)
    if join:
        _hand_over(own, files, join_port)


def renew(
    home: HomeFolder = HOME,
    days: Annotated[
        int, typer.Option(min=1, help="days for which the new certificate is valid")
    ] = SERVER_DAYS,
    host: Annotated[
        list[str] | None,
        typer.Option(help="name or address in the certificate; repeatable  [default: as before]"),
    ] = None,
) -> None:
    """Replace the broker's certificate by the same authority. The devices' credentials stay valid.

    An authority that ends soon is renewed as well, with the same key: copy the credentials files that it prints.
    """
    done = BrokerFolder(home).renew(days, host or [])
    print(
        f"{home / 'server.pem'} is valid until {done.until:%Y-%m-%d}; a running broker uses it for new connections"
    )
    if done.former is not None:
        print(
            f"{home / 'ca.pem'} was renewed as well; copy these files to their programs before {done.former:%Y-%m-%d}, until "
            "when the present ones work:"
        )
    for user, is_here in done.files.items():
        if is_here:
            print(BrokerFolder(home).file(user))
        else:
            show(
                f"note: the credentials of {user} are not here; `broker lab rotate {user}` makes new ones"
            )


def list_users(home: HomeFolder = HOME, as_json: Json = False) -> None:
    """List users with role, federation, age of their credentials and whether they are online, and the certificates' dates."""
    own = BrokerFolder(home)
    entries, certificates = own.entries(), own.certificates()
    found: dict[str, LastSeen] = {}
    from covey.extras.users.seen import seen

    try:
        found = asyncio.run(seen(own))
    except UserError as error:
        show(f"note: {error}")
    if as_json:
        users = {
            name: entry.model_dump() | (asdict(found[name]) if name in found else {})
            for name, entry in sorted(entries.items())
        }
        print(json_text.dumps({"users": users, "certificates": certificates}, indent=1))
        return
    table = Table("user", "role", "federation", "credentials of", "online", "last seen")
    for name, entry in sorted(entries.items()):
        table.add_row(
            name,
            entry.role,
            "any" if entry.federation == ANY else entry.federation,
            entry.since or "–",
            *_presence(found.get(name)),
        )
    Terminal().print(table)
    for name, until in certificates.items():
        print(f"{name} is valid until {until}")


def _presence(seen: LastSeen | None) -> tuple[str, str]:
    if seen is None:
        return "–", "–"
    last = "–"
    if seen.last is not None:
        local = datetime.fromtimestamp(seen.last).astimezone()
        last = local.isoformat(timespec="seconds")
    return ("yes" if seen.online else "no"), last


def _publish_offline(home: BrokerFolder, users: Mapping[str, StoredUser], why: str) -> None:
    """Publish that these agents are offline. If that fails, print a note."""
    agents = {name: entry.federation for name, entry in users.items() if entry.role == "agent"}
    if not agents:
        return
    from covey.extras.users import expulsion

    if problem := asyncio.run(expulsion.publish(home, agents, why)):
        show(f"note: {problem}")
