"""The credentials file of one user of a broker: id, address and password as JSON, then trusted certificates as PEM.

Readers of PEM files skip everything before the first certificate (RFC 7468, section 2), so the file can serve as the
file of authorities, too. A file without certificates trusts the system's.

When certificates end, without a library for them: an idle agent has none in memory.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import BrokerUrl, Tls
from covey.shared.storage import json_text
from covey.shared.wire.topics import is_name

PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\s", re.DOTALL)
VERSION = 0xA0  # tags of ASN.1
TIMES = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}


def first_end(urls: Iterable[BrokerUrl]) -> float | None:
    """When the first certificate ends that connections to these brokers need, of the files that they name: in seconds since
    1970. None without any."""
    found: list[float] = []
    for url in urls:
        files = () if url.tls is None else (url.tls.ca, url.tls.cert)
        for file in files:
            with suppress(OSError, UnicodeDecodeError):  # the link reports it, with advice
                found += [] if file is None else ends(file.read_text())
    return min(found, default=None)


def ends(pem: str) -> Iterator[float]:
    """When each certificate in a text ends; those that cannot be read are left out."""
    for text in PEM.findall(pem + "\n"):
        with suppress(ValueError, IndexError, KeyError):
            yield _end(ssl.PEM_cert_to_DER_cert(text.strip()))


def _end(certificate: bytes) -> float:
    """`notAfter` of a certificate: Certificate -> tbsCertificate -> validity -> the second time (RFC 5280, section 4.1)."""
    _, whole, _ = _value(certificate, 0)
    _, tbs, _ = _value(whole, 0)
    place = 0
    tag, _, after = _value(tbs, place)
    if tag == VERSION:
        place = after
    for _ in ("serial number", "algorithm", "issuer"):
        _, _, place = _value(tbs, place)
    _, validity, _ = _value(tbs, place)
    _, _, place = _value(validity, 0)
    tag, time, _ = _value(validity, place)
    return datetime.strptime(time.decode("ascii"), TIMES[tag]).replace(tzinfo=UTC).timestamp()


def _value(data: bytes, place: int) -> tuple[int, bytes, int]:
    """Tag and content of the element at a place, and the place after it."""
    tag, length = data[place], data[place + 1]
    place += 2
    if length & 0x80:
        count = length & 0x7F
        length = int.from_bytes(data[place : place + count], "big")
        place += count
    if place + length > len(data):
        raise ValueError("cut short")
    return tag, data[place : place + length], place + length


BEGIN = "-----BEGIN CERTIFICATE-----"
FLEET = "fleet"  # the user that hosts the agents of a simulation
COORDINATOR = "coordinator"  # the user of the coordinator; no agent has this id


@dataclass(frozen=True)
class Credentials:
    """The contents of a credentials file."""

    id: str  # the user's name at the broker
    broker: str  # the address with the password
    role: str  # "" if the file names none
    federation: str  # "" if the file names none
    file: Path  # the file itself
    has_authority: bool = True  # certificates to trust follow the heading
    cert: Path | None = None  # the user's own certificate, where the broker asks for one
    key: Path | None = None  # the private key of that certificate
    entry: bytes = b""  # for secure sums, signed by the fleet key; empty if the file has none
    fleet: bytes = b""  # the fleet key, public
    expelled: bytes = b""  # the list of expelled entries, signed by the fleet key

    @property
    def tls(self) -> Tls:
        """The certificates that the file has or names."""
        return Tls(self.file if self.has_authority else None, self.cert, self.key, source=self.file)

    @property
    def url(self) -> BrokerUrl:
        """The broker with login and certificates."""
        return BrokerUrl.parse(self.broker, self.tls)

    def __repr__(self) -> str:
        return f"Credentials({self.id!r}, role={self.role!r}, federation={self.federation!r})"


def render(
    name: str,
    url: BrokerUrl,
    authority: str,
    *,
    role: str = "",
    federation: str = "",
    entry: bytes = b"",
    fleet: bytes = b"",
    expelled: bytes = b"",
) -> str:
    """The text of a credentials file. It contains the password.

    Args:
        name: the user's id.
        url: the broker, with the user's password.
        authority: the trusted certificates, as PEM.
        role: empty: none is named.
        federation: empty: the user may take part in any.
        entry: for secure sums; empty: none.
        fleet: the public fleet key, with an entry.
        expelled: the list of expelled entries, with an entry; empty: none.
    """
    about = {"id": name, "broker": url.with_password()}
    if role:
        about["role"] = role
    if federation:
        about["federation"] = federation
    if entry:
        about |= {"entry": entry.hex(), "fleet": fleet.hex()}
    if expelled:
        about["expelled"] = expelled.hex()
    heading = json_text.dumps(about, indent=1)
    return f"{heading}\n{authority}"


def read(file: Path) -> Credentials:
    """Read a credentials file. Raises UserError as `parse` does."""
    return parse(file.read_bytes(), file)


def parse(content: bytes, file: Path) -> Credentials:
    """The credentials in the content of a file.

    Raises:
        UserError: the file is something else, or a name in it is invalid. Names end up in unit files, in topics and
            on terminals, so they are checked here.
    """
    try:
        credentials = _parsed(content.decode(), file)
    except (ValueError, TypeError, AttributeError, RecursionError, UserError):
        raise UserError(
            f"{file}: this is not a credentials file; expected one that `broker enroll` wrote, ask for it again; docs/brokers.md has one for another broker"
        ) from None
    return credentials


def _parsed(text: str, file: Path) -> Credentials:
    """The contents of a file. Raises one of several errors if it is no credentials file."""
    heading, begin, _ = text.partition(BEGIN)
    about: dict[str, Any] = json_text.loads(heading)
    credentials = Credentials(
        id=about.get("id", ""),
        broker=about.get("broker", ""),
        role=about.get("role", ""),
        federation=about.get("federation", ""),
        file=file,
        has_authority=bool(begin),
        cert=_beside(file, about.get("cert")),
        key=_beside(file, about.get("key")),
        entry=bytes.fromhex(about.get("entry", "")),
        fleet=bytes.fromhex(about.get("fleet", "")),
        expelled=bytes.fromhex(about.get("expelled", "")),
    )
    BrokerUrl.parse(credentials.broker)
    optional = [name for name in (credentials.role, credentials.federation) if name]
    for name in (credentials.id, *optional):
        if not isinstance(name, str) or not is_name(name):
            raise ValueError("an invalid name")
    return credentials


def _beside(file: Path, name: str | None) -> Path | None:
    """Another file that a credentials file names; relative to its folder."""
    return None if name is None else file.parent / name


def check_role(file: Path, roles: Sequence[str]) -> None:
    """Check that a user's role gives the rights that a command needs. Its broker would only be silent.

    A file without a role, of another maker, is accepted.

    Raises:
        UserError: the credentials belong to a user with another role.
    """
    credentials = read(file)
    if credentials.role in ("", *roles):
        return
    expected = " or ".join(roles)
    raise UserError(
        f"{file}: these credentials belong to {credentials.id}, with the role {credentials.role}; "
        f"expected a file with the role {expected}, from `broker init` or `broker enroll --role`"
    )


def check_federation(file: Path, federation: str, where: str) -> None:
    """Check that credentials are for a federation. Its broker would only be silent.

    Args:
        file: the credentials file.
        federation: the one in use.
        where: what names it, for the message.

    Raises:
        UserError: they are for another one.
    """
    own = read(file).federation
    if own not in ("", federation):
        raise UserError(
            f"{file}: these credentials are for federation {own!r}, and {where} is {federation!r}, where the broker would "
            f"deliver nothing; use {own!r} there, or credentials from `broker enroll --federation {federation}`"
        )


def check_agent(file: Path, agent: str) -> None:
    """Check that credentials are those of an agent. Their broker would accept a wrong one, and cut it off later.

    Args:
        file: the credentials file.
        agent: the agent's id.

    Raises:
        UserError: the credentials belong to another agent or program.
    """
    credentials = read(file)
    user = credentials.id
    role = credentials.role
    expected = "expected those of an agent, from `broker enroll`"
    if user == COORDINATOR or role == COORDINATOR:
        raise UserError(f"{file}: these credentials belong to the coordinator; {expected}")
    if role not in ("", "agent"):
        raise UserError(
            f"{file}: these credentials belong to a user with the role {role}; {expected}"
        )
    if user != agent:
        raise UserError(
            f"{file}: these credentials belong to {user}, not to {agent}; omit --id, or give the file of {agent}"
        )
