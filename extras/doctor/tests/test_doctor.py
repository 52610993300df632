"""Twenty faults, each planted in a healthy fleet: what `coordinator doctor` lists first. And healthy fleets: nothing is odd.

Data faults go through the description of a table and through a whole run; statuses come from the session that agents have.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.agent.cli.program import AgentCommands
from covey.agent.device.events import CoordinatorSeen, Inspected, OwnStatusSeen, VitalsSeen
from covey.agent.device.session import Session
from covey.broker.cli.program import BrokerCommands
from covey.coordinator.cli.program import CoordinatorCommands
from covey.coordinator.engine.events import Forget
from covey.coordinator.odd import KINDS, Broker, Odd, ranked, read_odd
from covey.coordinator.report.odd_list import odd_table
from covey.extras.doctor import columns, devices, examine
from covey.extras.doctor.command import of_fleet
from covey.extras.doctor.devices import Seen
from covey.extras.doctor.examine import Facts
from covey.extras.doctor.of_run import at_the_end
from covey.extras.in_use.uptake import RetainedFleet
from covey.extras.proposals.init import odd_among
from covey.extras.proposals.proposal import propose
from covey.extras.proposals.proposal_data import describe
from covey.extras.runs.roster_table import status_lines
from covey.extras.simulate.tests.device_run import devices as run_of
from covey.extras.simulate.tests.device_run import inspected, scenes
from covey.shared.mqtt.duplicate_ids import session_id
from covey.shared.mqtt.link import Down, Received, Up
from covey.shared.wire.documents import AgentStatus, CoordinatorStatus, ModelInUse
from covey.shared.wire.topics import Topics
from tests import clock
from tests.agent.orders import deployment
from tests.attacks.lies import LIES, Lying
from tests.kit.gateways import (
    FAULTY,
    TASK,
    Fault,
    constant,
    gateways,
    rows,
    scaled,
    sticking,
    swapped,
    written,
)
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import Fleet as SmallFleet
from tests.kit.small_run import clients, scenario
from tests.kit.small_run import rules as laws_of

NOW = 1_900_000_000.0
HOUR, DAY = 3600.0, 86_400.0
TOPICS = Topics("default")
TEMP, HUMIDITY, WIND, LOAD = range(4)
LEAST_ROWS = 20


def first(found: Sequence[Odd]) -> tuple[str, str]:
    """Who is listed first, and why."""
    assert found, "nothing odd"
    return found[0].who, found[0].kind


# -- faults of data: by descriptions (`coordinator init`), and by a whole run ----------------------------------------


def in_init(files: Mapping[str, Path]) -> list[Odd]:
    descriptions = [describe(str(path)) for path in files.values()]
    found = odd_among(descriptions, propose(descriptions, target="load"))
    return [
        replace(one, devices=tuple(Path(device).stem for device in one.devices)) for one in found
    ]


def in_a_run(folder: Path, files: Mapping[str, Path]) -> list[Odd]:
    run = run_of(folder / "run", scenes(TASK)(rounds={"count": 1}), files)
    return read_odd([one.to_json() for one in at_the_end(run, {})])


def copied(folder: Path) -> dict[str, Path]:
    files = gateways(folder)
    files[FAULTY].write_bytes(files["gw-2"].read_bytes())
    return files


HALF = {number: scaled(TEMP, 1.8, 32.0) for number in (0, 1, 4, 5, 8)}
OF_DATA: dict[str, tuple[Mapping[int, Fault], str, str]] = {
    "target scaled": ({3: scaled(LOAD, 1000)}, FAULTY, "target"),
    "target scaled down": ({3: scaled(LOAD, 0.001)}, FAULTY, "target"),
    "target with the wrong sign": ({3: scaled(LOAD, -1)}, FAULTY, "target"),
    "a sensor with an offset": ({3: scaled(TEMP, 1.0, 100.0)}, FAULTY, "scale"),
    "few rows": ({3: lambda rows: rows[:6]}, FAULTY, "rows"),
    "a column scaled": ({3: scaled(WIND, 100)}, FAULTY, "unit"),
    "a column scaled by no unit": ({3: scaled(WIND, 37)}, FAULTY, "scale"),
    "constant sensor": ({3: constant(TEMP, 21.3)}, FAULTY, "constant"),
    "a sensor that sticks at one value but for a few rows": (
        {3: sticking(TEMP, 14.2)},
        FAULTY,
        "constant",
    ),
    "swapped columns": ({3: swapped(TEMP, HUMIDITY)}, FAULTY, "swap"),
    "target swapped with a column": ({3: swapped(WIND, LOAD)}, FAULTY, "swap"),
    "other units in half of the devices": (HALF, "gw-0, gw-1, gw-4 and 2 more", "unit"),
    "one device in other units": ({3: scaled(TEMP, 1.0, 273.15)}, FAULTY, "unit"),
}


@pytest.mark.parametrize("name", OF_DATA)
def test_a_fault_of_data_is_listed_first_before_a_run(tmp_path: Path, name: str) -> None:
    faults, who, kind = OF_DATA[name]
    found = in_init(gateways(tmp_path, faults))
    assert (first(found), len(found)) == ((who, kind), 1)


@pytest.mark.parametrize("name", OF_DATA)
def test_a_fault_of_data_is_listed_first_after_a_run(tmp_path: Path, name: str) -> None:
    faults, who, kind = OF_DATA[name]
    assert first(in_a_run(tmp_path, gateways(tmp_path, faults))) == (who, kind)


def test_a_copied_device_is_listed_first(tmp_path: Path) -> None:
    files = copied(tmp_path)
    assert first(in_init(files)) == ("gw-2, gw-3", "copy")
    assert first(in_a_run(tmp_path, files)) == ("gw-2, gw-3", "copy")


def drifted(folder: Path) -> list[Odd]:
    files = gateways(folder)
    parts = folder / FAULTY  # a training and a test table
    written(parts / "train.csv", rows(3))
    written(parts / "test.csv", scaled(LOAD, 1.0, 90.0)(rows(33, 40)))
    return in_a_run(folder, {**files, FAULTY: parts})


def test_drifted_data_is_listed_first_after_a_run(tmp_path: Path) -> None:
    assert first(drifted(tmp_path)) == (FAULTY, "drift")


def test_missing_cells_are_listed_first(tmp_path: Path) -> None:
    files = gateways(tmp_path)
    lines = files[FAULTY].read_text().splitlines()
    emptied = [lines[0], *("," + line.partition(",")[2] if row % 5 else line for row, line in enumerate(lines[1:]))]  # fmt: skip
    files[FAULTY].write_text("\n".join(emptied))
    assert first(in_init(files)) == (FAULTY, "missing")


# -- statuses: those of sessions -------------------------------------------------------------------------------------


def session(agent: str, started: float = NOW - DAY, **options: Any) -> Session:
    """A session whose link has come up, with data that fits the coordinator's task."""
    made = Session(agent, TOPICS, session=session_id(started, "ab"), version="2.0.1", **options)
    made.handle(CoordinatorSeen(caller(), False), 0.0)
    made.handle(Inspected("task", 80, 20), 0.0)
    made.handle(VitalsSeen(8 << 30, NOW + 300 * DAY), 0.0)
    made.handle(Up(), 0.0)
    made.handle(CoordinatorSeen(caller(), False), 1.0)
    return made


def caller(**changes: Any) -> CoordinatorStatus:
    epoch = f"{session_id(NOW - 2 * HOUR, 'cd')}.1"
    fields = {"online": True, "version": "2.0.1", "epoch": epoch, "name": "gateways", "run": "r1"}
    fields |= {"task": scenes(TASK)().task.for_agents(), "task_digest": "task"}
    return CoordinatorStatus(**{**fields, **changes})


def status(agent: str, made: Session | None = None, **changes: Any) -> AgentStatus:
    """The status as the agent's shell dates it."""
    newest = (made or session(agent)).status
    return newest.model_copy(update={"clock": NOW - 5, **changes})


def fleet(**changed: AgentStatus) -> dict[str, AgentStatus]:
    """The statuses of ten gateways, of which some are others."""
    names = [f"gw-{number}" for number in range(10)]
    found = {name: status(name) for name in names}
    for name, one in changed.items():
        found[name.replace("_", "-")] = one
    return found


def listed(statuses: Mapping[str, AgentStatus], **known: Any) -> list[Odd]:
    known = {"coordinator": caller(), **known}
    return examine.examine(Facts(seen=Seen(NOW, statuses, **known)))


def with_vitals(free: int, until: float) -> AgentStatus:
    made = session(FAULTY)
    made.handle(VitalsSeen(free, until), 2.0)
    return status(FAULTY, made)


def flapping(times: int, agent: str = FAULTY, started: float = NOW - HOUR) -> AgentStatus:
    made = session(agent, started)
    for _ in range(times):
        made.handle(Down("lost"), 3.0)
        made.handle(Up(), 4.0)
    made.handle(CoordinatorSeen(caller(), False), 5.0)
    return status(agent, made)


def twin() -> AgentStatus:
    """The older one of two programs with one id hears the other."""
    made = session(FAULTY)
    younger = session(FAULTY, NOW - HOUR).status
    made.handle(OwnStatusSeen(younger, False), 6.0)
    return status(FAULTY, made)


def with_empty_file(folder: Path) -> AgentStatus:
    """The data of a device whose file has a header alone, as its worker describes it."""
    path = folder / "gw-3.csv"
    path.write_text("temp,humidity,wind,load\n")
    seen = inspected(path, scenes(TASK)())
    made = session(FAULTY)
    made.handle(Inspected("task", problem=seen.problem), 2.0)
    return status(FAULTY, made)


def with_little_memory() -> AgentStatus:
    """The policy of a device allows too little memory for the task's data."""
    return status(
        FAULTY,
        problem="policy of this device: max_memory_mb: the work takes more than the allowed 1 MB",
    )


def of_statuses(folder: Path) -> dict[str, tuple[Mapping[str, AgentStatus], dict[str, Any], str]]:
    """Statuses, what else is known, and the kind that is expected of `FAULTY`."""
    in_use = ModelInUse(run="run-0", round=3, name="may", serial=5, note="rejected: june")
    will = session(FAULTY).will
    left = session(FAULTY).goodbye.model_copy(update={"clock": NOW - HOUR})
    kept = {f"gw_{number}": status(f"gw-{number}", model=ModelInUse(run="run-1", round=3, name="june", serial=5)) for number in range(10)}  # fmt: skip
    present = fleet()
    lost = {name: one for name, one in present.items() if name != FAULTY}
    return {
        "stuck clock": (fleet(gw_3=status(FAULTY, clock=NOW - 9 * DAY)), {}, "clock"),
        "clock of 1970": (fleet(gw_3=status(FAULTY, clock=4000.0)), {}, "clock"),
        "clock ahead": (fleet(gw_3=status(FAULTY, clock=NOW + DAY)), {}, "clock"),
        "full disk": (fleet(gw_3=with_vitals(1000, NOW + 300 * DAY)), {}, "disk"),
        "old version": (fleet(gw_3=status(FAULTY, version="1.9")), {}, "version"),
        "other format": (fleet(gw_3=status(FAULTY, format=0, problem="speaks format 0")), {}, "version"),
        "certificate that ends": (fleet(gw_3=with_vitals(8 << 30, NOW + 3 * DAY)), {}, "certificate"),
        "expired certificate": (fleet(gw_3=will.model_copy(update={"certificate": NOW - HOUR})), {}, "certificate"),
        "read-only access rules": (lost, {"rows": {FAULTY: {"seen": NOW - DAY}}}, "silent"),
        "flapping link": (fleet(gw_3=flapping(40)), {}, "link"),
        "wrong federation": (lost, {"elsewhere": {FAULTY: "defualt"}}, "federation"),
        "twin id": (fleet(gw_3=twin()), {}, "twin id"),
        "refused publication": (fleet(**{**kept, "gw_3": status(FAULTY, model=in_use)}), {"deployment": deployment(name="june")}, "publication"),
        "silent one": (fleet(gw_3=status(FAULTY, epoch="000000000000ab.1")), {}, "silent"),
        "gone": (fleet(gw_3=will), {}, "offline"),
        "ended while a run waits": (fleet(gw_3=left), {"waits": "9 of 10 agents are online"}, "offline"),
        "memory too small": (fleet(gw_3=with_little_memory()), {}, "excluded"),
        "memory too small for the work": (present, {"rows": {FAULTY: {"failing": "needs 900 MiB of memory", "failures": 3}}}, "work"),
        "empty file": (fleet(gw_3=with_empty_file(folder)), {}, "excluded"),
    }  # fmt: skip


NAMES = (
    *("stuck clock", "clock of 1970", "clock ahead", "full disk", "old version", "other format"),
    *("certificate that ends", "expired certificate", "read-only access rules", "flapping link"),
    *("wrong federation", "twin id", "refused publication", "silent one", "gone"),
    "ended while a run waits",
    *("memory too small", "memory too small for the work", "empty file"),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_fault_of_a_device_is_listed_first(tmp_path: Path, name: str) -> None:
    statuses, known, kind = of_statuses(tmp_path)[name]
    found = listed(statuses, **known)
    assert (first(found), len(found)) == ((FAULTY, kind), 1)


def test_all_planted_statuses_are_tried(tmp_path: Path) -> None:
    assert set(of_statuses(tmp_path)) == set(NAMES)


def test_links_that_most_devices_lose_are_the_brokers_fault() -> None:
    found = listed({f"gw-{number}": flapping(30 + number, f"gw-{number}") for number in range(10)})
    assert [first(found), len(found)] == [("broker", "broker"), 1]


def test_a_certificate_that_all_devices_share_is_the_brokers() -> None:
    soon = NOW + 2 * DAY
    found = listed(
        {name: one.model_copy(update={"certificate": soon}) for name, one in fleet().items()}
    )
    assert [(odd.who, odd.kind, odd.next) for odd in found] == [("broker", "certificate", "`broker lab renew`")]  # fmt: skip


def test_a_broker_that_drops_what_it_acknowledges_is_listed_first() -> None:
    found = listed(fleet(gw_3=flapping(40)), broker=DROPPING)
    assert first(found) == ("broker", "broker")


# -- what a broker retains -------------------------------------------------------------------------------------------


def retained(broker: MemoryBroker) -> RetainedFleet:
    """All that a broker retains, as `coordinator doctor` reads it."""
    found = RetainedFleet(TOPICS)
    for topic, payload in broker.retained.matching("#"):
        found.take(Received(topic, payload, retained=True))
    return found


def among_liars(folder: Path) -> tuple[list[Odd], list[Odd]]:
    """The lists of a fleet with one liar: while its run lives, and from what the broker keeps."""
    scene = scenario("fedavg", rounds={"count": 3, "participation": 1.0, "start_agents": 5})
    people = clients(5, scene)
    broker = MemoryBroker(seed=2)

    async def whole() -> list[Odd]:
        laws = laws_of(scene, start_agents=5, quorum=2, deadline_s=60.0)
        small = SmallFleet(folder, scene, laws, broker, people)
        small.pool = Lying(people, {"agent-2": LIES["loss_nan"]})
        async with small:
            await small.serve()
            assert small.service is not None
            return small.service.odd

    live = clock.run(whole(), within_s=36_000.0)
    return live, of_fleet(retained(broker), time.time())


def test_a_liar_is_listed_first_while_the_run_lives_and_after_it(tmp_path: Path) -> None:
    live, after = among_liars(tmp_path)
    assert first(live) == ("agent-2", "reports")
    assert first(after) == ("agent-2", "reports")
    assert after[0].what.endswith("(last run)")


def test_an_agent_of_a_federation_without_a_coordinator_is_found(tmp_path: Path) -> None:
    found = RetainedFleet(TOPICS)
    for name, one in fleet().items():
        topics = Topics("defualt") if name == FAULTY else TOPICS
        found.take(Received(topics.status(name), one.to_bytes(), retained=True))
    found.take(Received(TOPICS.coordinator_status, caller().to_bytes(), retained=True))
    assert first(of_fleet(found, NOW)) == (FAULTY, "federation")


DROPPING = Broker("it drops what it acknowledges")
TWENTY = (
    *("target scaled", "constant sensor", "swapped columns", "copied device", "stuck clock"),
    *("full disk", "old version", "expired certificate", "read-only access rules"),
    *("flapping link", "wrong federation", "twin id", "refused publication", "drifted data"),
    *("silent one", "memory too small", "empty file", "other units in half of the devices"),
    *("a liar", "a broker that drops"),
)
RECORD = Path("benchmarks/results/doctor.md")


def test_the_record_has_the_first_line_about_each_of_twenty_faults(tmp_path: Path) -> None:
    """Run with COVEY_REWRITE_TRANSCRIPTS=1 to write it again."""

    def found(name: str) -> list[Odd]:
        folder = tmp_path / name.replace(" ", "-")
        folder.mkdir()
        if name in OF_DATA:
            return in_init(gateways(folder, OF_DATA[name][0]))
        if name in NAMES:
            statuses, known, _ = of_statuses(folder)[name]
            return listed(statuses, **known)
        others: dict[str, Callable[[Path], list[Odd]]] = {
            "copied device": lambda place: in_init(copied(place)),
            "drifted data": drifted,
            "a liar": lambda place: among_liars(place)[0],
            "a broker that drops": lambda _: listed(fleet(), broker=DROPPING),
        }
        return others[name](folder)

    lists = {name: found(name) for name in TWENTY}
    rows = [f"| {name} | {len(odd)} | {odd[0].sentence} |" for name, odd in lists.items()]
    if os.environ.get("COVEY_REWRITE_TRANSCRIPTS"):
        head, _, rest = RECORD.read_text().partition("\n| ")
        table = ["| planted | things listed | the first |", "|---|--:|---|", *rows]
        others = rest.partition("\n\n")[2]  # what was tried with real processes
        RECORD.write_text("\n".join([head, *table, "", others]))
    first_part = RECORD.read_text().partition("\n\n## ")[0]
    kept = [line for line in first_part.splitlines() if line.startswith("| ")]
    assert kept[1:] == rows


# -- healthy fleets --------------------------------------------------------------------------------------------------


def test_nothing_is_odd_about_gateways_of_two_kinds(tmp_path: Path) -> None:
    files = gateways(tmp_path)
    assert in_init(files) == []
    assert in_a_run(tmp_path, files) == []
    assert listed(fleet()) == []


@pytest.mark.parametrize("alpha", [1.0, 0.3, 0.1])
def test_nothing_is_odd_about_devices_with_few_classes(tmp_path: Path, alpha: float) -> None:
    """Before: the device whose class the others lack was blamed for the fleet's model, in one of seven such fleets."""
    data = pytest.importorskip("sklearn.datasets").load_digits()
    rng = np.random.default_rng(2)
    some = rng.permutation(len(data.target))[:600]
    owners = np.zeros(600, int)
    for one in range(10):
        own = np.flatnonzero(data.target[some] == one)
        owners[own] = rng.choice(6, len(own), p=rng.dirichlet([alpha] * 6))
    files = {}
    for number in range(6):
        own = some[owners == number]
        if len(own) > LEAST_ROWS:
            files[f"gw-{number}"] = tmp_path / f"gw-{number}.npz"
            np.savez(files[f"gw-{number}"], x=data.data[own].astype("f4") / 16, y=data.target[own])
    task = {"features": [64], "classes": 10, "model": {"name": "linear"}}
    run = run_of(tmp_path / "run", scenes(task)(), files)
    assert at_the_end(run, {}) == []


def by_class(data: Any, count: int) -> list[Any]:
    """Agents with few classes each: the rows in the order of their classes, cut."""
    order = np.argsort(data.target, kind="stable")
    return [data.data[part] for part in np.array_split(order, count)]


def numbers(devices: Sequence[Any]) -> columns.Columns:
    found: dict[str, dict[str, columns.Numbers]] = {}
    for number, own in enumerate(devices):
        for place, values in enumerate(own.T.astype(float)):
            one = columns.numbers_of(len(values), values.sum(), np.square(values).sum())
            if one is not None:
                found.setdefault(f"x{place}", {})[f"agent-{number}"] = one
    return found


@pytest.mark.parametrize("name", ["digits", "wine", "breast_cancer", "iris", "diabetes"])
@pytest.mark.parametrize("count", [4, 10])
def test_nothing_is_odd_about_real_data_of_unlike_agents(name: str, count: int) -> None:
    data = pytest.importorskip("sklearn.datasets").__dict__[f"load_{name}"]()
    assert list(columns.odd_columns(numbers(by_class(data, count)))) == []


def test_nothing_is_odd_about_people_with_sensors() -> None:
    path = Path("../shared/data/har.npz")
    if not path.exists():
        pytest.skip(f"{path} is not here")
    with np.load(path) as file:
        windows, people = file["x"], file["subject"]
        own = [windows[people == one].reshape(-1, windows.shape[2]) for one in range(30)]
    assert list(columns.odd_columns(numbers(own))) == []


def test_levels_that_differ_from_site_to_site_are_not_odd() -> None:
    """Fleets of sites whose load differs by chance, up to some twenty times, with rain that is mostly 0."""
    alarms = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        sites = []
        for _ in range(int(rng.integers(4, 20))):
            load = np.exp(rng.normal(np.log(300) + rng.normal(0, 0.7), 0.5, 90))
            rain = rng.exponential(3, 90) * (rng.random(90) < rng.uniform(0.02, 0.4))
            sites.append(np.column_stack([load, rain, rng.normal(0, rng.uniform(0.3, 1.5), 90)]))
        alarms += bool(list(columns.odd_columns(numbers(sites), "x0")))
    assert alarms == 0


def test_a_method_that_fails_for_a_group_blames_no_device() -> None:
    def modes(error: float) -> Any:
        own = {"n": 50, "mse": error, "mean": 5.0, "variance": 1.0, "loss": error}
        return {"server": own, "baseline": {"n": 50, "mse": 1.0}}

    few = {f"gw-{number}": modes(9.0 if number < 3 else 0.5) for number in range(10)}
    assert not [odd for odd in examine.odd_figures(few) if odd.kind == "figure"]
    one = {f"gw-{number}": modes(9.0 if number < 1 else 0.5) for number in range(10)}
    assert [odd.who for odd in examine.odd_figures(one) if odd.kind == "figure"] == ["gw-0"]


@pytest.mark.parametrize(
    ("without", "who", "command"),
    [
        (1, ["gw-0"], f"on the device: {columns.CHECK}"),
        (5, ["gw-0, gw-1, gw-2 and 2 more"], "`coordinator advise`"),
        (10, ["gw-0, gw-1, gw-2 and 7 more"], "`coordinator advise`"),
        (0, [], ""),
    ],
)
def test_devices_that_use_no_model_are_listed_however_many_they_are(
    without: int, who: list[str], command: str
) -> None:
    weights = {f"gw-{i}": {"none": 1.0} if i < without else {"served": 1.0} for i in range(10)}
    found = list(examine.odd_figures({}, weights))
    assert [one.who for one in found] == who
    assert all(one.what.startswith(examine.NO_MODEL) and one.next == command for one in found)
    seen = {"status": None, "roster": {"odd": [one.to_json() for one in found]}, "devices": {}}
    for more in ({}, {"written": 0.0, "finished": True}):  # at the broker, in a folder
        assert [one.sentence for one in found] == status_lines({**seen, **more})[1:]


def test_a_fleet_asleep_is_not_odd() -> None:
    goodbyes = {name: session(name).goodbye for name in fleet()}
    assert listed(goodbyes, coordinator=None) == []


def test_who_ended_in_order_is_odd_as_long_as_the_run_waits(tmp_path: Path) -> None:
    scene = scenario("fedavg", rounds={"count": 1, "participation": 1.0, "start_agents": 5})
    broker = MemoryBroker(seed=2)

    async def whole() -> tuple[list[Odd], list[Odd]]:
        laws = laws_of(scene, start_agents=5, quorum=5, deadline_s=60.0)
        async with SmallFleet(tmp_path, scene, laws, broker, clients(5, scene)) as small:
            await asyncio.sleep(1)
            small.agents["agent-2"].stop()
            await small.lives["agent-2"]
            serving = asyncio.create_task(small.serve())
            await asyncio.sleep(30)
            waits = of_fleet(retained(broker), time.time())
            small.join("agent-2", "again")
            await serving
            return waits, of_fleet(retained(broker), time.time())

    waits, after = clock.run(whole(), within_s=36_000.0)
    assert [(odd.who, odd.kind, odd.next) for odd in waits] == [("agent-2", "offline", "on the device: agent start")]  # fmt: skip
    assert waits[0].what == "its agent was stopped, and the run waits: 4 agents online, rounds.quorum is 5"  # fmt: skip
    assert waits[0].since is not None
    assert after == []


# -- the list --------------------------------------------------------------------------------------------------------


def test_the_list_is_the_same_after_it_was_stored_and_whatever_its_order() -> None:
    found = [
        Odd((f"gw-{number}",), kind, f"it is {kind}", "`broker doctor`", NOW, number)
        for number, kind in enumerate(KINDS)
    ]
    again = read_odd([one.to_json() for one in found])
    assert again == found
    assert ranked(again[::-1]) == found
    assert read_odd([{"devices": [3]}, 4, None, {**found[0].to_json(), "kind": "other"}]) == []


def commands() -> set[str]:
    """All commands of the three programs."""
    found: set[str] = set()
    kinds = (AgentCommands, BrokerCommands, CoordinatorCommands)
    for program, kind in zip(("agent", "broker", "coordinator"), kinds, strict=True):
        found |= {f"{program} {name}" for name in kind.front}
        found |= {f"{program} lab {name}" for name in kind.lab}
    return found


def test_each_next_command_exists(tmp_path: Path) -> None:
    seen: list[Odd] = []
    for statuses, known, _ in of_statuses(tmp_path).values():
        seen += listed(statuses, **known)
    text = Path(devices.__file__).read_text() + Path(columns.__file__).read_text()
    named = {odd.next for odd in seen} | set(re.findall(r'"(.*(?:agent|broker|coordinator) [a-z].*)"', text))  # fmt: skip
    called = {word for one in named for word in re.findall(r"(?<![\w-])(?:agent|broker|coordinator) (?:lab )?[a-z]+(?=[ `\"]|$)", one)}  # fmt: skip
    typed = {one for one in called if one.split()[-1] in {name.split()[-1] for name in commands()}}
    assert typed
    assert typed <= commands()


def test_the_table_fits_a_narrow_terminal_and_names_the_next_command() -> None:
    table = odd_table(listed(fleet(gw_3=flapping(40))))
    assert table.headers == ["device", "what", "since", "next"]
    assert table.rows[0][0] == FAULTY


def test_what_was_found_in_a_device_is_forgotten_with_it(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", scenes(TASK)(), gateways(tmp_path, {3: scaled(LOAD, 1000)}))
    assert [one.devices for one in at_the_end(run, {})] == [(FAULTY,)]
    run.handle(Forget(FAULTY), 0.0)
    assert at_the_end(run, {}) == []


def test_no_kind_is_both_a_cause_and_a_consequence() -> None:
    causes = {kind for kind, facts in KINDS.items() if facts.explains}
    assert causes
    assert not causes & {kind for facts in KINDS.values() for kind in facts.explains}
