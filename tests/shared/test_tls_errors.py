"""Failures of TLS connections in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.shared.errors import UserError
from covey.shared.mqtt.backoff import tls_failure
from covey.shared.mqtt.broker_url import BrokerUrl, Tls

URL = BrokerUrl.parse("mqtts://farm:1883")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)",
            "does not speak TLS; use the broker's TLS port (usually 8883), or mqtt://farm without",
        ),
        (
            "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer certificate",
            "an authority that this machine does not know; give that authority's certificate in a file for --credentials",
        ),
        (
            "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: Hostname mismatch, certificate",
            "is for another name than farm; use the name that is in it",
        ),
        ("certificate verify failed: certificate has expired", "renew it with `broker lab renew`"),
        (
            "[SSL: SSLV3_ALERT_CERTIFICATE_EXPIRED] sslv3 alert certificate expired (_ssl.c:2580)",
            "this machine's certificate has expired",
        ),
        (
            "[SSL: SSLV3_ALERT_CERTIFICATE_REVOKED] sslv3 alert certificate revoked (_ssl.c:2580)",
            "does not accept this machine's certificate",
        ),
    ],
)
def test_a_failure_of_tls_is_explained_and_the_message_of_openssl_stays(
    text: str, words: str
) -> None:
    found = tls_failure(text, URL)
    assert found is not None
    assert words in found
    assert found.endswith(f"({text})")


def test_other_failures_and_connections_without_tls_are_not_explained() -> None:
    assert tls_failure("Connection refused", URL) is None
    assert tls_failure("wrong version number", BrokerUrl.parse("mqtt://farm")) is None


def test_a_missing_tls_file_is_named_with_its_key(tmp_path: Path) -> None:
    there = tmp_path / "there.pem"
    there.touch()
    missing = tmp_path / "none.pem"
    for option, tls in (
        ("ca", Tls(ca=missing)),
        ("cert", Tls(cert=missing)),
        ("key", Tls(cert=there, key=missing)),
    ):
        with pytest.raises(UserError, match=f"{option} .*none.pem: No such file.*expected a PEM"):
            tls.context()
