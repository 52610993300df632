"""Mode `last`: every agent holds the model of its latest local training, in whichever phase of whichever method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.coordinator.record import records
from covey.coordinator.report.tables import participation
from covey.coordinator.run.result import result_of
from covey.coordinator.simulate.virtual_clock import Driver
from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.base import ClientId
from covey.shared.strategies.client_half import LAST_MODEL, Local, TrainingResult
from covey.shared.wire.messages import OrderMessage
from tests.kit import small_run
from tests.kit.local_clients import LocalClients
from tests.kit.small_run import clients, in_process, local_for, samples_of, scenario
from tests.methods import of_each_kind

BEFORE_THE_ROUNDS = {
    "fedclust",
    "fesem",
    "fesem_ma",
    "fesem_ma-fedma",
    "fesem_ma-own",
    "robust",
}  # all agents train once before them


class Watched:
    """A client's data that notes what each phase's training ended with."""

    def __init__(self, local: Local, ends: list[Vector]) -> None:
        self._local, self._ends = local, ends

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)

    def train(self, *arguments: Any, **options: Any) -> TrainingResult:
        done = self._local.train(*arguments, **options)
        self._ends.append(done.end)
        return done


def played(
    folder: Path, method: str, **sections: Any
) -> tuple[Driver[LocalClients], dict[ClientId, list[Vector]]]:
    """A run, and the models that each agent's latest phase with local training ended with."""
    scene = scenario(method, **sections)
    people = clients(scene=scene)
    latest: dict[ClientId, list[Vector]] = {}

    def watched(client: ClientId, order: OrderMessage) -> Any:
        assert order.work is not None
        ends: list[Vector] = []
        if order.work.phase != "evaluate":
            phases.setdefault(client, []).append(ends)
        return Watched(local_for(people)(client, order), ends)

    phases: dict[ClientId, list[list[Vector]]] = {}
    driver = small_run.driver(folder, scene, local=watched)
    driver.complete(samples_of(people))
    for client, own in phases.items():
        trained = [ends for ends in own if ends]
        if trained:
            latest[client] = trained[-1]
    return driver, latest


@pytest.mark.parametrize("method", sorted({*of_each_kind("last"), *BEFORE_THE_ROUNDS}))
def test_an_agent_holds_the_model_of_its_latest_training_in_whichever_phase(
    tmp_path: Path, method: str
) -> None:
    # a learner has the label prior inside, and what an agent holds has not
    driver, latest = played(tmp_path, method, task={"label_prior": "off"})
    held = {
        client: client_state[LAST_MODEL]
        for client, client_state in driver.clients.memories.items()
        if LAST_MODEL in client_state
    }
    if method == "perfedavg":  # it steps by hand
        assert set(held) == set(driver.run.members.trained)
        return
    assert set(held) == set(latest)
    for client, ends in latest.items():
        assert any(np.array_equal(held[client], end) for end in ends), client
    if method in BEFORE_THE_ROUNDS:
        assert set(held) == driver.run.engine.known > set(driver.run.members.trained)


@pytest.mark.parametrize("method", ["fedavg", "fedclust"])
def test_the_record_scores_agents_that_no_round_has_drawn(tmp_path: Path, method: str) -> None:
    driver, _ = played(tmp_path, method, evaluation={"every": 1}, rounds={"count": 1})
    run = driver.run
    result = result_of(run, None)
    accuracy = result.accuracy
    undrawn = sorted(run.engine.known - set(run.members.trained))
    assert result.never_trained == undrawn != []
    assert accuracy["last_of_undrawn"]["agents"] == len(undrawn)
    mode = (
        "last" if method == "fedclust" else "server"
    )  # FedAvg's have trained in no phase: served stands in
    figures = [run.members.evaluation[client][mode]["accuracy"] for client in undrawn]
    assert accuracy["last_of_undrawn"]["accuracy"]["macro"] == pytest.approx(np.mean(figures))
    [line] = [one for one in records.lines(tmp_path) if one["phase"] == "evaluate"][-1:]
    assert line["undrawn"] == accuracy["last_of_undrawn"]
    shown = participation(result.to_json())
    assert (
        f"{len(undrawn)} of 8 agents were drawn for no round: own last {100 * np.mean(figures):.2f} ("
        in shown
    )


def test_no_agent_is_left_undrawn_where_all_take_part(tmp_path: Path) -> None:
    scene = scenario("fedclust", rounds={"count": 1, "participation": 1.0})
    result = result_of(in_process(tmp_path, scene), None)
    assert (result.never_trained, result.accuracy["last_of_undrawn"]) == ([], {"agents": 0})
    assert participation(result.to_json()) == ""
