"""A record names the kinds of devices that computed the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from covey.agent.worker.perform import Worked, worked
from covey.coordinator.record import records
from covey.coordinator.run.result import write_all
from tests.kit.small_run import fingerprint, in_process, scenario


def phases(folder: Path) -> list[dict[str, Any]]:
    return [line for line in records.lines(folder) if line["event"] == "phase"]


def computed_on(monkeypatch: pytest.MonkeyPatch, **kinds: str) -> None:
    """Let the reports of these agents say that they were computed elsewhere, each from round 1 on."""

    def done_there(order: Any, models: Any, memory: Any, who: Any) -> Worked:
        done = worked(order, models, memory, who)
        kind = kinds.get(who.client.replace("-", "_"), "cpu")
        there = done.content.model_copy(update={"device": kind})
        return replace(done, content=there) if order.work.round else done

    monkeypatch.setattr("tests.kit.local_clients.worked", done_there)


def test_a_run_on_cpus_is_recorded_as_such_and_its_lines_are_as_before(tmp_path: Path) -> None:
    run = in_process(tmp_path, scenario("fedavg"))
    result = write_all(run, None)
    assert (result["device"], result["devices"]) == ("cpu", {"cpu": 8})
    assert not any("devices" in line for line in phases(tmp_path))


def test_a_mixed_fleet_is_recorded_as_mixed_agent_by_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed_on(monkeypatch, agent_0="cuda", agent_1="cuda")
    run = in_process(tmp_path, scenario("fedavg", rounds={"participation": 1.0}))
    result = write_all(run, None)
    assert result["device"] == "mixed"
    assert result["devices"] == {"cpu": 6, "mixed": 2}  # the two began on a CPU
    lines = [line.get("devices") for line in phases(tmp_path)]
    assert lines == [None, *[{"cpu": 6, "cuda": 2}] * 3]  # round 0, rounds 1 and 2, the evaluation
    table = parquet.read_table(tmp_path / "agents.parquet").to_pydict()
    assert table["device"] == ["mixed", "mixed", *["cpu"] * 6]


def test_devices_survive_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed_on(monkeypatch, agent_0="mps")
    run = in_process(tmp_path, scenario("fedavg", rounds={"participation": 1.0}))
    assert run.store.checkpoint.facts()["run"]["device"] == run.members.by_agent(
        lambda one: one.device
    )


def test_the_device_in_a_report_changes_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = in_process(tmp_path / "plain", scenario("fedclust"))
    computed_on(monkeypatch, agent_0="cuda")
    assert fingerprint(in_process(tmp_path / "said", scenario("fedclust"))) == fingerprint(plain)


def test_another_device_makes_another_scenario() -> None:
    usual, other = scenario("fedavg"), scenario("fedavg", training={"device": "cuda"})
    assert records.scenario_digest(usual) == records.scenario_digest(
        scenario("fedavg", training={"device": "cpu"})
    )
    assert records.scenario_digest(usual) != records.scenario_digest(other)  # it makes other bytes
    assert other.tuning.device == "cuda"


def test_the_number_of_workers_does_not_make_another_scenario() -> None:
    fleet = {"agents": 8, "data": "blobs"}
    one_worker = scenario("fedavg", fleet={**fleet, "workers": 1})
    one_per_core = scenario("fedavg", fleet=fleet)
    assert records.scenario_digest(one_worker) == records.scenario_digest(one_per_core)
    other_fleet = scenario("fedavg", fleet={**fleet, "agents": 9})
    assert records.scenario_digest(one_worker) != records.scenario_digest(other_fleet)
