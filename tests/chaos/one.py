"""One run under the faults of a plan, and what came of it."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos import check
from tests.chaos.faults import Injector
from tests.chaos.plan import Plan
from tests.chaos.site import Broken, Site

RUN_S = 400.0  # a run that takes longer hangs
LIVES = 3  # coordinators that may end by themselves in one run
EQUAL = "equal bytes"


@dataclass
class Outcome:
    """A row of the campaign's record."""

    seed: int
    method: str
    outcome: str  # EQUAL, or what is wrong
    seconds: float
    injected: list[str] = field(default_factory=list)  # kinds that hit something
    missed: list[str] = field(default_factory=list)  # kinds that had nothing to hit
    counts: dict[str, int] = field(
        default_factory=dict
    )  # packets and connections that the proxy disturbed
    digests: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


async def calm(site: Site, method: str, init: Path) -> dict[str, str]:
    """The digests of the models of an undisturbed run. It leaves the site a database from its middle."""
    name = f"calm-{method}"
    await _prepare(site, name, method, init)
    coordinator = await site.start_coordinator(name)
    async with asyncio.timeout(RUN_S):
        while coordinator.lives:
            middle = len(site.rows(name)) in (2, 3)
            if middle and site.database.exists() and not site.old_database.exists():
                shutil.copyfile(site.database, site.old_database)
            await asyncio.sleep(0.05)
    if coordinator.process.returncode != 0:
        raise Broken(f"the calm run failed:\n{coordinator.output[-3000:]}")
    digests = check.model_digests(site.run / name)
    shutil.rmtree(site.run / name)
    return digests


async def disturbed(site: Site, plan: Plan, init: Path, wanted: dict[str, str]) -> Outcome:
    """Run a plan and look at what it left. Raises nothing: what goes wrong is in the outcome."""
    name, began = f"seed-{plan.seed}", time.monotonic()
    outcome = Outcome(plan.seed, plan.method, EQUAL, 0.0)
    site.proxy.counts.clear()
    log = site.folder / "fleet.log"
    said = log.stat().st_size if log.exists() else 0
    try:
        async with asyncio.timeout(RUN_S):
            await _prepare(site, name, plan.method, init)
            await _play(site, name, plan, outcome)
        outcome.digests = check.model_digests(site.run / name)
        wrong = _wrong(site, name, log.read_bytes()[said:], outcome.digests, wanted)
        outcome.outcome = "; ".join(wrong)[:2000] or EQUAL
    except TimeoutError:
        outcome.outcome = f"the run did not end within {RUN_S:.0f} s: {_last_words(site, name)}"
    except Broken as broken:
        outcome.outcome = str(broken)[:2000]
    except (
        Exception
    ) as error:  # of the campaign itself: it is a row like others, and the next run begins
        outcome.outcome = f"the campaign failed: {error!r}"[:2000]
    outcome.seconds = round(time.monotonic() - began, 1)
    outcome.counts = dict(site.proxy.counts)
    await _leave(site, name, keep=outcome.outcome != EQUAL)
    return outcome


async def _prepare(site: Site, name: str, method: str, init: Path) -> None:
    import yaml

    (site.folder / f"{name}.yaml").write_text(yaml.safe_dump(site.scenario(method, init=init)))
    if site.broker is None or not site.broker.lives:
        await site.start_broker()
    if site.fleet is None or not site.fleet.lives:
        await site.start_fleet()


async def _play(site: Site, name: str, plan: Plan, outcome: Outcome) -> None:
    injector = Injector(site, name)
    await site.start_coordinator(name)
    for fault in plan.faults:
        if not await _reached(site, name, fault.after):
            outcome.missed.append(fault.kind)
            continue
        await asyncio.sleep(fault.delay_s)
        assert site.coordinator is not None
        hit = site.coordinator.lives and await injector.inject(fault)
        (outcome.injected if hit else outcome.missed).append(fault.kind)
    await injector.settle()
    await _over(site, name)


async def _reached(site: Site, name: str, rows: int) -> bool:
    """Wait until the record has this number of lines. Returns False if the run ends before."""
    for _ in range(LIVES):
        assert site.coordinator is not None
        while site.coordinator.lives:
            if len(site.rows(name)) >= rows:
                return True
            await asyncio.sleep(0.02)
        if site.coordinator.process.returncode == 0:
            return False
        await _again(site, name)
    raise Broken(f"the coordinator ended again and again: {_last_words(site, name)}")


async def _over(site: Site, name: str) -> None:
    """Wait for the good end."""
    for _ in range(LIVES):
        assert site.coordinator is not None
        if await site.coordinator.process.wait() == 0:
            return
        await _again(site, name)
    raise Broken(f"the coordinator ended again and again: {_last_words(site, name)}")


async def _again(site: Site, name: str) -> None:
    """A coordinator that ended by itself is an error of ours."""
    raise Broken(f"the coordinator ended by itself: {_last_words(site, name)}")


def _wrong(
    site: Site, name: str, said: bytes, digests: dict[str, str], wanted: dict[str, str]
) -> list[str]:
    run = site.run / name
    rows = site.rows(name)
    agents = sorted(path.name for path in (site.home / "agents").iterdir())
    wrong = [] if digests == wanted else [f"other models: {digests}, the calm run has {wanted}"]
    wrong += check.folds(rows, site.rounds, agents)
    wrong += check.leftovers(run)
    manifest = (run / "checkpoint" / "manifest.json").read_text().split("\n", 1)[1]
    runs = [json.loads(manifest)["facts"]["run"]["run"]]
    wrong += check.accepted(rows, _events(said), runs)
    for log in (site.folder / f"coordinator-{name}.log", site.folder / "fleet.log"):
        text = (
            said.decode(errors="replace")
            if log.name == "fleet.log"
            else log.read_text(errors="replace")
        )
        wrong += [f"a traceback in {log.name}: {crash[:800]}" for crash in check.crashes(text)[:1]]
    return wrong


def _events(said: bytes) -> list[dict[str, Any]]:
    """The fleet's reports about its agents: all whole lines of JSON in its output."""
    events = []
    for line in said.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "event" in event:
            events.append(event)
    return events


def _last_words(site: Site, name: str) -> str:
    log = site.folder / f"coordinator-{name}.log"
    return log.read_text(errors="replace")[-800:] if log.exists() else "no coordinator was started"


async def _leave(site: Site, name: str, *, keep: bool) -> None:
    """End the coordinator, and clear its folder; after a failure keep what there is, and begin with a new fleet."""
    coordinator = site.coordinator
    if coordinator is not None and coordinator.lives:
        await coordinator.kill()
    (site.run / "ballast").unlink(missing_ok=True)
    (site.home / "ballast").unlink(missing_ok=True)
    if keep:
        kept = site.folder.parent / "failed" / name
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        for path in (site.run / name, site.home):
            if path.exists():
                shutil.copytree(path, kept / path.name)
        for log in site.folder.glob("*.log"):
            shutil.copyfile(log, kept / log.name)
        if site.fleet is not None:
            await site.fleet.kill()
            site.fleet = None
            for agent in (site.home / "agents").glob("*"):
                shutil.rmtree(agent)
    shutil.rmtree(site.run / name, ignore_errors=True)
    shutil.rmtree(site.folder / f"backup-{name}", ignore_errors=True)
