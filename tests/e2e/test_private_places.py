"""A whole secure run, made where all is open to everybody: another user of the machine can read nothing of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from covey.agent.cli.options import state_folder
from tests.e2e.conftest import finish
from tests.e2e.enrolled import SCENARIO, TASK, data
from tests.kit.others import masked, read_by_others
from tests.kit.scenes import start_file
from tests.processes import Program, free_port, needs_mosquitto, rows, until

pytestmark = [pytest.mark.processes, pytest.mark.broker, pytest.mark.usefixtures("numpy_learner")]
DEVICES = ("pi-1", "pi-2", "pi-3", "pi-4")
JOINS = "pi-4"  # with a code
MADE_BEFORE = "pi-1"  # a person made its folders


class Site:
    """A machine with the places that programs choose by themselves, all below one folder that is open to everybody."""

    def __init__(self, folder: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.stack = folder, stack
        self.given, self.printed = folder / "given", folder / "printed"
        self.here = folder / "here"
        monkeypatch.setenv("HOME", str(folder / "home"))
        monkeypatch.setenv("TMPDIR", str(folder / "tmp"))
        monkeypatch.delenv("XDG_STATE_HOME", raising=False)
        for place in (self.given, self.printed, self.here, folder / "home", folder / "tmp"):
            place.mkdir()
        self.of_the_test = {str(path) for path in folder.rglob("*")}

    def start(self, name: str, *command: str) -> Program:
        this = Program(command, self.printed / f"{name}.log", cwd=self.here)
        self.stack.callback(this.stop)
        return this

    def done(self, *command: str, given: str = "") -> str:
        """What a command prints that ends well."""
        if not given:
            this = Program(
                command, self.printed / f"{len(list(self.printed.iterdir()))}.log", cwd=self.here
            )
            assert this.process.wait(120) == 0, this.output
            return this.output
        line = [sys.executable, "-m", *command]
        result = subprocess.run(
            line, cwd=self.here, input=given, capture_output=True, text=True, timeout=120
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    def secret(self) -> Iterator[Path]:
        """The folders that hold what is nobody's business."""
        yield self.here / "broker-home"
        yield self.run
        for device in DEVICES:
            yield state_folder(None, device)
            yield self.kept(device)

    @property
    def run(self) -> Path:
        return self.here / "runs" / str(SCENARIO["name"])

    def kept(self, device: str) -> Path:
        return self.here / f"models-{device}"

    def open_to_others(self) -> list[str]:
        """What others can read, but for what the test made, what programs printed, and the way to the folders themselves."""
        way = {str(above) for folder in self.secret() for above in folder.parents}
        known = (f"{self.given}/", f"{self.printed}/")
        return [
            path
            for path in read_by_others(self.folder)
            if not path.startswith(known) and path not in self.of_the_test | way
        ]


def devices_of(site: Site) -> None:
    """Each device has keys of its own and an entry in the list; one gets its credentials with a code."""
    for device in DEVICES:
        if device == MADE_BEFORE:
            state_folder(None, device).mkdir(parents=True)
            site.kept(device).mkdir()
        key = site.done("covey.agent.cli", "lab", "keys", "--id", device).strip()
        line = ["covey.broker.cli", "enroll", device, "--key", key]
        if device != JOINS:
            site.done(*line)
            continue
        waits = site.start("enroll", *line, "--join", "--join-port", str(free_port()))
        code = until(lambda w=waits: re.search(r"agent join (\S+)", w.output), of=waits)  # type: ignore[misc]
        site.done("covey.agent.cli", "join", "-", given=f"{code[1]}\n")
        assert waits.process.wait(60) == 0


def start_agents(site: Site) -> None:
    for seed, device in enumerate(DEVICES):
        file = f"broker-home/users/{device}.pem" if device != JOINS else f"{device}.pem"
        own = ["--credentials", file, "--limit", "privacy={secure_least: 3}"]
        own += ["--data", str(data(site.given, seed)), "--model-dir", str(site.kept(device))]
        site.start(device, "covey.agent.cli", "start", *own)


@pytest.mark.whole
@needs_mosquitto
def test_others_can_read_nothing_of_a_secure_run_from_its_first_message_to_its_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator is killed in between, its folder opened by a person, and the run resumed."""
    with masked(0), ExitStack() as stack:
        site = Site(tmp_path, stack, monkeypatch)
        site.done("covey.broker.cli", "init", "--host", "localhost", "--port", str(free_port()))
        broker = site.start("broker", "covey.broker.cli", "up", "--home", "broker-home")
        until(lambda: "listens" in broker.output, of=broker)
        devices_of(site)
        start_agents(site)
        scenario = {
            **SCENARIO,
            "task": {**TASK, "init": start_file(site.given, TASK)},
            "strategy": {"name": "fedavg"},
            "rounds": {"count": 3, "start_agents": 4, "quorum": 2, "participation": 1.0},
            "privacy": {"secure": {"clip": 5.0}},
        }
        scene = site.given / "scenario.yaml"
        scene.write_text(yaml.safe_dump(scenario))
        line = ["covey.coordinator.cli", "run", str(scene), "--json", "--credentials"]
        line += ["broker-home/users/coordinator.pem"]
        run = site.start("run", *line)
        until(lambda: "secure-unmask" in run.output, of=run)
        assert site.open_to_others() == []
        run.kill()
        site.run.chmod(0o755)
        assert site.open_to_others() != []
        finish(site.start("again", *line, "--resume"))
        site.done("covey.coordinator.cli", "report", str(site.run))
        model = site.kept(DEVICES[0])
        until(lambda: any(model.glob("*.safetensors")))
        serve = site.start(
            "serve", "covey.agent.cli", "serve", "--model-dir", str(model), "--port", "0"
        )
        url = until(lambda: re.search(r"http://[\d.:]+", serve.output), of=serve)[0]
        with urllib.request.urlopen(f"{url}/model", timeout=60) as answer:  # noqa: S310
            assert json.load(answer)
        assert site.open_to_others() == []
        assert any(row.get("phase") == "secure-unmask" for row in rows(site.run))
        for folder in site.secret():  # the guard sees each of them
            folder.chmod(0o755)
            assert str(folder) in site.open_to_others()
            folder.chmod(0o700)
