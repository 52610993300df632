"""The files of `deploy`: every command, option, path and metric in them exists, and the units are hardened."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2 import Environment, StrictUndefined

from covey.broker.limits import Limits
from covey.broker.programs.mosquitto import render
from covey.broker.programs.options import BrokerOptions
from covey.coordinator.odd import Odd
from covey.shared.scenario.load import load
from covey.shared.wire.documents import CoordinatorStatus, RosterMessage
from covey.shared.wire.topics import Topics
from tests.test_docs import mistake

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
HOME = yaml.safe_load((DEPLOY / "home-assistant.yaml").read_text())
EXAMPLES = "/opt/covey/examples/"
HIGHEST_EXPOSURE = 3.0  # of `systemd-analyze security`; 10 is a unit without any protection
PROGRAMS = {"agent", "broker", "coordinator"}
LIMITED = {
    "max_connections",
    "max_packet_size",
    "memory_limit",
    "max_inflight_messages",
    "max_inflight_bytes",
    "max_queued_messages",
    "max_queued_bytes",
    "persistent_client_expiration",
}


class Unit(configparser.RawConfigParser):
    """A unit file; a key that occurs twice keeps its last value."""

    def __init__(self, file: Path) -> None:
        super().__init__(strict=False, interpolation=None)
        self.read(file)

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def compose() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return content


def shell_line(words: list[str]) -> str:
    """The command that a list of words runs: itself, or the script of `sh -c`."""
    if Path(words[0]).name == "sh":
        words = words[2:]
    line = " ".join(words).replace("$$", "$")
    return line.removeprefix("exec ")


def commands() -> Iterator[tuple[str, str]]:
    """Every command of ours, with the file that has it."""
    for name, service in compose()["services"].items():
        command = service.get("command")
        if command is not None:
            words = shlex.split(command) if isinstance(command, str) else command
            yield f"compose: {name}", shell_line(words)
    for file in UNITS:
        words = shlex.split(Unit(file)["Service"]["ExecStart"])
        yield file.name, shell_line(words)
        for line in file.read_text().splitlines():
            if line.startswith("#     ") and "/opt/covey/bin/" in line:
                yield file.name, line.removeprefix("#     sudo -u covey-broker ")
    for match in re.finditer(r"^(?:RUN|CMD) (.+)$", (DEPLOY / "Dockerfile").read_text(), re.M):
        text = match[1]
        words = json.loads(text) if text.startswith("[") else text.split()
        if words[0] in PROGRAMS:
            yield "Dockerfile", " ".join(words)


COMMANDS = list(commands())


@pytest.mark.whole
@pytest.mark.parametrize(("where", "line"), COMMANDS, ids=[where for where, _ in COMMANDS])
def test_every_command_of_ours_exists_with_its_options(where: str, line: str) -> None:
    assert mistake(line) == ""
    wrong = line.replace(" --", " --no-such-", 1) if " --" in line else f"{line} --no-such"
    assert "no option" in mistake(wrong)


def test_all_three_programs_are_started_by_units_and_by_compose() -> None:
    assert len(UNITS) == 5
    programs = {Path(line.split()[0]).name for _, line in COMMANDS}
    assert programs == PROGRAMS
    assert [where for where, _ in COMMANDS].count("Dockerfile") == 2


def test_compose_mounts_and_names_files_that_exist() -> None:
    services = compose()["services"]
    volumes = set(compose()["volumes"])
    for service in services.values():
        for mount in service["volumes"]:
            source, *_ = mount.split(":")
            known = source in volumes or (DEPLOY / source).exists()
            assert known, mount
        waits_for = service.get("depends_on", {})
        assert set(waits_for) <= set(services)
    for _, line in COMMANDS:
        for word in line.split():
            if word.startswith(EXAMPLES):
                assert (ROOT / "examples" / word.removeprefix(EXAMPLES)).exists(), word


def test_the_scenario_of_compose_is_valid_and_waits_for_its_agents() -> None:
    scenario = load(DEPLOY / "scenario.yaml")
    agents = [name for name in compose()["services"] if name.startswith("agent-")]
    assert scenario.rounds.start_agents == len(agents) == 2


def test_containers_of_ours_have_no_rights() -> None:
    services = compose()["services"]
    for name in ("coordinator", "agent-1", "agent-2"):
        service = services[name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
    image = (DEPLOY / "Dockerfile").read_text()
    assert re.search(r"^USER covey$", image, re.M)
    (pinned,) = re.findall(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(), re.M)
    assert f"TORCH_VERSION={pinned}\n" in image
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", image, re.M)
    for name in " ".join(copied).split():
        assert (ROOT / name).exists(), name
        assert f"!{name}\n" in (DEPLOY / "Dockerfile.dockerignore").read_text()


@pytest.mark.skipif(shutil.which("logrotate") is None, reason="logrotate is not installed")
def test_logrotate_reads_its_file(tmp_path: Path) -> None:
    rules = tmp_path / "covey"
    rules.write_text((DEPLOY / "logrotate.conf").read_text())
    rules.chmod(0o644)
    done = subprocess.run(
        ["logrotate", "--debug", str(rules)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "error" not in done.stderr
    assert "rotating pattern: /var/log/covey/*.jsonl" in done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_each_alert_fires_on_its_fault_and_none_on_a_healthy_run() -> None:
    done = subprocess.run(
        ["promtool", "test", "rules", str(ROOT / "tests/alerts_test.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_scrapes_the_port_that_the_coordinator_serves() -> None:
    (job,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    ((target,),) = [one["targets"] for one in job["static_configs"]]
    host, port = target.split(":")
    assert host in compose()["services"]
    (line,) = [line for where, line in COMMANDS if where == "compose: coordinator"]
    assert f"--metrics 0.0.0.0:{port}" in line


def test_containers_of_others_have_no_more_rights_than_they_need_and_no_known_password() -> None:
    services = compose()["services"]
    needed = {"broker": ["CHOWN", "SETGID", "SETUID"]}
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service.get("cap_add", []) == needed.get(name, [])
    password = services["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD"]
    assert re.fullmatch(r"\$\{GRAFANA_PASSWORD:\?[^}]+\}", password)


def test_the_broker_of_compose_has_the_limits_that_the_command_sets() -> None:
    lines = (DEPLOY / "mosquitto.conf").read_text().splitlines()
    options = BrokerOptions(limits=Limits(memory=1 << 30))
    expected = [line for line in render(options, 1883).splitlines() if line.split()[0] in LIMITED]
    assert len(expected) == len(LIMITED)
    for line in expected:
        assert line in lines
    assert lines.count(expected[0]) == len([line for line in lines if line.startswith("listener")])


def test_the_image_has_the_smallest_python_that_the_page_names() -> None:
    (named,) = re.findall(r"Use Python (\d+\.\d+\.\d+)", (ROOT / "docs/security.md").read_text())
    image = (DEPLOY / "Dockerfile").read_text()
    assert f"ARG BASE=python:{named}-slim-" in image
    assert set(re.findall(r"^FROM --platform=\S+ (\S+)", image, re.M)) == {"${BASE}"}


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_pinned_version_has_hashes_and_no_address() -> None:
    text = (ROOT / "hashes.txt").read_text()
    blocks = re.findall(
        r"^(\S+)==(\S+)(?: ;[^\n\\]*)? \\\n((?:    --hash=sha256:[0-9a-f]{64}.*\n?)+)", text, re.M
    )
    found = {plain(name): version for name, version, _ in blocks}
    pinned = re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M)
    assert {plain(name): version for name, version in pinned}.items() <= found.items()
    assert len(blocks) == len(re.findall(r"^\w\S*==", text, re.M))
    assert "://" not in text


@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.name)
def test_a_unit_may_open_more_files_than_the_thousand_of_a_shell(file: Path) -> None:
    assert int(Unit(file)["Service"]["LimitNOFILE"]) >= 16_384


needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="no systemd-analyze is installed"
)


def test_the_timer_starts_the_unit_that_looks_once() -> None:
    (timer,) = (DEPLOY / "systemd").glob("*.timer")
    found = Unit(timer)
    assert found["Timer"]["OnUnitActiveSec"]
    assert found["Install"]["WantedBy"] == "timers.target"
    service = Unit(timer.with_suffix(".service"))
    assert service["Service"]["Type"] == "oneshot"
    assert "Restart" not in service["Service"], "the timer looks again"


# -- Home Assistant --------------------------------------------------------------------------------


def documents() -> dict[str, bytes]:
    """What a broker retains of a run, by topic."""
    topics = Topics("default")
    odd = [Odd(("pi-7",), "disk", "3 MB free", "free room there").to_json()]
    status = CoordinatorStatus(online=True, name="pumps", round=3, rounds=20, state="open")
    return {
        topics.coordinator_status: status.to_bytes(),
        topics.roster: RosterMessage(run="r1", odd=odd).to_bytes(),
    }


class States:
    """The states and attributes of Home Assistant's sensors for these messages."""

    def __init__(self, messages: dict[str, bytes]) -> None:
        self.found: dict[str, tuple[str, dict[str, Any]]] = {}
        for sensor in HOME["mqtt"]["sensor"]:
            shown = self.shown(sensor["value_template"], messages[sensor["state_topic"]])
            text = self.shown(
                sensor["json_attributes_template"], messages[sensor["json_attributes_topic"]]
            )
            name = "sensor." + sensor["name"].lower().replace(" ", "_")
            self.found[name] = shown, json.loads(text)

    def shown(self, template: str, message: bytes = b"{}") -> str:
        room = Environment(undefined=StrictUndefined, autoescape=False)  # noqa: S701 - as there
        room.filters["tojson"] = json.dumps
        names = {
            "value_json": json.loads(message),
            "states": lambda sensor: self.found[sensor][0],
            "state_attr": lambda sensor, name: self.found[sensor][1].get(name),
        }
        return room.from_string(template).render(names).strip()


def test_home_assistant_shows_the_run_and_what_is_odd() -> None:
    messages = documents()
    topics = {sensor["state_topic"] for sensor in HOME["mqtt"]["sensor"]}
    assert topics == set(messages)
    home = States(messages)
    assert home.found["sensor.covey_run"][0] == "open"
    assert home.found["sensor.covey_odd"][0] == "1"
    card = home.shown(HOME["card"]["content"])
    assert "**pumps**: open,\nround 3 of 20" in card
    assert "- **pi-7**: 3 MB free. Next: free room there" in card
    told = home.shown(HOME["automation"][0]["actions"][0]["data"]["message"])
    assert told == "pi-7: 3 MB free; next: free room there"


def test_home_assistant_is_silent_about_a_healthy_fleet_and_warns_of_a_coordinator_that_is_gone() -> (
    None
):
    topics = Topics("default")
    gone = CoordinatorStatus(online=False, state="stopped", name="pumps")
    healthy = {topics.roster: RosterMessage(run="r1").to_bytes()}
    home = States({**documents(), **healthy, topics.coordinator_status: gone.to_bytes()})
    assert home.found["sensor.covey_odd"][0] == "0"
    assert "nothing odd" in home.shown(HOME["card"]["content"])
    (trigger,) = HOME["automation"][1]["triggers"]
    assert home.found[trigger["entity_id"]][0] == trigger["to"]
    for one in HOME["automation"]:
        for trigger in one["triggers"]:
            assert trigger["entity_id"] in home.found


@needs_systemd
@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.name)
def test_a_unit_is_hardened_and_understood(file: Path) -> None:
    analyze = ["systemd-analyze", "--no-pager"]
    done = subprocess.run(
        [*analyze, "security", "--offline=true", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze reads no unit files")
    (exposure,) = re.findall(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert float(exposure) <= HIGHEST_EXPOSURE
    verified = subprocess.run(
        [*analyze, "verify", str(file)], capture_output=True, text=True, timeout=60
    )
    faults = [line for line in verified.stderr.splitlines() if "covey" in line]
    # nothing lies in /opt/covey here
    not_installed = "is not executable: No such file or directory"
    assert [line for line in faults if not_installed not in line] == []
