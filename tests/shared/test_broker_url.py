from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import BrokerUrl, Tls, masked


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


ENDS = [  # of an address, after the password
    *("", "@", "@host", "@host:port", "@host:0", "@host:99999999", "@[::1", "@a b", "@host/p"),
    *("@host?x=1", "@host?profile=none", "@host#x", "@\u2100host", "@host]", "@host/a@b", ":1"),
]


@given(
    head=st.sampled_from(
        ["mqtt://", "mqtts://", "wss://", "http://", "mqtt:/", "MQTT://", "", "//"]
    ),
    user=st.sampled_from(["ann", "", "a%20b", "[ann"]),
    password=st.text(max_size=12),
    end=st.sampled_from(ENDS),
    tls=st.sampled_from([Tls(), Tls(insecure=True)]),
)
def test_no_refusal_of_an_address_shows_its_password(
    head: str, user: str, password: str, end: str, tls: Tls
) -> None:
    if "@" not in end:  # what follows the last one is the host, whatever was meant
        password = password.replace("@", "")
    text = f"{head}{user}:S3cret{password}3nding{end}"
    try:
        shown = str(BrokerUrl.parse(text, tls))
    except UserError as error:
        shown = str(error)
    assert "s3cret" not in shown.lower()
    assert "3nding" not in shown.lower()


def test_a_password_with_a_letter_that_ends_the_login_is_named_as_such() -> None:
    with pytest.raises(
        UserError, match=r"'mqtt://ann:\*\*\*@host' has / \? or # in its user or password.* %2F"
    ):
        BrokerUrl.parse("mqtt://ann:s/cret@host")


@pytest.mark.parametrize("text", ["mqtt://host:70000", "mqtt://host/a:b", "mqtt://[::1]:0/x"])
def test_an_address_without_a_password_is_shown_as_typed(text: str) -> None:
    assert masked(text) == text


def test_tls_files_that_cannot_be_read_are_named() -> None:
    with pytest.raises(UserError, match=r"nowhere\.pem"):
        BrokerUrl.parse("mqtts://host", Tls(ca=Path("nowhere.pem"))).tls_context()
