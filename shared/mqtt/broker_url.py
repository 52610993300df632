"""Where a broker listens and how to reach it: `mqtt[s]://[user:password@]host[:port]` and TLS files."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import SplitResult, quote, unquote, urlsplit

from covey.shared.errors import UserError

PORTS = {"mqtt": 1883, "mqtts": 8883}
ADDRESS = "mqtt[s]://[user:password@]host[:port]"
DEFAULT_BROKER = "mqtt://127.0.0.1:1883"
EXPECTED = f"expected {ADDRESS}, for example mqtt://localhost:1883"


@dataclass(frozen=True)
class Tls:
    """How to know a broker, and to be known by it.

    `ca`: certificates to trust instead of the system's. `cert` and `key`: who we are, for brokers that want
    client certificates. `insecure`: do not check who the broker is (TLS without protection against impostors).
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    insecure: bool = False

    def context(self) -> ssl.SSLContext:
        """Raises UserError for a certificate or key that cannot be read."""
        if self.key and not self.cert:
            raise UserError(
                f"the key {self.key} is given, but no certificate; --cert and --key belong together"
            )
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert:
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(str(path) for path in (self.ca, self.cert, self.key) if path)
            raise UserError(
                f"TLS files {files}: {error}; PEM files are wanted that this user may read"
            ) from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


SYSTEM_TLS = Tls()  # trusts the system's authorities and shows no certificate


@dataclass(frozen=True)
class BrokerUrl:
    """A broker's address. `str` leaves the password out, so that it may be shown and logged.

    `tls` is None for a connection in the clear.
    """

    host: str
    port: int = PORTS["mqtt"]
    tls: Tls | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, text: str, tls: Tls = SYSTEM_TLS) -> Self:
        """Read an address; `tls` is for mqtts://. Raises UserError that says which part of it makes no sense."""
        parts = _split(text)
        speaks_tls = parts.scheme == "mqtts"
        if not speaks_tls and tls != SYSTEM_TLS:
            raise UserError(f"{_shown(parts)}: TLS options are given, but only mqtts:// speaks TLS")
        return cls(
            host=parts.hostname or "",
            port=_port(parts) or PORTS[parts.scheme],
            tls=tls if speaks_tls else None,
            user=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password is not None else None,
        )

    def __str__(self) -> str:
        user = f"{quote(self.user, safe='')}@" if self.user else ""
        return f"{self._scheme}://{user}{self._place}"

    def with_password(self) -> str:
        """The whole address, password included: to hand to another program, never to show."""
        user = quote(self.user, safe="") if self.user else ""
        password = f":{quote(self.password, safe='')}" if self.password is not None else ""
        return f"{self._scheme}://{user}{password}{'@' if user else ''}{self._place}"

    def environment(self) -> dict[str, str]:
        """The address, password included, and the TLS files as another program of ours takes them (`shared.options`).

        Not its command line: everybody on this machine may read that. What is not set is empty, so that it is not
        inherited either.
        """
        tls = self.tls or SYSTEM_TLS
        files = {"COVEY_CA": tls.ca, "COVEY_CERT": tls.cert, "COVEY_KEY": tls.key}
        return {
            "COVEY_BROKER": self.with_password(),
            "COVEY_INSECURE": "1" if tls.insecure else "",
            **{name: str(path) if path else "" for name, path in files.items()},
        }

    def tls_context(self) -> ssl.SSLContext | None:
        """None without TLS. Raises UserError for a certificate or key that cannot be read."""
        return self.tls.context() if self.tls else None

    @property
    def _scheme(self) -> str:
        return "mqtts" if self.tls else "mqtt"

    @property
    def _place(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise UserError(f"broker address {text!r}: {error}; {EXPECTED}") from None
    if parts.scheme not in PORTS:
        raise UserError(
            f"broker address {_shown(parts)!r} begins with {parts.scheme or 'nothing'!r}; {EXPECTED}"
        )
    if not parts.hostname or any(letter.isspace() for letter in parts.netloc):
        raise UserError(f"broker address {_shown(parts)!r} names no host; {EXPECTED}")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise UserError(f"broker address {_shown(parts)!r} goes on after the host; {EXPECTED}")
    if parts.password is not None and not parts.username:
        raise UserError(f"broker address {_shown(parts)!r} has a password but no user; {EXPECTED}")
    return parts


def _port(parts: SplitResult) -> int | None:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise UserError(
            f"broker address {_shown(parts)!r}: the port is not a number from 1 to 65535; {EXPECTED}"
        )
    return port


def _shown(parts: SplitResult) -> str:
    """The address as typed, without its password."""
    if parts.password is None:
        return parts.geturl()
    return parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@")).geturl()
