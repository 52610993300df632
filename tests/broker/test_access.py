"""Who may use which topic: the rules as data, and the same rules in both brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.broker.access import acl, passwords
from covey.broker.programs.mosquitto import Mosquitto, find
from covey.broker.programs.options import BrokerOptions
from covey.extras.embedded.program import EmbeddedBroker
from covey.shared.errors import UserError
from covey.shared.mqtt.link import Received
from covey.shared.mqtt.mqtt_link import BrokerUrl, MqttLink
from tests.conformance.test_links import down, message, up

BASE = "covey/f"


@pytest.mark.parametrize(
    ("user", "action", "topic", "wanted"),
    [
        ("coordinator", "write", f"{BASE}/agents/pi/order", True),
        ("coordinator", "read", f"{BASE}/agents/pi/report/0", True),
        ("coordinator", "write", "elsewhere", False),
        ("pi", "write", f"{BASE}/agents/pi/status", True),
        ("pi", "write", f"{BASE}/agents/pi/report/0", True),
        ("pi", "write", f"{BASE}/agents/pi/report/3", False),
        ("pi", "write", f"{BASE}/agents/pi/report/0/more", False),
        ("pi", "write", f"{BASE}/agents/pi/order", False),
        ("pi", "write", f"{BASE}/agents/other/status", False),
        ("pi", "write", f"{BASE}/coordinator/status", False),
        ("pi", "write", f"{BASE}/clusters/0/model/0", False),
        ("pi", "write", f"{BASE}/control", False),
        ("pi", "read", f"{BASE}/agents/pi/order", True),
        ("pi", "read", f"{BASE}/agents/other/model/0", False),
        ("pi", "read", f"{BASE}/clusters/0/model/0", True),
        ("pi", "read", f"{BASE}/coordinator/status", True),
        ("+", "read", f"{BASE}/agents/pi/order", False),
        ("", "read", f"{BASE}/clusters/0/model/0", False),
    ],
)
def test_the_rules(user: str, action: acl.Action, topic: str, wanted: bool) -> None:
    assert acl.allows(user, action, topic) is wanted


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


def test_a_password_file_with_a_strange_line_is_refused_with_its_number(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text(f"a:{passwords.hash_password('x')}\nplain:text\n")
    with pytest.raises(UserError, match="line 2"):
        passwords.read(file)


def test_the_rules_of_ten_thousand_agents_are_few_lines() -> None:
    """Mosquitto reads lines of single users in quadratic time: it did not start with those of 10 000."""
    members = {f"pi-{number}": acl.AclUser("agent", "default") for number in range(10_000)}
    members |= {
        "watch": acl.AclUser("observer", "default"),
        "far": acl.AclUser("agent", "elsewhere"),
    }
    rendered = acl.render(members)
    assert len(rendered.splitlines()) < 50
    assert "topic deny covey/default/agents/far/status" in rendered
    assert "topic deny covey/default/clusters/+/model/+" in rendered
    assert "pattern write covey/default/agents/%u/report/0" in rendered


@pytest.mark.parametrize(
    ("user", "wanted", "allowed"),
    [
        ("pi", "covey/f/agents/pi/order", True),
        ("pi", "covey/f/agents/pi/model/+", True),
        ("pi", "covey/f/agents/pi/#", False),
        ("pi", "covey/f/agents/+/order", False),
        ("pi", "#", False),
        ("pi", "+/+/+/+/+", False),
        ("coordinator", "covey/f/agents/+/report/+", True),
        ("coordinator", "#", False),
        ("pi", f"covey/f/clusters/{'x' * 600}/model/0", False),
    ],
)
def test_a_filter_is_granted_where_one_rule_covers_all_of_it(
    user: str, wanted: str, allowed: bool
) -> None:
    assert acl.allows_subscription(user, wanted) is allowed
