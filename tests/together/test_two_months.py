"""Two months of a fleet with all that goes wrong in them: after each step every model in use is compared, by digest and by answers."""

from __future__ import annotations

import asyncio
import csv
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from covey.agent.cli.program import app as of_agent
from covey.coordinator.disk.versions import last_version
from covey.coordinator.odd import Odd
from covey.coordinator.record.roster_files import read_roster
from covey.extras.doctor.command import of_broker, of_folder
from covey.extras.in_use.model_dir import read_index
from covey.extras.in_use.tests.test_versions_of_a_fleet import NAMES, NEAR_S, Site
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.seeds import generator
from covey.shared.wire.documents import FELL
from tests.kit.scenes import Scenes, start_file
from tests.processes import Program, free_port, mosquitto, needs_mosquitto, program, rows, until

pytestmark = [pytest.mark.night, pytest.mark.processes, pytest.mark.broker, needs_mosquitto]

TASK = {
    "features": [2],
    "columns": ["temperature", "load"],
    "target": "state",
    "classes": ["ok", "worn"],
    "standardise": "federated",
    "model": {"name": "linear"},
}
ROUNDS = 6
SCENE = Scenes.of(
    "gateways",
    TASK,
    seed=1,
    training={"epochs": 3, "batch": 10, "lr": 0.1},
    rounds={"count": ROUNDS, "start_agents": len(NAMES), "quorum": len(NAMES), "deadline_s": 300, "publish": "never"},
)  # fmt: skip
QUESTIONS = [(float(20 + number), number / 7) for number in range(-9, 10)]
States = dict[
    str, tuple[str, str]
]  # of each device: the digest of the model in use, and its answers
CELSIUS, FAHRENHEIT = (1.0, 0.0), (1.8, 32.0)


@dataclass
class Months(Site):
    """The machines of a federation, and what their models answer."""

    def new_rows(self, seed: int, **units: tuple[float, float]) -> None:
        """Each device gets measurements of another month; a device may have another unit."""
        for name in NAMES:
            draw = generator(seed, name)
            factor, shift = units.get(name.replace("-", "_"), CELSIUS)
            new = self.data(name).with_suffix(".new")
            with new.open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["temperature", "load", "state"])
                for warm, load in draw.normal(0, 1, (60, 2)).tolist():
                    state = "worn" if warm + load / 2 > 0 else "ok"
                    writer.writerow([(20 + 3 * warm) * factor + shift, load, state])
            new.replace(self.data(name))

    def begun(self, name: str, *more: object) -> Program:
        """A run in `runs/NAME`, not waited for."""
        path = SCENE.written(self.folder, task={"init": start_file(self.folder, TASK)})
        words = ["run", path, "--out", self.folder / "runs" / name, "--broker", self.broker, *more]
        log = self.folder / f"{name}-{len(list(self.folder.glob(f'{name}-*')))}.log"
        command = ["covey.coordinator.cli", *map(str, words), "--json"]
        return self.stack.enter_context(program(*command, log=log))

    def finished(self, run: Program) -> None:
        until(lambda: run.process.poll() is not None, 240, of=run)
        assert run.process.returncode == 0, run.output

    def models(self, name: str) -> tuple[bytes, ...]:
        """What a run has trained."""
        return tuple(model.tobytes() for model in last_version(self.folder / "runs" / name).models)

    def states(self) -> States:
        """The model in use of each device, and what it answers."""
        questions = self.folder / "questions.csv"
        lines = ["temperature,load", *(f"{warm},{load}" for warm, load in QUESTIONS)]
        questions.write_text("\n".join([*lines, ""]))
        found: States = {}
        for name in NAMES:
            models = self.folder / f"models-{name}"
            kept = read_index(models).in_use
            assert kept is not None
            words = ["predict", "--data", questions, "--model-dir", models, "--learner", "numpy"]
            done = CliRunner().invoke(of_agent, [*map(str, words), "--json"])
            assert done.exit_code == 0, done.output
            content = (models / kept.version.file).read_bytes()
            found[name] = sha256(content).hexdigest(), done.stdout
        return found

    def odd(self) -> list[Odd]:
        return asyncio.run(of_broker(BrokerUrl.parse(self.broker), "default", asks=True))

    def upgraded(self, name: str) -> None:
        """The agent of a newer version takes the place of the old one."""
        self.agents[name].stop()
        models = self.folder / f"models-{name}"
        options = ["--data", self.data(name), "--id", name, "--broker", self.broker]
        options += ["--model-dir", models, "--state", self.folder / f"state-{name}"]
        options += ["--accept-margin", 0.2, "--learner", "numpy", "--threads", 1]
        words = ["tests.chaos.bent", "version=9.9.9", "--", "covey.agent.cli", "start", *options]
        agent = program(*map(str, words), log=self.folder / f"{name}-new.log")
        self.agents[name] = self.stack.enter_context(agent)

    @contextmanager
    def slow(self, name: str) -> Iterator[None]:
        """Its processes stand still most of the time."""
        over = threading.Event()

        def brake() -> None:
            while not over.is_set():
                for number, seconds in ((signal.SIGSTOP, 1.5), (signal.SIGCONT, 0.3)):
                    self.signal(name, number)
                    over.wait(seconds)
            self.signal(name, signal.SIGCONT)

        thread = threading.Thread(target=brake)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def signal(self, name: str, number: int) -> None:
        agent = psutil.Process(self.agents[name].process.pid)
        for process in [agent, *agent.children(recursive=True)]:
            process.send_signal(number)


@pytest.fixture
def months(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Months]:
    monkeypatch.setattr("covey.shared.mqtt.retained.QUIET_S", NEAR_S)
    port = free_port()
    with ExitStack() as stack:
        stack.enter_context(mosquitto(tmp_path, port))
        site = Months(tmp_path, f"mqtt://127.0.0.1:{port}", stack)
        site.new_rows(1)
        for name in NAMES:
            site.start(name)
        yield site


def test_two_months_with_all_that_goes_wrong_in_them(months: Months) -> None:
    months.finished(months.begun("march"))
    assert months.published("promote", "march", "--as", "march") == 0
    in_march = months.states()

    # the coordinator is killed, and a device is slow: the models are those of a run without trouble
    months.new_rows(2)
    months.finished(months.begun("quiet"))
    first = months.begun("april")
    folder = months.folder / "runs" / "april"
    with months.slow("gw-3"):
        until(lambda: len(ends(folder)) >= 2, 120, of=first)
        first.kill()
        assert [(one.who, one.kind) for one in months.odd()][:1] == [("coordinator", "coordinator")]
        months.finished(months.begun("april", "--resume"))
    assert months.models("april") == months.models("quiet")
    takes = {agent: row["takes"] for agent, row in read_roster(folder).agents.items()}
    assert max(takes, key=lambda agent: takes[agent]) == "gw-3"
    assert months.states() == in_march, "a run that publishes nothing changes no device"
    assert months.published("promote", "april", "--as", "april") == 0
    in_april = months.states()
    assert all(in_april[name][0] != in_march[name][0] for name in NAMES)

    # °C becomes °F: the device knows at once that its model is worse, and the next run why
    months.new_rows(2, gw_2=FAHRENHEIT)
    until(lambda: FELL in months.agents["gw-2"].output, 60, of=months.agents["gw-2"])
    # under load others may answer late
    until(lambda: [one.who for one in months.odd() if one.kind == "figure"] == ["gw-2"], 60)
    months.finished(months.begun("wrong"))
    unit = of_folder(months.folder / "runs" / "wrong")[0]
    assert (unit.who, unit.kind) == ("gw-2", "unit")
    assert "°C and °F" in unit.what
    assert months.states() == in_april
    months.new_rows(2)

    # an upgrade, one device after another, changes no model and no answer
    for name in NAMES:
        months.upgraded(name)
    until(lambda: len(months.listed()[0]) == len(NAMES), 120)
    assert months.states() == in_april

    # May is published, and taken back: April and then March answer as they did, to the byte
    months.new_rows(3)
    months.finished(months.begun("may"))
    assert months.published("promote", "may", "--as", "may", "--force") == 0
    in_may = months.states()
    assert all(in_may[name][0] != in_april[name][0] for name in NAMES)
    assert months.published("rollback", "--force") == 0
    assert months.states() == in_april
    assert months.published("rollback", "--to", "march", "--force") == 0
    assert months.states() == in_march
    assert months.listed()[0] == dict.fromkeys(NAMES, "march")


def ends(folder: Path) -> list[dict[str, Any]]:
    """The rounds that are over."""
    if not (folder / "rounds.jsonl").exists():
        return []
    return [row for row in rows(folder) if row["event"] == "phase" and row["ends_round"]]
