import asyncio
import gc
import socket
import struct
import subprocess
import sys

import pytest

from covey.shared.mqtt.acknowledgements import Inbox
from covey.shared.mqtt.backoff import Backoff
from covey.shared.mqtt.link import Down, Received, Up
from covey.shared.mqtt.mqtt_link import BrokerUrl, MqttLink
from tests.clock import run
from tests.processes import free_ports


def test_waits_double_up_to_a_bound_and_start_afresh_after_a_calm_connection() -> None:
    backoff = Backoff(first_s=1, max_s=8, calm_s=60, uniform=lambda low, high: 1.0)
    assert [backoff.delay(refused=True) for _ in range(6)] == [1, 2, 4, 8, 8, 8]
    assert backoff.delay(lasted_s=59) == 8
    assert backoff.delay(lasted_s=60) == 1


def test_while_no_broker_answers_the_waits_stay_short_and_a_competitor_is_not_forgotten() -> None:
    backoff = Backoff(first_s=1, max_s=30, uniform=lambda low, high: 1.0)
    assert [backoff.delay(lasted_s=0.5) for _ in range(4)] == [1, 2, 4, 8]
    assert [backoff.delay() for _ in range(5)] == [1, 2, 4, 5, 5]
    assert backoff.delay(lasted_s=0.5) == 16


def test_chance_spreads_the_waits_by_half() -> None:
    waits = [Backoff(first_s=1).delay() for _ in range(200)]
    assert 0.5 <= min(waits) < 0.7 < 1.3 < max(waits) <= 1.5


def test_an_inbox_loses_nothing_to_a_reader_that_gives_up_waiting() -> None:
    async def program() -> None:
        inbox = Inbox()
        for _ in range(3):
            try:
                await asyncio.wait_for(anext(inbox), 1)
            except TimeoutError:
                continue
        inbox.put(Received("t", b"x"))
        inbox.close()
        inbox.put(Received("t", b"too late"))
        assert [item async for item in inbox] == [Received("t", b"x")]

    run(program())


def test_a_long_inbox_lets_other_tasks_have_their_turn() -> None:
    async def program() -> int:
        inbox, turns, over = Inbox(), 0, False

        async def other() -> None:
            nonlocal turns
            while not over:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        for _ in range(1000):
            inbox.put(Up())
        for _ in range(1000):
            await anext(inbox)
        over = True
        await task
        return turns

    assert run(program()) >= 10


async def test_an_unreachable_broker_is_reported_once() -> None:
    (port,) = free_ports(1)
    async with MqttLink(
        f"mqtt://127.0.0.1:{port}", client_id="a", backoff=Backoff(max_s=0.1)
    ) as link:
        first = await anext(link.incoming())
        assert isinstance(first, Down)
        assert "refused" in first.why
        await asyncio.sleep(0.5)
        assert not await link.publish("t", b"x")
    assert [item async for item in link.incoming()] == []


@pytest.mark.parametrize(
    "answer", [b"", bytes([0x20, 2, 0, 5])], ids=["without a word", "after a refusal"]
)
async def test_a_broker_that_hangs_up_on_connect_is_not_waited_for(
    answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with MqttLink(
        f"mqtt://127.0.0.1:{port}", client_id="a", backoff=Backoff(max_s=0.1)
    ) as link:
        async with asyncio.timeout(60):
            first = await anext(link.incoming())
        assert isinstance(first, Down)
        assert ("without an answer" in first.why and "mqtts://" in first.why) == (not answer)
        await asyncio.sleep(0.5)
    server.close()
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_a_node_that_hangs_up_after_another_one_was_lost_does_not_expect_tls() -> None:
    answers, enough = iter([bytes([0x20, 2, 0, 0]), *[b""] * 1000]), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        answer = next(answers)
        writer.write(answer)
        if answer:
            await enough.wait()
        writer.close()

    servers = [await asyncio.start_server(answer, "127.0.0.1", 0) for _ in range(2)]
    urls = [
        BrokerUrl.parse(f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        for server in servers
    ]
    async with asyncio.timeout(60), MqttLink(urls, client_id="a") as link:
        assert isinstance(await anext(link.incoming()), Up)
        enough.set()
        _, other = [await anext(link.incoming()) for _ in range(2)]
    assert isinstance(other, Down)
    assert "without an answer" in other.why
    assert "cluster" in other.why
    assert "mqtts://" not in other.why
    for server in servers:
        server.close()


@pytest.mark.parametrize("end", ["close", "half", "reset"])
async def test_a_connection_that_ends_right_after_its_beginning_is_lost(end: str) -> None:
    """As of a broker that is killed when a client has just come: CONNACK and the end are read together."""
    connections = 0

    async def dying_broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.read(100)
        writer.write(bytes([0x20, 2, 0, 0]))
        if end == "half":
            writer.write_eof()
            await over.wait()
        if end == "reset":
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    over = asyncio.Event()
    server = await asyncio.start_server(dying_broker, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with MqttLink(
        f"mqtt://127.0.0.1:{port}", client_id="a", backoff=Backoff(first_s=0.01, max_s=0.01)
    ) as link:
        inbox = link.incoming()
        async with asyncio.timeout(60):
            while connections < 20:
                item = await anext(inbox)
                assert not isinstance(item, Up) or isinstance(await anext(inbox), Down)
    over.set()
    server.close()


async def test_a_broker_that_refuses_us_after_the_loss_is_reported_once() -> None:
    """A plain server: it accepts, hangs up, and refuses from then on."""
    codes, enough = iter([0, 3, 3, *[5] * 1000]), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(bytes([0x20, 2, 0, code := next(codes)]))
        if code == 0:
            await enough.wait()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with MqttLink(
        f"mqtt://127.0.0.1:{port}", client_id="a", backoff=Backoff(max_s=0.05)
    ) as link:
        inbox = link.incoming()
        async with asyncio.timeout(60):
            assert isinstance(await anext(inbox), Up)
            enough.set()
            lost, busy, stranger = [await anext(inbox) for _ in range(3)]
        assert isinstance(lost, Down)
        assert isinstance(busy, Down)
        assert isinstance(stranger, Down)
        assert "Server unavailable" in busy.why
        assert "does not accept this user and password" in stranger.why
        await asyncio.sleep(0.5)
    server.close()
    assert [item async for item in inbox] == []


def test_the_link_imports_neither_numpy_nor_torch() -> None:
    program = "import sys, covey.shared.mqtt.mqtt_link; sys.exit(bool({'numpy', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


async def test_a_socket_that_is_closed_when_the_loop_looks_at_it_is_no_traceback() -> None:
    """A broker that dies between the wish to write and the loop's turn."""
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: complaints.append(str(context["message"]))
    )
    paho = MqttLink("mqtt://127.0.0.1:1", client_id="a")._new_client()._client
    broken, other = socket.socketpair()
    paho.on_socket_register_write(paho, None, broken)  # type: ignore[misc]
    broken.close()
    other.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    paho.on_socket_unregister_write(paho, None, broken)  # type: ignore[misc]
    assert complaints == []
