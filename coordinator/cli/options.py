"""Options and small helpers that several commands of the coordinator share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covey.shared.cli import Connection, broker_option
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import DEFAULT_BROKER, BrokerUrl, Tls
from covey.shared.mqtt.credentials import COORDINATOR, check_federation, check_role
from covey.shared.mqtt.credentials import read as read_credentials
from covey.shared.printable import printable_lines

if TYPE_CHECKING:
    from covey.shared.scenario.scenario import Scenario
    from covey.shared.terminal import Terminal


@cache
def out() -> Terminal:
    """The terminal for tables and progress. Its library is imported now: commands that print lines start without it."""
    from covey.shared.terminal import Terminal

    terminal = Terminal()
    if not terminal.is_terminal:
        terminal.width = 120  # a pipe or a file has no width of its own
    return terminal


ScenarioFile = Annotated[
    Path, typer.Argument(help="the scenario file", exists=True, dir_okay=False)
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="override a key, e.g. strategy.name=fedavg; repeatable"),
]
BROKER_OF_A_RUN = broker_option(
    f"the scenario's; else one started for a simulated fleet, {DEFAULT_BROKER} for real agents",
    "; repeat it for several independent brokers (shards), in the order of their numbers",
)
BROKERS_OF_DEVICES = broker_option(
    DEFAULT_BROKER, "; repeat it if the devices live on several independent brokers (shards)"
)
Shards = Annotated[
    list[Path] | None,
    typer.Option(
        "--shard",
        metavar="<credentials>",
        help="the coordinator's credentials file at one of several brokers; repeat it for each, in the order of their "
        "numbers",
        show_default=False,
    ),
]
Cluster = Annotated[
    bool,
    typer.Option(
        "--cluster",
        help="the addresses of --broker lead to one cluster that shares retained messages (`broker doctor` finds out): "
        "go to the next one when one cannot be reached",
    ),
]
Embedded = Annotated[
    bool,
    typer.Option(
        "--embedded", help="start the embedded broker, even if another is installed or named"
    ),
]
Aggregators = Annotated[
    bool,
    typer.Option(
        "--aggregators",
        help="let `coordinator aggregate`, near each broker, check and add up the reports of its agents: identical models",
    ),
]
AuditKey = Annotated[
    Path | None,
    typer.Option(
        help="file with a secret key; signs the audit log with it (HMAC-SHA256)",
        envvar="COVEY_AUDIT_KEY",
        show_default=False,
    ),
]
InProcess = Annotated[
    bool,
    typer.Option(
        "--in-process",
        help="run without a broker: identical results, faster (no faults, no timeline)",
    ),
]

Track = Annotated[
    list[str] | None,
    typer.Option(
        metavar="<tracker>",
        help="also log to an experiment tracker: mlflow, tensorboard or wandb; repeatable",
        show_default=False,
    ),
]

# An option that was typed leaves these others without effect, and why.
BROKER_OPTIONS = ("broker", "ca", "cert", "key", "insecure", "credentials", "cluster")
CONTRADICTIONS = (
    (
        "in_process",
        "needs no broker",
        (*BROKER_OPTIONS, "shard", "embedded", "metrics", "aggregators", "give_up_after"),
    ),
    ("executor", "runs without a broker", (*BROKER_OPTIONS, "shard", "embedded")),
    ("embedded", "starts its own broker", (*BROKER_OPTIONS, "shard")),
    ("shard", "names the brokers", BROKER_OPTIONS),
)


def command_group() -> typer.Typer:
    """An empty group of commands. The program lists its groups in the order of its help."""
    return typer.Typer(rich_markup_mode=None)


def refuse_contradictions(context: typer.Context) -> None:
    """Raise a UserError if one typed option leaves another without effect. Environment variables are mere defaults."""
    typed = set()
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            typed.add(name)
    for chosen, reason, idle in CONTRADICTIONS:
        useless = [f"--{name}" for name in idle if name in typed]
        if chosen in typed and useless:
            option = "--" + chosen.replace("_", "-")
            others = " and ".join(useless)
            raise UserError(f"{option} {reason}: omit {others}, or omit {option}")


READERS = (COORDINATOR, "observer")  # roles that may read a run's status


def ensure_role(connection: Connection, *roles: str) -> None:
    """Raise a UserError if the command connects with credentials of another role than these.

    If the user has typed another address than that of the file, only the trusted certificates come from it.
    """
    file = connection.credentials
    if file is not None and read_credentials(file).broker in connection.brokers:
        check_role(file, roles)


def in_federation(connection: Connection, scenario: Scenario) -> Scenario:
    """The scenario, in the federation of the credentials if it names none. Raises UserError if they name different ones."""
    file = connection.credentials
    if file is None or read_credentials(file).broker not in connection.brokers:
        return scenario
    own = read_credentials(file).federation
    if own and "federation" not in scenario.model_fields_set:
        return scenario.model_copy(update={"federation": own})
    check_federation(file, scenario.federation, "`federation` of the scenario")
    return scenario


def several_brokers(connection: Connection, shards: Sequence[Path] | None) -> list[BrokerUrl]:
    """The brokers that the options name, by their numbers; none if they name one or none.

    Raises UserError for an address that is malformed or given twice, or a file that is not the coordinator's.
    """
    urls: list[BrokerUrl] = []
    for file in shards or ():
        check_role(file, (COORDINATOR,))
        credentials = read_credentials(file)
        urls.append(BrokerUrl.parse(credentials.broker, Tls(ca=Path(credentials.ca))))
    if not urls and len(connection.brokers) > 1:
        urls = connection.urls(COORDINATOR)
    if len(set(map(str, urls))) < len(urls):
        raise UserError("the same broker is given twice; give each of the brokers once")
    return urls


def only_broker(connection: Connection) -> str | None:
    """The only address that the options name; None if they name none, or several."""
    return connection.broker if len(connection.brokers) < 2 else None


def complain(text: str) -> None:
    """A remark that is no part of the output."""
    typer.echo(printable_lines(text), err=True)


def show_line(text: str) -> None:
    """One line of the result, however long: a program may read it."""
    typer.echo(printable_lines(text))
