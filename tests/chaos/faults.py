"""The faults of a plan, carried out on a site. Each returns True where it hit something."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from covey.coordinator.disk.report_file import ReportFile
from covey.coordinator.serve.exclusive import ensure_single_coordinator
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import BrokerUrl
from tests.chaos.plan import Fault
from tests.chaos.site import FEDERATION, Broken, Program, Site, fill, flip, python
from tests.kit import spooled

BITS_PER_VALUE = 32
EXPONENT = 23  # the bit that doubles or halves a value; a lower one could vanish in a mean
SPOOL_S = 10.0  # so long is waited for a report to damage
REFUSAL_S = 60.0
USER_ERROR = 2  # exit code
FREEZE_S = 8.0  # longer than what counts as a busy machine


class Injector:
    """Carries out the faults of the run `name`. Lasting ones continue in the background until `settle`."""

    def __init__(self, site: Site, name: str) -> None:
        self.site, self.name = site, name
        self.folder = site.run / name
        self.lasting: list[asyncio.Task[None]] = []

    async def inject(self, fault: Fault) -> bool:
        """Let it happen. False where there was nothing for it to hit, or where this machine cannot do it."""
        deeds: dict[str, Callable[[Fault], Awaitable[bool]]] = {
            "cut": self._cut,
            "cut in a packet": self._cut,
            "stall": self._stall,
            "throttle": self._throttle,
            "duplicate": self._duplicate,
            "half-close": self._half_close,
            "kill coordinator": self._kill_coordinator,
            "freeze coordinator": self._freeze_coordinator,
            "freeze coordinator and cut": self._freeze_coordinator,
            "kill worker": self._kill_worker,
            "kill fleet": self._kill_fleet,
            "freeze fleet": self._freeze_fleet,
            "freeze worker": self._freeze_worker,
            "kill broker": self._kill_broker,
            "freeze broker": self._freeze_broker,
            "broker empty": self._broker_empty,
            "broker with an old database": self._broker_old,
            "broker with the database of another run": self._broker_of_another_run,
            "second coordinator": self._second_coordinator,
            "damage a spooled report": self._damage_spool,
            "lose a spooled report": self._damage_spool,
            "damage a checkpoint array": self._damage_checkpoint,
            "damage the start": self._damage_start,
            "damage an agent's report": self._damage_agent,
            "damage an agent's model": self._damage_agent,
            "damage an agent's memory": self._damage_agent,
            "put back the run folder": self._put_back,
            "full disk of the coordinator": self._full_disk,
            "full disk of the agents": self._full_disk,
        }
        return await deeds[fault.kind](fault)

    async def settle(self) -> None:
        """Wait for what lasts."""
        await asyncio.gather(*self.lasting)

    def _last(self, work: Awaitable[None]) -> None:
        self.lasting.append(asyncio.ensure_future(work))

    # the network

    async def _cut(self, fault: Fault) -> bool:
        self.site.proxy.cut(fault.party, torn="packet" in fault.kind)
        return True

    async def _stall(self, fault: Fault) -> bool:
        self._last(self.site.proxy.stall(fault.party, fault.seconds))
        return True

    async def _throttle(self, fault: Fault) -> bool:
        self._last(self.site.proxy.throttle(fault.party, 20_000.0, fault.seconds))
        return True

    async def _duplicate(self, fault: Fault) -> bool:
        self._last(self.site.proxy.duplicate(fault.party, fault.seconds))
        return True

    async def _half_close(self, fault: Fault) -> bool:
        self.site.proxy.half_close(fault.party, towards_broker=fault.chance < 0.5)
        return True

    # processes

    @property
    def _coordinator(self) -> Program:
        assert self.site.coordinator is not None
        return self.site.coordinator

    async def _resume(self) -> None:
        """Start again as a user would: a run that had not begun to be written begins again."""
        begun = (self.folder / "scenario.yaml").exists()
        await self.site.start_coordinator(self.name, *(["--resume"] if begun else []))

    async def _kill_coordinator(self, fault: Fault) -> bool:
        await self._coordinator.kill()
        await self._resume()
        return True

    async def _at_work(self) -> bool:
        """Wait until the coordinator answers at the broker. False where it ends before."""
        while self._coordinator.lives:
            try:
                await ensure_single_coordinator(BrokerUrl.parse(self.site.url), FEDERATION)
            except UserError:
                return True
            await asyncio.sleep(0.1)
        return False

    async def _freeze_coordinator(self, fault: Fault) -> bool:
        freeze = asyncio.ensure_future(self._coordinator.freeze(FREEZE_S))
        if "cut" in fault.kind:
            await asyncio.sleep(1.0)
            self.site.proxy.cut("coordinator")
        await freeze
        return True

    async def _kill_worker(self, fault: Fault) -> bool:
        workers = self.site.workers()
        for worker in workers:
            with contextlib.suppress(Exception):
                worker.kill()
        return bool(workers)

    async def _freeze_worker(self, fault: Fault) -> bool:
        with self._workers_frozen() as found:
            await asyncio.sleep(fault.seconds)
        return found

    @contextlib.contextmanager
    def _workers_frozen(self) -> Iterator[bool]:
        """Nobody trains for as long as the block lasts. Was there anybody who could?"""
        workers = self.site.workers()
        for worker in workers:
            with contextlib.suppress(Exception):
                worker.suspend()
        try:
            yield bool(workers)
        finally:
            for worker in workers:
                with contextlib.suppress(Exception):
                    worker.resume()

    async def _kill_fleet(self, fault: Fault) -> bool:
        await self._without_fleet(lambda: True)
        return True

    async def _without_fleet(self, meanwhile: Callable[[], bool]) -> bool:
        assert self.site.fleet is not None
        await self.site.fleet.kill()
        done = meanwhile()
        await self.site.start_fleet()
        return done

    async def _freeze_fleet(self, fault: Fault) -> bool:
        assert self.site.fleet is not None
        await self.site.fleet.freeze(fault.seconds)
        return True

    async def _second_coordinator(self, fault: Fault) -> bool:
        """Training stands still meanwhile, for the first coordinator must not be done before the second one is there."""
        site = self.site
        scenario, out = site.folder / f"{self.name}.yaml", site.folder / f"second-{self.name}"
        command = python(
            "covey.coordinator.cli",
            "run",
            str(scenario),
            "--out",
            str(out),
            "--broker",
            site.url,
            "--json",
        )
        with self._workers_frozen():
            if not await self._at_work():
                return False
            second = await Program.start(command, site.folder / f"second-{self.name}.log")
            try:
                await _ended(second, f"another coordinator is at work in federation '{FEDERATION}'")
            except Broken:
                if self._coordinator.lives:
                    raise
                return False  # all had reported before: the first was done, and the second one's run was its own
        return True

    # the broker

    async def _kill_broker(self, fault: Fault) -> bool:
        await self._broker_again(lambda: True)
        return True

    async def _broker_again(self, meanwhile: Callable[[], bool]) -> bool:
        assert self.site.broker is not None
        await self.site.broker.kill()
        done = meanwhile()
        await self.site.start_broker()
        return done

    async def _freeze_broker(self, fault: Fault) -> bool:
        assert self.site.broker is not None
        await self.site.broker.freeze(fault.seconds)
        return True

    async def _broker_empty(self, fault: Fault) -> bool:
        def empty() -> bool:
            self.site.database.unlink(missing_ok=True)
            return True

        return await self._broker_again(empty)

    async def _broker_old(self, fault: Fault) -> bool:
        """The database of a little while ago."""
        copy = self.site.folder / "broker" / "earlier.db"
        if not _copied(self.site.database, copy):
            return False
        rows = len(self.site.rows(self.name))
        await self._until_rows(rows + 1, 5.0)
        return await self._broker_again(lambda: _copied(copy, self.site.database))

    async def _broker_of_another_run(self, fault: Fault) -> bool:
        return await self._broker_again(lambda: _copied(self.site.old_database, self.site.database))

    # files

    async def _damage_spool(self, fault: Fault) -> bool:
        """Between a kill and the restart: an accepted report is not what it was, or is gone."""
        await self._caught_with_reports()
        await self._coordinator.kill()
        found = self._spooled()
        if found:
            path, client = found[int(fault.chance * len(found))]
            if fault.kind.startswith("lose"):
                spooled.lose(path, client)
            else:
                value = int(fault.chance * ReportFile(path).entry(client).size)
                spooled.flip(path, client, value * BITS_PER_VALUE + EXPONENT)
        await self._resume()
        return bool(found)

    async def _caught_with_reports(self) -> None:
        """Stop the coordinator at an instant at which reports lie in its spool, if there is one soon."""
        end = asyncio.get_running_loop().time() + SPOOL_S
        while asyncio.get_running_loop().time() < end and self._coordinator.lives:
            if spooled.files(self.folder):
                self._coordinator.process.send_signal(signal.SIGSTOP)
                if self._spooled():
                    return
                self._coordinator.process.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.005)

    def _spooled(self) -> list[tuple[Path, str]]:
        """Reports in the spool: their file and their client."""
        found = []
        for path in spooled.files(self.folder):
            for client in ReportFile(path).clients:
                found.append((path, client))
        return found

    async def _damage_checkpoint(self, fault: Fault) -> bool:
        """It is refused by name; the run continues once the file is restored."""
        await self._coordinator.kill()
        found = sorted((self.folder / "checkpoint" / "arrays").glob("*.safetensors"))
        if found:
            chosen = found[int(fault.chance * len(found))]
            whole = chosen.read_bytes()
            flip(chosen, 0.999)
            await self._resume()
            await _ended(self._coordinator, chosen.name)
            chosen.write_bytes(whole)
        await self._resume()
        return bool(found)

    async def _damage_start(self, fault: Fault) -> bool:
        """It is refused by name; the run continues once the file is removed."""
        await self._coordinator.kill()
        start = self.folder / "start.npz"
        if not start.exists():
            await self._resume()
            return False
        start.write_bytes(start.read_bytes()[: start.stat().st_size // 2])
        await self._resume()
        await _ended(self._coordinator, "start.npz")
        start.unlink()
        await self._resume()
        return True

    async def _damage_agent(self, fault: Fault) -> bool:
        """While the agents' process is dead, one of their files changes."""
        what = fault.kind.rpartition(" ")[2]
        pattern = {
            "report": "agents/*/report-*",
            "model": "agents/*/models/*.model",
            "memory": "agents/*/memory-*",
        }[what]

        def damage() -> bool:
            found = [
                path
                for path in sorted(self.site.home.glob(pattern))
                if not path.name.endswith(".damaged")
            ]
            for path in found[: 1 + int(fault.chance * len(found))]:
                flip(path, fault.chance)
            return bool(found)

        return await self._without_fleet(damage)

    async def _put_back(self, fault: Fault) -> bool:
        """The run's folder as it was a little while ago: a backup that was restored."""
        backup = self.site.folder / f"backup-{self.name}"
        await self._coordinator.kill()
        begun = (self.folder / "checkpoint" / "manifest.json").exists()
        if begun:
            shutil.rmtree(backup, ignore_errors=True)
            shutil.copytree(self.folder, backup)
        await self._resume()
        if not begun:
            return False
        rows = len(self.site.rows(self.name))
        await self._until_rows(rows + 1, 8.0)
        if not self._coordinator.lives:
            return False
        await self._coordinator.kill()
        shutil.rmtree(self.folder)
        shutil.copytree(backup, self.folder)
        await self._resume()
        return True

    async def _until_rows(self, rows: int, within_s: float) -> None:
        """Wait until the record has this number of rows, the coordinator has ended, or the time is over."""
        end = asyncio.get_running_loop().time() + within_s
        while asyncio.get_running_loop().time() < end and self._coordinator.lives:
            if len(self.site.rows(self.name)) >= rows:
                return
            await asyncio.sleep(0.05)

    async def _full_disk(self, fault: Fault) -> bool:
        """Of a run that exists: a command that only starts may end where no room is left, and has nothing to lose."""
        of_coordinator = "coordinator" in fault.kind
        place = self.site.run if of_coordinator else self.site.home
        if place not in self.site.mounted or (of_coordinator and not await self._at_work()):
            return False
        ballast = fill(place)
        await asyncio.sleep(fault.seconds)
        ballast.unlink()
        return True


async def _ended(program: Program, why: str) -> None:
    """A command must end with a user's error that names what is wrong, and without a traceback."""
    try:
        async with asyncio.timeout(REFUSAL_S):
            code = await program.process.wait()
    except TimeoutError:
        program.process.send_signal(signal.SIGKILL)
        raise Broken(
            f"a command that should have ended lives on; it should have said {why!r}"
        ) from None
    output = program.output
    if code != USER_ERROR or why not in output or "Traceback" in output:
        raise Broken(f"exit code {code}; {why!r} was expected in:\n{output[-2000:]}")


def _copied(source: Path, target: Path) -> bool:
    if not source.exists():
        return False
    shutil.copyfile(source, target)
    return True
