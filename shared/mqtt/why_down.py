"""Why a link is down, in words: failures of TLS, and which reasons are reported when. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

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
        ("ALERT_CERTIFICATE_EXPIRED",),
        "this machine's certificate has expired; replace the file that cert in the credentials file names",
    ),
    (
        ("ALERT_CERTIFICATE_REVOKED", "ALERT_BAD_CERTIFICATE", "ALERT_CERTIFICATE_UNKNOWN"),
        "the broker does not accept this machine's certificate; check cert in the credentials file",
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


# -- which reasons why a link is down are reported, and when. Pure: time is an argument --------------------------------
#
# The first end of a connection is seldom the cause: a broker that restarts with a certificate that has expired begins with a lost
# connection. So a better reason that is known later is reported too.
#
# - The first reason since the latest connection is reported at once.
# - One that the broker itself gave, by its answer or by its certificate, is reported at once when it is new.
# - Any other change is reported once the last report is a minute old, if it lasts so long: a broker that restarts refuses connections for
#   a second.


EVERY_S = 60.0  # between two reports, unless the broker gave a reason that is new


@dataclass
class Reasons:
    """The reasons that were reported of one broker since the latest connection."""

    _latest: str = ""  # empty: none yet
    _at: float = 0.0  # when it was reported
    _given: set[str] = field(default_factory=set)  # those of the broker itself

    def reports(self, why: str, now: float, *, given: bool = False) -> bool:
        """Whether to report the reason of an attempt that has just failed.

        Args:
            why: for people.
            now: the time (s).
            given: the broker itself gave it.
        """
        is_new = not self._latest or (given and why not in self._given)
        is_due = why != self._latest and now >= self._at + EVERY_S
        if not (is_new or is_due):
            return False
        self._latest, self._at = why, now
        if given:
            self._given.add(why)
        return True
