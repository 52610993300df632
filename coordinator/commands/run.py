"""What `coordinator run` does: prepare the folder, start what is needed, serve, leave the results."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from covey.coordinator.processes import launch
from covey.coordinator.processes.finish import finish
from covey.coordinator.run.effects import Effect
from covey.coordinator.run.folder import prepared
from covey.coordinator.run.notices import BrokerReady, ModelChosen, Observer
from covey.coordinator.run.options import Options
from covey.coordinator.run.rules import rules_of
from covey.coordinator.run.run import Run
from covey.coordinator.serve.exclusive import ensure_single_coordinator
from covey.coordinator.serve.service import Service, last_will
from covey.coordinator.serve.signals import StopSignals
from covey.shared.audit import read_key
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import DEFAULT_BROKER, BrokerUrl
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.scenario.code import check_code
from covey.shared.scenario.scenario import Scenario
from covey.shared.wire.topics import Topics


async def run(scenario: Scenario, options: Options, observer: Observer) -> dict[str, Any] | None:
    """Run to the end and return the result; None where the operator stopped it. UserError where it was given up."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - this is a coroutine
    with StopSignals(task.cancel) as signals:
        try:
            return await _run(scenario, options, observer, signals)
        except asyncio.CancelledError:
            return None


async def _run(
    scenario: Scenario, options: Options, observer: Observer, signals: StopSignals
) -> dict[str, Any] | None:
    check_code(scenario, options.allowed)
    folder, url = options.folder, address(scenario, options)
    key = read_key(options.audit_key) if options.audit_key is not None else None
    if url is not None:
        await ensure_single_coordinator(url, scenario.federation)
    async with AsyncExitStack() as stack:
        resume = stack.enter_context(prepared(scenario, options))
        if url is None:
            started = await stack.enter_async_context(
                launch.broker(folder, scenario, embedded=options.embedded)
            )
            observer(BrokerReady(started.name, str(started.url), started.note))
            url, fleet_url = started.url, started.fleet_url
        else:
            fleet_url = url
            observer(BrokerReady("yours", str(url), ""))
        fleet = None
        if scenario.fleet is not None:  # it gets ready while the model is built
            start = launch.fleet(folder, fleet_url, options.data_root, options.allowed)
            fleet = await stack.enter_async_context(start)
        observer(ModelChosen(scenario.task.model.name))
        setup, rules = await launch.initial(folder, scenario, options.allowed), rules_of(scenario)
        now, first = asyncio.get_running_loop().time(), list[Effect]()
        if resume:
            this, first = await asyncio.to_thread(
                Run.resume, folder, scenario, setup, rules, now, key
            )
        else:
            name = uuid.uuid4().hex[:12]
            this = await asyncio.to_thread(
                Run.start, folder, scenario, setup, rules, name, now, key
            )
        topics = Topics(scenario.federation)
        link = await stack.enter_async_context(
            MqttLink(
                url,
                client_id=f"covey-{scenario.federation}-coordinator-{uuid.uuid4().hex[:8]}",
                will=last_will(topics),
            )
        )
        service = Service(this, link, observer=observer)
        if options.metrics is not None:
            from covey.coordinator.serve.prometheus import serving

            stack.enter_context(serving(options.metrics, service))
        cancel, signals.stop = signals.stop, service.stop
        over = await _serve(service, first, fleet, folder)
        signals.stop = cancel
    if over is None:
        return None
    if over:
        raise UserError(f"the run was given up after round {this.engine.round}: {over}")
    return await finish(this, options.data_root, options.allowed)


def address(scenario: Scenario, options: Options) -> BrokerUrl | None:
    """The broker that the user names; None where the run is to have one of its own. UserError before anything starts."""
    text = (
        options.broker
        or scenario.broker
        or (None if scenario.fleet is not None else DEFAULT_BROKER)
    )
    if options.embedded or text is None:
        return None
    url = BrokerUrl.parse(text, options.tls)
    url.tls_context()
    return url


async def _serve(
    service: Service, first: list[Effect], fleet: asyncio.subprocess.Process | None, folder: Path
) -> str | None:
    """Serve, for as long as the simulated fleet lives where there is one."""
    if fleet is None:
        return await service.serve(first)
    serving = asyncio.ensure_future(service.serve(first))
    died = asyncio.ensure_future(fleet.wait())
    await asyncio.wait({serving, died}, return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():
        service.stop()
        await serving
        raise UserError(
            f"the simulated fleet ended by itself:\n{launch.tail(folder / 'fleet.log')}"
        )
    died.cancel()
    return serving.result()
