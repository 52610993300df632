"""A fleet of three real devices over Mosquitto, from the first model to the fourth run: which version each of them uses.

Every program is a process of its own, as on devices. After each step the devices' folders and `coordinator versions` must
agree on the version that each device uses.
"""

from __future__ import annotations

import contextlib
import csv
import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from covey.agent.worker.start import write_start
from covey.coordinator.cli.program import app
from covey.coordinator.disk.versions import last_version, round_name, save_version
from covey.extras.in_use.model_dir import read_index
from covey.shared.seeds import generator
from tests.kit.scenes import Scenes
from tests.processes import Program, free_port, mosquitto, needs_mosquitto, program, until

pytestmark = [pytest.mark.processes, pytest.mark.broker, needs_mosquitto]

NAMES = ("gw-1", "gw-2", "gw-3")
CAREFUL = "gw-3"  # its owner does not let an operator override the check
ROUNDS = 2
NEAR_S = 0.4
Used = dict[str, str]  # the name of the version that each device uses

SCENE = Scenes.of(
    "gateways",
    {"features": [2], "classes": ["ok", "worn"], "model": {"name": "linear"}},
    seed=1,
    training={"epochs": 5, "batch": 10, "lr": 0.1},
    rounds={"count": ROUNDS, "start_agents": len(NAMES), "deadline_s": 60},
    evaluation={"deliver": "served"},  # training at home would make a wrong model right
)


@dataclass
class Site:
    """The machines of a federation, in one folder."""

    folder: Path
    broker: str
    stack: ExitStack
    agents: dict[str, Program] = field(default_factory=dict)
    runs: set[str] = field(default_factory=set)  # the id of each run

    def data(self, name: str) -> Path:
        return self.folder / f"{name}.csv"

    def new_rows(self, seed: int) -> None:
        """Each device gets measurements of another month."""
        for name in NAMES:
            draw = generator(seed, name)
            with self.data(name).open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["a", "b", "state"])
                for a, b in draw.normal(0, 2, (60, 2)).tolist():
                    writer.writerow([a, b, "worn" if a > 0 else "ok"])

    def start(self, name: str) -> None:
        models = self.folder / f"models-{name}"
        options = ["--data", self.data(name), "--id", name, "--broker", self.broker]
        options += ["--model-dir", models, "--state", self.folder / f"state-{name}"]
        options += ["--accept-margin", 0.2, "--learner", "numpy", "--threads", 1]
        if name == CAREFUL:
            options += ["--limit", "forced_models=checked"]
        command = ["covey.agent.cli", "start", *map(str, options)]
        agent = program(*command, log=self.folder / f"{name}.log")
        self.agents[name] = self.stack.enter_context(agent)

    def called(self, *words: object) -> Result:
        """A command of the coordinator, as typed in the folder that has `runs`."""
        arguments = [*map(str, words), "--broker", self.broker]
        with contextlib.chdir(self.folder):
            return CliRunner().invoke(app, arguments)

    def trained(self, name: str, *, publish: str = "never", begin: str | None = None) -> None:
        """A whole run in `runs/NAME`."""
        path = SCENE.written(
            self.folder, task={"init": str(self.folder / "start.npz")}, rounds={"publish": publish}
        )
        more = [] if begin is None else ["--from", self.folder / "runs" / begin]
        words = ["run", path, "--out", self.folder / "runs" / name, "--broker", self.broker, *more]
        command = ["covey.coordinator.cli", *map(str, words)]
        with program(*command, log=self.folder / f"{name}.log") as run:
            until(lambda: run.process.poll() is not None, 120, of=run)
        assert run.process.returncode == 0, run.output
        self.runs.add(last_version(self.folder / "runs" / name).run)

    def published(self, *words: object) -> int:
        """The exit code of `promote` or `rollback`."""
        done = self.called(*words)
        assert done.exit_code in (0, 1, 3), done.stderr or done.stdout
        return done.exit_code

    def operator(self, *words: object) -> Program:
        """The same at another terminal, not waited for."""
        arguments = [*map(str, words), "--broker", self.broker, "--runs", str(self.folder / "runs")]
        started = program("covey.coordinator.cli", *arguments, log=self.folder / "operator.log")
        return self.stack.enter_context(started)

    def used(self) -> Used:
        """What the devices' own folders name."""
        found: Used = {}
        for name in NAMES:
            kept = read_index(self.folder / f"models-{name}").in_use
            if kept is not None:
                found[name] = kept.version.name
        return found

    def listed(self) -> tuple[Used, dict[str, list[str]]]:
        """What `coordinator versions` shows: the version that each device uses, and the versions with a name."""
        shown: list[dict[str, Any]] = json.loads(self.called("versions", "--json").stdout)[
            "versions"
        ]
        used = {name: one["title"] for one in shown for name in one["used_by"]}
        return used, {one["title"]: one["names"] for one in shown if one["names"]}

    def expects(
        self,
        version: str,
        names: dict[str, list[str]] | None = None,
        *,
        away: str = "",
        **others: str,
    ) -> None:
        """All devices use a version, but for the others. Both sources agree; a device that is away is not listed."""
        expected = dict.fromkeys(NAMES, version) | {
            name.replace("_", "-"): other for name, other in others.items()
        }
        listed = {name: one for name, one in expected.items() if name != away}
        until(lambda: self.used() == expected)

        def is_shown() -> bool:
            used, named = self.listed()
            return used == listed and (names is None or named == names)

        until(is_shown)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    # this broker is near: the commands need not wait as long for what it retains
    monkeypatch.setattr("covey.shared.mqtt.retained.QUIET_S", NEAR_S)
    port = free_port()
    with ExitStack() as stack:
        stack.enter_context(mosquitto(tmp_path, port))
        site = Site(tmp_path, f"mqtt://127.0.0.1:{port}", stack)
        write_start(SCENE(), tmp_path / "start.npz")
        site.new_rows(1)
        for name in NAMES:
            site.start(name)
        yield site


def test_at_every_moment_it_is_known_which_version_each_device_uses(site: Site) -> None:
    """Two months of a fleet. No coordinator runs but for the three trainings."""
    site.trained("march")
    assert site.used() == {}, "a run that publishes nothing changes no device"
    assert site.published("promote", "march") == 0
    site.expects("march@2", {"march@2": ["champion"]})

    # new data, trained again, tried on one device, then on all
    site.new_rows(2)
    site.trained("april", begin="march")
    site.expects("march@2")
    assert site.published("promote", "april", "--on", "gw-1", "--as", "june") == 0
    site.expects("march@2", {"june": ["candidate"], "march@2": ["champion"]}, gw_1="june")
    assert site.published("promote", "candidate") == 0
    site.expects("june", {"june": ["champion"]})
    assert site.published("rollback") == 0
    site.expects("march@2", {"march@2": ["champion"]})
    assert site.published("promote", "june") == 0

    # a version that is wrong on every device: none takes it, so it is not in force
    last = last_version(site.folder / "runs/april")
    wrong = replace(last, round=9, models=tuple(-model for model in last.models))
    save_version(site.folder / "runs/april", round_name(9), wrong)
    assert site.published("promote", "april@9") == 1
    site.expects("june", {"june": ["champion"]})
    assert site.published("promote", "april@9", "--force") == 1, "one owner does not allow it"
    site.expects("april@9", {"april@9": ["champion"]}, gw_3="june")
    assert site.published("promote", "june") == 0
    site.expects("june")

    # on the way back the devices refuse; what the message advises, and a repetition, go to the same version
    refused = site.called("rollback")
    assert refused.exit_code == 1
    assert refused.stdout.startswith("rollback: june -> april@9 on all devices")
    assert "`coordinator rollback --to april@9 --force`" in refused.stdout
    site.expects("june")
    assert site.published("rollback", "--to", "april@9", "--force") == 1
    site.expects("april@9", gw_3="june")
    assert site.published("rollback", "--force") == 1
    site.expects("april@9", {"april@9": ["champion"]}, gw_3="june")
    assert site.published("rollback", "--to", "june") == 0
    site.expects("june", {"june": ["champion"]})

    # two operators at once
    slow = site.agents["gw-2"].process
    slow.send_signal(signal.SIGSTOP)
    first = site.operator("promote", "march", "--wait", 60)
    until(lambda: "june -> march@2" in first.output, of=first)
    second = site.called("promote", "june")
    assert second.exit_code == 2
    assert "another `coordinator promote` or `rollback` is at work" in second.stderr
    slow.send_signal(signal.SIGCONT)
    until(lambda: first.process.poll() is not None, of=first)
    assert first.process.returncode == 0, first.output
    site.expects("march@2", {"march@2": ["champion"]})

    # a device that is away takes the version when it is back, also after a kill
    site.agents["gw-2"].stop()
    assert site.published("promote", "june") == 3
    site.expects("june", gw_2="march@2", away="gw-2")
    site.start("gw-2")
    site.expects("june")
    site.agents["gw-2"].kill()
    site.start("gw-2")
    site.expects("june")

    # trained again, published at the end of the run, and taken back
    site.new_rows(3)
    site.trained("may", publish="end", begin="april")
    site.expects("may@2", {"may@2": ["champion"]})
    assert site.published("rollback") == 0
    site.expects("june", {"june": ["champion"]})
    kept = {name: read_index(site.folder / f"models-{name}") for name in NAMES}
    for index in kept.values():
        assert index.accepted == index.in_use, "a person chose it"
        assert {one.version.run for one in index.previous} <= site.runs
