"""Several brokers: who is enrolled where, and whether addresses lead to one broker, to bridged or to independent ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from covey.broker.cli.program import app
from covey.extras.doctor.broker import BrokerCheck, Doctor, judged_between
from covey.extras.scale.crossing import Crossing
from covey.extras.users.folder import BrokerFolder
from covey.shared.mqtt import credentials
from covey.shared.mqtt.shards import shard_of
from tests.processes import free_port, mosquitto, needs_mosquitto

NAMES = [f"pi-{number}" for number in range(6)]


def typed(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


# -- enrolment ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def homes(tmp_path: Path) -> list[BrokerFolder]:
    ports = (8883, 8884)
    return [BrokerFolder.create(tmp_path / f"home-{port}", ["localhost"], port) for port in ports]


def both(homes: list[BrokerFolder]) -> list[object]:
    return [word for home in homes for word in ("--home", home.folder)]


def test_each_agent_is_enrolled_at_one_broker_and_its_file_names_it(
    homes: list[BrokerFolder],
) -> None:
    done = typed("enroll", *NAMES, *both(homes))
    assert done.exit_code == 0, done.output
    files = [Path(line) for line in done.stdout.split()]
    assert [file.stem for file in files] == NAMES
    for name, file in zip(NAMES, files, strict=True):
        home = homes[shard_of(name, 2)]
        assert file == home.file(name)
        assert credentials.read(file).broker.endswith(f":{home.url.port}")
    assert len({file.parent for file in files}) == 2


def test_the_operator_may_choose_the_broker_of_an_agent(homes: list[BrokerFolder]) -> None:
    done = typed("enroll", *NAMES, *both(homes), "--shard", 1)
    assert done.exit_code == 0, done.output
    assert set(NAMES) < homes[1].entries().keys()
    assert "--home names 2 brokers" in typed("enroll", "pi-9", *both(homes), "--shard", 2).stderr


def test_an_agent_is_not_enrolled_at_two_brokers(homes: list[BrokerFolder]) -> None:
    name = NAMES[0]
    other = 1 - shard_of(name, 2)
    homes[other].enroll(name)
    done = typed("enroll", *NAMES, *both(homes))
    assert done.exit_code == 2
    assert f"broker expel {name} --home {homes[other].folder}" in done.stderr
    assert not set(NAMES) & homes[1 - other].entries().keys()


# -- what several addresses are to each other --------------------------------------------------------------------------


def between(*crossings: Crossing) -> tuple[list[str], list[list[str]]]:
    """The states and groups for addresses a and b, and what crosses from a to b and back."""
    there, back = crossings
    found = judged_between(["a", "b"], {(0, 1): there, (1, 0): back})
    return [finding.state for finding in found.findings], found.groups


def test_a_cluster_that_keeps_retained_messages_where_they_were_published_is_not_called_ok() -> (
    None
):
    assert between(Crossing.LIVE, Crossing.LIVE) == (["missing"], [["a", "b"]])


def test_a_bridge_in_one_direction_is_not_called_ok() -> None:
    assert between(Crossing.ALL, Crossing.NOTHING)[0] == ["missing"]


def test_addresses_that_share_everything_are_one_and_others_are_shards() -> None:
    assert between(Crossing.ALL, Crossing.ALL) == (["ok"], [["a", "b"]])
    assert between(Crossing.NOTHING, Crossing.NOTHING) == (["ok"], [["a"], ["b"]])


@pytest.mark.broker
@needs_mosquitto
def test_the_doctor_distinguishes_bridged_brokers_from_independent_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def healthy(_: Doctor) -> list[BrokerCheck]:
        return []  # other tests examine single brokers

    monkeypatch.setattr(Doctor, "examine", healthy)
    ports = [free_port() for _ in range(3)]
    folders = [tmp_path / str(port) for port in ports]
    for folder in folders:
        folder.mkdir()
    bridge = (
        f"connection two\naddress 127.0.0.1:{ports[0]}\ntopic covey/# both 1\nrestart_timeout 1\n"
    )
    with (
        mosquitto(folders[0], ports[0]),
        mosquitto(folders[1], ports[1], bridge),
        mosquitto(folders[2], ports[2]),
    ):
        urls = [f"mqtt://127.0.0.1:{port}" for port in ports]
        done = typed("doctor", *urls, "--patience-s", "0.6", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["shards"] == [urls[:2], urls[2:]]
    assert "2 independent brokers" in found["between"][0]["seen"]
    assert [row["broker"] for row in found["brokers"]] == urls
