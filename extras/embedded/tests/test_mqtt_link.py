"""The link over MQTT: what needs `embedded`."""

import asyncio
from collections.abc import Callable

from covey.shared.mqtt.backoff import Backoff
from covey.shared.mqtt.link import Down, Received
from covey.shared.mqtt.mqtt_link import MqttLink
from tests.conformance.test_links import message, up


async def test_a_link_with_too_much_to_read_hangs_up_and_comes_back_when_it_was_read(
    broker_url: Callable[[str], str],
) -> None:
    url = broker_url("embedded")
    async with (
        MqttLink(url, client_id="slow", inbox_bytes=10_000, backoff=Backoff(max_s=0.1)) as slow,
        MqttLink(url, client_id="fast") as fast,
    ):
        await up(slow, fast)
        await slow.subscribe(["slow/t"])
        for number in range(30):
            await fast.publish("slow/t", bytes([number]) * 1000)
        got = []
        async with asyncio.timeout(60):
            while isinstance(item := await anext(slow.incoming()), Received):
                got.append(item.payload[0])
            assert isinstance(item, Down)
            assert "wait to be read" in item.why
        assert got == list(range(len(got)))
        assert len(got) == 7  # each message counts with what it costs besides its payload
        await up(slow)
        assert await slow.subscribe(["slow/t"])
        await fast.publish("slow/t", b"again")
        assert (await message(slow)).payload == b"again"


async def test_a_publish_that_waits_when_the_connection_breaks_is_false_at_once() -> None:
    """Against a broker that accepts and then answers nothing: a plain server."""

    async def half_a_broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(bytes([0x20, 2, 0, 0]))
        await reader.read(100)
        await asyncio.sleep(0.05)
        writer.close()

    server = await asyncio.start_server(half_a_broker, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with (
        asyncio.timeout(60),
        MqttLink(f"mqtt://127.0.0.1:{port}", client_id="a", ack_s=3600) as link,
    ):
        await up(link)
        assert not await link.publish("t", b"x")
    server.close()


async def test_a_broker_that_acknowledges_nothing_in_time_counts_as_lost() -> None:
    """Against a broker that accepts every connection and then answers nothing."""
    connections = 0

    async def silent_broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.read(100)
        writer.write(bytes([0x20, 2, 0, 0]))
        while await reader.read(100):
            pass
        writer.close()

    server = await asyncio.start_server(silent_broker, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    patience = Backoff(first_s=0.01)
    async with MqttLink(
        f"mqtt://127.0.0.1:{port}", client_id="a", ack_s=0.1, backoff=patience
    ) as link:
        await up(link)
        assert not await link.publish("t", b"x")
        await up(link)  # again
        assert connections == 2
    server.close()


async def test_a_goodbye_leaves_the_connection_open_until_the_broker_has_read_it() -> None:
    """A broker that still writes when DISCONNECT comes must not meet a reset: it would publish the last will."""
    end: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def busy_broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(bytes([0x20, 2, 0, 0]))
        assert await reader.read(100) == bytes([0xE0, 0])  # DISCONNECT
        try:
            for _ in range(2):  # the first write to a closed socket is what provokes the reset
                writer.write(bytes(1_000_000))
                await writer.drain()
            end.set_result(await reader.read(100))
        except ConnectionError as error:
            end.set_exception(error)
        writer.close()

    server = await asyncio.start_server(busy_broker, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(60), MqttLink(f"mqtt://127.0.0.1:{port}", client_id="a") as link:
        await up(link)
    assert await end == b""
    server.close()
