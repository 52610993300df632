"""`coordinator lab pause | resume | stop | release | forget`: send a command to the running coordinator.

A command publishes on the control topic, and returns once a document that the coordinator retains shows the effect. Only
the coordinator's user may publish there; the broker enforces that.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Annotated

import typer

from covey.coordinator.cli.options import ensure_role, show_line
from covey.shared.cli import LOCAL_BROKER, BrokerAddresses, check_name, with_connection
from covey.shared.errors import DecodeError, UserError
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.credentials import COORDINATOR
from covey.shared.mqtt.link import Down, Link, Received, Up
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.wire.documents import Control, CoordinatorStatus, RosterMessage
from covey.shared.wire.roster_view import RosterView
from covey.shared.wire.topics import Topics

WITHIN_S = 5.0  # for the broker to send what the coordinator retains
EFFECT_S = 30.0  # for the command to take effect: the coordinator may be folding reports

OVER = ("finished", "stopped")
NOT_RUNNING = "no coordinator is running in this federation; start one with `coordinator run`"


AgentId = Annotated[str, typer.Argument(help="the agent's id, as `coordinator status` shows it")]


RunFederation = Annotated[str, typer.Option(help="the run's federation")]


@with_connection(LOCAL_BROKER)
def pause(*, connection: BrokerAddresses, federation: RunFederation = "default") -> None:
    """Pause the running coordinator: it ends the step at work, and starts no new one.

    A pause lasts until `coordinator lab resume`, even if the coordinator is killed and `coordinator run --resume` continues it.
    """
    is_new = _send(connection, federation, "pause")
    show_line("paused; `coordinator lab resume` continues" if is_new else "it is paused already")


@with_connection(LOCAL_BROKER)
def resume(*, connection: BrokerAddresses, federation: RunFederation = "default") -> None:
    """Continue after `coordinator lab pause`."""
    is_new = _send(connection, federation, "resume")
    show_line("resumed" if is_new else "it is not paused")


@with_connection(LOCAL_BROKER)
def stop(*, connection: BrokerAddresses, federation: RunFederation = "default") -> None:
    """Stop the running coordinator, as Ctrl-C does; `coordinator run --resume` continues the run."""
    _send(connection, federation, "stop")
    show_line("stopped; `coordinator run ... --resume` continues the run")


@with_connection(LOCAL_BROKER)
def release(
    agent: AgentId, *, connection: BrokerAddresses, federation: RunFederation = "default"
) -> None:
    """Release an agent from quarantine, so that it is invited again.

    The coordinator puts an agent in quarantine whose reports it had to refuse several times.
    """
    _send(connection, federation, "release", agent)
    show_line(f"{agent} is out of quarantine; it is invited again")


@with_connection(LOCAL_BROKER)
def forget(
    agent: AgentId, *, connection: BrokerAddresses, federation: RunFederation = "default"
) -> None:
    """Remove an agent from the run: from its group, the list of agents and all further rounds.

    If it connects again later, it is a newcomer; to keep it out, revoke its credentials with `broker expel`.
    """
    _send(connection, federation, "forget", agent)
    show_line(f"{agent} is forgotten; if it connects again, it is a newcomer")


def _send(
    connection: BrokerAddresses, federation: str, command: str, agent: str | None = None
) -> bool:
    """Send a command to the running coordinator; False if the run was in that state already."""
    check_name("--federation", federation)
    if agent is not None:
        check_name("AGENT", agent)
    ensure_role(connection, COORDINATOR)
    control = Control.model_validate({"command": command, "agent": agent})
    return asyncio.run(send(connection.url(), federation, control))


async def send(url: BrokerUrl, federation: str, control: Control) -> bool:
    """Send a command and wait for its effect.

    Returns:
        False if there was nothing to do, because the run was in that state already.

    Raises:
        UserError: the broker does not answer, no coordinator carries the command out, or it makes no sense now.
    """
    client_id = f"covey-control-{uuid.uuid4().hex[:8]}"
    try:
        async with MqttLink(url, client_id=client_id) as link:
            return await carry_out(link, Topics(federation), control, str(url))
    except DecodeError as error:
        raise UserError(f"{url}: its retained messages are not Covey's ({error})") from None


async def carry_out(
    link: Link, topics: Topics, control: Control, broker: str = "the broker"
) -> bool:
    """Send a command over an open link and wait for its effect; see `send`. `broker` names it in messages."""
    about_agent = control.agent is not None
    watched = [topics.coordinator_status, *[topics.roster] * about_agent]
    asked = False
    status: CoordinatorStatus | None = None
    pages = RosterView()
    try:
        async with asyncio.timeout(WITHIN_S) as limit:
            async for incoming in link.incoming():
                match incoming:
                    case Up():
                        await link.subscribe(watched)
                        continue
                    case Down(why=why) if asked:  # so some brokers treat users without the right
                        raise UserError(
                            f"{why}; only the coordinator's credentials may send commands"
                        )
                    case Down(why=why):
                        raise UserError(f"{why}; check the address with `broker doctor {broker}`")
                    case Received(topics.coordinator_status, payload) if payload:
                        status = CoordinatorStatus.from_bytes(payload)
                    case Received(topic, payload) if topic.startswith(topics.roster) and payload:
                        await _take_page(link, topics, pages, incoming)
                # one that is offline by its last will comes back after a restart of the broker
                if status is None or not (status.online or asked):
                    continue
                if not about_agent:
                    is_done = _run_is_done(control, status, asked=asked)
                elif status.state in OVER and not asked:
                    raise UserError(NOT_RUNNING)
                elif (roster := pages.message) is None or not pages.is_complete:
                    continue
                else:
                    is_done = _agent_is_done(control, roster, asked=asked)
                if is_done:
                    return asked
                if not asked:
                    asked = True
                    limit.reschedule(asyncio.get_running_loop().time() + EFFECT_S)
                    await link.publish(topics.control, control.to_bytes())
    except TimeoutError:
        pass
    if asked:
        raise UserError(
            f"{broker}: no coordinator carried out `{control.command}` within {EFFECT_S:g} s; "
            "check that one is running, and that you connect with the coordinator's credentials"
        )
    if status is not None and not status.online:
        raise UserError(NOT_RUNNING)
    raise UserError(
        f"{broker}: no run of federation {topics.federation!r} answered within {WITHIN_S:g} s; check --federation"
    )


async def _take_page(link: Link, topics: Topics, pages: RosterView, message: Received) -> None:
    """Keep a page of the roster. Only the first one has their number."""
    pages.take(topics, message.topic, message.payload)
    if message.topic == topics.roster and not pages.is_complete:
        await link.subscribe(pages.further_topics(topics))


def _run_is_done(control: Control, status: CoordinatorStatus, *, asked: bool) -> bool:
    """Whether the status shows the state that the command leads to.

    Raises:
        UserError: the command makes no sense in the present state.
    """
    is_over = not status.online or status.state in OVER
    if control.command == "stop" and asked:
        return is_over
    if control.command == "resume" and asked and status.online:
        return status.state != "paused"  # also if only the end of the run was left
    if is_over:
        raise UserError(NOT_RUNNING)
    if control.command == "pause":
        return status.state == "paused"
    return control.command == "resume" and status.state != "paused"


def _agent_is_done(control: Control, roster: RosterMessage, *, asked: bool) -> bool:
    """The same of the roster, for a command about an agent."""
    agent = control.agent
    row = roster.agents.get(agent or "")
    if row is None and asked:
        return True
    if row is None:
        raise UserError(
            f"the coordinator has no agent {agent}; `coordinator status` lists all of them"
        )
    if control.command == "forget" or row.get("quarantined"):
        return False
    if not asked:
        raise UserError(
            f"{agent} is not in quarantine; `coordinator status` lists the agents that are"
        )
    return True
