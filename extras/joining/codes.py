"""How a device gets its credentials with a code, once: what `broker enroll --join` and `agent join` agree on.

The code names a place, the certificate of the broker there, and a secret. The device sends the secret over TLS, to the holder
of this certificate alone, and gets its credentials file: 4 bytes with its length, then the file. An answer of
`USED` means that another device had the secret before; no answer, that nobody waits for it.
"""

from __future__ import annotations

import base64
import hashlib
import socket
import ssl
import struct
from dataclasses import dataclass, field
from typing import Self

from covey.shared.errors import UserError

FIRST = b"\x04"  # the first byte of a code: none begins with a dash
CERTIFICATE_BYTES = 16  # of its SHA-256: nobody finds another certificate with the same ones
SECRET_BYTES = 16
HEAD = struct.Struct(f">{CERTIFICATE_BYTES}s{SECRET_BYTES}sH")  # and a port; the host follows
CHECK_BYTES = 3
LENGTH_BYTES = 4
MAX_BYTES = 1 << 20  # of a credentials file
USED = b"used"
TIMEOUT_S = 10.0
AGAIN = "ask for a new code: `broker lab rotate NAME --join` on the broker's machine"


@dataclass(frozen=True)
class JoinCode:
    """What a code holds. `str` is the code as a person copies it."""

    host: str
    port: int
    certificate: bytes  # as `pinned` gives it
    secret: bytes = field(repr=False)

    def __str__(self) -> str:
        body = FIRST + HEAD.pack(self.certificate, self.secret, self.port) + self.host.encode()
        return base64.urlsafe_b64encode(body + _check(body)).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a code. Raises UserError if it is incomplete or mistyped."""
        try:
            content = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            body, check = content[:-CHECK_BYTES], content[-CHECK_BYTES:]
            host = body[1 + HEAD.size :].decode()
            if body[:1] != FIRST or _check(body) != check or not host:
                raise ValueError
            certificate, secret, port = HEAD.unpack_from(body, 1)
            return cls(host, port, certificate, secret)
        except (ValueError, struct.error):
            raise UserError(
                "this is not a whole code; copy the line that `broker enroll --join` printed, from `agent join` to its end"
            ) from None


def _check(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:CHECK_BYTES]


def pinned(certificate: bytes) -> bytes:
    """What a code has of a certificate in DER form."""
    return hashlib.sha256(certificate).digest()[:CERTIFICATE_BYTES]


def redeem(code: JoinCode) -> bytes:
    """Exchange a code for the content of a credentials file.

    Raises:
        UserError: nobody waits there, another certificate is shown, or the code is used or unknown.
    """
    place = f"{code.host}:{code.port}"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the code names the very certificate
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((code.host, code.port), TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=code.host) as link,
        ):
            if pinned(link.getpeercert(binary_form=True) or b"") != code.certificate:
                raise UserError(
                    f"{place} has another certificate than the broker that made the code: another machine may stand in between, or the "
                    f"certificate was renewed. Nothing was sent; {AGAIN}"
                )
            link.sendall(code.secret)
            answer = _received(link)
    except (OSError, UnicodeError) as error:  # the latter of a host that is none
        raise UserError(
            f"{place}: {error}; `broker enroll --join` must still run there, and the port must be open"
        ) from None
    if answer == USED:
        raise UserError(
            f"the code was used before. If no device of yours used it, someone else has its credentials: {AGAIN}"
        )
    if not answer:
        raise UserError(f"{place} does not know the code, or it has expired; {AGAIN}")
    return answer


def _received(link: ssl.SSLSocket) -> bytes:
    """The whole answer; empty without one. Raises OSError if it is cut off."""
    with link.makefile("rb") as stream:
        head = stream.read(LENGTH_BYTES)
        if not head:
            return b""
        size = int.from_bytes(head, "big")
        answer = stream.read(min(size, MAX_BYTES))
    if len(answer) != size:
        raise OSError("the answer was cut off")
    return answer


def framed(answer: bytes) -> bytes:
    """An answer as it travels."""
    return len(answer).to_bytes(LENGTH_BYTES, "big") + answer
