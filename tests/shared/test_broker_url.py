from pathlib import Path

import pytest

from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import BrokerUrl, Tls


def test_an_address_shows_host_and_user_and_hides_the_password() -> None:
    url = BrokerUrl.parse("mqtts://ann:s%40cret@example.org")
    assert (url.host, url.port, url.tls, url.user, url.password) == (
        "example.org",
        8883,
        Tls(),
        "ann",
        "s@cret",
    )
    assert str(url) == "mqtts://ann@example.org:8883"
    assert "cret" not in repr(url)
    assert BrokerUrl.parse(url.with_password()) == url


def test_plain_mqtt_has_port_1883_and_ipv6_stands_in_brackets() -> None:
    assert BrokerUrl.parse("mqtt://localhost") == BrokerUrl("localhost", 1883)
    assert str(BrokerUrl.parse("mqtt://[::1]:1884")) == "mqtt://[::1]:1884"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost",
        "localhost:1883",
        "http://localhost",
        "mqtt://",
        "mqtt://a b",
        "mqtt://host:port",
        "mqtt://host:0",
        "mqtt://host:70000",
        "mqtt://host/path",
        "mqtt://host?x=1",
        "mqtt://:secret@host",
        "mqtt://[::1",
    ],
)
def test_nonsense_is_refused_and_the_right_form_is_shown(text: str) -> None:
    with pytest.raises(UserError, match=r"mqtt\[s\]://"):
        BrokerUrl.parse(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ws://host", "ws://host:80/mqtt"),
        ("wss://ann:pw@host", "wss://ann@host:443/mqtt"),
        ("wss://host:8443/a/b%20c", "wss://host:8443/a/b%20c"),
    ],
)
def test_websockets_have_the_ports_of_the_web_and_a_path(text: str, shown: str) -> None:
    url = BrokerUrl.parse(text)
    assert str(url) == shown
    assert (url.tls is not None) == text.startswith("wss")
    assert BrokerUrl.parse(url.with_password()) == url


@pytest.mark.parametrize("text", ["127.0.0.1:1883", "localhost", "localhost:1883", "pi.local/x"])
def test_an_address_without_a_scheme_is_refused_with_that_reason(text: str) -> None:
    """The message was that it begins with 'nothing', or with 'localhost'."""
    with pytest.raises(UserError, match="has no scheme: put mqtt:// or another one in front"):
        BrokerUrl.parse(text)
    with pytest.raises(UserError, match="begins with 'http'"):
        BrokerUrl.parse("http://localhost:1883")


@pytest.mark.parametrize("text", ["ws://host/a b", "ws://host/x?y", "wss://host/a\x7f", "ws://"])
def test_a_path_that_cannot_be_a_line_of_http_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        BrokerUrl.parse(text)


def test_a_refusal_does_not_show_the_password() -> None:
    with pytest.raises(UserError) as error:
        BrokerUrl.parse("mqtt://ann:secret@host/path")
    assert "secret" not in str(error.value)


def test_tls_files_that_cannot_be_read_are_named() -> None:
    with pytest.raises(UserError, match=r"nowhere\.pem"):
        BrokerUrl.parse("mqtts://host", Tls(ca=Path("nowhere.pem"))).tls_context()
