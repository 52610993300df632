"""Where a broker listens and how to reach it: `mqtt[s]://[user:password@]host[:port]` and TLS files."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import SplitResult, quote, unquote, urlsplit

from shared.errors import UserError

PORTS = {"mqtt": 1883, "mqtts": 8883}
WANTED = "wanted is mqtt[s]://[user:password@]host[:port], for example mqtt://localhost:1883"


@dataclass(frozen=True)
class BrokerUrl:
    """A broker's address. `str` leaves the password out, so that it may be shown and logged.

    `ca`: certificates to trust instead of the system's. `cert` and `key`: who we are, for brokers that want
    client certificates. `insecure`: do not check who the broker is (TLS without protection against impostors).
    """

    host: str
    port: int = PORTS["mqtt"]
    tls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    insecure: bool = False

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        ca: Path | None = None,
        cert: Path | None = None,
        key: Path | None = None,
        insecure: bool = False,
    ) -> Self:
        """Read an address. Raises UserError that says which part of it makes no sense."""
        parts = _split(text)
        tls = parts.scheme == "mqtts"
        if not tls and (ca or cert or key or insecure):
            raise UserError(f"{_shown(parts)}: TLS options are given, but only mqtts:// speaks TLS")
        return cls(
            host=parts.hostname or "",
            port=_port(parts) or PORTS[parts.scheme],
            tls=tls,
            user=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password is not None else None,
            ca=ca,
            cert=cert,
            key=key,
            insecure=insecure,
        )

    def __str__(self) -> str:
        user = f"{quote(self.user, safe='')}@" if self.user else ""
        return f"{self._scheme}://{user}{self._place}"

    def with_password(self) -> str:
        """The whole address, password included: to hand to another program, never to show."""
        user = quote(self.user, safe="") if self.user else ""
        password = f":{quote(self.password, safe='')}" if self.password is not None else ""
        return f"{self._scheme}://{user}{password}{'@' if user else ''}{self._place}"

    def tls_context(self) -> ssl.SSLContext | None:
        """None without TLS. Raises UserError for a certificate or key that cannot be read."""
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert:
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(str(path) for path in (self.ca, self.cert, self.key) if path)
            raise UserError(f"TLS files {files}: {error}; PEM files are wanted that this user may read") from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

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
        raise UserError(f"broker address {text!r}: {error}; {WANTED}") from None
    if parts.scheme not in PORTS:
        raise UserError(f"broker address {_shown(parts)!r} begins with {parts.scheme or 'nothing'!r}; {WANTED}")
    if not parts.hostname or any(letter.isspace() for letter in parts.netloc):
        raise UserError(f"broker address {_shown(parts)!r} names no host; {WANTED}")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise UserError(f"broker address {_shown(parts)!r} goes on after the host; {WANTED}")
    if parts.password is not None and not parts.username:
        raise UserError(f"broker address {_shown(parts)!r} has a password but no user; {WANTED}")
    return parts


def _port(parts: SplitResult) -> int | None:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise UserError(f"broker address {_shown(parts)!r}: the port is not a number from 1 to 65535; {WANTED}")
    return port


def _shown(parts: SplitResult) -> str:
    """The address as typed, without its password."""
    if parts.password is None:
        return parts.geturl()
    return parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@")).geturl()
