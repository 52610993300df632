"""Commands that go to the running coordinator."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from covey.coordinator.cli.options import ensure_role, show_line
from covey.shared.cli import LOCAL_BROKER, Connection, check_name, with_connection
from covey.shared.mqtt.credentials import COORDINATOR

AgentId = Annotated[
    str, typer.Argument(help="the agent's id, as `coordinator status` shows it", metavar="AGENT")
]
RunFederation = Annotated[str, typer.Option(help="the run's federation")]


def _send(connection: Connection, federation: str, command: str, agent: str | None = None) -> bool:
    """Send a command to the running coordinator; False if the run was in that state already."""
    from covey.coordinator.commands.control import send
    from covey.shared.wire.documents import Control

    check_name("--federation", federation)
    if agent is not None:
        check_name("AGENT", agent)
    ensure_role(connection, COORDINATOR)
    control = Control.model_validate({"command": command, "agent": agent})
    return asyncio.run(send(connection.url(), federation, control))


@with_connection(LOCAL_BROKER)
def pause(*, connection: Connection, federation: RunFederation = "default") -> None:
    """Pause the running coordinator: the open phase ends, and no new one starts.

    A pause lasts until `coordinator lab resume`, also if the coordinator is killed and continued with --resume.
    """
    is_new = _send(connection, federation, "pause")
    show_line("paused; `coordinator lab resume` continues" if is_new else "it is paused already")


@with_connection(LOCAL_BROKER)
def resume(*, connection: Connection, federation: RunFederation = "default") -> None:
    """Continue after `coordinator lab pause`."""
    is_new = _send(connection, federation, "resume")
    show_line("resumed" if is_new else "it is not paused")


@with_connection(LOCAL_BROKER)
def stop(*, connection: Connection, federation: RunFederation = "default") -> None:
    """Stop the running coordinator, as Ctrl-C does; `coordinator run --resume` continues the run."""
    _send(connection, federation, "stop")
    show_line("stopped; `coordinator run ... --resume` continues the run")


@with_connection(LOCAL_BROKER)
def release(
    agent: AgentId, *, connection: Connection, federation: RunFederation = "default"
) -> None:
    """Release an agent from quarantine, so that it is invited again.

    Agents whose reports were refused in several steps are in quarantine.
    """
    _send(connection, federation, "release", agent)
    show_line(f"{agent} is out of quarantine; it is invited again")


@with_connection(LOCAL_BROKER)
def forget(
    agent: AgentId, *, connection: Connection, federation: RunFederation = "default"
) -> None:
    """Remove an agent from the run: from the roster, its cluster and all future phases.

    Its retained messages are cleared. An agent that connects again later is a newcomer; to keep it out, revoke its
    credentials with `broker expel`.
    """
    _send(connection, federation, "forget", agent)
    show_line(f"{agent} is forgotten; if it connects again, it is a newcomer")
