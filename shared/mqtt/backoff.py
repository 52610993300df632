"""How long to wait before the next attempt to connect or to subscribe, and to which broker. Pure: nothing here sleeps.

Why a link is down, in words: failures of TLS, and which reasons are reported when. Pure.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
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


Uniform = Callable[[float, float], float]  # a random number between two bounds


@dataclass
class Backoff:
    """Waiting times between attempts to connect: they double, and vary by a random factor from 0.5 to 1.5.

    After connections they start again at `first_s` only if one lasted `calm_s`. That is longer than the longest wait, so two
    clients that compete for one client id slow each other down permanently instead of in waves. While no broker answers, a
    shorter bound has the whole fleet back within seconds of the broker's return.
    """

    first_s: float = 0.1
    max_s: float = 30.0
    away_s: float = 5.0  # the bound while no broker answers
    calm_s: float = 60.0
    uniform: Uniform = random.uniform
    _next_s: float = field(default=0.0, init=False)  # before the random factor; 0: not started
    _next_away_s: float = field(default=0.0, init=False)  # the same, while no broker answers

    def delay(self, lasted_s: float = 0.0, *, refused: bool = False) -> float:
        """Seconds to wait.

        Args:
            lasted_s: how long the connection lasted that has ended; 0 for an attempt that failed.
            refused: a broker answered the attempt, and refused it.
        """
        factor = self.uniform(0.5, 1.5)
        if not lasted_s and not refused:
            wait_s = self._next_away_s or self.first_s
            self._next_away_s = min(self.away_s, self.max_s, 2 * wait_s)
            return wait_s * factor
        self._next_away_s = 0.0
        was_calm = lasted_s >= self.calm_s
        if was_calm or not self._next_s:
            self._next_s = self.first_s
        delay_s = self._next_s * factor
        self._next_s = min(self.max_s, 2 * self._next_s)
        return delay_s


@dataclass
class Pauses:
    """Waiting times between attempts to subscribe: they double from `first_s` to `max_s`."""

    first_s: float = 1.0
    max_s: float = 60.0
    _next_s: float = field(default=0.0, init=False)  # 0: not started

    def next(self) -> float:
        """Seconds to wait before the next attempt."""
        pause_s = self._next_s or self.first_s
        self._next_s = min(2 * pause_s, self.max_s)
        return pause_s

    def reset(self) -> None:
        """Start again at `first_s`."""
        self._next_s = 0.0


# -- which of several brokers to connect to next. Pure: nothing here connects or waits ---------------------------------


BRIEF_S = 5.0  # a connection that ends sooner counts as a failed attempt


class Failover:
    """The brokers of one link, in the order of preference at the start.

    A link stays with a broker that works. After a failed attempt it turns to the next broker, and after the last one
    to the first again. When a working connection is lost, the same broker gets the first attempt: mostly it was the
    network, or the broker restarts, and a fleet that scatters over several brokers finds no coordinator there.

    Args:
        brokers: at least one.

    Raises:
        ValueError: there is no broker.
    """

    def __init__(self, brokers: Sequence[BrokerUrl]) -> None:
        if not brokers:
            raise ValueError("expected at least one broker")
        self.brokers = tuple(brokers)
        self._position = 0  # of the current broker

    def __repr__(self) -> str:
        return f"Failover({self}, at {self.current})"

    def __str__(self) -> str:
        return ", ".join(map(str, self.brokers))

    @property
    def current(self) -> BrokerUrl:
        """The broker of the connection, or of the next attempt."""
        return self.brokers[self._position]

    def ended(self, lasted_s: float) -> float:
        """Take note that a connection ended.

        A node of a cluster that has lost others may accept connections and end them at once (RabbitMQ). Such a connection to
        one of several brokers is a failed attempt, so that the wait before the next one stays short.

        Args:
            lasted_s: how long it lasted, in seconds; 0 for a failed attempt.

        Returns:
            How long it counts for the wait before the next attempt, in seconds.
        """
        if lasted_s >= BRIEF_S:
            return lasted_s
        self._position = (self._position + 1) % len(self.brokers)
        return lasted_s if len(self.brokers) == 1 else 0.0
