"""When certificates end, without a library for them: an idle agent has none in memory."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime

from covey.shared.mqtt.broker_url import BrokerUrl

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
