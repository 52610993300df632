"""The way of a report through the coordinator: its bytes are hashed once, and a batch waits for the disk once."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.agent.device.outbox import Outbox
from covey.coordinator.disk.spool import REPORTS
from covey.coordinator.run.effects import Effect, SendOrder
from covey.coordinator.serve import acceptance, attendance
from covey.coordinator.serve.intake import Arrived
from covey.coordinator.serve.service import Service
from covey.shared.mqtt.link import Received
from covey.shared.storage import files
from covey.shared.storage.journal import Journal
from covey.shared.wire.codec import Codec, encode
from covey.shared.wire.documents import AgentStatus
from covey.shared.wire.messages import OrderMessage, Part, ReportContent, digest
from covey.shared.wire.parts import part_length, split
from tests.hashes import Hashes
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_run import begun, clients, scenario

Orders = dict[str, OrderMessage]
MAX_FIELDS_BYTES = 200  # of a part besides its data, and of other texts that are hashed for it


def orders_in(effects: list[Effect]) -> Orders:
    """The orders with work among these effects."""
    orders: Orders = {}
    for effect in effects:
        if isinstance(effect, SendOrder) and effect.order.work is not None:
            orders[effect.client] = effect.order
    return orders


async def opened(service: Service) -> Orders:
    """The orders of the first phase, once all agents of the small run are online."""
    orders: Orders = {}
    for agent in clients():
        status = AgentStatus(
            agent=agent,
            session="s",
            serial=1,
            online=True,
            task=service.scenario.task.digest,
            samples=100,
        )
        message = Received(service.topics.status(agent), status.to_bytes())
        assert service.read(message, 0.0)
        with service.desk.lock:
            effects = attendance.take(service.desk, [agent], 0.0)
        orders |= orders_in(effects)
    return orders


def content_of(client: str, order: OrderMessage) -> bytes:
    """A report with random vectors of the right sizes."""
    assert order.work is not None
    rng = np.random.default_rng(1)
    vectors = {}
    for name, size in order.work.sizes.items():
        values = rng.standard_normal(size, np.float32)
        vectors[name], _ = encode(values, Codec(), rng=rng)
    report = ReportContent(
        run=order.run,
        step=order.step,
        work=order.work.digest,
        client=client,
        examples=10,
        steps=1,
        loss=1.0,
        numbers={},
        seconds=0.0,
        vectors=vectors,
    )
    return report.to_bytes()


def parts_of(content: bytes, count: int = 1) -> list[Part]:
    """The parts of a report, as its agent cuts it."""
    size = len(content)
    limit = part_length(size, count)
    source = io.BytesIO(content)
    return list(split(source, digest=digest(content), size=size, part_bytes=limit, about=1))


def messages_of(service: Service, client: str, content: bytes, count: int = 1) -> list[Received]:
    """What an agent publishes to send a report in a number of parts."""
    messages: list[Received] = []
    for part in parts_of(content, count):
        topic = service.topics.report(client, part.index)
        messages.append(Received(topic, part.to_bytes()))
    return messages


def arrived(service: Service, orders: Orders) -> list[Arrived]:
    """The reports of all these orders, read from the link."""
    reports: list[Arrived] = []
    for client, order in orders.items():
        (message,) = messages_of(service, client, content_of(client, order))
        (item,) = service.read(message, 0.0)
        assert isinstance(item, Arrived), service.roster.refusals
        reports.append(item)
    return reports


def accept(service: Service, reports: list[Arrived]) -> None:
    with service.desk.lock:
        acceptance.accept(service.desk, reports, 1.0)


async def with_service(folder: Path, act: Any) -> Any:
    """`act(service, orders)` in a run whose first phase is open."""
    scene = scenario("fedavg")
    run = begun(folder, scene)
    async with MemoryBroker().link("coordinator") as link:
        service = Service(run, link)
        orders = await opened(service)
        assert orders
        return await act(service, orders)


@pytest.mark.parametrize("parts", [1, 3])
def test_the_bytes_of_a_report_are_hashed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    hashes = Hashes()

    async def act(service: Service, orders: Orders) -> None:
        client, order = next(iter(orders.items()))
        content = content_of(client, order)
        messages = messages_of(service, client, content, parts)
        hashes.watch(monkeypatch)
        items = [item for message in messages for item in service.read(message, 0.0)]
        report = items[-1]
        assert isinstance(report, Arrived)
        accept(service, [report])
        monkeypatch.undo()
        assert service.run.store.reports.who(order.step) == [client]
        for part in parts_of(content, parts):
            assert hashes.of(part.data) == 1
        assert hashes.bytes < len(content) + MAX_FIELDS_BYTES * parts

    asyncio.run(with_service(tmp_path, act))


def test_an_agent_that_sends_a_report_hashes_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytes(range(256)) * 40
    outbox = Outbox(tmp_path, durable=False)
    outbox.switch("r1")
    report, _ = outbox.places(1)
    report.write_bytes(content)
    name = digest(content)
    outbox.put(1, name, len(content), work=bytes(16), part_bytes=1024, with_memory=False)
    hashes = Hashes()

    async def act() -> None:
        broker = MemoryBroker()
        async with broker.link("pi") as link:
            hashes.watch(monkeypatch)
            for topic, payload in outbox.report_parts("report", 1):
                assert await link.publish(topic, payload)
            monkeypatch.undo()

    asyncio.run(act())
    assert len(hashes.inputs) == 10
    assert hashes.bytes < MAX_FIELDS_BYTES * 10


def test_reports_that_came_together_wait_for_the_disk_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []

    async def act(service: Service, orders: Orders) -> None:
        *most, _ = orders  # without the last report the phase stays open
        reports = arrived(service, {client: orders[client] for client in most})
        monkeypatch.setattr(files, "sync", synced.append)
        accept(service, reports)
        monkeypatch.undo()
        assert len(reports) > 1
        *_, file, folder = synced  # the folder of the step was made before them
        assert (file.name, file.parent) == (REPORTS, folder)
        assert synced.count(file) == 1

    asyncio.run(with_service(tmp_path, act))


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("place", range(9))
def test_a_damaged_byte_of_a_report_is_refused_by_its_digest(
    tmp_path: Path, place: int, parts: int
) -> None:
    """Bytes of the content at nine places. The report is dropped whole, and may come again."""
    content = bytes(range(256))

    async def act(service: Service, orders: Orders) -> None:
        client = next(iter(orders))
        damaged = bytearray(content)
        damaged[28 * place] ^= 1
        whole = parts_of(content, parts)
        bad = parts_of(bytes(damaged), parts)
        for part, lie in zip(whole, bad, strict=True):
            forged = part.model_copy(update={"data": lie.data})
            topic = service.topics.report(client, part.index)
            assert service.read(Received(topic, forged.to_bytes()), 0.0) == []
        assert service.roster.refusals == {"wrong digest": 1}
        messages = messages_of(service, client, content, parts)
        items = [item for message in messages for item in service.read(message, 0.0)]
        assert isinstance(items[-1], Arrived)

    asyncio.run(with_service(tmp_path, act))


def test_the_audit_lines_of_a_batch_are_written_once_and_before_the_batch_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(service: Service, orders: Orders) -> None:
        *most, last = orders
        audit = service.run.audit
        writes: list[int] = []
        append = Journal._append

        def counting(journal: Journal[Any], content: bytes) -> None:
            if journal.path == audit._log.path:
                writes.append(content.count(b"\n"))
            append(journal, content)

        monkeypatch.setattr(Journal, "_append", counting)
        accept(service, arrived(service, {client: orders[client] for client in most}))
        assert writes == [], "the spool is the receipt of reports that wait"
        accept(service, arrived(service, {last: orders[last]}))
        monkeypatch.undo()
        fold, order = audit._log.path.read_bytes().splitlines()[-2:]
        assert list(json.loads(fold)["fields"]["reporters"]) == sorted(orders)
        assert json.loads(order)["event"] == "order"
        assert writes == [2]

    asyncio.run(with_service(tmp_path, act))
