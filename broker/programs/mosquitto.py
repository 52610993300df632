"""Mosquitto, the broker of record: its configuration, and its process from start to stop."""

from __future__ import annotations

import asyncio
import ctypes
import getpass
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Self

from covey.broker.access import acl
from covey.broker.limits import IN_FLIGHT, SESSION_HOURS, Limits
from covey.broker.programs.options import Options, free_port
from covey.broker.programs.process import BrokerProcess
from covey.shared.errors import UserError
from covey.shared.files import private_folder, write_private
from covey.shared.mqtt.broker_url import BrokerUrl, Tls

READY_S = 15.0
HELLO = bytes.fromhex(
    "100c00044d5154540402000a0000"
)  # CONNECT: MQTT 3.1.1, clean session, no name, 10 s


def find() -> str | None:
    """The program, also where a user's PATH leaves out the system's own folders."""
    return shutil.which("mosquitto") or shutil.which(
        "mosquitto", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin"
    )


def version(program: str) -> str:
    """For example "2.0.11"."""
    said = subprocess.run([program, "-h"], capture_output=True, text=True, timeout=10).stdout.split(
        "\n"
    )[0]
    return said.removeprefix("mosquitto version ").strip() or "unknown"


def render(options: Options, port: int, *, rules: Path | None = None) -> str:
    """A configuration with finite, ample limits. `rules`: the ACL file, for a broker that has users."""
    if options.rules != (rules is not None):
        raise ValueError("a broker with users needs an ACL file, and an open one has none")
    lines = [
        f"listener {port} {options.host}",
        f"max_connections {options.limits.connections}",
        f"user {getpass.getuser()}",  # as root it would become another user and lose sight of our files
        *_limits(options.limits),
        "set_tcp_nodelay true",
        "connection_messages false",
        f"allow_anonymous {str(not options.rules).lower()}",
    ]
    if options.log:
        lines += [f"log_dest file {options.log.resolve()}"]
    if options.data:
        lines += [
            "persistence true",
            f"persistence_location {options.data.resolve()}/",
            "autosave_interval 60",
        ]
    if options.passwords:
        lines += [f"password_file {options.passwords.resolve()}"]
    if rules:
        lines += [f"acl_file {rules.resolve()}"]
    if options.tls_cert and options.tls_key:
        lines += [f"certfile {options.tls_cert.resolve()}", f"keyfile {options.tls_key.resolve()}"]
    if options.tls_ca:
        lines += [
            f"cafile {options.tls_ca.resolve()}",
            "require_certificate true",
            "use_identity_as_username true",
        ]
    return "\n".join(lines) + "\n"


def _limits(limits: Limits) -> list[str]:
    """Mosquitto has one number for all clients, so the coordinator's needs decide: all agents may report at once."""
    return [
        f"max_packet_size {limits.packet_bytes}",
        f"memory_limit {limits.memory_bytes}",
        f"max_inflight_messages {IN_FLIGHT}",
        f"max_inflight_bytes {limits.in_flight_bytes}",
        f"max_queued_messages {limits.queued_messages}",
        f"max_queued_bytes {limits.queued_bytes}",
        f"persistent_client_expiration {SESSION_HOURS}h",
    ]


class Mosquitto(BrokerProcess):
    """`async with Mosquitto(...) as broker`: runs from entry to exit, reachable at `broker.url`.

    `config` replaces our configuration, as text with `{port}` in it. Raises UserError where mosquitto is
    missing, the port is taken, or it does not come up; with the last lines that it logged.
    """

    keeps_retained = True

    def __init__(self, options: Options | None = None, *, config: str | None = None) -> None:
        self.options = options or Options()
        program = find()
        if program is None:
            raise UserError(
                "mosquitto is not installed; install it (apt install mosquitto) or use --embedded"
            )
        self._program = program
        self._config = config
        self.name = f"mosquitto {version(program)}"
        self.url: BrokerUrl
        self._folder: tempfile.TemporaryDirectory[str]

    async def __aenter__(self) -> Self:
        port = free_port(self.options)
        self._folder = tempfile.TemporaryDirectory(prefix="covey-broker-")
        try:
            with (Path(self._folder.name) / "output.txt").open("wb") as output:
                self._process = await asyncio.create_subprocess_exec(
                    self._program,
                    "-c",
                    str(self._write_config(port)),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    preexec_fn=_die_with_parent(),
                )
            self.pid = self._process.pid
            await self._ready(port)
        except BaseException:
            await self.stop()
            raise
        self.url = self.options.url(port)
        return self

    def _write_config(self, port: int) -> Path:
        folder = Path(self._folder.name)
        rules = self._write_rules()
        if self.options.data:
            try:
                private_folder(self.options.data)
            except OSError as error:
                raise UserError(
                    f"--data {self.options.data}: {error.strerror}; a folder is wanted"
                ) from None
        config = folder / "mosquitto.conf"
        config.write_text(
            self._config.format(port=port)
            if self._config
            else render(self.options, port, rules=rules)
        )
        return config

    def _write_rules(self) -> Path | None:
        """The ACL file as the users' roles are now; None for an open broker."""
        if not self.options.rules:
            return None
        rules = Path(self._folder.name) / "rules.acl"
        write_private(rules, acl.render(self.options.roles()).encode())
        return rules

    def reload(self) -> None:
        """Have it read users and rules again; who is no longer among them loses its connection, without a last will."""
        self._write_rules()
        super().reload()

    async def _ready(self, port: int) -> None:
        host = self.options.url(port).host
        for _ in range(int(READY_S / 0.02)):
            if self._process.returncode is not None:
                break
            if await answers(host, port, tls=self.options.tls_cert is not None):
                return
            await asyncio.sleep(0.02)
        raise UserError(
            f"mosquitto did not start on {self.options.host}:{port}; it said:\n{self.log_tail()}"
        )

    def log_tail(self) -> str:
        files = [Path(self._folder.name) / "output.txt", self.options.log]
        lines = [
            line
            for file in files
            if file and file.exists()
            for line in file.read_text().splitlines()
        ]
        return "\n".join(f"  {line}" for line in lines[-8:])

    async def stop(self) -> None:
        """Ask the process to end, see to it, and remove its configuration."""
        await super().stop()
        self._folder.cleanup()


async def answers(host: str, port: int, *, tls: bool = False) -> bool:
    """Does an MQTT broker answer there? Behind TLS a handshake is enough: it may want a certificate of us."""
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=_trusting() if tls else None)
    except OSError:
        return False
    try:
        if tls:
            return True
        writer.write(HELLO)
        return (await asyncio.wait_for(reader.readexactly(2), 2.0))[0] == 0x20
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return False
    finally:
        writer.close()


def _trusting() -> ssl.SSLContext:
    """For our own broker, whoever its certificate says that it is."""
    return Tls(insecure=True).context()


def _die_with_parent() -> Callable[[], None] | None:
    """Linux can end a child together with its parent, however that one dies."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    set_death_signal = 1  # PR_SET_PDEATHSIG

    def ask() -> None:
        libc.prctl(set_death_signal, signal.SIGTERM)

    return ask
