"""Failures of a TLS connection in words: what happened, what was expected, what to do next. Pure."""

from __future__ import annotations

from covey.shared.mqtt.broker_url import BrokerUrl

# What OpenSSL's message contains -> what happened, and what to do. {url}, {host} and {plain} are filled in.
FAILURES = (
    (
        ("WRONG_VERSION_NUMBER", "wrong version number", "record layer failure"),
        "the program at this port does not speak TLS; use the broker's TLS port (usually 8883), or {plain} without TLS",
    ),
    (
        ("unable to get local issuer", "self-signed certificate", "self signed certificate"),
        "the broker's certificate is signed by an authority that this machine does not know; give that "
        "authority's certificate in a file for --credentials (ca.pem in the folder of `broker up` has ours)",
    ),
    (
        ("Hostname mismatch", "IP address mismatch", "doesn't match"),
        "the broker's certificate is for another name than {host}; use the name that is in it, or make "
        "a certificate for {host} with `broker lab renew --host {host}`",
    ),
    (
        ("certificate has expired",),
        "the broker's certificate has expired; renew it with `broker lab renew`, and check the clock of this machine",
    ),
    (
        ("certificate is not yet valid",),
        "the broker's certificate is not valid yet; set the clock of this machine",
    ),
    (
        ("CERTIFICATE_REQUIRED", "certificate required", "handshake failure"),
        "the broker expects a certificate of its clients; name cert and key in the credentials file",
    ),
    (
        ("UNKNOWN_CA", "unknown ca"),
        "the broker does not know the authority that signed this machine's certificate; check cert in the credentials file",
    ),
)


def tls_failure(text: str, url: BrokerUrl) -> str | None:
    """What OpenSSL's message means, with the message at the end; None for any other failure."""
    if url.tls is None:
        return None
    plain = f"{url.scheme.removesuffix('s')}://{url.host}"
    for parts, explanation in FAILURES:
        if any(part in text for part in parts):
            sentence = explanation.format(host=url.host, plain=plain)
            return f"{sentence} ({text})"
    return None
