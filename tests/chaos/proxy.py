"""A TCP proxy between every party and the broker: passes MQTT on, packet by packet, in the weather of the moment."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from tests.chaos.packets import CONNECT, Packets, client_id, kind, once_more

Party = Literal["coordinator", "agents", "all"]
READ_BYTES = 1 << 16
RESEND_S = 0.2  # after which TCP sends a lost packet again, and then twice as long


@dataclass(eq=False)
class Connection:
    """One client's connection: two streams, each with a reader and a writer."""

    client: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    broker: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    party: Party = "all"  # until its CONNECT has said who it is
    torn: bool = False  # the next packet is cut in its middle

    def of(self, party: Party) -> bool:
        """Does a fault of this party concern it?"""
        return party in ("all", self.party)

    def abort(self) -> None:
        """End both sides at once, without a goodbye."""
        for _, writer in (self.client, self.broker):
            writer.transport.abort()


@dataclass
class Proxy:
    """Listens on `port` and connects to `upstream` on this machine. Faults are methods; `counts` holds what they hit."""

    port: int
    upstream: int
    delay_s: float = 0.0  # of each packet, as in a mobile network
    counts: Counter[str] = field(default_factory=Counter)
    _open: set[Connection] = field(default_factory=set)
    _stalled: dict[Party, asyncio.Event] = field(default_factory=dict)
    _rates: dict[Party, float] = field(default_factory=dict)
    _doubled: set[Party] = field(default_factory=set)
    _lost: float = 0.0  # share of the packets
    _dice: random.Random = field(default_factory=lambda: random.Random("loss"))  # noqa: S311 - bad luck, no secrets
    _server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen until `stop`."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def stop(self) -> None:
        """Listen no more, and end what is open."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._open):
            connection.abort()
        await asyncio.sleep(0)

    # faults

    def cut(self, party: Party, *, torn: bool = False) -> None:
        """End connections: now, or in the middle of their next packet."""
        for connection in [connection for connection in self._open if connection.of(party)]:
            self.counts["cut"] += 1
            if torn:
                connection.torn = True
            else:
                connection.abort()

    def half_close(self, party: Party, *, towards_broker: bool) -> None:
        """End one direction only; the other one continues for as long as both sides let it."""
        for connection in [connection for connection in self._open if connection.of(party)]:
            _, writer = connection.broker if towards_broker else connection.client
            with contextlib.suppress(OSError, RuntimeError):
                writer.write_eof()
                self.counts["half_close"] += 1

    async def stall(self, party: Party, seconds: float) -> None:
        """Let nothing pass for a while, in either direction; nothing is lost."""
        gate = self._stalled[party] = asyncio.Event()
        await asyncio.sleep(seconds)
        self._stalled.pop(party, None)
        gate.set()

    async def throttle(self, party: Party, rate: float, seconds: float) -> None:
        """Limit each direction of each connection to `rate` bytes per second for a while."""
        self._rates[party] = rate
        await asyncio.sleep(seconds)
        self._rates.pop(party, None)

    async def lose(self, share: float, seconds: float) -> None:
        """Lose this share of the packets for a while. TCP sends what was lost again, so a program sees it late: so does this."""
        self._lost = share
        await asyncio.sleep(seconds)
        self._lost = 0.0

    async def duplicate(self, party: Party, seconds: float) -> None:
        """Repeat every PUBLISH at QoS 1 for a while, in both directions."""
        self._doubled.add(party)
        await asyncio.sleep(seconds)
        self._doubled.discard(party)

    # passing on

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            broker = await asyncio.open_connection("127.0.0.1", self.upstream)
        except OSError:  # it is being restarted
            writer.transport.abort()
            return
        connection = Connection((reader, writer), broker)
        self._open.add(connection)
        pumps = [
            asyncio.create_task(self._pump(connection, reader, broker[1], up=True)),
            asyncio.create_task(self._pump(connection, broker[0], writer, up=False)),
        ]
        try:
            await asyncio.wait(pumps)
        finally:
            for pump in pumps:
                pump.cancel()
            self._open.discard(connection)
            connection.abort()

    async def _pump(
        self,
        connection: Connection,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        *,
        up: bool,
    ) -> None:
        packets = Packets()
        with contextlib.suppress(OSError, ValueError):
            while data := await source.read(READ_BYTES):
                for packet in packets.feed(data):
                    if up and kind(packet) == CONNECT:
                        connection.party = (
                            "coordinator" if "-coordinator-" in client_id(packet) else "agents"
                        )
                    await self._pass(connection, packet, target)
            target.write_eof()

    async def _pass(
        self, connection: Connection, packet: bytes, target: asyncio.StreamWriter
    ) -> None:
        for party, gate in list(self._stalled.items()):
            if connection.of(party):
                self.counts["stall"] += 1
                await gate.wait()
        await asyncio.sleep(self.delay_s)
        again_s = RESEND_S
        while self._dice.random() < self._lost:
            self.counts["lost"] += 1
            await asyncio.sleep(again_s)
            again_s *= 2
        for party, rate in list(self._rates.items()):
            if connection.of(party):
                self.counts["throttle"] += 1
                await asyncio.sleep(len(packet) / rate)
        if connection.torn:
            target.write(packet[: len(packet) // 2])
            await target.drain()
            connection.abort()
            return
        target.write(packet)
        again = once_more(packet)
        if again is not None and any(connection.of(party) for party in self._doubled):
            self.counts["duplicate"] += 1
            target.write(again)
        await target.drain()
