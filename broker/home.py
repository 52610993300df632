"""A broker's folder: its certificate, its users, and for each of them the file that they connect with.

ca.pem  ca.key  server.pem  server.key     the authority, and what the broker shows
passwords                                  who may connect, as mosquitto_passwd writes it
users/coordinator.pem  users/pi-7.pem      credentials: `--credentials` of every program that connects
retained/                                  what Mosquitto keeps over restarts
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from broker import passwords
from broker.options import Options
from shared import credentials
from shared.broker_url import SYSTEM_TLS, BrokerUrl
from shared.credentials import COORDINATOR
from shared.errors import UserError
from shared.topics import is_name

PASSWORD_BYTES = 24


@dataclass(frozen=True)
class Home:
    """Raises UserError where `folder` is not what `create` made."""

    folder: Path

    def __post_init__(self) -> None:
        if not self._address.is_file():
            raise UserError(
                f"{self.folder}: no broker's folder; `broker init --home {self.folder} --host NAME` makes one"
            )

    @classmethod
    def create(cls, folder: Path, hosts: Sequence[str], port: int, days: int) -> Home:
        """A new authority, the broker's certificate for these hosts, and the coordinator as first user.

        The first host is where users will look for the broker.
        """
        try:
            from broker.authority import Authority
        except ImportError:
            raise UserError("certificates need cryptography: pip install 'covey[broker]'") from None
        if folder.exists() and any(folder.iterdir()):
            raise UserError(f"{folder} is not empty; a new folder is wanted, nothing was changed")
        where = BrokerUrl(hosts[0], port, tls=SYSTEM_TLS)
        BrokerUrl.parse(str(where))  # a host that no address could name
        authority = Authority("Covey broker", days)
        try:
            server = authority.sign(hosts)
        except ValueError as error:
            raise UserError(f"--host {', '.join(hosts)}: {error}; names or IP addresses are wanted") from None
        folder.mkdir(parents=True, exist_ok=True)
        for name, text, secret in (
            ("ca.pem", authority.own.certificate, False),
            ("ca.key", authority.own.key, True),
            ("server.pem", server.certificate, False),
            ("server.key", server.key, True),
        ):
            (folder / name).touch(mode=0o600 if secret else 0o644)
            (folder / name).write_bytes(text)
        passwords.save(folder / "passwords", {})
        (folder / "address").write_text(f"{where}\n")
        home = cls(folder)
        home._enroll(COORDINATOR)
        return home

    @property
    def passwords(self) -> Path:
        return self.folder / "passwords"

    @property
    def _address(self) -> Path:
        return self.folder / "address"

    @property
    def url(self) -> BrokerUrl:
        """Where users look for the broker."""
        return BrokerUrl.parse(self._address.read_text().strip())

    def options(self, given: Options, *, host: str | None, port: int | None, keeps: bool) -> Options:
        """A broker of this folder; `keeps`: it is one that can keep retained messages over restarts."""
        return replace(
            given,
            host=host or "0.0.0.0",  # noqa: S104  for devices elsewhere: nobody gets in without a password
            port=self.url.port if port is None else port,
            data=given.data or (self.folder / "retained" if keeps else None),
            passwords=self.passwords,
            tls_cert=self.folder / "server.pem",
            tls_key=self.folder / "server.key",
        )

    def file(self, user: str) -> Path:
        """The user's credentials."""
        return self.folder / "users" / f"{user}.pem"

    def enroll(self, agent: str) -> Path:
        """One user more; returns its credentials. A broker that runs takes it in (`broker up`)."""
        if not is_name(agent) or agent == COORDINATOR:
            raise UserError(
                f"{agent!r}: an agent's id is wanted, letters, digits, '.', '_' and '-', at most 64, and not {COORDINATOR}"
            )
        if agent in passwords.read(self.passwords):
            raise UserError(
                f"{agent} is enrolled: its credentials are {self.file(agent)}; `broker expel {agent}` makes them void"
            )
        return self._enroll(agent)

    def _enroll(self, user: str) -> Path:
        password, file = secrets.token_urlsafe(PASSWORD_BYTES), self.file(user)
        own = replace(self.url, user=user, password=password)
        file.parent.mkdir(mode=0o700, exist_ok=True)
        file.touch(mode=0o600)
        file.write_text(credentials.render(user, own, (self.folder / "ca.pem").read_text()))
        passwords.save(self.passwords, passwords.read(self.passwords) | {user: passwords.hashed(password)})
        return file

    def expel(self, agent: str) -> None:
        """One user less: the broker lets it in no more, and ends its connection."""
        users = passwords.read(self.passwords)
        if agent not in users or agent == COORDINATOR:
            raise UserError(
                f"{agent}: no such agent; enrolled are {', '.join(sorted(set(users) - {COORDINATOR})) or 'none'}"
            )
        passwords.save(self.passwords, {user: made for user, made in users.items() if user != agent})
        self.file(agent).unlink(missing_ok=True)
