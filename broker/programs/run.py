"""Runs a broker until the user stops it, and has it read its files again when one of them changes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from covey.broker.programs.mosquitto import Mosquitto, find
from covey.broker.programs.process import until_closed
from covey.shared import extras
from covey.shared.errors import UserError
from covey.shared.programs.child import stop_signals
from covey.shared.storage import json_text

if TYPE_CHECKING:
    from covey.extras.embedded.program import EmbeddedBroker
    from covey.extras.embedded.websocket_gateway import WebsocketGateway

    Broker = Mosquitto | EmbeddedBroker

RELOAD_S = 1.0
DAY_S = 86_400.0

Show = Callable[[str], None]  # shows a line to the user


async def run(
    broker: Broker,
    show: Show,
    *,
    as_json: bool,
    until_stdin_closes: bool,
    websocket_port: int | None = None,
    warnings: Callable[[], Sequence[str]] = list,
) -> str:
    """Run a broker until it is asked to stop.

    Args:
        broker: not started yet.
        show: shows a warning.
        as_json: print the address as a line of JSON.
        until_stdin_closes: stop at the end of standard input, too.
        websocket_port: for MQTT over websockets; 0: any free one; None: TCP alone.
        warnings: what to show again every day, such as a certificate that ends.

    Returns:
        "", or how the broker ended by itself.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in stop_signals():
        loop.add_signal_handler(number, stop.set)
    files = _files(broker)
    times = _modification_times(files)  # before the broker reads them
    if isinstance(broker, Mosquitto):
        broker.report = show
    async with broker, AsyncExitStack() as stack:
        gateway: WebsocketGateway | None = None
        if websocket_port is not None:
            WebsocketGateway = extras.part("embedded", "websocket_gateway").WebsocketGateway

            gateway = await stack.enter_async_context(
                WebsocketGateway(broker.options, websocket_port, broker.url)
            )
        _show_address(broker, gateway, as_json=as_json)
        ends: list[Coroutine[Any, Any, Any]] = [stop.wait(), _warn_daily(warnings, show)]
        if until_stdin_closes:
            ends.append(until_closed(sys.stdin))
        if isinstance(broker, Mosquitto):
            ends.append(_report_messages(broker))
        if files:
            ends.append(_reload_on_change(broker, gateway, show, files, times))
        ended = asyncio.create_task(broker.wait())
        tasks = [ended]
        for end in ends:
            tasks.append(asyncio.create_task(end))
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        if not ended.done() or ended.cancelled():
            return ""
        problem = f"{broker.name} ended by itself with exit code {ended.result()}"
        log_tail = broker.log_tail()
        return f"{problem}\n{log_tail}" if log_tail else problem


def _show_address(broker: Broker, gateway: WebsocketGateway | None, *, as_json: bool) -> None:
    if as_json:
        address = {"url": str(broker.url), "broker": broker.name, "pid": broker.pid}
        if gateway is not None:
            address["websocket_url"] = str(gateway.url)
        print(json_text.dumps(address), flush=True)
        return
    places = str(broker.url)
    if gateway is not None:
        places += f" and {gateway.url}"
    print(f"{broker.name} listens at {places} (Ctrl-C stops it)", flush=True)
    if not broker.options.rules:
        print(
            "it is open: any program that reaches it can read every model, update and report, and give agents orders",
            flush=True,
        )


def _files(broker: Broker) -> list[Path]:
    """The files that may change while the broker runs."""
    options = broker.options
    files = (options.passwords, options.members, options.tls_cert)
    return [path for path in files if path is not None]


async def _reload_on_change(
    broker: Broker,
    gateway: WebsocketGateway | None,
    show: Show,
    files: Sequence[Path],
    times: list[int],
) -> None:
    """Have the broker read users, roles and certificate again when a file has changed. Runs until cancelled."""
    while True:
        await asyncio.sleep(RELOAD_S)
        now = _modification_times(files)
        if now == times:
            continue
        times = now
        if gateway is not None:
            gateway.reload()
        try:
            broker.reload()
        except UserError as error:
            show(f"users are unchanged: {error}")


async def _warn_daily(warnings: Callable[[], Sequence[str]], show: Show) -> None:
    """A broker runs for months: what was fine at its start ends at some time. Runs until cancelled."""
    while True:
        await asyncio.sleep(DAY_S)
        for warning in warnings():
            show(warning)


async def _report_messages(broker: Mosquitto) -> None:
    """Show what Mosquitto complains about. Runs until cancelled."""
    while True:
        await asyncio.sleep(RELOAD_S)
        broker.report_messages()


def _modification_times(files: Sequence[Path]) -> list[int]:
    """In nanoseconds; 0 for a file that does not exist."""
    return [file.stat().st_mtime_ns if file.exists() else 0 for file in files]


FALLBACK = "mosquitto is not installed: using the embedded broker (pure Python, fine for trying things out)"


def available_broker(
    show: Show = print, *, embedded: bool = False
) -> type[Mosquitto] | type[EmbeddedBroker]:
    """The class of the broker to start. Create it with `Options` and enter it with `async with`.

    Args:
        show: shows a line to the user; called if Mosquitto is not installed.
        embedded: take the embedded broker in any case.
    """
    if not embedded:
        if find() is not None:
            return Mosquitto
        show(FALLBACK)
    program = extras.part("embedded", "program", "a broker without Mosquitto")
    return cast("type[EmbeddedBroker]", program.EmbeddedBroker)
