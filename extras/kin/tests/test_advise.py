"""`coordinator advise`: one sentence from the cards of a fleet, and nothing is trained for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from covey.coordinator.cli import options
from covey.coordinator.cli.program import app
from covey.coordinator.record import records
from covey.coordinator.run.run import Run
from covey.extras.formats.device_folders import device_entries
from covey.extras.kin import advise
from covey.extras.kin.advise import Advice, advice, planned
from covey.extras.kin.tests.test_strategy_kin import complete, even, people, swapped
from covey.shared.errors import UserError
from covey.shared.numerics.measures import Kind
from covey.shared.scenario.scenario import Scenario
from tests import clock
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import PATIENT, Fleet, Numpy
from tests.kit.small_run import rules, scenario

ROOT = Path(__file__).parents[3]
GROUPS = (("a", "c"), ("b", "d"))


def notes(silhouette: float | None = None, **chances: float) -> dict[str, Any]:
    """What the record has after the tests."""
    return {
        "shift_chances": {"labels": 0.5, "style": 0.5, "concept": 0.5} | chances,
        "silhouettes": {} if silhouette is None else {"inputs": silhouette},
    }


@pytest.mark.parametrize(
    ("found", "kind", "sentence"),
    [
        (notes(), "one model", "no groups: no shift found between the data of 4 agents"),
        (notes(0.8, style=0.001), "groups", "groups: style differs between agents"),
        (
            notes(0.8, style=0.001),
            "groups",
            "2 groups; take kin, whose agents vote on it, or fedclust or ifca",
        ),
        (notes(0.3, labels=0.001), "own models", "own models rather than groups: labels differ"),
        (notes(None, labels=0.001, concept=0.001), "own models", "labels and concept differ"),
        ({"silhouettes": {}}, "unknown", "fewer than four agents sent one"),
    ],
)
def test_the_advice_follows_from_the_tests_and_from_how_clear_the_groups_are(
    found: dict[str, Any], kind: str, sentence: str
) -> None:
    given = advice(found, 4, GROUPS)
    assert given.kind == kind
    assert sentence in given.sentence


@pytest.mark.parametrize(
    ("silhouette", "kind", "sentence"),
    [
        (
            0.3,
            "classes",
            "groups; set task.label_prior: on, let agents finish at home, or take kin",
        ),
        (0.3, "labels", "groups; let agents finish at home, or take kin"),
        (0.8, "classes", "for the cards too; or try one model: set task.label_prior: on"),
    ],
)
def test_where_labels_differ_the_advice_names_what_helps_without_groups(
    silhouette: float, kind: Kind, sentence: str
) -> None:
    assert sentence in advice(notes(silhouette, labels=0.001), 4, GROUPS, kind).sentence
    other = advice(notes(silhouette, style=0.001), 4, GROUPS, kind).sentence
    assert "task." not in other


def test_values_that_differ_by_their_level_alone_need_a_bias_on_each_device_and_no_groups() -> None:
    keep = "keep the bias of the last layer on each device (task.keep)"
    for silhouette in (0.3, 0.8):
        level = advice(notes(silhouette, labels=0.001), 4, GROUPS, "values")
        assert level.kind == "one model"
        assert level.sentence.startswith("no groups: the level of the targets differs")
        assert level.sentence.endswith(f"take fedavg, and {keep}")
    both = advice(notes(0.8, labels=0.001, concept=0.001), 4, GROUPS, "values")
    assert both.sentence.endswith(f"or try one model: {keep}")
    few = advice(notes(0.3, labels=0.001, style=0.001), 4, GROUPS, "values")
    assert f"groups; {keep}, let agents finish at home" in few.sentence


def test_a_run_that_stops_after_the_cards_trains_and_tests_nothing_and_has_the_groups(
    tmp_path: Path,
) -> None:
    for labelling, groups in ((swapped, [0, 1] * 4), (even, [])):
        folder = tmp_path / labelling.__name__
        run = complete(folder, labelling, planned(scenario("ifca"), None))
        rows = list(records.lines(folder))
        assert [row["phase"] for row in rows if row["event"] == "phase"] == ["signature"]
        assert [*run.state.assign.values()] == groups
        assert run.members.evaluation == {}


def test_the_distances_of_the_cards_are_drawn_and_forget_an_agent(tmp_path: Path) -> None:
    run = complete(tmp_path / "differ", swapped, planned(scenario("ifca"), None))
    proximity = run.strategy.shown(run.state).proximity()
    assert proximity is not None
    assert proximity.clients == tuple(run.state.assign)
    groups = np.array([*run.state.assign.values()])
    inside = groups[:, None] == groups
    assert proximity.distances[inside].max() < proximity.distances[~inside].min()
    after = run.strategy.forget(run.state, "agent-3")
    assert "agent-3" not in repr(after.distances)
    assert len(after.distances["agent-0"]) == len(groups) - 1
    alike = complete(tmp_path / "alike", even, planned(scenario("ifca"), None))
    assert alike.strategy.shown(alike.state).proximity() is None


def test_over_a_broker_agents_send_a_card_each_and_nothing_else(tmp_path: Path) -> None:
    plan = planned(scenario("fedavg"), None)
    fleet_of = people(swapped)

    async def whole() -> Run:
        fleet = Fleet(tmp_path, plan, rules(plan, **PATIENT), MemoryBroker(seed=3), fleet_of)
        fleet.pool = Numpy(fleet_of)
        async with fleet:
            return await fleet.serve()

    run = clock.run(whole())
    assert [*run.state.assign.values()] == [0, 1] * 4
    assert run.engine.round == 0
    assert [row["phase"] for row in records.lines(run.folder) if row["event"] == "phase"] == [
        "signature"
    ]


def test_the_method_of_the_scenario_and_what_belongs_to_it_do_not_count() -> None:
    given = scenario(
        "fedavg", aggregation={"rule": "median"}, evaluation={"every": 1, "tune_epochs": 3}
    )
    plan = planned(given, 6)
    assert (plan.strategy.name, plan.rounds.count) == ("kin", 6)
    assert (plan.aggregation.rule, plan.evaluation.tune_epochs) == ("mean", 0)
    private = scenario("fedavg", privacy={"client": {"clip": 1.0, "noise_multiplier": 1.0}})
    with pytest.raises(UserError, match="cards are not private"):
        planned(private, None)


def test_the_command_prints_sentence_tests_and_groups_in_eighty_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = tuple(f"agent-{number:03}" for number in range(100))
    found = advice(notes(0.9, style=0.0005), 200, (names, names))
    monkeypatch.setattr(advise, "advise", lambda *_, **__: found)
    monkeypatch.setattr(options.out(), "width", 80)
    command = ["advise", str(ROOT / "scenarios" / "kin.yaml")]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0
    assert "groups: style differs between agents" in shown.output
    assert "0.0005" in shown.output
    assert "and 88 more" in shown.output
    assert max(map(len, shown.output.splitlines())) <= 80
    drawn = CliRunner().invoke(app, [*command, "--svg", "cards.svg"])
    assert "warning: cards.svg is not written: no test found a shift" in drawn.output
    listed = json.loads(CliRunner().invoke(app, [*command, "--json"]).output)
    assert (listed["kind"], len(listed["groups"][0])) == ("groups", 100)


def test_data_of_devices_that_is_here_is_asked_in_process_and_keeps_its_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"plant-{letter}.csv" for letter in "cab"]
    for name in names:
        (tmp_path / name).write_text("x,y\n1,0\n2,1\n")
    scene = tmp_path / "scenario.yaml"
    scene.write_text(
        "name: plants\n"
        "task: {features: [1], classes: 2, model: {name: linear}}\n"
        "strategy: fedavg\n"
        "rounds: {count: 1}\n"
    )
    asked: list[list[str]] = []

    def asks(scenario: Scenario, *_: object, **__: object) -> Advice:
        assert scenario.fleet is not None
        entries = device_entries(Path(scenario.fleet.data))
        asked.append([entry.path.name for entry in entries])
        return advice(notes(0.9, style=0.0005), 3, (("agent-0", "agent-2"), ("agent-1",)))

    monkeypatch.setattr(advise, "advise", asks)
    sources = [f"--from={tmp_path / name}" for name in names]
    shown = CliRunner().invoke(app, ["advise", str(scene), *sources, "--json"])
    assert asked == [names], shown.output
    groups = [[Path(name).name for name in group] for group in json.loads(shown.output)["groups"]]
    assert groups == [["plant-c.csv", "plant-b.csv"], ["plant-a.csv"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "advise needs a scenario file, or the data of each device: --from"),
        (["--from=x.csv", "--set", "seed=2"], "--set changes a scenario file: name one, or omit"),
    ],
)
def test_advice_needs_a_fleet_to_ask(options: list[str], message: str) -> None:
    shown = CliRunner().invoke(app, ["advise", *options])
    assert shown.exit_code == 2
    assert message in shown.output
