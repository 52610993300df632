"""`coordinator promote`, `rollback` and `audit` as typed, against a broker in memory: what devices get and what is signed."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from covey.broker.testing.memory_broker import MemoryBroker
from covey.coordinator.cli.program import app
from covey.coordinator.deploy.log import publications
from covey.coordinator.run.audit_trail import FILE
from covey.coordinator.run.result import write_all, write_models
from covey.coordinator.run.versions import last_version, round_name, save_version
from covey.shared.files import folder_lock
from covey.shared.mqtt.link import Link
from covey.shared.scenario.describe import dump
from covey.shared.wire.deployments import Deployment
from covey.shared.wire.topics import Topics
from tests import small_run

KEY = "0123456789abcdef0123456789abcdef"
Typed = Callable[..., Result]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> MemoryBroker:
    """The broker that the commands reach, whatever address is typed."""
    broker = MemoryBroker()

    def link(_url: object, *, client_id: str, **_: object) -> AbstractAsyncContextManager[Link]:
        return broker.link(client_id)

    monkeypatch.setattr("covey.coordinator.serve.connect.MqttLink", link)
    monkeypatch.setattr("covey.coordinator.deploy.publish.RETAINED_S", 0.05)
    return broker


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """The folder of a finished run of two rounds, whose audit log is signed; it kept round 1 too."""
    folder = tmp_path / "run"
    scene = small_run.scenario("ifca", rounds={"count": 2})
    run = small_run.in_process(folder, scene, audit_key=KEY.encode())
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
    shown = typed("promote", finished, "--round", 1, "--json", *signed)
    assert json.loads(shown.stdout)["round"] == deployed(broker).round == 1
    back = typed("rollback", finished, *signed)
    assert back.stdout.startswith("round 2 of run ")
    assert deployed(broker).round == 2
    assert len(deployed(broker).models) == 2
    acts = [(one.act, one.round) for one in publications(finished)]
    assert acts == [("promote", 2), ("promote", 1), ("rollback", 2)]
    assert [(event, fields["round"]) for event, fields in events(finished)[-3:]] == acts

    shown = typed("audit", finished, "--json", "--key", key)
    audit = json.loads(shown.stdout)
    assert audit["whole"]
    assert [one["event"] for one in audit["publications"]] == ["promote", "promote", "rollback"]
    assert audit["publications"][-1]["serial"] == deployed(broker).serial
    assert "rollback: the models of round 2, for federation default" in typed(
        "audit", finished, "--key", key
    ).stdout.replace("\n", " ")

    # somebody who can write the folder hides the rollback
    log = finished / FILE
    log.write_text(log.read_text().replace('"event":"rollback"', '"event":"promote"'))
    hidden = typed("audit", finished, "--json", "--key", key)
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
    refused = typed("rollback", finished)
    assert refused.exit_code == 2
    assert "nothing to go back to" in refused.stderr
