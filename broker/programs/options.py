"""The options of a broker that Covey starts, the same for both programs."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from covey.broker.access import acl, members, passwords
from covey.broker.limits import Limits
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import SYSTEM_TLS, BrokerUrl


@dataclass(frozen=True)
class BrokerOptions:
    """Where a broker listens, who may connect, and what it may use.

    With `passwords` or `tls_ca` the broker has users, and the rules of `broker.access.acl` apply to them. Without both it is open.

    Raises:
        UserError: options that contradict each other, or a file that is missing or malformed.
    """

    host: str = "127.0.0.1"
    port: int = 0  # 0: any free one
    data: Path | None = None  # folder that keeps retained messages over restarts
    log: Path | None = None
    passwords: Path | None = None  # the users and the hashes of their passwords
    members: Path | None = None  # roles and federations of the users; None: roles by name
    tls_cert: Path | None = None
    tls_key: Path | None = None
    # authority of the clients' certificates; the name in a certificate (CN) is the user
    tls_ca: Path | None = None
    limits: Limits = field(default_factory=Limits)
    websocket_hosts: tuple[str, ...] = ()  # names under which web pages may reach an open broker

    @property
    def rules(self) -> bool:
        """Whether the broker has users, and therefore access rules."""
        return self.passwords is not None or self.tls_ca is not None

    def roles(self) -> acl.Members | None:
        """The users' roles as the file holds them now; None if roles follow from names."""
        return members.read(self.members) if self.members else None

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UserError(
                "TLS needs both a certificate and its key: give --tls-cert and --tls-key"
            )
        if self.tls_ca and not self.tls_cert:
            raise UserError("--tls-ca requires TLS: give --tls-cert and --tls-key too")
        if self.tls_ca and self.passwords:
            raise UserError(
                "--tls-ca and passwords: the owner of a client certificate would need no password; give either "
                "--tls-ca (the name in the certificate is the user) or passwords"
            )
        for path in (self.passwords, self.members, self.tls_cert, self.tls_key, self.tls_ca):
            if path and not path.is_file():
                raise UserError(f"{path}: no such file; expected a file that you may read")
        if self.passwords:
            passwords.read(self.passwords)
        self.roles()
        if self.log and not _is_writable(self.log):
            raise UserError(
                f"--log {self.log}: expected a file that you may write, in an existing folder"
            )
        self.tls_context()

    def tls_context(self) -> ssl.SSLContext | None:
        """The TLS context of the server; None without TLS. Raises UserError that names the wrong file."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # with an empty password, an encrypted key is refused; without one, OpenSSL would ask for it
            context.load_cert_chain(self.tls_cert, self.tls_key, password="")
        except (OSError, ssl.SSLError) as error:
            raise UserError(
                f"--tls-cert {self.tls_cert}, --tls-key {self.tls_key}: {error}; expected a certificate and its key "
                "as PEM files that you may read"
            ) from None
        if self.tls_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(self.tls_ca)
            except (OSError, ssl.SSLError) as error:
                raise UserError(
                    f"--tls-ca {self.tls_ca}: {error}; expected certificates as a PEM file"
                ) from None
        return context

    def url(self, port: int) -> BrokerUrl:
        """The broker's address for clients on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104  compared, not bound
        return BrokerUrl(host, port, tls=SYSTEM_TLS if self.tls_cert else None)


def _is_writable(path: Path) -> bool:
    if path.exists():
        return path.is_file() and os.access(path, os.W_OK)
    return path.absolute().parent.is_dir() and os.access(path.absolute().parent, os.W_OK)
