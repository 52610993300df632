"""Several brokers in a scenario and on the command line: which addresses a run connects to, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from covey.coordinator.cli.options import distinct_brokers
from covey.coordinator.cli.program import app
from covey.coordinator.cli.run import addresses, at_brokers
from covey.coordinator.record.records import scenario_digest
from covey.coordinator.run.options import RunOptions
from covey.shared.cli import BrokerAddresses, command_of, with_connection
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import BrokerUrl, Tls, environment_of
from covey.shared.mqtt.credentials import render
from tests.kit.small_run import scenario
from tests.processes import ROOT

FLEET = {"agents": 8}
DEVICES = ROOT / "scenarios" / "devices.yaml"
TWO = ["mqtt://a", "mqtts://b"]


def urls(texts: list[str]) -> list[BrokerUrl]:
    return [BrokerUrl.parse(text) for text in texts]


def written(folder: Path, host: str) -> Path:
    """The coordinator's credentials at a broker."""
    url = BrokerUrl(host, 8883, Tls(), "coordinator", f"secret-{host}")
    file = folder / f"{host}.pem"
    file.write_text(render("coordinator", url, "-----BEGIN CERTIFICATE-----\n"))
    return file


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"brokers": 4}, "starts brokers for a simulated fleet"),
        ({"brokers": 0, "fleet": FLEET}, "greater than or equal to 1"),
        ({"brokers": True, "fleet": FLEET}, "valid integer"),
        ({"brokers": []}, "at least one address"),
        ({"brokers": ["mqtt://a", "mqtt://a"]}, "each of them once"),
        ({"brokers": TWO, "broker": "mqtt://a"}, "both set; keep one of them"),
    ],
)
def test_brokers_that_make_no_sense_are_refused(sections: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        scenario("fedavg", **sections)


def test_a_run_connects_to_the_brokers_of_its_scenario_unless_options_name_others() -> None:
    scene = scenario("fedavg", brokers=TWO)
    folder = Path("out")
    assert addresses(scene, RunOptions(folder)) == urls(TWO)
    assert addresses(scene, RunOptions(folder, brokers=tuple(urls(["mqtt://c"])))) == urls(
        ["mqtt://c"]
    )
    others = tuple(urls(["mqtt://d", "mqtt://e"]))
    assert addresses(scene, RunOptions(folder, brokers=others)) == list(others)
    assert addresses(scene, RunOptions(folder, embedded=True)) == []
    assert addresses(scenario("fedavg", brokers=2, fleet=FLEET), RunOptions(folder)) == []


@pytest.mark.whole
def test_groups_of_a_secure_sum_lie_within_one_of_the_brokers_that_options_name() -> None:
    scene = scenario("fedavg", privacy={"secure": {"clip": 1.0}})
    several = RunOptions(Path("out"), brokers=tuple(urls(TWO)))
    secured: Any = at_brokers(scene, several).method
    homes = {secured.home(f"agent-{i}") for i in range(8)}
    assert homes == {0, 1}
    assert at_brokers(scene, replace(several, cluster=True)) is scene
    assert at_brokers(scene, RunOptions(Path("out"), brokers=tuple(urls(["mqtt://c"])))) is scene


def test_the_brokers_change_no_model_and_do_not_identify_a_run() -> None:
    one = scenario("fedavg")
    assert scenario_digest(one) == scenario_digest(scenario("fedavg", brokers=TWO))


def test_credentials_files_name_the_brokers_with_a_password_and_an_authority_each(
    tmp_path: Path,
) -> None:
    files = [written(tmp_path, host) for host in ("a", "b")]
    found = distinct_brokers(BrokerAddresses(credentials=tuple(files)))
    assert [(url.host, url.password) for url in found] == [("a", "secret-a"), ("b", "secret-b")]
    assert [url.tls for url in found] == [Tls(ca=file, source=file) for file in files]
    with pytest.raises(UserError, match="the same broker is given twice"):
        distinct_brokers(BrokerAddresses(credentials=(files[0], files[0])))


def test_a_simulated_fleet_gets_all_addresses() -> None:
    found = environment_of(urls(["mqtt://u:p,w@a", "mqtt://b:1884"]))
    assert found["COVEY_BROKER"] == "mqtt://u:p%2Cw@a:1883,mqtt://b:1884"
    assert found["COVEY_CREDENTIALS"] == ""


def test_a_simulated_fleet_has_the_certificates_of_each_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [written(tmp_path, host) for host in ("a", "b")]
    found = distinct_brokers(BrokerAddresses(credentials=tuple(files)))
    for name, value in environment_of(found).items():
        monkeypatch.setenv(name, value)
    seen: list[BrokerAddresses] = []

    @with_connection(several=True)
    def command(*, connection: BrokerAddresses) -> None:
        seen.append(connection)

    command_of("fleet", command).main([], standalone_mode=False)
    assert seen[0].urls("fleet") == list(found)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("role", "command", "expected"),
    [
        ("agent", ["run", "SCENARIO"], "coordinator"),
        ("observer", ["lab", "pause"], "coordinator"),
        ("agent", ["status"], "coordinator or observer"),
        ("agent", ["status", "--watch"], "coordinator or observer"),
        ("agent", ["dashboard"], "coordinator or observer"),
        ("agent", ["lab", "aggregate"], "aggregator or coordinator"),
    ],
)
def test_credentials_without_the_rights_that_a_command_needs_are_refused_at_once(
    tmp_path: Path, role: str, command: list[str], expected: str
) -> None:
    url = BrokerUrl("127.0.0.1", 1, Tls(), "pi-7", "secret")
    file = tmp_path / "pi-7.pem"
    file.write_text(render("pi-7", url, "-----BEGIN CERTIFICATE-----\n", role=role))
    words = [str(DEVICES) if word == "SCENARIO" else word for word in command]
    shown = CliRunner().invoke(app, [*words, "--credentials", str(file)])
    assert shown.exit_code == 2
    assert f"belong to pi-7, with the role {role}; expected a file with the role {expected}" in (
        shown.stderr
    )
