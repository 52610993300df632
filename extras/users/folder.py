"""The folder of a broker: its certificates, its users, and a credentials file for each of them.

address                                    where users find the broker
ca.pem  ca.key  server.pem  server.key     certificates and keys of the authority and of the broker
fleet.key                                  signs the entries of agents for secure sums; may lie offline
expelled.json                              serials of expelled entries, and their signed list, by federation
passwords                                  who may connect, in the format of mosquitto_passwd
members.json                               each user's role and federation
users/coordinator.pem  users/pi-7.pem      credentials, for `--credentials` of every program that connects
retained/                                  the messages that Mosquitto keeps over restarts
audit.jsonl                                every change, with its time

Every change reads and writes under one lock, so that commands that run at the same time do not undo one another.
"""

from __future__ import annotations

import datetime
import fcntl
import os
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from covey.broker.access import members, passwords
from covey.broker.access.acl import ANY, Role, id_of, is_user
from covey.broker.access.members import StoredUser
from covey.broker.programs.options import BrokerOptions
from covey.shared import extras
from covey.shared.errors import UserError, install
from covey.shared.mqtt import credentials
from covey.shared.mqtt.broker_url import PORTS, SYSTEM_TLS, BrokerUrl
from covey.shared.mqtt.credentials import COORDINATOR, Credentials
from covey.shared.storage import json_text
from covey.shared.storage.audit import AuditLog
from covey.shared.storage.files import private_folder, write_private
from covey.shared.wire.topics import is_name

if TYPE_CHECKING:
    from covey.extras.users.authority import Authority, Signed

PASSWORD_BYTES = 24
KEY_BYTES = 32  # of a device's signing key
FLEET_KEY = "fleet.key"
EXPELLED = "expelled.json"
RENEW_DAYS = 30  # that an entry is still valid when it is signed again
RETAINED = "retained"  # the folder in it with the messages that the broker keeps
SERVER_DAYS = 90
AUTHORITY_DAYS = 3650
WARN_DAYS = 14  # before a certificate expires
DEFAULT_FEDERATION = "default"
LOCK_WITHIN_S = 60.0
LOCK_POLL_S = 0.02
AUDIT_OWNER = "broker folder"
MISSING_LIBRARY = f"certificates need cryptography: {install('broker')}"


@dataclass(frozen=True)
class Renewed:
    """What `BrokerFolder.renew` has done."""

    until: datetime.datetime  # the end of the broker's new certificate, in UTC
    former: datetime.datetime | None = None  # of the authority's former one; None: it was kept
    files: Mapping[str, bool] = field(
        default_factory=dict
    )  # by user: do the credentials here have the new one


@dataclass(frozen=True)
class BrokerFolder:
    """An existing folder of a broker.

    Raises:
        UserError: `folder` was not made by `create`.
    """

    folder: Path

    def __post_init__(self) -> None:
        if not self._address.is_file():
            raise UserError(
                f"{self.folder}: not a broker's folder; create one with `broker init --home {self._typed} --host NAME`"
            )

    @property
    def _typed(self) -> str:
        """The folder as a user types it in a shell."""
        return shlex.quote(str(self.folder))

    @classmethod
    def create(
        cls,
        folder: Path,
        hosts: Sequence[str],
        port: int,
        days: int = SERVER_DAYS,
        authority_days: int = AUTHORITY_DAYS,
    ) -> BrokerFolder:
        """Create a folder with a new authority, the broker's certificate, and the coordinator as the first user.

        Args:
            folder: a new or empty folder.
            hosts: names and addresses of the broker; credentials contain the first one.
            port: of the broker, for TLS.
            days: how long the broker's certificate is valid.
            authority_days: how long the authority is valid.

        Raises:
            UserError: the folder is not empty, or a host is not valid.
        """
        if folder.exists() and any(folder.iterdir()):
            raise UserError(f"{folder} is not empty; expected a new folder, nothing was changed")
        _check_hosts(hosts)
        address = BrokerUrl(hosts[0], port, tls=SYSTEM_TLS)
        authority = _new_authority(authority_days)
        server = _server_certificate(authority, hosts, days)
        private_folder(folder)
        write_private(folder / "ca.key", authority.own.key)
        if extras.has("secure"):
            secret = extras.part("secure", "fleet_key").new_secret()
            write_private(folder / FLEET_KEY, f"{secret.hex()}\n".encode())
        write_private(folder / "server.key", server.key)
        write_private(folder / "ca.pem", authority.own.certificate)
        write_private(folder / "server.pem", server.certificate)
        passwords.save(folder / "passwords", {})
        members.save(folder / "members.json", {})
        write_private(folder / "address", f"{address}\n".encode())
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
        """The address in the users' credentials."""
        return BrokerUrl.parse(self._address.read_text().strip())

    def options(
        self, given: BrokerOptions, *, host: str | None, port: int | None, keeps_retained: bool
    ) -> BrokerOptions:
        """The options of a broker that serves this folder.

        Args:
            given: the options from the command line.
            host: address to listen on; None: all, because a password is required.
            port: None: that of the credentials.
            keeps_retained: can the broker keep retained messages over restarts?
        """
        private_folder(self.folder)
        if not host:
            host = "0.0.0.0"  # noqa: S104  devices are elsewhere, and everyone needs a password
        if port is None:
            port = self.url.port
        data = given.data
        if data is None and keeps_retained:
            data = self.folder / RETAINED
        return replace(
            given,
            host=host,
            port=port,
            data=data,
            passwords=self.passwords,
            members=self.members,
            tls_cert=self.folder / "server.pem",
            tls_key=self.folder / "server.key",
        )

    def file(self, user: str) -> Path:
        """The credentials file of a user."""
        return self.folder / "users" / f"{user}.pem"

    def entries(self) -> dict[str, StoredUser]:
        """Every user with role and federation."""
        return members.load(self.members)

    # -- changes -----------------------------------------------------------------------------------

    def enroll(self, user: str, role: Role = "agent", federation: str = DEFAULT_FEDERATION) -> Path:
        """Add one user and return its credentials file. See `enroll_all`."""
        return self.enroll_all([user], role, federation)[0]

    def enroll_all(
        self,
        users: Sequence[str],
        role: Role = "agent",
        federation: str = DEFAULT_FEDERATION,
        key: bytes = b"",
    ) -> list[Path]:
        """Add users: all of them or, if one is refused, none. A running broker accepts them at once.

        Args:
            users: their names.
            role: of all of them.
            federation: of all of them.
            key: the signing key of the only user, from `agent lab keys`; its credentials then have an entry for secure sums.

        Returns:
            Their credentials files, in the order of the users.

        A name that another federation has becomes the user `name@federation`, whose device has the same id.

        Raises:
            UserError: an invalid name, an invalid federation, or a user who is enrolled already.
        """
        for user in users:
            if not is_name(user) or user == COORDINATOR:
                raise UserError(
                    f"{user!r}: expected an id of letters, digits, '.', '_' and '-', at most 64, and not {COORDINATOR}"
                )
        if federation != ANY and not is_name(federation):
            raise UserError(
                f"--federation {federation!r}: use letters, digits, '.', '_' and '-', at most 64; or {ANY} for any"
            )
        with self._changing() as log:
            known = passwords.read(self.passwords)
            entries = self.entries()
            of_others = {
                user
                for user in users
                if user in entries and ANY not in (federation, entries[user].federation)
                if entries[user].federation != federation
            }
            users = [f"{user}@{federation}" if user in of_others else user for user in users]
            for user in users:
                if user in known or not is_user(user):
                    raise UserError(
                        f"{user} is enrolled already, with the credentials {self.file(user)}; replace them with "
                        f"`broker lab rotate {user}` or revoke them with `broker expel {user}`"
                    )
            keys = {users[0]: self._checked_key(users, federation, key)} if key else {}
            files = self._add(users, role, federation, keys)
            for user in users:
                log.append("enroll", user=user, role=role, federation=federation)
        return files

    def note(self, act: str, **fields: str) -> None:
        """Add a line to the audit log, for what changes nothing in the folder."""
        with self._changing() as log:
            log.append(act, **fields)

    def rotate(self, user: str) -> Path:
        """Replace a user's password and credentials file. The old ones stop working, and their connections end."""
        with self._changing() as log:
            entry = self._known(user)
            files = self._add([user], entry.role, entry.federation, self._keys_of(user))
            log.append("rotate", user=user)
        return files[0]

    def expel(self, agent: str) -> None:
        """Remove one user. See `expel_all`."""
        self.expel_all([agent])

    def expel_all(self, users: Sequence[str]) -> dict[str, StoredUser]:
        """Revoke the credentials of these users: of all or, if one is unknown, of none. Their connections end.

        Returns:
            Role and federation that each of them had.

        Raises:
            UserError: an unknown user, or the coordinator.
        """
        with self._changing() as log:
            gone = {user: self._known(user) for user in users}
            if COORDINATOR in gone:
                raise UserError(
                    f"{COORDINATOR}: no such agent; replace the coordinator's credentials with `broker lab rotate {COORDINATOR}`"
                )
            self._expel_entries(gone)
            hashes = passwords.read(self.passwords)
            entries = self.entries()
            for user in gone:
                hashes.pop(user)
                entries.pop(user)
            # the password first: a user who is in one file only cannot connect
            passwords.save(self.passwords, hashes)
            members.save(self.members, entries)
            for user in gone:
                self.file(user).unlink(missing_ok=True)
                log.append("expel", user=user)
        return gone

    def sign(self) -> list[Path]:
        """Sign what waits for the fleet key: entries that end soon, and lists of expelled entries. A folder without a key gets one.

        Returns:
            The credentials files that have changed; their passwords are as before.

        Raises:
            UserError: the fleet key lies elsewhere.
        """
        fleet_key = extras.part("secure", "fleet_key")

        with self._changing() as log:
            owners = [user for user in sorted(self.entries()) if self._keys_of(user)]
            if not (self.folder / FLEET_KEY).exists() and not owners:
                secret = fleet_key.new_secret()
                write_private(self.folder / FLEET_KEY, f"{secret.hex()}\n".encode())
            self._sign_expelled(self._fleet_secret("what waits for it"))
            files = [self.file(user) for user in owners if self._signed_again(user)]
            log.append("sign", files=[file.name for file in files])
        return files

    def expelled(self) -> dict[str, tuple[list[int], bytes]]:
        """Serials of expelled entries by federation, and their signed list; empty: it waits for the fleet key."""
        try:
            found = json_text.loads((self.folder / EXPELLED).read_text())
        except FileNotFoundError:
            return {}
        return {name: (serials, bytes.fromhex(text)) for name, (serials, text) in found.items()}

    def _keep_expelled(self, expelled: Mapping[str, tuple[list[int], bytes]]) -> None:
        found = {name: (serials, signed.hex()) for name, (serials, signed) in expelled.items()}
        write_private(self.folder / EXPELLED, json_text.dumps(found).encode())

    def _expel_entries(self, users: Mapping[str, StoredUser]) -> None:
        """Keep the serials of users who go; their list is signed by `sign`."""
        expelled = self.expelled()
        for user, known in users.items():
            if self._keys_of(user):
                messages = extras.part("secure", "messages")

                entry = messages.Entry.from_bytes(credentials.read(self.file(user)).entry)
                serials, _ = expelled.get(known.federation, ([], b""))
                expelled[known.federation] = ([*serials, entry.serial], b"")
        if expelled:
            self._keep_expelled(expelled)

    def _sign_expelled(self, secret: bytes) -> None:
        fleet_key = extras.part("secure", "fleet_key")

        now_ms = int(time.time() * 1000)
        signed = {
            name: (serials, before or fleet_key.signed_list(secret, name, serials, now_ms))
            for name, (serials, before) in self.expelled().items()
        }
        if signed:
            self._keep_expelled(signed)

    def _signed_again(self, user: str) -> bool:
        """Whether a user's credentials got a new entry, or a new list of expelled ones."""
        messages = extras.part("secure", "messages")

        own, known = credentials.read(self.file(user)), self.entries()[user]
        entry, fleet = own.entry, own.fleet
        if messages.Entry.from_bytes(entry).until < time.time() + RENEW_DAYS * 86_400:
            entry, fleet = self._entry(id_of(user), known.federation, self._keys_of(user)[user])
        _, expelled = self.expelled().get(known.federation, ([], b""))
        if (entry, expelled) == (own.entry, own.expelled):
            return False
        self._write(user, replace(own, entry=entry, fleet=fleet, expelled=expelled))
        return True

    def _written_again(self, user: str) -> bool:
        """Write a user's credentials again. False where they are not here any more."""
        try:
            self._write(user, credentials.read(self.file(user)))
        except (FileNotFoundError, UserError):
            return False
        return True

    def _write(self, user: str, own: Credentials) -> None:
        """Write a user's credentials again, with the authority's present certificate."""
        text = credentials.render(
            own.id,
            BrokerUrl.parse(own.broker),
            (self.folder / "ca.pem").read_text(),
            role=own.role,
            federation=own.federation,
            entry=own.entry,
            fleet=own.fleet,
            expelled=own.expelled,
        )
        write_private(self.file(user), text.encode())

    def renew(self, days: int = SERVER_DAYS, hosts: Sequence[str] = ()) -> Renewed:
        """Replace the broker's certificate and key, by the same authority. Users' credentials stay valid.

        An authority that would end before the new certificate, and has more than half of its time behind it, is renewed as
        well: with the same key, so that devices need their new credentials files only before the former certificate ends.

        Args:
            days: how long the certificate is valid.
            hosts: names and addresses in it; empty: those of the present certificate.

        Returns:
            When the new certificate expires, and what happened to the authority.
        """
        from covey.extras.users.authority import expiry, hosts_of

        with self._changing() as log:
            authority = self._authority()
            present = (self.folder / "server.pem").read_bytes()
            _check_hosts(hosts)
            names = list(hosts) or hosts_of(present)
            former = authority.until
            now = datetime.datetime.now(datetime.UTC)
            files: dict[str, bool] = {}
            if authority.is_old(now) and (former - now).days < days:
                authority = authority.renewed()
                write_private(self.folder / "ca.pem", authority.own.certificate)
                files = {user: self._written_again(user) for user in sorted(self.entries())}
                log.append("renew authority", until=authority.until.isoformat(timespec="seconds"))
            server = _server_certificate(authority, names, days)
            # a broker that starts between the two writes refuses the pair; a running one reads both later
            write_private(self.folder / "server.key", server.key)
            write_private(self.folder / "server.pem", server.certificate)
            until = expiry(server.certificate)
            log.append("renew", hosts=names, until=until.isoformat(timespec="seconds"))
        return Renewed(until, former if files else None, files)

    def certificates(self) -> dict[str, str]:
        """When the certificates expire, as dates by file; empty if cryptography is not installed."""
        return {name: f"{until:%Y-%m-%d}" for name, until in self._expiries().items()}

    def _expiries(self) -> dict[str, datetime.datetime]:
        try:
            from covey.extras.users.authority import expiry
        except ImportError:
            return {}
        return {
            name: expiry((self.folder / name).read_bytes()) for name in ("server.pem", "ca.pem")
        }

    def warnings(self) -> list[str]:
        """A line for each certificate that has expired or expires soon, with what to do."""
        found = []
        now = datetime.datetime.now(datetime.UTC)
        expiries = self._expiries()
        for name, cure in (
            ("server.pem", f"run `broker lab renew --home {self._typed}`"),
            (
                "ca.pem",
                f"run `broker lab renew --home {self._typed}` and copy the files in users/ to their devices",
            ),
        ):
            if name not in expiries:
                continue
            left = expiries[name] - now
            if left <= datetime.timedelta():
                found.append(
                    f"warning: the certificate {self.folder / name} has expired, clients refuse the connection; {cure}"
                )
            elif left < datetime.timedelta(days=WARN_DAYS):
                found.append(
                    f"warning: the certificate {self.folder / name} expires in {left.days} days; {cure}"
                )
        return found

    def _known(self, user: str) -> StoredUser:
        """The user's entry. Raises UserError for an unknown user."""
        entries = self.entries()
        if user not in entries or user not in passwords.read(self.passwords):
            enrolled = ", ".join(sorted(entries.keys() - {COORDINATOR})) or "none"
            raise UserError(f"{user}: no such agent; enrolled are {enrolled}")
        return entries[user]

    def _checked_key(self, users: Sequence[str], federation: str, key: bytes) -> bytes:
        """The key of the only user. Raises UserError where no entry can be made for it."""
        if len(users) != 1 or federation == ANY or len(key) != KEY_BYTES:
            raise UserError(
                "--key: expected one user of one federation, and the 64 digits that `agent lab keys` prints on its device"
            )
        return key

    def _keys_of(self, user: str) -> dict[str, bytes]:
        """The signing key in a user's credentials, if they have one."""
        try:
            entry = credentials.read(self.file(user)).entry
        except (FileNotFoundError, UserError):
            return {}
        if not entry:
            return {}
        fleet_key = extras.part("secure", "fleet_key")

        return {user: fleet_key.key_of_entry(entry)}

    def _entry(self, user: str, federation: str, key: bytes) -> tuple[bytes, bytes]:
        """A user's entry for secure sums, and the public fleet key. Raises UserError where the fleet key lies elsewhere."""
        fleet_key = extras.part("secure", "fleet_key")

        secret = self._fleet_secret(f"the entry of {user}, or omit --key")
        now_ms = int(time.time() * 1000)
        entry = fleet_key.signed_entry(
            secret, federation, user, key=key, now_ms=now_ms, days=fleet_key.ENTRY_DAYS
        )
        return entry, fleet_key.public_fleet_key(secret)

    def _fleet_secret(self, what: str) -> bytes:
        """The secret of the fleet key. Raises UserError, with what it should sign, where it lies elsewhere."""
        path = self.folder / FLEET_KEY
        try:
            return bytes.fromhex(path.read_text())
        except FileNotFoundError:
            raise UserError(
                f"{path}: the fleet key is not here; bring it back to sign {what}"
            ) from None

    def _add(
        self, users: Sequence[str], role: Role, federation: str, keys: Mapping[str, bytes] = {}
    ) -> list[Path]:
        """Give each user a new password and a new credentials file. The caller holds the lock.

        Args:
            users: their names.
            role: of all of them.
            federation: of all of them.
            keys: signing keys of some of them, which get an entry for secure sums.
        """
        authority = (self.folder / "ca.pem").read_text()
        private_folder(self.folder / "users")
        hashes = passwords.read(self.passwords)
        entries = self.entries()
        files = []
        for user in users:
            password = secrets.token_urlsafe(PASSWORD_BYTES)
            entry, fleet, expelled = b"", b"", b""
            if user in keys:
                entry, fleet = self._entry(id_of(user), federation, keys[user])
                _, expelled = self.expelled().get(federation, ([], b""))
            text = credentials.render(
                id_of(user),
                replace(self.url, user=user, password=password),
                authority,
                role=role,
                federation="" if federation == ANY else federation,
                entry=entry,
                fleet=fleet,
                expelled=expelled,
            )
            file = self.file(user)
            write_private(file, text.encode())
            files.append(file)
            hashes[user] = passwords.hash_password(password)
            entries[user] = StoredUser(role=role, federation=federation, since=members.now())
        # the role before the password: a user without a role has no rights
        members.save(self.members, entries)
        passwords.save(self.passwords, hashes)
        return files

    def _authority(self) -> Authority:
        from covey.extras.users.authority import Authority

        certificate = (self.folder / "ca.pem").read_bytes()
        key = (self.folder / "ca.key").read_bytes()
        try:
            return Authority.load(certificate, key)
        except (ValueError, TypeError) as error:
            raise UserError(
                f"{self.folder}: ca.pem and ca.key: {error}; expected the files that `broker init` wrote"
            ) from None

    @contextmanager
    def _changing(self) -> Iterator[AuditLog]:
        """Lock the folder against other commands and yield its audit log. Waits for a running command."""
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            private_folder(self.folder)  # it may have been copied or opened since
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
                f"{folder}: another command has locked the folder for {LOCK_WITHIN_S:g} s; end that command and try again"
            )
        time.sleep(LOCK_POLL_S)


def _check_hosts(hosts: Sequence[str]) -> None:
    """Raise UserError for a host that no address of a broker can contain."""
    for host in hosts:
        BrokerUrl.parse(str(BrokerUrl(host, PORTS["mqtts"], tls=SYSTEM_TLS)))


def _new_authority(days: int) -> Authority:
    try:
        from covey.extras.users.authority import Authority
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
