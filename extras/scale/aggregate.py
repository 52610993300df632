"""`coordinator lab aggregate`: serve one broker until a signal."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated

import typer

from covey.coordinator.cli.options import ensure_role, show_line
from covey.coordinator.serve.signals import StopSignals
from covey.extras.scale.service import AggregatorService, last_will
from covey.shared.cli import LOCAL_BROKER, Allow, BrokerAddresses, check_name, with_connection
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.credentials import COORDINATOR
from covey.shared.mqtt.duplicate_ids import session_id
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.own_code.consent import AllowedCode
from covey.shared.wire.topics import Topics


@with_connection(LOCAL_BROKER)
def aggregate(
    *,
    connection: BrokerAddresses,
    federation: Annotated[str, typer.Option(help="the federation of the run")] = "default",
    allow: Allow = None,
) -> None:
    """Add up the reports of a broker's agents, for a run that `coordinator run --aggregators` began.

    Start one near each broker; it needs an aggregator's credentials. It checks reports as the coordinator does and sends
    it one sum for each group. It serves one run after another until Ctrl-C.
    """
    check_name("--federation", federation)
    ensure_role(connection, "aggregator", COORDINATOR)
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(connection.url(), federation, AllowedCode.parse(allow), show_line))


async def serve(
    url: BrokerUrl, federation: str, allowed: AllowedCode, show: Callable[[str], None]
) -> None:
    """Add up reports until Ctrl-C or SIGTERM.

    Args:
        url: the broker.
        federation: of the runs.
        allowed: code of a user's own that their scenarios may name.
        show: gets a line for people about what happens.

    Raises:
        UserError: the address cannot be used.
    """
    url.tls_context()
    topics = Topics(federation)
    session = session_id(time.time(), secrets.token_hex(4))
    client_id = f"covey-{federation}-aggregator-{session}"
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - this is a coroutine
    with StopSignals(task.cancel):
        try:
            async with MqttLink(url, client_id=client_id, will=last_will(topics, session)) as link:
                service = AggregatorService(link, topics, session, allowed=allowed, show=show)
                await service.run()
        except asyncio.CancelledError:
            show("stopped")
