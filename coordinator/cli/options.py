"""Options and small helpers that several commands of the coordinator share."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covey.shared.cli import BrokerAddresses, broker_option
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import DEFAULT_BROKER, BrokerUrl
from covey.shared.mqtt.credentials import COORDINATOR, check_federation, check_role
from covey.shared.mqtt.credentials import read as read_credentials
from covey.shared.sentences import printable_lines

if TYPE_CHECKING:
    from covey.shared.programs.terminal import Terminal
    from covey.shared.scenario.scenario import Scenario


@cache
def out() -> Terminal:
    """The terminal for tables and progress. Its library is imported now: commands that print lines start without it."""
    from covey.shared.programs.terminal import Terminal

    return Terminal()


ScenarioFile = Annotated[Path, typer.Argument(help="the scenario file")]
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
Cluster = Annotated[
    bool,
    typer.Option(
        "--cluster",
        help="the addresses of --broker are one cluster of brokers (`broker doctor` finds out): use another if one is away",
    ),
]
Embedded = Annotated[
    bool, typer.Option("--embedded", help="start the embedded broker, even if another is named")
]
Aggregators = Annotated[
    bool,
    typer.Option(
        "--aggregators",
        help="let `coordinator lab aggregate`, near each broker, check and add up its agents' reports; same models",
    ),
]
DeviceFederation = Annotated[str, typer.Option(help="the devices' federation")]
AuditKey = Annotated[
    Path | None,
    typer.Option(
        help="file with a secret key; signs the audit log with it (HMAC-SHA256)",
        envvar="COVEY_AUDIT_KEY",
    ),
]
InProcess = Annotated[
    bool,
    typer.Option(
        "--in-process",
        help="run without a broker: the same results, faster; without fleet.faults and fleet.timeline",
    ),
]

Modes = Annotated[
    bool, typer.Option("--modes", help="also show the figures served, fine-tuned and own last")
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        metavar="<tracker>",
        help="also log to an experiment tracker: mlflow, tensorboard or wandb; repeatable",
    ),
]

# An option that was typed leaves these others without effect, and why.
BROKER_OPTIONS = ("broker", "credentials", "cluster")
CONTRADICTIONS = (
    (
        "in_process",
        "needs no broker",
        (*BROKER_OPTIONS, "embedded", "metrics", "aggregators", "give_up_after"),
    ),
    ("executor", "runs without a broker", (*BROKER_OPTIONS, "embedded")),
    ("embedded", "starts its own broker", BROKER_OPTIONS),
)


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


def ensure_role(connection: BrokerAddresses, *roles: str) -> None:
    """Raise a UserError if the command connects with credentials of another role than these."""
    for file in connection.in_use:
        check_role(file, roles)


def in_federation(connection: BrokerAddresses, scenario: Scenario) -> Scenario:
    """The scenario, in the federation of the credentials if it names none. Raises UserError if they name different ones."""
    for file in connection.in_use:
        own = read_credentials(file).federation
        if own and "federation" not in scenario.model_fields_set:
            scenario = scenario.model_copy(update={"federation": own})
        check_federation(file, scenario.federation, "`federation` of the scenario")
    return scenario


def distinct_brokers(connection: BrokerAddresses) -> tuple[BrokerUrl, ...]:
    """The brokers that the options name, by their numbers; none if they name none.

    Raises UserError for an address that is malformed or given twice, or several files of which one is not the
    coordinator's.
    """
    if not connection.is_named:
        return ()
    urls = connection.urls(COORDINATOR)
    if len(set(map(str, urls))) < len(urls):
        raise UserError("the same broker is given twice; give each of the brokers once")
    return tuple(urls)


def complain(text: str) -> None:
    """A remark that is no part of the output."""
    typer.echo(printable_lines(text), err=True)


def show_line(text: str) -> None:
    """One line of the result, however long: a program may read it."""
    typer.echo(printable_lines(text))


def warn(remark: str) -> None:
    """Print a remark on settings that do not do what they seem to do, if there is one."""
    if remark:
        typer.echo(f"warning: {remark}", err=True)
