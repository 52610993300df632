"""Agents whose cluster was hijacked are served another model: in process, over a broker, and after a resume."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from covey.coordinator.checks import checked_numbers
from covey.coordinator.compare.grid import grid
from covey.coordinator.disk.spool import Spool
from covey.coordinator.fold.folding import Folding, Sound
from covey.coordinator.record import records
from covey.coordinator.report.roster import roster_table
from covey.coordinator.report.run_facts import facts_of
from covey.coordinator.run.result import write_all
from covey.coordinator.run.run import Effects, Run
from covey.coordinator.serve.roster import Roster
from covey.coordinator.simulate.virtual_clock import Driver
from covey.shared.errors import DecodeError
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import AS_ORDERED, ClientId, Drill, Phase, Report, TrainingResult
from covey.shared.strategies.fedclust import FedClust
from covey.shared.wire.messages import ReportContent
from tests import clock
from tests.bowl import Softmax, Trainer
from tests.coordinator.test_report_checks import report
from tests.kit import small_run
from tests.kit.local_clients import LocalClients
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import PATIENT, Fleet, Numpy
from tests.kit.small_run import (
    clients,
    fingerprint,
    killed_at_each_step,
    local_for,
    rules,
    scenario,
    setup,
)

HONEST = {"agent-4", "agent-6"}
HOSTILE = {"agent-0", "agent-2"}  # of the same group
FALLBACK = {"every": 1, "tune_epochs": 0, "fallback": True}
SCENE = scenario(
    "fedclust", strategy={"n_clusters": 2}, evaluation=FALLBACK, rounds={"participation": 1.0}
)
SAMPLES = small_run.samples_of(clients())


@dataclass(frozen=True)
class Hostile(Softmax):
    """Its first training, which has a length of its own, is honest. Later ones go ten times as far, backwards."""

    def train(self, start: Any, drill: Drill = AS_ORDERED) -> TrainingResult:
        done = super().train(start, drill)
        if drill.epochs is not None:
            return done
        return replace(done, end=(start - 10 * (done.end - start)).astype(np.float32))


def people() -> dict[ClientId, Trainer]:
    found: dict[ClientId, Trainer] = {}
    for client, local in clients().items():
        is_hostile = client in HOSTILE
        found[client] = Hostile(local.x, local.y, local.classes) if is_hostile else local
    return found


def held_back() -> dict[ClientId, Trainer]:
    """Other samples of the same groups."""
    more = clients(16)
    return {client: more[f"agent-{i + 8}"] for i, client in enumerate(clients())}


def driver(folder: Path, scene: Scenario = SCENE) -> Driver[LocalClients]:
    held = local_for(held_back()) if scene.evaluation.fallback else None
    return small_run.driver(folder, scene, people(), held_back=held)


def served(run: Run) -> float:
    """The mean accuracy of the honest agents of the attacked group."""
    shares = [run.members.evaluation[client]["server"].get("accuracy", 0.0) for client in HONEST]
    return float(np.mean(shares))


def test_members_of_a_hijacked_cluster_are_served_and_train_a_model_of_their_own(
    tmp_path: Path,
) -> None:
    plain = SCENE.model_copy(
        update={"evaluation": SCENE.evaluation.model_copy(update={"fallback": False})}
    )
    attacked = driver(tmp_path / "plain", plain).complete(SAMPLES)
    run = driver(tmp_path / "fallback").complete(SAMPLES)
    assert served(attacked) < 0.3
    assert served(run) > 0.8
    clusters = list(run.strategy.assignment(run.state).values())
    alone = [run.strategy.assignment(run.state)[client] for client in HONEST]
    assert [clusters.count(cluster) for cluster in alone] == [1, 1]
    assert run.members.fallen.keys() == HONEST | HOSTILE, "hostile agents vote as their victims do"


def test_who_fell_back_and_why_is_in_the_record_the_result_the_report_and_the_roster(
    tmp_path: Path,
) -> None:
    run = driver(tmp_path).complete(SAMPLES)
    result = write_all(run, None)
    fallen = [row for row in records.lines(tmp_path) if row["event"] == "fell_back"]
    assert {row["agent"] for row in fallen} == HONEST | HOSTILE
    [own] = [row for row in fallen if row["agent"] == "agent-4"]
    why = own["why"]
    assert why.startswith("has left cluster 0 and trains alone, as cluster 4: loss ")
    assert (own["left"], own["cluster"], own["round"]) == (0, 4, 1)
    assert result["fell_back"]["agent-4"] == {"round": 1, "left": 0, "cluster": 4, "why": why}
    [evaluation] = [
        row
        for row in records.lines(tmp_path)
        if row["event"] == "phase" and row["phase"] == "evaluate" and row["round"] == 1
    ]
    assert evaluation["moved"] == 4
    (tmp_path / "scenario.yaml").write_text(json.dumps(SCENE.model_dump(mode="json")))
    assert "fell back" not in facts_of(tmp_path).trouble.get("agent-1", "")
    assert why in facts_of(tmp_path).trouble["agent-4"]


def test_over_a_broker_the_same_agents_fall_back_to_the_same_bytes(tmp_path: Path) -> None:
    fleet_of = people()

    async def whole() -> tuple[Run, Roster]:
        fleet = Fleet(
            tmp_path / "wire", SCENE, rules(SCENE, **PATIENT), MemoryBroker(seed=5), fleet_of
        )
        fleet.pool = Numpy(fleet_of, held_back=held_back())
        async with fleet:
            run = await fleet.serve()
            assert fleet.service is not None
            return run, fleet.service.roster

    run, roster = clock.run(whole())
    alone = driver(tmp_path / "alone").complete(SAMPLES)
    assert fingerprint(run) == fingerprint(alone)
    assert run.members.fallen == alone.members.fallen
    rows = roster.rows(run.strategy.assignment(run.state))
    assert rows["agent-4"]["fell_back"] == run.members.fallen["agent-4"]["why"]
    assert "fell_back" not in rows["agent-1"]
    shown = roster_table({"run": "r1", "agents": {"agent-4": rows["agent-4"]}})
    assert rows["agent-4"]["fell_back"] in [row[-1] for row in shown.rows]


def test_kills_at_every_step_change_neither_who_falls_back_nor_a_byte(tmp_path: Path) -> None:
    whole = driver(tmp_path / "whole").complete(SAMPLES)
    folder = tmp_path / "killed"
    run, kills = killed_at_each_step(
        driver(folder),
        SAMPLES,
        lambda: Run.resume(folder, SCENE, setup(SCENE), rules=rules(SCENE), now=0.0),
    )
    assert kills > SCENE.rounds.count
    assert fingerprint(run) == fingerprint(whole)
    assert run.members.fallen == whole.members.fallen
    lines = [
        [row for row in records.lines(folder) if row["event"] == "fell_back"]
        for folder in (whole.folder, run.folder)
    ]
    assert lines[0] == lines[1]


def test_an_honest_fleet_has_the_same_bytes_with_votes_as_without(tmp_path: Path) -> None:
    runs: list[Run] = []
    for name, held in (("votes", local_for(held_back())), ("none", None)):
        runs.append(small_run.in_process(tmp_path / name, SCENE, held_back=held))
    voted, silent = runs
    assert fingerprint(voted) == fingerprint(silent)
    assert not voted.members.fallen
    assert voted.members.evaluation == silent.members.evaluation


# -- what the network may send -----------------------------------------------------------------------------------------

VOTE = {"n": 6, "loss": 3.0, "other": 1.0, "variance": 0.01, "naught": 1.4}
FIGURES = {"n": 4, "correct": 3, "accuracy": 0.75, "f1": 0.7, "loss": 0.6}


@pytest.mark.parametrize(
    "vote",
    [
        None,
        3,
        {},
        {**VOTE, "n": 4},
        {**VOTE, "n": 6.5},
        {**VOTE, "n": 2**60},
        {**VOTE, "loss": "much"},
        {**VOTE, "other": 1e101},
        {**VOTE, "variance": -1.0},
    ],
)
def test_a_vote_with_wrong_numbers_is_refused_by_name(vote: Any) -> None:
    with pytest.raises(DecodeError, match=r"wrong numbers.*vote"):
        checked_numbers(Phase("evaluate"), report(server=FIGURES, vote=vote), SCENE)


def test_the_numbers_of_a_vote_are_kept_and_no_others() -> None:
    numbers = report(server=FIGURES, vote={**VOTE, "more": 1})
    assert checked_numbers(Phase("evaluate"), numbers, SCENE)["vote"] == VOTE


@pytest.mark.parametrize("method", ["ifca", "fedavg", "fesem"])
def test_an_unasked_vote_moves_no_agent(tmp_path: Path, method: str) -> None:
    """An agent of a method without alternatives votes all the same."""
    scene = scenario(method, evaluation={"every": 1})
    liar = small_run.driver(tmp_path, scene)
    accept = liar.run.accept

    def with_vote(
        client: ClientId, content: bytes, now: float, content_digest: bytes = b""
    ) -> Effects:
        found = ReportContent.from_bytes(content, verified=True)
        if "server" in found.numbers:
            found = found.model_copy(update={"numbers": {**found.numbers, "vote": VOTE}})
        return accept(client, found.to_bytes(), now)

    liar.run.accept = with_vote  # type: ignore[method-assign]
    run = liar.complete(SAMPLES)
    assert not run.members.fallen
    assert run.engine.round == scene.rounds.count


def test_a_vote_of_an_agent_without_a_cluster_moves_no_agent(tmp_path: Path) -> None:
    state = replace(
        FedClust().init(setup(SCENE)), models=(setup(SCENE).starts[0],), assign={"a": 0}
    )
    spool = Spool(tmp_path)
    folding = Folding(SCENE, spool, 9, Phase("evaluate"))
    clients = ["a", "stranger"]
    for client in clients:
        report = Report({}, 5, {"server": FIGURES, "vote": VOTE})
        spool.keep(9, client, report, seconds=0.0)
        folding.add(client, report, state)
    verdict = folding.close(clients, Phase("evaluate"), state)
    assert isinstance(verdict, Sound)
    outcome = verdict.outcome
    assert outcome.votes.keys() == {"a"}
    assert outcome.state.assign == {"a": 0}
    assert outcome.evaluation["stranger"] == {"server": FIGURES}


# -- scenarios that cannot have it -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "sections", "reason"),
    [
        ("fedavg", {}, "methods that form clusters once"),
        ("ifca", {}, "methods that form clusters once"),
        ("fedclust", {"evaluation": {"fallback": True}}, "set evaluation.every"),
        (
            "fedclust",
            {"rounds": {"mode": "buffered", "participation": 1.0}},
            "buffered rounds have reports under way",
        ),
        ("fedclust", {"privacy": {"client": {}, "signatures": {}}}, "without noise"),
        ("fedclust", {"privacy": {"local": {"target_epsilon": 3}}}, "without noise"),
    ],
)
def test_a_scenario_that_cannot_have_a_fallback_is_refused_with_the_reason(
    method: str, sections: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValidationError, match=reason):
        scenario(method, **{"evaluation": FALLBACK, **sections})


def test_in_a_comparison_only_methods_with_clusters_of_their_own_fall_back() -> None:
    methods = ["fedavg", "ifca", "fedclust", "cfl"]
    scene = scenario("fedclust", evaluation=FALLBACK, compare={"methods": methods, "seeds": [1]})
    cells = {cell.scenario.strategy.name: cell.scenario for cell in grid(scene)}
    assert {name for name, one in cells.items() if one.evaluation.fallback} == {"fedclust", "cfl"}
    for one in cells.values():
        assert Scenario.model_validate(one.model_dump(mode="json")) == one
