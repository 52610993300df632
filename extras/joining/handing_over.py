"""`broker enroll --join` and `broker lab rotate --join`: hand credentials over to devices that show their codes, each once.

The codes live as long as the command. A device connects over TLS with the broker's own certificate, which its code names.
"""

from __future__ import annotations

import hmac
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from socketserver import BaseRequestHandler
from typing import TYPE_CHECKING

from covey.extras.joining.codes import SECRET_BYTES, TIMEOUT_S, USED, JoinCode, framed, pinned
from covey.shared.errors import UserError
from covey.shared.programs.bounded_http import Bounded

if TYPE_CHECKING:
    from covey.extras.users.folder import BrokerFolder

MINUTES = 15.0
POLL_S = 0.2

Show = Callable[[str], None]


class Codes:
    """Secrets of users, and what each is good for. Safe for several threads.

    Args:
        files: the credentials of each user.
        until: when all codes expire, on the clock that `take` is given.
    """

    def __init__(self, files: Mapping[str, bytes], until: float) -> None:
        self.secrets = {user: secrets.token_bytes(SECRET_BYTES) for user in files}
        self.waiting = set(files)  # users whose code was not used yet
        self._files = files
        self._until = until
        self._lock = threading.Lock()

    def take(self, secret: bytes, now: float) -> tuple[str, bytes]:
        """The user of a secret and the answer to who shows it; both empty for one that is unknown or has expired."""
        with self._lock:
            for user, own in self.secrets.items():
                if hmac.compare_digest(own, secret) and now < self._until:
                    if user not in self.waiting:
                        return user, USED
                    self.waiting.discard(user)
                    return user, self._files[user]
        return "", b""


class JoinServer(Bounded):
    """Answers devices with `codes`. Port 0 takes any free one."""

    allow_reuse_address = True
    max_connections = 32
    request_s = TIMEOUT_S

    def __init__(
        self, port: int, folder: BrokerFolder, codes: Codes, taken: Callable[[str, str, bool], None]
    ) -> None:
        self.codes = codes
        self.taken = (
            taken  # called with a user, an address, and whether the code had been used before
        )
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(folder.folder / "server.pem", folder.folder / "server.key")
        try:
            super().__init__(("", port), _Device)
        except OSError as error:
            raise UserError(
                f"--join-port {port}: {error.strerror}; choose another, 0 takes any free one"
            ) from None

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return int(self.server_address[1])


class _Device(BaseRequestHandler):
    """One connection."""

    server: JoinServer

    def handle(self) -> None:
        """Read a secret, and answer it."""
        self.request.settimeout(TIMEOUT_S)
        with (
            suppress(OSError),
            self.server.context.wrap_socket(self.request, server_side=True) as link,
        ):
            with link.makefile("rb") as stream:
                secret = stream.read(SECRET_BYTES)
            user, answer = self.server.codes.take(secret, self.server.now())
            if not answer:
                return
            self.server.taken(user, self.client_address[0], answer == USED)
            link.sendall(framed(answer))


def hand_over(
    folder: BrokerFolder,
    files: Mapping[str, Path],
    *,
    port: int,
    minutes: float = MINUTES,
    emit: Show,
    show: Show,
) -> list[str]:
    """Print a code for each user, and wait until all are used or the time is over.

    Args:
        folder: of the broker.
        files: the credentials file of each user.
        port: to listen on.
        minutes: for which the codes are valid.
        emit: prints a line for another program.
        show: prints a line for a person.

    Returns:
        The users whose codes were not used.

    Raises:
        UserError: the port is taken.
    """
    until = time.monotonic() + 60 * minutes
    codes = Codes({user: file.read_bytes() for user, file in files.items()}, until)

    def taken(user: str, address: str, again: bool) -> None:
        if again:
            show(
                f"{user}: {address} shows the code that was used before; if it is not yours: `broker lab rotate {user}`"
            )
            return
        folder.note("join", user=user, address=address)
        show(f"{user} has joined from {address}")

    certificate = ssl.PEM_cert_to_DER_cert((folder.folder / "server.pem").read_text())
    with JoinServer(port, folder, codes, taken) as server:
        for user, secret in codes.secrets.items():
            code = JoinCode(folder.url.host, server.port, pinned(certificate), secret)
            emit(f"agent join {code}  # {user}")
        show(
            f"each code is good for one device, within {minutes:g} minutes, while this command runs"
        )
        thread = threading.Thread(target=server.serve_forever, args=(POLL_S,), daemon=True)
        thread.start()
        try:
            while codes.waiting and time.monotonic() < until:
                time.sleep(POLL_S)
        finally:
            server.shutdown()
    return sorted(codes.waiting)
