"""The address of a broker, and the TLS files to reach it.

MQTT travels over TCP (`mqtt://`, `mqtts://`) or over websockets (`ws://`, `wss://`), which pass through HTTP proxies
and firewalls that let port 443 through alone. `?profile=aws` names what the broker allows (`profiles.py`), which the domains
of known vendors do by themselves.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import SplitResult, quote, unquote, urlsplit

from covey.shared.errors import UserError
from covey.shared.mqtt.profiles import MOSQUITTO, NAMES, Profile, profile_named, profile_of

PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
ENCRYPTED = ("mqtts", "wss")
WEBSOCKETS = ("ws", "wss")
DEFAULT_PATH = "/mqtt"  # of a websocket, as most brokers have it
PATH = re.compile(
    r"/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*"
)  # no blank and no line break: it becomes a line of HTTP
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:)?//?")
# what may follow the scheme where no login is: a host, a port and a path
NO_LOGIN = re.compile(r"(\[[0-9a-fA-F:.]*\]?|[^:/?#\[]*)(:\d{0,5})?([/?#].*)?", re.DOTALL)
ADDRESS = "mqtt[s]://[user:password@]host[:port] or ws[s]://[user:password@]host[:port][/path]"
SHORT_ADDRESS = "mqtt[s]://[user:password@]host[:port], or ws[s]://... with a path"
PROFILE = "profile="  # begins the query of an address
CA_HINT = "The authority of `broker up` is ca.pem in its folder; `broker enroll` puts it into the credentials file"
DEFAULT_BROKER = "mqtt://127.0.0.1:1883"
EXPECTED = f"expected {ADDRESS}, for example mqtt://localhost:1883"


@dataclass(frozen=True)
class Tls:
    """The certificates of a TLS connection."""

    ca: Path | None = None  # certificates to trust instead of the system's
    cert: Path | None = None  # our own certificate, for brokers that expect one
    key: Path | None = None  # the key of our certificate
    source: Path | None = None  # the credentials file that has or names them
    # do not verify the broker's certificate: no protection against impostors
    insecure: bool = False

    def context(self) -> ssl.SSLContext:
        """The settings for Python's ssl module. Raises UserError if a certificate or key cannot be read."""
        if self.key and not self.cert:
            raise UserError(
                f"{self.source}: it names a key without cert; name the certificate that belongs to the key"
            )
        self._check_files()
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert:
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            given = [path for path in (self.ca, self.cert, self.key) if path]
            files = ", ".join(map(str, given))
            raise UserError(
                f"TLS files {files}: {error}; expected PEM files, and a key that belongs to its certificate"
            ) from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def _check_files(self) -> None:
        """Raise a UserError that names the first file which cannot be read: ssl's own error names none."""
        for what, path in {"ca": self.ca, "cert": self.cert, "key": self.key}.items():
            if path is None:
                continue
            try:
                with path.open("rb"):
                    pass
            except OSError as error:
                raise UserError(
                    f"{what} {path}: {error.strerror}; expected a PEM file that this user may read. {CA_HINT}"
                ) from None


SYSTEM_TLS = Tls()  # trusts the system's authorities and shows no certificate


@dataclass(frozen=True)
class BrokerUrl:
    """The address of a broker. `str` leaves the password out, so that it can be shown and logged."""

    host: str
    port: int = PORTS["mqtt"]
    tls: Tls | None = None  # None: an unencrypted connection
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    path: str = ""  # of the websocket; "": MQTT over TCP
    profile: Profile = MOSQUITTO  # what the broker allows

    @classmethod
    def parse(cls, text: str, tls: Tls = SYSTEM_TLS) -> Self:
        """Read an address.

        Args:
            text: the address, as a user typed it.
            tls: certificates for mqtts:// and wss://.

        Raises:
            UserError: names the part of the address that is invalid.
        """
        shown = masked(text)
        parts = _split(text, shown)
        is_encrypted = parts.scheme in ENCRYPTED
        if not is_encrypted and (tls.ca or tls.cert):
            raise UserError(
                f"{shown}: certificates need an address that begins with mqtts:// or wss://"
            )
        user = unquote(parts.username) if parts.username else None
        password = unquote(parts.password) if parts.password is not None else None
        return cls(
            host=parts.hostname or "",
            port=_port(parts, shown) or PORTS[parts.scheme],
            tls=tls if is_encrypted else None,
            user=user,
            password=password,
            path=(parts.path or DEFAULT_PATH) if parts.scheme in WEBSOCKETS else "",
            profile=_profile(parts, shown),
        )

    def __str__(self) -> str:
        user = f"{self._quoted_user}@" if self.user else ""
        return f"{self.scheme}://{user}{self._place}{self.path}{self._query}"

    def with_password(self) -> str:
        """The whole address with its password, to be passed to another program. Never show it."""
        login = self._quoted_user
        if self.password is not None:
            login += f":{quote(self.password, safe='')}"
        if self.user:
            login += "@"
        return f"{self.scheme}://{login}{self._place}{self.path}{self._query}"

    def environment(self) -> dict[str, str]:
        """The environment variables that pass the address, its password and the credentials to another program of ours.

        They stay off its command line, which any user of this machine can read. Variables that are not needed are
        empty, so that the program does not inherit them either.
        """
        return environment_of([self])

    def tls_context(self) -> ssl.SSLContext | None:
        """None without TLS. Raises UserError if a certificate or key cannot be read."""
        return self.tls.context() if self.tls else None

    @property
    def scheme(self) -> str:
        """How MQTT travels: "mqtt", "mqtts", "ws" or "wss"."""
        plain = "ws" if self.path else "mqtt"
        return f"{plain}s" if self.tls else plain

    @property
    def _quoted_user(self) -> str:
        return quote(self.user, safe="") if self.user else ""

    @property
    def _query(self) -> str:
        is_implied = self.profile == profile_of(self.host)
        return "" if is_implied else f"?{PROFILE}{self.profile}"

    @property
    def _place(self) -> str:
        is_ipv6 = ":" in self.host
        host = f"[{self.host}]" if is_ipv6 else self.host
        return f"{host}:{self.port}"


def environment_of(urls: Sequence[BrokerUrl]) -> dict[str, str]:
    """The environment variables that pass several addresses to another program of ours; see `BrokerUrl.environment`."""
    files = [str(url.tls.source) for url in urls if url.tls is not None and url.tls.source]
    if len(set(files)) == 1:
        files = files[:1]
    return {
        "COVEY_BROKER": ",".join(url.with_password() for url in urls),
        "COVEY_CREDENTIALS": os.pathsep.join(files),
    }


def masked(text: str) -> str:
    """An address as typed, with `***` in place of what is, or could be, its password. Never fails.

    A text that cannot be read hides its password too, so this does not parse it: whatever stands between the first colon
    and the last `@` may belong to it; and without an `@`, what stands where a port is expected.
    """
    begin = SCHEME.match(text)
    start = begin.end() if begin else 0
    login, at, place = text[start:].rpartition("@")
    if not at and NO_LOGIN.fullmatch(place):
        return text
    user, colon, _ = (login if at else place).partition(":")
    return f"{text[:start]}{user}:***{at}{place if at else ''}" if colon else text


def _split(text: str, shown: str) -> SplitResult:
    """The parts of an address. Raises UserError for the first one that is invalid."""
    try:
        parts = urlsplit(text)
        fault = _fault(parts)
    except ValueError:  # its own text quotes the password
        fault = "has brackets or letters that belong to no host"
    if fault:
        raise UserError(f"broker address {shown!r} {fault}; {EXPECTED}")
    return parts


def _fault(parts: SplitResult) -> str:
    """The fault of an address; empty if it has none. The port is checked when it is read."""
    has_space = any(letter.isspace() for letter in parts.netloc)
    if parts.scheme not in PORTS:
        has_scheme = parts.scheme and parts.netloc  # of localhost:1883, "localhost" looks like one
        if not has_scheme:
            return "has no scheme: put mqtt:// or another one in front of it"
        return f"begins with {parts.scheme!r}"
    if not parts.hostname or has_space:
        return "names no host"
    is_path = parts.scheme in WEBSOCKETS and PATH.fullmatch(parts.path)
    if (
        (parts.query and not parts.query.startswith(PROFILE))
        or parts.fragment
        or not (is_path or parts.path in ("", "/"))
    ):
        if "@" in parts.path + parts.query + parts.fragment:
            return "has / ? or # in its user or password: write them as %2F, %3F and %23"
        return "has more after the host than a port"
    if parts.password is not None and not parts.username:
        return "has a password but no user"
    return ""


def _profile(parts: SplitResult, shown: str) -> Profile:
    if not parts.query:
        return profile_of(parts.hostname or "")
    try:
        return profile_named(parts.query.removeprefix(PROFILE))
    except KeyError:
        raise UserError(
            f"broker address {shown!r}: unknown profile; expected one of {', '.join(NAMES)}"
        ) from None


def _port(parts: SplitResult, shown: str) -> int | None:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise UserError(
            f"broker address {shown!r}: the port is not a number from 1 to 65535; {EXPECTED}"
        )
    return port
