"""What a run keeps of its agents' models for pictures, and that it changes no model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from covey.coordinator.disk.array_files import open_arrays
from covey.coordinator.engine.events import Joined
from covey.coordinator.record import records
from covey.coordinator.run.effects import Effect, SendOrder
from covey.coordinator.run.folder import IN_PROCESS
from covey.coordinator.run.run import Run
from covey.extras.dashboard import sketches
from covey.shared.errors import UserError
from covey.shared.numerics.clustering import sketch
from covey.shared.strategies.base import ClientId
from covey.shared.wire.messages import OrderMessage
from tests.kit.local_clients import report_on
from tests.kit.small_run import (
    begun,
    clients,
    fingerprint,
    in_process,
    local_for,
    rules,
    scenario,
    setup,
)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / sketches.FOLDER).glob("*"))}


def phases(folder: Path) -> list[dict[str, Any]]:
    return [line for line in records.lines(folder) if line["event"] == "phase"]


def test_fesem_keeps_a_sketch_of_each_reported_model_and_of_the_centres(tmp_path: Path) -> None:
    run = in_process(tmp_path, scenario("fesem"))
    found = sketches.read(tmp_path, phases(tmp_path))
    assert [(one.phase, one.rounds) for one in found] == [
        ("warmup", 0),
        ("train", 1),
        ("train", 2),
        ("train", 3),
    ]
    assert all(
        one.rows.shape == (len(one.agents), 64) and one.centres.shape == (2, 64) for one in found
    )
    last = found[-1]
    assignment = run.strategy.assignment(run.state)
    assert last.clusters == tuple(assignment[agent] for agent in last.agents)
    models = [run.state.stored[agent] for agent in last.agents]
    assert np.array_equal(
        last.rows, sketch([*models, *run.state.models], 64, run.scenario.seed)[: len(models)]
    )


def test_a_sketch_keeps_distances(tmp_path: Path) -> None:
    run = in_process(tmp_path, scenario("fesem", records={"sketch": 1024}))
    last = sketches.read(tmp_path, phases(tmp_path))[-1]
    first, second = last.agents[:2]
    exact = float(np.linalg.norm(run.state.stored[first] - run.state.stored[second]))
    assert math.isclose(float(np.linalg.norm(last.rows[0] - last.rows[1])), exact, rel_tol=0.15)


# an average, one that looks at single reports, several models, and models of which some are never sent
@pytest.mark.parametrize("method", ["fedavg", "fesem", "ifca", "lg"])
def test_keeping_sketches_changes_no_byte_of_a_model_and_no_line_of_the_record(
    method: str, tmp_path: Path
) -> None:
    runs = [
        in_process(tmp_path / str(size), scenario(method, records={"sketch": size}))
        for size in (0, 8)
    ]
    assert fingerprint(runs[0]) == fingerprint(runs[1])
    assert not (tmp_path / "0" / sketches.FOLDER).exists()
    times = {"seconds", "train_seconds", "fold_seconds"}
    lines = [
        [{k: v for k, v in line.items() if k not in times} for line in phases(run.folder)]
        for run in runs
    ]
    assert lines[0] == lines[1]


def test_a_method_that_keeps_no_models_keeps_no_sketches_unless_asked(tmp_path: Path) -> None:
    in_process(tmp_path / "usual", scenario("fedavg"))
    assert not (tmp_path / "usual" / sketches.FOLDER).exists()
    in_process(tmp_path / "asked", scenario("fedavg", records={"sketch": 4}))
    found = sketches.read(tmp_path / "asked", phases(tmp_path / "asked"))
    assert [one.rows.shape for one in found] == [(4, 4)] * 3
    assert {cluster for one in found for cluster in one.clusters} == {None}


def test_a_run_that_is_killed_after_every_step_ends_with_the_same_sketches(tmp_path: Path) -> None:
    scene = scenario("fesem")
    in_process(tmp_path / "whole", scene)
    killed_everywhere(tmp_path / "killed", scene)
    assert files(tmp_path / "killed") == files(tmp_path / "whole") != {}


def killed_everywhere(folder: Path, scene: Any) -> None:
    """The run, begun again from its checkpoint whenever a step was closed."""
    people = clients(8, scene)
    known = {client: (local.examples, local.examples) for client, local in people.items()}
    client_states: dict[ClientId, Any] = {}
    run = begun(folder, scene, name=IN_PROCESS)
    first: list[Effect] = []
    while True:
        run.members.note_samples(known)
        effects = [*first, *run.desired()]
        for client in known:
            effects += run.handle(Joined(client), 0.0)
        if not answered(run, effects, client_states, local_for(people)):
            return
        run, first = Run.resume(folder, scene, setup(scene), rules=rules(scene), now=0.0)


def answered(
    run: Run, effects: list[Effect], client_states: dict[ClientId, Any], local: Any
) -> bool:
    """Report what the open step wants; False where the run wants nothing more."""
    newest: dict[ClientId, OrderMessage] = {
        one.client: one.order for one in effects if isinstance(one, SendOrder)
    }
    work = {client: order for client, order in sorted(newest.items()) if order.work is not None}
    for client, order in work.items():
        report, client_states[client] = report_on(
            run, client, order, local(client, order), client_states.get(client)
        )
        run.accept(client, report.to_bytes(), 0.0)
    return bool(work)


def test_a_file_of_a_step_that_the_record_does_not_have_is_passed_over(tmp_path: Path) -> None:
    in_process(tmp_path, scenario("fesem"))
    before = len(sketches.read(tmp_path, phases(tmp_path)))
    one = next((tmp_path / sketches.FOLDER).iterdir())
    (tmp_path / sketches.FOLDER / "999.safetensors").write_bytes(one.read_bytes())
    assert len(sketches.read(tmp_path, phases(tmp_path))) == before


def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    in_process(tmp_path, scenario("fesem"))
    one = sorted((tmp_path / sketches.FOLDER).iterdir())[0]
    one.write_bytes(one.read_bytes()[:-4])
    with pytest.raises(UserError, match=rf"{one.name}: damaged .* remove the file"):
        sketches.read(tmp_path, phases(tmp_path))


def test_a_sketch_costs_four_bytes_per_value_and_a_little(tmp_path: Path) -> None:
    in_process(tmp_path, scenario("fesem"))
    for path in (tmp_path / sketches.FOLDER).iterdir():
        arrays, facts = open_arrays(path)
        assert path.stat().st_size < 4 * 64 * (len(facts["agents"]) + len(arrays["centres"])) + 1024


def test_privacy_keeps_no_sketch_and_refuses_to_be_asked_for_one() -> None:
    private: dict[str, Any] = {"signatures": {"clip": 1.0}}
    assert scenario("fesem").sketch == 64
    assert scenario("fesem", privacy=private).sketch == 0
    assert scenario("fesem", privacy=private, records={"sketch": 0}).sketch == 0
    with pytest.raises(
        ValidationError, match=r"records\.sketch stores a projection of each agent's model"
    ):
        scenario("fesem", privacy=private, records={"sketch": 64})


def test_records_for_pictures_do_not_change_the_digest_of_a_run() -> None:
    usual, more = scenario("fesem"), scenario("fesem", records={"sketch": 2})
    assert records.scenario_digest(usual) == records.scenario_digest(more)
