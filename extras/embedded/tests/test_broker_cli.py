"""Commands of a broker: what needs `embedded`."""

import asyncio
import socket

import pytest

from covey.broker.programs import process
from covey.broker.programs.mosquitto import Mosquitto
from covey.broker.programs.options import BrokerOptions
from covey.broker.programs.run import FALLBACK, available_broker
from covey.extras.embedded.program import EmbeddedBroker
from covey.extras.embedded.websocket_gateway import WebsocketGateway
from covey.shared.errors import UserError
from tests.processes import free_ports, needs_mosquitto

BOTH_BROKERS = pytest.mark.parametrize(
    "kind", [EmbeddedBroker, pytest.param(Mosquitto, marks=[pytest.mark.broker, needs_mosquitto])]
)


@BOTH_BROKERS
async def test_a_free_port_that_is_taken_meanwhile_is_replaced_by_another(
    kind: type[EmbeddedBroker] | type[Mosquitto], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is for the broker, and for the websockets in front of it."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        free, free_too = free_ports(2)
        found = iter([taken, free, taken, free_too])
        monkeypatch.setattr(process, "free_port", lambda options, option: next(found))
        async with kind() as broker:
            assert broker.url.port == free
            async with WebsocketGateway(BrokerOptions(), 0, broker.url) as gateway:
                assert gateway.url.port == free_too


async def test_a_requested_port_that_is_taken_meanwhile_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process that ends by itself is left alone: `terminate` looks for its exit code, and may take it from asyncio."""

    def terminate(process: asyncio.subprocess.Process) -> None:
        pytest.fail("the exit code of the broker would be lost now and then")

    monkeypatch.setattr(asyncio.subprocess.Process, "terminate", terminate)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        monkeypatch.setattr(process, "free_port", lambda options, option: options.port)
        with pytest.raises(UserError, match=f"port {taken} on 127.0.0.1: .* --port "):
            await EmbeddedBroker(BrokerOptions(port=taken)).__aenter__()


def test_without_mosquitto_the_embedded_broker_takes_its_place_with_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("covey.broker.programs.run.find", lambda: None)
    said: list[str] = []
    assert available_broker(said.append) is EmbeddedBroker
    assert said == [FALLBACK]
