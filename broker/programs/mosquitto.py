"""Mosquitto, the broker of record: its configuration, and its process from start to stop."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from covey.broker.access import acl
from covey.broker.limits import IN_FLIGHT, MIB, SESSION_HOURS, Limits
from covey.broker.programs.options import BrokerOptions
from covey.broker.programs.process import BrokerProcess, PortTakenError, start_on_port
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import BrokerUrl, Tls
from covey.shared.programs.child import death_with_parent
from covey.shared.storage.files import private_folder, write_private

READY_S = 15.0
POLL_S = 0.02
LOG_LINES = 8  # shown if it does not start
SAVE_EVERY_S = 60  # its retained messages, also if nothing has changed
OUTPUT = "output.txt"
BY_CLIENTS = (
    b"OpenSSL Error"  # a client that breaks off: no fault of the broker, and it could fill the log
)
DATABASE = "mosquitto.db"  # its retained messages, in the folder of `data`
PORT_TAKEN = "Address already in use"  # in its log
# CONNECT: MQTT 3.1.1, clean session, no client id, keep-alive of 10 s
CONNECT_PACKET = bytes.fromhex("100c00044d5154540402000a0000")
CONNACK_TYPE = 0x20


def find() -> str | None:
    """The path of the program, also in system folders that are missing from the user's PATH; None without it."""
    return shutil.which("mosquitto") or shutil.which(
        "mosquitto", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin"
    )


def version(program: str) -> str:
    """For example "2.0.11"."""
    done = subprocess.run([program, "-h"], capture_output=True, text=True, timeout=10)
    first_line, _, _ = done.stdout.partition("\n")
    return first_line.removeprefix("mosquitto version ").strip() or "unknown"


def render(options: BrokerOptions, port: int, *, rules: Path | None = None) -> str:
    """The configuration file, with finite but ample limits.

    Args:
        options: of the broker.
        port: to listen on.
        rules: the ACL file of a broker with users; None for an open one.
    """
    if options.rules != (rules is not None):
        raise ValueError("a broker with users needs an ACL file, an open broker has none")
    lines = [
        f"listener {port} {options.host}",
        f"max_connections {options.limits.connections}",
        f"user {getpass.getuser()}",  # started as root, it would become another user and could not read our files
        *_limits(options.limits),
        "set_tcp_nodelay true",
        "connection_messages false",
        f"allow_anonymous {str(not options.rules).lower()}",
    ]
    if not options.log:  # what the operator must learn, and no more, comes to `report`
        lines += ["log_dest stderr", "log_type error", "log_type warning", "log_timestamp false"]
    else:
        lines += [f"log_dest file {options.log.resolve()}"]
    if options.data:
        lines += [
            "persistence true",
            f"persistence_location {options.data.resolve()}/",
            f"autosave_interval {SAVE_EVERY_S}",
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
    """Mosquitto has the same limits for all clients, so the coordinator's decide: all agents may report at once."""
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
    """Runs Mosquitto: `async with Mosquitto(...) as broker`, at `broker.url` from entry to exit.

    Args:
        options: of the broker.
        config: replaces our configuration; a text with `{port}` in it.

    Raises:
        UserError: mosquitto is not installed, the port is taken, or it does not start (with the end of its log).
    """

    keeps_retained = True

    def __init__(self, options: BrokerOptions | None = None, *, config: str | None = None) -> None:
        self.options = options or BrokerOptions()
        program = find()
        if program is None:
            raise UserError(
                "mosquitto is not installed; install it (apt install mosquitto) or use --embedded"
            )
        self._program = program
        self._config = config
        self.name = f"mosquitto {version(program)}"
        self.url: BrokerUrl  # set once it is ready
        self.report: Callable[[str], None] = _discarded  # gets its errors and warnings
        self._reported = 0  # bytes of its output so far
        self._is_ready = False  # what it prints before belongs to the error of the start
        # configuration and rules, for as long as it runs
        self._folder: tempfile.TemporaryDirectory[str]

    async def __aenter__(self) -> Self:
        if self.options.data is not None:
            check_last_save(self.options.data)
        self.url = self.options.url(await start_on_port(self.options, self._start))
        self._is_ready = True
        with contextlib.suppress(OSError):
            self._reported = self._output.stat().st_size
        return self

    async def _start(self, port: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="covey-broker-")
        try:
            with self._output.open("wb") as output:
                self._process = await asyncio.create_subprocess_exec(
                    self._program,
                    "-c",
                    str(self._write_config(port)),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    preexec_fn=death_with_parent(),
                )
            self.pid = self._process.pid
            await self._ready(port)
        except BaseException:
            await self.stop()
            raise

    def _write_config(self, port: int) -> Path:
        folder = Path(self._folder.name)
        rules = self._write_rules()
        if self.options.data:
            private_folder(self.options.data)
        config = folder / "mosquitto.conf"
        content = render(self.options, port, rules=rules)
        if self._config:
            content = self._config.format(port=port)
        write_private(config, content.encode())
        return config

    def _write_rules(self) -> Path | None:
        """Write the ACL file for the present roles of the users. Returns None for an open broker."""
        if not self.options.rules:
            return None
        rules = Path(self._folder.name) / "rules.acl"
        write_private(rules, acl.render(self.options.roles()).encode())
        return rules

    def reload(self) -> None:
        """Have it read users and rules again. Removed users lose their connections; their last wills are not published."""
        self._write_rules()
        super().reload()

    async def _ready(self, port: int) -> None:
        host = self.options.url(port).host
        for _ in range(int(READY_S / POLL_S)):
            if self._process.returncode is not None:
                break
            if await answers(host, port, tls=self.options.tls_cert is not None):
                return
            await asyncio.sleep(POLL_S)
        messages = self.log_tail()
        kind = PortTakenError if PORT_TAKEN in messages else UserError
        raise kind(
            f"mosquitto did not start on {self.options.host}:{port}; its last messages:\n{messages}"
        )

    def log_tail(self) -> str:
        files = [self._output, self.options.log]
        lines: list[str] = []
        for file in files:
            if file is not None and file.exists():
                lines += file.read_text().splitlines()
        return "\n".join(f"  {line}" for line in lines[-LOG_LINES:])

    def report_messages(self) -> None:
        """Report the errors and warnings since the last call, such as a failed save."""
        if not self._is_ready:
            return
        lines: list[bytes] = []
        with contextlib.suppress(OSError), self._output.open("rb") as output:
            output.seek(self._reported)
            lines = output.readlines()
        self._reported += sum(map(len, lines))
        for line in [line for line in lines if BY_CLIENTS not in line][-LOG_LINES:]:
            self.report(f"mosquitto: {line.decode(errors='replace').strip()}")

    @property
    def _output(self) -> Path:
        return Path(self._folder.name) / OUTPUT

    async def stop(self) -> None:
        """Ask the process to end, kill it if it does not, and remove its configuration."""
        await super().stop()
        self.report_messages()
        self._folder.cleanup()


def _discarded(_: str) -> None:
    pass


def check_last_save(data: Path) -> None:
    """Raise a UserError if the last save of retained messages has failed: what is on disk is older than what clients know.

    Mosquitto writes `mosquitto.db.new` and renames it. On a full disk an empty one is left, and the next start would read
    the older file without a word.
    """
    leftover = data / f"{DATABASE}.new"
    if not leftover.is_file() or leftover.stat().st_size > 0:
        return
    saved = data / DATABASE
    when = "there is no earlier one"
    if saved.exists():
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(saved.stat().st_mtime))
        when = f"the one before is of {at}"
    free = shutil.disk_usage(data).free // MIB
    raise UserError(
        f"{leftover}: the last save of the retained messages failed, and {when}; what was published since, such as models of "
        f"finished runs, is lost. The disk has {free} MiB free. Make room, remove {leftover}, start the broker again, and "
        "publish models again with `coordinator promote`"
    )


async def answers(host: str, port: int, *, tls: bool = False) -> bool:
    """Whether an MQTT broker answers there. With TLS a handshake is enough, because the broker may require a certificate."""
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=_trusting() if tls else None)
    except OSError:
        return False
    try:
        if tls:
            return True
        writer.write(CONNECT_PACKET)
        head = await asyncio.wait_for(reader.readexactly(2), 2.0)
        return head[0] == CONNACK_TYPE
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return False
    finally:
        writer.close()


def _trusting() -> ssl.SSLContext:
    """A context that accepts any certificate, because the broker is our own."""
    return Tls(insecure=True).context()
