"""Ports to listen on: the one that the user requests, or a free one.

A free port is chosen before the broker listens there, as Mosquitto cannot choose one. Another program may take it
meanwhile; then the next one is tried.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Awaitable, Callable

from covey.broker.programs.options import Options
from covey.shared.errors import UserError

FREE_PORT_ATTEMPTS = 5


class PortTakenError(UserError):
    """Another program took the port between our look at it and the broker's."""


async def start_on_port(
    options: Options, start: Callable[[int], Awaitable[None]], option: str = "--port"
) -> int:
    """Start something on the requested port, or on a free one.

    Args:
        options: of the broker, with its host and the requested port; 0 for a free one.
        start: listens on the port that it gets, or raises PortTakenError and leaves nothing behind.
        option: that a user chooses the port with, for messages.

    Returns:
        the port.

    Raises:
        UserError: the port is taken or not permitted; or whatever `start` raises.
    """
    attempts = 1 if options.port else FREE_PORT_ATTEMPTS
    while True:
        attempts -= 1
        port = free_port(options, option)
        try:
            await start(port)
        except PortTakenError:
            if attempts == 0:
                raise
        else:
            return port


def free_port(options: Options, option: str = "--port") -> int:
    """The requested port, or a free one for 0. Raises UserError, which names the option, if it is taken or not permitted."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((options.host, options.port))
        except OSError as error:
            raise UserError(cannot_listen(options.host, options.port, error, option)) from None
        return int(probe.getsockname()[1])


def cannot_listen(host: str, port: int, error: OSError, option: str = "--port") -> str:
    """The message about a port that cannot be used."""
    why = error.strerror or str(error)
    place = f"port {port} on {host}: {why}"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"{place}; expected an address of this machine: choose another with --host (0.0.0.0: all)"
    if isinstance(error, PermissionError):
        return f"{place}; this user may use ports from 1024 on: choose one with {option}"
    return (
        f"{place}; stop the program that uses it, or choose another with {option} (0: any free one)"
    )
