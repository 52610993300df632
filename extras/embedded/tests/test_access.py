"""Who may use which topic: what needs `embedded`."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.broker.access import passwords
from covey.broker.programs.mosquitto import Mosquitto, find
from covey.broker.programs.options import BrokerOptions
from covey.extras.embedded.program import EmbeddedBroker
from covey.shared.errors import UserError
from covey.shared.mqtt.link import Received
from covey.shared.mqtt.mqtt_link import BrokerUrl, MqttLink
from tests.broker.test_access import BASE
from tests.conformance.test_links import down, message, up


@pytest.mark.parametrize(
    "kind", [EmbeddedBroker, pytest.param(Mosquitto, marks=pytest.mark.broker)]
)
async def test_a_broker_holds_users_to_the_rules(
    kind: type[EmbeddedBroker] | type[Mosquitto], tmp_path: Path
) -> None:
    if kind is Mosquitto and find() is None:
        pytest.skip("mosquitto is not installed")
    users = tmp_path / "users"
    passwords.write(users, {"coordinator": "c", "pi": "p", "spy": "s"})

    async with kind(BrokerOptions(passwords=users)) as broker:

        def link(user: str, password: str, client_id: str = "") -> MqttLink:
            url = BrokerUrl(broker.url.host, broker.url.port, user=user, password=password)
            return MqttLink(url, client_id=client_id or user)

        async with (
            link("coordinator", "c") as coordinator,
            link("pi", "p") as pi,
            link("spy", "s") as spy,
        ):
            await up(coordinator, pi, spy)
            order, report, model = (
                f"{BASE}/agents/pi/order",
                f"{BASE}/agents/pi/report/0",
                f"{BASE}/clusters/0/model/0",
            )
            await coordinator.subscribe([report])
            await pi.subscribe([order, model])
            await spy.subscribe([order, report, model])
            for forgery in (
                report,
                order,
            ):  # Mosquitto ends the connection of who writes where it may not
                async with link("spy", "s", f"forger of {forgery}") as forger:
                    await up(forger)
                    await forger.publish(forgery, b"forged")
            await pi.publish(report, b"genuine")
            assert await message(coordinator) == Received(report, b"genuine")
            await coordinator.publish(order, b"work")
            assert await message(pi) == Received(order, b"work")
            await coordinator.publish(model, b"weights")
            assert await message(spy) == Received(
                model, b"weights"
            )  # and neither order nor report before it
        async with link("pi", "wrong") as stranger:
            await down(stranger)


@pytest.mark.parametrize(
    "kind", [EmbeddedBroker, pytest.param(Mosquitto, marks=pytest.mark.broker)]
)
async def test_a_port_in_use_is_named_with_what_to_do(
    kind: type[EmbeddedBroker] | type[Mosquitto],
) -> None:
    if kind is Mosquitto and find() is None:
        pytest.skip("mosquitto is not installed")
    async with EmbeddedBroker() as first:
        with pytest.raises(UserError, match=rf"port {first.url.port} .*--port"):
            await kind(BrokerOptions(port=first.url.port)).__aenter__()
