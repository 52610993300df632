"""`coordinator promote`, `rollback` and `audit` as typed, against a broker in memory: what devices get and what is signed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from covey.coordinator.cli.program import app
from covey.coordinator.disk.versions import last_version, round_name, save_version
from covey.coordinator.record.audit_trail import FILE
from covey.coordinator.run.result import write_all, write_models
from covey.extras.in_use.registry import publications, sample
from covey.shared.scenario.describe import dump
from covey.shared.storage.files import folder_lock
from covey.shared.wire.deployments import Deployment
from covey.shared.wire.documents import AgentStatus, ModelInUse
from covey.shared.wire.topics import Topics
from tests.kit import small_run
from tests.kit.memory_broker import MemoryBroker

KEY = "0123456789abcdef0123456789abcdef"
Typed = Callable[..., Result]


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """The folder of a finished run of two rounds, whose audit log is signed; it kept round 1 too."""
    return finish(tmp_path / "run")


def finish(folder: Path, key: str | None = KEY) -> Path:
    scene = small_run.scenario("ifca", rounds={"count": 2})
    secret = None if key is None else key.encode()
    run = small_run.in_process(folder, scene, audit_key=secret)
    np.savez(
        folder / "start.npz",
        starts=np.stack(run.setup.starts),
        layout=np.array(small_run.layout_text(scene)),
    )
    (folder / "scenario.yaml").write_text(dump(scene))
    write_models(run)
    write_all(run, None)
    last = last_version(folder)
    first = replace(last, round=1, models=tuple(2 * model for model in last.models))
    save_version(folder, round_name(1), first)
    return folder


def typed(*arguments: object, key: str | None = None) -> Result:
    variables = {"COVEY_AUDIT_KEY": key} if key is not None else {}
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env=variables)


def deployed(broker: MemoryBroker) -> Deployment:
    """The deployment that a device receives if it connects now."""
    [(_, payload)] = broker.retained.matching(Topics("default").deployment)
    return Deployment.from_bytes(payload)


def events(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    lines = map(json.loads, (folder / FILE).read_text().splitlines())
    return [(line["event"], line["fields"]) for line in lines]


def test_promotions_and_a_rollback_reach_devices_and_the_signed_log(
    finished: Path, broker: MemoryBroker, tmp_path: Path
) -> None:
    key = tmp_path / "audit.key"
    key.write_text(KEY)
    signed = ["--audit-key", key]
    first = typed("promote", finished, *signed)
    assert first.exit_code == 0, first.stderr
    assert (deployed(broker).round, deployed(broker).origin) == (2, "operator")
    shown = typed("promote", f"{finished}@1", "--json", *signed)
    assert json.loads(shown.stdout)["round"] == deployed(broker).round == 1
    back = typed("rollback", "--runs", finished.parent, *signed)
    assert back.stdout.startswith("rollback: run@1 -> run@2 on all devices")
    assert deployed(broker).round == 2
    assert len(deployed(broker).models) == 2
    acts = [(one.act, one.round) for one in publications(finished)]
    assert acts == [("promote", 2), ("promote", 1), ("rollback", 2)]

    shown = typed("lab", "audit", finished, "--json", "--key", key)
    audit = json.loads(shown.stdout)
    assert audit["whole"]
    assert [one["event"] for one in audit["publications"]] == ["promote", "promote", "rollback"]
    assert audit["publications"][-1]["serial"] == deployed(broker).serial
    assert "rollback: the models of round 2, for federation default" in typed(
        "lab", "audit", finished, "--key", key
    ).stdout.replace("\n", " ")

    # somebody who can write the folder hides the rollback
    log = finished / FILE
    log.write_text(log.read_text().replace('"event":"rollback"', '"event":"promote"'))
    hidden = typed("lab", "audit", finished, "--json", "--key", key)
    assert hidden.exit_code == 1
    assert "its hash does not match" in json.loads(hidden.stdout)["why"]


def test_without_the_key_of_a_signed_log_nothing_is_published(
    finished: Path, broker: MemoryBroker
) -> None:
    refused = typed("promote", finished)
    assert refused.exit_code == 2
    assert "give its file with --audit-key" in refused.stderr
    assert len(broker.retained) == 0
    assert publications(finished) == []


def test_a_folder_in_which_a_coordinator_works_is_left_alone(
    finished: Path, broker: MemoryBroker, tmp_path: Path
) -> None:
    key = tmp_path / "audit.key"
    key.write_text(KEY)
    with folder_lock(finished, "unused"):
        refused = typed("promote", finished, key=str(key))
    assert refused.exit_code == 2
    assert "a coordinator is at work in it" in refused.stderr
    assert len(broker.retained) == 0


def test_a_rollback_needs_two_publications(
    finished: Path, broker: MemoryBroker, tmp_path: Path
) -> None:
    refused = typed("rollback", "--runs", finished.parent)
    assert refused.exit_code == 2
    assert "nothing to go back to" in refused.stderr


def in_use(
    broker: MemoryBroker, agent: str, model: ModelInUse | None, *, online: bool = True
) -> None:
    """The broker retains a status of this agent. One with a large serial has judged whatever is published."""
    status = AgentStatus(agent=agent, session="s", online=online, model=model)
    broker.retained.keep(Topics("default").status(agent), status.to_bytes())


def test_a_promotion_prints_who_took_it_who_rejected_it_and_who_is_not_there_yet(
    finished: Path, broker: MemoryBroker, tmp_path: Path
) -> None:
    key = tmp_path / "audit.key"
    key.write_text(KEY)
    run = last_version(finished).run
    in_use(broker, "pi-1", ModelInUse(run=run, round=2, serial=2**50))
    alone = typed("promote", finished, "--audit-key", key)
    assert alone.exit_code == 0, alone.stderr
    assert "devices: 1 took it over, 0 rejected it\n" in alone.stdout
    in_use(broker, "pi-2", ModelInUse(run="earlier", round=9, serial=2**50, note="rejected: it"))
    in_use(broker, "pi-3", ModelInUse(run=run, round=1, serial=5))
    in_use(broker, "pi-4", None, online=False)
    in_use(broker, "pi-5", None)  # without --model-dir
    waited = ["--wait", 0.2, "--audit-key", key]
    in_use(broker, "pi-2", ModelInUse(run="earlier", round=9, serial=3))
    assert typed("promote", finished, *waited).exit_code == 3, "some are not there yet"
    in_use(broker, "pi-2", ModelInUse(run="earlier", round=9, serial=2**50, note="rejected: it"))
    shown = typed("promote", finished, *waited)
    assert shown.exit_code == 1
    assert shown.stdout.endswith(
        "devices: 1 took it over, 1 rejected it (pi-2), 1 has not answered yet (pi-3), 1 is offline (pi-4); "
        "`coordinator promote run@2 --force` overrides their check\n"
    )
    found = json.loads(typed("promote", finished, "--json", *waited).stdout)["outcome"]
    assert found == {
        "taken": ["pi-1"],
        "rejected": {"pi-2": "rejected: it"},
        "undecided": ["pi-3"],
        "offline": ["pi-4"],
    }
    assert typed("promote", finished, "--wait", 0, "--audit-key", key).exit_code == 0


def test_force_is_published_and_noted_in_the_audit_log(
    finished: Path, broker: MemoryBroker, tmp_path: Path
) -> None:
    key = tmp_path / "audit.key"
    key.write_text(KEY)
    assert typed("promote", finished, "--audit-key", key).exit_code == 0
    assert not deployed(broker).force
    assert typed("promote", f"{finished}@1", "--force", "--audit-key", key).exit_code == 0
    assert deployed(broker).force
    assert (
        typed("rollback", "--runs", finished.parent, "--force", "--audit-key", key).exit_code == 0
    )
    assert (deployed(broker).round, deployed(broker).force) == (2, True)
    assert [one.force for one in publications(finished)] == [False, True, True]


def run_of(folder: Path) -> str:
    return last_version(folder).run


def test_a_rollback_after_a_retrain_goes_to_the_models_of_the_run_before(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "audit.key"
    key.write_text(KEY)
    signed = ["--audit-key", key]
    old = finish(tmp_path / "a")
    monkeypatch.setattr("tests.kit.local_clients.IN_PROCESS", "retrained")
    new = finish(tmp_path / "b")
    assert typed("promote", old, *signed).exit_code == 0
    assert typed("promote", new, *signed).exit_code == 0
    assert typed("promote", f"{new}@1", *signed).exit_code == 0
    assert typed("rollback", "--runs", tmp_path, *signed).exit_code == 0
    assert (deployed(broker).run, deployed(broker).round) == (run_of(new), 2)
    assert typed("rollback", "--runs", tmp_path, *signed).exit_code == 0
    assert (deployed(broker).run, deployed(broker).round) == (run_of(old), 2)
    assert publications(old)[-1].act == "rollback"
    again = typed("rollback", "--runs", tmp_path, *signed)
    assert again.exit_code == 2
    assert "nothing was in force before a@2" in again.stderr
    assert typed("promote", new, *signed).exit_code == 0
    run = run_of(old)
    shutil.rmtree(old)
    lost = typed("rollback", "--runs", tmp_path, *signed)
    assert lost.exit_code == 2
    assert f"before b@2 is not in {tmp_path}: round 2 of run {run}" in lost.stderr.replace(
        "\n", " "
    )


def test_a_publication_of_the_future_is_named_and_replaced_by_force(
    finished: Path, broker: MemoryBroker, tmp_path: Path
) -> None:
    """Before: a traceback of pydantic, and devices that ignore every later publication."""
    key = tmp_path / "audit.key"
    key.write_text(KEY)
    signed = ["--audit-key", key]
    assert typed("promote", finished, *signed).exit_code == 0
    forged = deployed(broker).model_copy(update={"serial": 2**53 - 1})
    broker.retained.keep(Topics("default").deployment, forged.to_bytes())
    refused = typed("promote", finished, *signed)
    assert refused.exit_code == 2
    assert "more than a day ahead" in refused.stderr
    assert deployed(broker).serial == 2**53 - 1
    again = typed("promote", finished, "--force", *signed)
    assert again.exit_code == 0, again.stderr
    assert deployed(broker).serial < 2**50


def candidate(broker: MemoryBroker) -> Deployment | None:
    """What the broker holds for some devices."""
    found = list(broker.retained.matching(Topics("default").candidate))
    return Deployment.from_bytes(found[0][1]) if found else None


def keys(broker: MemoryBroker) -> set[str]:
    """The keys of the models that the broker holds."""
    topics = [topic for topic, _ in broker.retained.matching("covey/default/clusters/+/model/+")]
    return {topic.split("/")[3] for topic in topics}


def test_a_candidate_is_for_the_devices_that_it_names_until_it_is_for_all_or_taken_back(
    finished: Path, broker: MemoryBroker, tmp_path: Path
) -> None:
    key = tmp_path / "audit.key"
    key.write_text(KEY)
    signed = ["--audit-key", key, "--runs", tmp_path]
    for name in ("pi-1", "pi-2"):
        in_use(broker, name, ModelInUse(run=run_of(finished), round=2, serial=2**50))
    assert typed("promote", finished, *signed).exit_code == 0
    in_use(broker, "pi-1", ModelInUse(run=run_of(finished), round=1, serial=2**50))
    unknown = typed("promote", f"{finished}@1", "--on", "pi-9", *signed)
    assert unknown.exit_code == 2
    assert "--on pi-9: no agent of this id has been connected" in unknown.stderr
    tried = typed("promote", f"{finished}@1", "--on", "pi-1", "--as", "careful", *signed)
    assert tried.exit_code == 0, "the others are not asked"
    assert "promote: run@2 -> careful on pi-1" in tried.stdout
    assert "devices: 1 took it over" in tried.stdout
    trial = candidate(broker)
    assert trial is not None
    assert (trial.round, trial.devices) == (1, ["pi-1"])
    assert deployed(broker).round == 2, "what all others use stays"
    assert keys(broker) == {"deployed-0", "deployed-1", "candidate-0", "candidate-1"}
    other = typed("promote", finished, "--on", "pi-2", *signed)
    assert other.exit_code == 2
    assert "pi-1 try another candidate, careful" in other.stderr.replace("\n", " ")
    wider = typed("promote", "candidate", "--on", "pi-2", "--json", *signed)
    assert json.loads(wider.stdout)["devices"] == ["pi-1", "pi-2"]

    listed = json.loads(typed("versions", tmp_path, "--json").stdout)["versions"]
    assert [(one["title"], one["names"]) for one in listed] == [
        ("careful", ["candidate"]),
        (f"{finished.name}@2", ["champion"]),
    ]
    assert typed("rollback", *signed).exit_code == 1, "this device stays at round 1"
    assert candidate(broker) is None
    assert keys(broker) == {"deployed-0", "deployed-1"}
    assert deployed(broker).round == 2
    assert publications(finished)[-2].devices == ["pi-1", "pi-2"]

    in_use(broker, "pi-2", ModelInUse(run=run_of(finished), round=1, serial=2**50))
    assert typed("promote", "careful", "--share", "50%", *signed).exit_code == 0
    trial = candidate(broker)
    assert trial is not None
    assert len(trial.devices) == 1
    assert typed("promote", "candidate", *signed).exit_code == 0
    assert candidate(broker) is None
    assert deployed(broker).round == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--share", "10"], "expected a share of the devices, such as 10%"),
        (["--share", "0%"], "expected a share"),
        (["--share", "5%"], "no device is online that keeps a model"),
        (["--share", "5%", "--on", "pi"], "give one of them"),
        (["--as", "champion"], "none of champion"),
    ],
)
def test_a_choice_of_devices_or_a_name_that_makes_no_sense_is_refused(
    finished: Path, broker: MemoryBroker, tmp_path: Path, options: list[str], why: str
) -> None:
    key = tmp_path / "audit.key"
    key.write_text(KEY)
    refused = typed("promote", finished, "--audit-key", key, *options)
    assert refused.exit_code == 2
    assert why in refused.stderr.replace("\n", " ")
    assert len(broker.retained) == 0


def test_a_larger_share_has_the_devices_of_a_smaller_one() -> None:
    devices = [f"pi-{number}" for number in range(40)]
    tenth, half = sample(devices, 0.1, "a@1"), sample(devices, 0.5, "a@1")
    assert (len(tenth), len(half)) == (4, 20)
    assert set(tenth) < set(half)
    assert sample(devices, 0.1, "b@1") != tenth
    assert sample(devices[:3], 0.01, "a@1") != []


def test_a_rollback_refuses_what_was_published_from_elsewhere(
    finished: Path, broker: MemoryBroker, tmp_path: Path
) -> None:
    key = tmp_path / "audit.key"
    key.write_text(KEY)
    signed = ["--audit-key", key]
    for version in (finished, f"{finished}@1"):
        assert typed("promote", version, *signed).exit_code == 0
    serial = deployed(broker).serial + 1
    foreign = deployed(broker).model_copy(update={"serial": serial, "run": "elsewhere"})
    broker.retained.keep(Topics("default").deployment, foreign.to_bytes())
    refused = typed("rollback", "--runs", tmp_path, *signed)
    assert refused.exit_code == 2
    assert "should use run@1, which was published from" in refused.stderr.replace("\n", " ")


def test_the_versions_are_listed_with_their_figures_and_the_devices_that_use_them(
    finished: Path, broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "covey.extras.in_use.versions.MqttLink", lambda _url, *, client_id: broker.link(client_id)
    )
    key = tmp_path / "audit.key"
    key.write_text(KEY)
    assert typed("promote", f"{finished}@1", "--audit-key", key).exit_code == 0
    assert typed("promote", finished, "--audit-key", key).exit_code == 0
    in_use(broker, "pi-1", ModelInUse(run=run_of(finished), round=1, serial=5))
    in_use(broker, "pi-2", ModelInUse(run="1234567890", round=9, serial=5))
    in_use(broker, "pi-3", ModelInUse())  # keeps models and has none yet
    asked = ["--broker", "mqtt://127.0.0.1", "--json"]
    listed = json.loads(typed("versions", tmp_path, *asked).stdout)["versions"]
    assert [(one["title"], one["used_by"]) for one in listed] == [
        (f"{finished.name}@2", []),
        (f"{finished.name}@1", ["pi-1"]),
        ("12345678@9", ["pi-2"]),
    ]
    newest = listed[0]["publications"][-1]
    assert newest["figure"]["metric"] == "accuracy"
    assert newest["act"] == "promote"
    shown = typed("versions", tmp_path)
    assert f"{finished.name}@2" in shown.stdout
    assert "accuracy" in shown.stdout
    assert "in use on" not in shown.stdout, "no broker was asked"
