"""What a broker of ours can be told, whichever program it is."""

from __future__ import annotations

import os
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from covey.broker.access import acl, members, passwords
from covey.broker.limits import Limits
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import SYSTEM_TLS, BrokerUrl


@dataclass(frozen=True)
class Options:
    """`port` 0: any free one. `data`: keep retained messages there over restarts. `passwords`: only these users.

    `members`: the users' roles and federations; without it they go by their names (`broker.acl`). `tls_ca`: clients must
    show a certificate that it signed, and the name in it (CN) is the user. Whoever has a name is held to the rules.
    """

    host: str = "127.0.0.1"
    port: int = 0
    data: Path | None = None
    log: Path | None = None
    passwords: Path | None = None
    members: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    limits: Limits = field(default_factory=Limits)

    @property
    def rules(self) -> bool:
        """Are users held to `broker.acl`? Always, where there are users."""
        return self.passwords is not None or self.tls_ca is not None

    def roles(self) -> acl.Members | None:
        """The users' roles as the file has them now; None where they go by their names."""
        return members.read(self.members) if self.members else None

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UserError(
                "TLS needs both a certificate and its key: give --tls-cert and --tls-key"
            )
        if self.tls_ca and not self.tls_cert:
            raise UserError(
                "--tls-ca asks clients for certificates, which needs --tls-cert and --tls-key too"
            )
        if self.tls_ca and self.passwords:
            raise UserError(
                "--tls-ca and passwords: a client certificate would let its owner pass by the passwords; give either "
                "--tls-ca (the name in the certificate is the user) or passwords"
            )
        for path in (self.passwords, self.members, self.tls_cert, self.tls_key, self.tls_ca):
            if path and not path.is_file():
                raise UserError(f"{path} is not there; a file that this user may read is wanted")
        if self.passwords:
            passwords.read(self.passwords)
        self.roles()
        if self.log and not _may_be_written(self.log):
            raise UserError(
                f"--log {self.log}: a file is wanted that this user may write, in a folder that is there"
            )
        self.tls_context()

    def tls_context(self) -> ssl.SSLContext | None:
        """What a server listens with; None without TLS. Raises UserError that names the file that is no good."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # with a password at hand nobody is asked for the one of an encrypted key: it is refused
            context.load_cert_chain(self.tls_cert, self.tls_key, password="")
        except (OSError, ssl.SSLError) as error:
            raise UserError(
                f"--tls-cert {self.tls_cert}, --tls-key {self.tls_key}: {error}; a certificate and its key are wanted, "
                "as PEM files that this user may read"
            ) from None
        if self.tls_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(self.tls_ca)
            except (OSError, ssl.SSLError) as error:
                raise UserError(
                    f"--tls-ca {self.tls_ca}: {error}; certificates as a PEM file are wanted"
                ) from None
        return context

    def url(self, port: int) -> BrokerUrl:
        """Where clients on this machine find the broker."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104  compared, not bound
        return BrokerUrl(host, port, tls=SYSTEM_TLS if self.tls_cert else None)


def _may_be_written(path: Path) -> bool:
    if path.exists():
        return path.is_file() and os.access(path, os.W_OK)
    return path.absolute().parent.is_dir() and os.access(path.absolute().parent, os.W_OK)


def free_port(options: Options) -> int:
    """The port asked for, or a free one for 0. Raises UserError where it is taken or may not be used."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((options.host, options.port))
        except OSError as error:
            raise UserError(
                f"port {options.port} on {options.host}: {error.strerror or error}; "
                "stop the program that uses it, or choose another with --port (0: any free one)"
            ) from None
        return int(probe.getsockname()[1])
