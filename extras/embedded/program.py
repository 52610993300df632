"""The broker for machines without Mosquitto: pure Python, in a process of its own, without storage on disk.

`python -m covey.extras.embedded.program` is that process. It prints its port to standard output as JSON. It ends with
its standard input, so it never outlives the program that started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import ssl
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING, Self

from covey.broker.access import passwords
from covey.broker.limits import Limits
from covey.broker.programs.options import BrokerOptions
from covey.broker.programs.process import (
    BrokerProcess,
    PortTakenError,
    cannot_listen,
    start_on_port,
    until_closed,
)
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.programs.child import environment, first_line, python
from covey.shared.sentences import log_to_stderr
from covey.shared.storage import json_text

if TYPE_CHECKING:
    from covey.extras.embedded.hub import Hub, Users

READY_S = 30.0
HANDSHAKE_S = 10.0
PORT_TAKEN = 98  # exit code of the broker's process
FILES = ("passwords", "members", "tls_cert", "tls_key", "tls_ca")


class EmbeddedBroker(BrokerProcess):
    """Runs the embedded broker: `async with EmbeddedBroker(...) as broker`, at `broker.url` from entry to exit.

    Raises:
        UserError: the port is taken, or the process does not start.
    """

    keeps_retained = False

    def __init__(self, options: BrokerOptions | None = None) -> None:
        self.options = options or BrokerOptions()
        self.name = "embedded"
        self.url: BrokerUrl  # set once it is ready

    async def __aenter__(self) -> Self:
        self.url = self.options.url(await start_on_port(self.options, self._start))
        return self

    async def _start(self, port: int) -> None:
        log = self.options.log.open("ab") if self.options.log else None
        try:
            self._process = await asyncio.create_subprocess_exec(
                *python("covey.extras.embedded.program", *_arguments(self.options, port)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment(),
            )
        finally:
            if log:
                log.close()
        self.pid = self._process.pid
        await self._ready(port)

    async def _ready(self, port: int) -> None:
        if not await first_line(self._process, READY_S):
            # it ends by itself, with an exit code that a signal might lose
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), self.stop_s)
            await self.stop()
            if self._process.returncode == PORT_TAKEN:
                in_use = OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
                raise PortTakenError(cannot_listen(self.options.host, port, in_use))
            place = f"in {self.options.log}" if self.options.log else "above"
            raise UserError(
                f"the embedded broker did not start on {self.options.host}; its messages are {place}"
            )


def _arguments(options: BrokerOptions, port: int) -> list[str]:
    """The command line of the broker's process; `_parse` reads it."""
    limits = options.limits
    arguments = ["--host", options.host, "--port", str(port), "--agents", str(limits.agents)]
    arguments += ["--packet", str(limits.packet_bytes), "--memory", str(limits.memory_bytes)]
    for name in FILES:
        path = getattr(options, name)
        if path:
            arguments += [f"--{name.replace('_', '-')}", str(path)]
    return arguments


async def serve(options: BrokerOptions) -> None:
    """Run the broker until standard input ends."""
    # here, because only the broker's own process needs them
    from covey.extras.embedded.connection import Connection
    from covey.extras.embedded.hub import Hub

    hub = Hub(users=_users(options), limits=options.limits)
    loop = asyncio.get_running_loop()
    context = options.tls_context()
    loop.add_signal_handler(signal.SIGHUP, _reload, hub, options, context)
    server = await loop.create_server(
        lambda: Connection(hub),
        options.host,
        options.port,
        ssl=context,
        ssl_handshake_timeout=HANDSHAKE_S if context else None,
        backlog=4096,
    )
    print(json_text.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    async with server:
        await until_closed(sys.stdin)


def _users(options: BrokerOptions) -> Users | None:
    """The users as the files hold them now; None for an open broker."""
    from covey.extras.embedded.hub import Users

    if not options.rules:
        return None
    hashes = passwords.read(options.passwords) if options.passwords else None
    return Users(hashes, options.roles())


def _reload(hub: Hub, options: BrokerOptions, context: ssl.SSLContext | None) -> None:
    """Read users, roles and certificate again. What cannot be read stays as it was."""
    try:
        users = _users(options)
        if users is not None:
            hub.set_users(users)
        if context is not None and options.tls_cert is not None:
            context.load_cert_chain(options.tls_cert, options.tls_key, password="")
    except (UserError, OSError, ssl.SSLError) as error:
        logging.getLogger(__name__).warning("users and certificate are unchanged: %s", error)


def _parse(arguments: list[str]) -> BrokerOptions:
    parser = ArgumentParser(prog="python -m covey.extras.embedded.program")
    parser.add_argument("--host", default="127.0.0.1")
    for name in ("--port", "--agents", "--packet", "--memory"):
        parser.add_argument(name, type=int, required=True)
    for name in FILES:
        parser.add_argument(f"--{name.replace('_', '-')}", type=Path)
    given = vars(parser.parse_args(arguments))
    limits = Limits(given.pop("agents"), given.pop("packet"), given.pop("memory"))
    return BrokerOptions(limits=limits, **given)


def main() -> None:
    log_to_stderr()
    try:
        asyncio.run(serve(_parse(sys.argv[1:])))
    except UserError as error:
        sys.exit(f"broker: {error}")
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        sys.exit(PORT_TAKEN)
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
