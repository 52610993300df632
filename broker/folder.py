"""A broker's folder: its certificate, its users, and for each of them the file that they connect with.

ca.pem  ca.key  server.pem  server.key     the authority, and what the broker shows
passwords                                  who may connect, as mosquitto_passwd writes it
members.json                               each user's role and federation
users/coordinator.pem  users/pi-7.pem      credentials: `--credentials` of every program that connects
retained/                                  what Mosquitto keeps over restarts
audit.jsonl                                who was enrolled, expelled, given a new password, and when

Every change reads and writes under one lock, so that commands that run at once lose nothing of one another.
"""

from __future__ import annotations

import datetime
import fcntl
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from covey.broker.access import members, passwords
from covey.broker.access.acl import ANY, Role
from covey.broker.access.members import Entry
from covey.broker.programs.options import Options
from covey.shared.audit import AuditLog
from covey.shared.errors import UserError
from covey.shared.files import private_folder, write_private
from covey.shared.mqtt import credentials
from covey.shared.mqtt.broker_url import SYSTEM_TLS, BrokerUrl
from covey.shared.mqtt.credentials import COORDINATOR
from covey.shared.wire.topics import is_name

if TYPE_CHECKING:
    from covey.broker.access.authority import Authority, Signed

PASSWORD_BYTES = 24
SERVER_DAYS = 90
AUTHORITY_DAYS = 3650
WARN_DAYS = 14  # before a certificate ends
DEFAULT_FEDERATION = "default"
LOCK_WITHIN_S = 60.0
AUDIT_OWNER = "broker folder"
MISSING_LIBRARY = "certificates need cryptography: pip install 'covey[broker]'"


@dataclass(frozen=True)
class BrokerFolder:
    """Raises UserError where `folder` is not what `create` made."""

    folder: Path

    def __post_init__(self) -> None:
        if not self._address.is_file():
            raise UserError(
                f"{self.folder}: no broker's folder; `broker init --home {self.folder} --host NAME` makes one"
            )

    @classmethod
    def create(
        cls,
        folder: Path,
        hosts: Sequence[str],
        port: int,
        days: int = SERVER_DAYS,
        authority_days: int = AUTHORITY_DAYS,
    ) -> BrokerFolder:
        """A new authority, the broker's certificate for these hosts, and the coordinator as first user.

        The first host is where users will look for the broker. The broker's certificate is good for `days`.
        """
        if folder.exists() and any(folder.iterdir()):
            raise UserError(f"{folder} is not empty; expected a new folder, nothing was changed")
        where = BrokerUrl(hosts[0], port, tls=SYSTEM_TLS)
        BrokerUrl.parse(str(where))  # a host that no address could name
        authority = _new_authority(authority_days)
        server = _server_certificate(authority, hosts, days)
        private_folder(folder)
        folder.chmod(0o700)  # also where it was there, empty and open to others
        write_private(folder / "ca.key", authority.own.key)
        write_private(folder / "server.key", server.key)
        write_private(folder / "ca.pem", authority.own.certificate)
        write_private(folder / "server.pem", server.certificate)
        passwords.save(folder / "passwords", {})
        members.save(folder / "members.json", {})
        (folder / "address").write_text(f"{where}\n")
        home = cls(folder)
        with home._changing() as log:
            home._add([COORDINATOR], "coordinator", ANY)
            log.append("init", hosts=list(hosts), port=port)
        return home

    @property
    def passwords(self) -> Path:
        return self.folder / "passwords"

    @property
    def members(self) -> Path:
        return self.folder / "members.json"

    @property
    def _address(self) -> Path:
        return self.folder / "address"

    @property
    def url(self) -> BrokerUrl:
        """Where users look for the broker."""
        return BrokerUrl.parse(self._address.read_text().strip())

    def options(
        self, given: Options, *, host: str | None, port: int | None, keeps_retained: bool
    ) -> Options:
        """A broker of this folder; `keeps_retained`: it is one that can keep retained messages over restarts."""
        return replace(
            given,
            host=host or "0.0.0.0",  # noqa: S104  for devices elsewhere: nobody gets in without a password
            port=self.url.port if port is None else port,
            data=given.data or (self.folder / "retained" if keeps_retained else None),
            passwords=self.passwords,
            members=self.members
            if self.members.exists()
            else None,  # a folder of an older version has none
            tls_cert=self.folder / "server.pem",
            tls_key=self.folder / "server.key",
        )

    def file(self, user: str) -> Path:
        """The user's credentials."""
        return self.folder / "users" / f"{user}.pem"

    def entries(self) -> dict[str, Entry]:
        """Every user with role and federation; by name where the folder comes from an older version."""
        if self.members.exists():
            return members.load(self.members)
        users = passwords.read(self.passwords)
        return {
            user: Entry(role="coordinator" if user == COORDINATOR else "agent") for user in users
        }

    # -- changes -----------------------------------------------------------------------------------

    def enroll(self, user: str, role: Role = "agent", federation: str = DEFAULT_FEDERATION) -> Path:
        """One user more; returns its credentials. A broker that runs takes it in (`broker up`)."""
        return self.enroll_all([user], role, federation)[0]

    def enroll_all(
        self, users: Sequence[str], role: Role = "agent", federation: str = DEFAULT_FEDERATION
    ) -> list[Path]:
        """Let users in, all of them or, where one cannot be, none. Returns their credentials."""
        for user in users:
            if not is_name(user) or user == COORDINATOR:
                raise UserError(
                    f"{user!r}: invalid id: use letters, digits, '.', '_' and '-', at most 64, and not {COORDINATOR}"
                )
        if federation != ANY and not is_name(federation):
            raise UserError(
                f"--federation {federation!r}: use letters, digits, '.', '_' and '-', at most 64; or {ANY} for any"
            )
        with self._changing() as log:
            known = passwords.read(self.passwords)
            for user in users:
                if user in known:
                    raise UserError(
                        f"{user} is enrolled: its credentials are {self.file(user)}; `broker rotate {user}` replaces "
                        f"them, `broker expel {user}` revokes them"
                    )
            files = self._add(users, role, federation)
            for user in users:
                log.append("enrol", user=user, role=role, federation=federation)
        return files

    def rotate(self, user: str) -> Path:
        """A new password, in a new credentials file; the old ones are void, and their connections end."""
        with self._changing() as log:
            entry = self._known(user)
            file = self._add([user], entry.role, entry.federation)[0]
            log.append("rotate", user=user)
        return file

    def expel(self, agent: str) -> None:
        """One user less: the broker lets it in no more, and ends its connection."""
        self.expel_all([agent])

    def expel_all(self, users: Sequence[str]) -> dict[str, Entry]:
        """Revoke the credentials of these users, or of none where one is unknown. Returns what they were."""
        with self._changing() as log:
            gone = {user: self._known(user) for user in users}
            if COORDINATOR in gone:
                raise UserError(
                    f"{COORDINATOR}: no such agent; `broker rotate {COORDINATOR}` replaces its credentials"
                )
            hashes, entries = passwords.read(self.passwords), self.entries()
            # the password first: whoever is in one file only has no way in
            passwords.save(
                self.passwords, {user: made for user, made in hashes.items() if user not in gone}
            )
            members.save(
                self.members, {user: entry for user, entry in entries.items() if user not in gone}
            )
            for user in gone:
                self.file(user).unlink(missing_ok=True)
                log.append("expel", user=user)
        return gone

    def renew(self, days: int = SERVER_DAYS, hosts: Sequence[str] = ()) -> datetime.datetime:
        """A new certificate and key for the broker, of the same authority; returns when it ends.

        `hosts` empty: for the hosts of the present one. Every user's credentials stay good.
        """
        from covey.broker.access.authority import expiry, hosts_of

        with self._changing() as log:
            authority = self._authority()
            present = (self.folder / "server.pem").read_bytes()
            names = list(hosts) or hosts_of(present)
            server = _server_certificate(authority, names, days)
            # a broker that starts between the two sees a pair that does not fit and says so; a running one reads both
            write_private(self.folder / "server.key", server.key)
            write_private(self.folder / "server.pem", server.certificate)
            until = expiry(server.certificate)
            log.append("renew", hosts=names, until=until.isoformat(timespec="seconds"))
        return until

    def certificates(self) -> dict[str, str]:
        """When the certificates expire, as dates by file; empty where cryptography is missing."""
        return {name: f"{until:%Y-%m-%d}" for name, until in self._expiries().items()}

    def _expiries(self) -> dict[str, datetime.datetime]:
        try:
            from covey.broker.access.authority import expiry
        except ImportError:
            return {}
        return {
            name: expiry((self.folder / name).read_bytes()) for name in ("server.pem", "ca.pem")
        }

    def warnings(self) -> list[str]:
        """Certificates that end soon or have ended, each with what to do."""
        found, expiries = [], self._expiries()
        for name, cure in (
            ("server.pem", f"run `broker renew --home {self.folder}`"),
            ("ca.pem", "make a new folder with `broker init` and enrol every user again"),
        ):
            if name not in expiries:
                continue
            left = expiries[name] - datetime.datetime.now(datetime.UTC)
            if left <= datetime.timedelta():
                found.append(
                    f"warning: the certificate {self.folder / name} has expired, no client connects; {cure}"
                )
            elif left < datetime.timedelta(days=WARN_DAYS):
                found.append(
                    f"warning: the certificate {self.folder / name} expires in {left.days} days; {cure}"
                )
        return found

    def _known(self, user: str) -> Entry:
        entries = self.entries()
        if user not in entries or user not in passwords.read(self.passwords):
            there = ", ".join(sorted(set(entries) - {COORDINATOR})) or "none"
            raise UserError(f"{user}: no such agent; enrolled are {there}")
        return entries[user]

    def _add(self, users: Sequence[str], role: Role, federation: str) -> list[Path]:
        """Give each user a new password. The caller holds the lock."""
        authority = (self.folder / "ca.pem").read_text()
        private_folder(self.folder / "users")
        hashes, entries = passwords.read(self.passwords), self.entries()
        for user in users:
            password = secrets.token_urlsafe(PASSWORD_BYTES)
            own = replace(self.url, user=user, password=password)
            text = credentials.render(
                user, own, authority, role=role, federation="" if federation == ANY else federation
            )
            write_private(self.file(user), text.encode())
            hashes[user] = passwords.hash_password(password)
            entries[user] = Entry(role=role, federation=federation, since=members.now())
        members.save(
            self.members, entries
        )  # before the password: a user without a role has no rights
        passwords.save(self.passwords, hashes)
        return [self.file(user) for user in users]

    def _authority(self) -> Authority:
        from covey.broker.access.authority import Authority

        try:
            return Authority.load(
                (self.folder / "ca.pem").read_bytes(), (self.folder / "ca.key").read_bytes()
            )
        except (ValueError, TypeError) as error:
            raise UserError(
                f"{self.folder}: ca.pem and ca.key: {error}; expected those that `broker init` wrote"
            ) from None

    @contextmanager
    def _changing(self) -> Iterator[AuditLog]:
        """Hold the folder against other commands; gives its audit log. Waits for a command that is at work."""
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _wait_for_lock(descriptor, self.folder)
            log = AuditLog(self.folder / "audit.jsonl", AUDIT_OWNER)
            (self.folder / "audit.jsonl").chmod(0o600)
            yield log
            log.sync()
        finally:
            os.close(descriptor)


def _wait_for_lock(descriptor: int, folder: Path) -> None:
    end = time.monotonic() + LOCK_WITHIN_S
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if time.monotonic() > end:
            raise UserError(
                f"{folder}: another command has held the folder for {LOCK_WITHIN_S:g} s; end it and try again"
            )
        time.sleep(0.02)


def _new_authority(days: int) -> Authority:
    try:
        from covey.broker.access.authority import Authority
    except ImportError:
        raise UserError(MISSING_LIBRARY) from None
    return Authority.create("Covey broker", days)


def _server_certificate(authority: Authority, hosts: Sequence[str], days: int) -> Signed:
    try:
        return authority.sign(hosts, days)
    except ValueError as error:
        raise UserError(
            f"--host {', '.join(hosts)}: {error}; expected names or IP addresses"
        ) from None
