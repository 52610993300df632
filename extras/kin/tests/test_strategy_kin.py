"""Kin: FedAvg where no test fires, groups where they help."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from covey.coordinator.record import records
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.virtual_clock import Driver
from covey.coordinator.view.lines import phase_line, reduced
from covey.extras.cards import fleet_cards
from covey.extras.dashboard.html_report import decisions_table
from covey.extras.kin import kin
from covey.extras.kin.kin import Kin, KinState
from covey.extras.runs.state import RunPlan, Sources, dashboard_state
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId, Phase, View
from covey.shared.strategies.bases.vote import outcomes_of
from covey.shared.strategies.client_half import LAST_MODEL, Drill, Local, Report
from covey.shared.strategies.reading import folded
from covey.shared.wire.messages import OrderMessage
from tests import clock, drive
from tests.bowl import Bowl, Softmax, bowl_layout, flat, softmax_client
from tests.kit import small_run
from tests.kit.local_clients import LocalClients, LocalFor
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import PATIENT, Fleet, Numpy
from tests.kit.small_run import (
    fingerprint,
    killed_at_each_step,
    local_for,
    rules,
    samples_of,
    scenario,
    setup,
)
from tests.shared import planted

ALL = (0, 1, 2, 3)
People = Mapping[ClientId, Softmax]
Labelling = Callable[[int], list[int]]  # of an agent's classes


def even(agent: int) -> list[int]:
    return [0, 1, 2, 3]


def swapped(agent: int) -> list[int]:
    """Every second agent calls the classes by other names."""
    return [1, 0, 3, 2] if agent % 2 else even(agent)


def singular(agent: int) -> list[int]:
    """Each agent has names of its own."""
    return [*np.random.default_rng(agent).permutation(4).tolist()]


def people(
    labelling: Labelling, count: int = 8, n: int = 80, more: int = 0
) -> dict[ClientId, Softmax]:
    """Agents with all classes. `more`: another draw of their samples."""
    found = {}
    for agent in range(count):
        local = softmax_client(ALL, seed=agent + more, n=n + 4 * agent)
        found[f"agent-{agent}"] = replace(local, y=np.array(labelling(agent))[local.y])
    return found


def scene(count: int = 6, participation: float = 1.0, **sections: Any) -> Scenario:
    rounds = {"count": count, "participation": participation}
    return scenario("kin", rounds=rounds, **sections)


def driver(
    folder: Path, labelling: Labelling, plan: Scenario, *, count: int = 8, **changes: Any
) -> Driver[LocalClients]:
    held = local_for(people(labelling, count, n=30, more=100))
    fleet = people(labelling, count)
    return small_run.driver(folder, plan, fleet, held_back=held, start_agents=count, **changes)


def complete(
    folder: Path, labelling: Labelling, plan: Scenario, *, count: int = 8, **changes: Any
) -> Run:
    run = driver(folder, labelling, plan, count=count, **changes)
    return run.complete(samples_of(people(labelling, count)))


def phases(folder: Path) -> list[str]:
    lines = [row for row in records.lines(folder) if row["event"] == "phase"]
    return [row["phase"] for row in lines if row["phase"] not in ("train", "evaluate")]


def sentences(folder: Path) -> tuple[str, ...]:
    lines = [row for row in records.lines(folder) if row["event"] == "phase"]
    return [phase_line(row).decisions for row in lines if row["phase"] == "train"][-1]


# -- without a shift ----------------------------------------------------------------------------------


@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_a_fleet_without_shift_has_the_bytes_of_fedavg(
    tmp_path: Path, participation: float
) -> None:
    rounds = {"count": 6, "participation": participation}
    runs = [
        complete(tmp_path / plan.strategy.name, even, plan)
        for plan in (scene(6, participation), scenario("fedavg", rounds=rounds))
    ]
    assert fingerprint(runs[0]) == fingerprint(runs[1])
    assert runs[0].members.evaluation == runs[1].members.evaluation
    assert phases(tmp_path / "kin") == ["signature"]
    [why] = sentences(tmp_path / "kin")
    assert why == "kin: no shift found between the data of 8 agents: one model, this run is FedAvg"


def test_fewer_than_four_agents_are_not_tested(tmp_path: Path) -> None:
    run = complete(tmp_path, swapped, scene(), count=3)
    assert run.state.chances == ()
    assert "fewer than four agents sent a card" in sentences(tmp_path)[0]


FLEET = {"agents": 8, "partition": "iid"}


@pytest.mark.parametrize(
    ("method", "sections", "least"),
    [
        ("kin", {}, 5),
        ("kin", {"fleet": FLEET}, 1),
        ("kin", {"fleet": FLEET, "task": {"min_cell": 3}}, 3),
        ("ifca", {"fleet": FLEET, "strategy": {"n_clusters": None}}, 5),
    ],
)
def test_cards_have_the_sums_of_single_samples_in_a_simulated_fleet_of_kin_alone(
    method: str, sections: dict[str, Any], least: int, tmp_path: Path
) -> None:
    fleet = people(even, 8, n=8)
    asked = set()

    def local(client: ClientId, order: OrderMessage) -> Local:
        assert order.work is not None
        if "card" in order.work.numbers:
            asked.add(order.work.numbers["card"])
        return fleet[client]

    plan = scenario(method, rounds={"count": 1}, **sections)
    run = small_run.driver(tmp_path, plan, local=local, start_agents=8)
    run.complete(samples_of(fleet))
    assert asked == {least}


# -- groups -------------------------------------------------------------------------------------------


def test_groups_are_found_confirmed_by_a_vote_and_trained_apart(tmp_path: Path) -> None:
    run = complete(tmp_path, swapped, scene())
    assert [*run.state.assign.values()] == [0, 1] * 4
    assert phases(tmp_path) == ["signature", "vote", "trial", "trial", "vote"]
    found, vote, at_home = sentences(tmp_path)
    assert found == "kin: the data of 8 agents differ in concept"
    assert vote.startswith(
        "vote after round 2: 2 groups by inputs serve the agents better than one model (8 of 8 gain, z "
    )
    assert at_home.startswith(
        "vote after round 4: after 5 epochs at home 2 groups by inputs serve the agents better than one model (8 of 8 gain, z "
    )
    for outcome in run.state.outcomes.values():
        assert outcome["voters"] == outcome["better"] == 8
    served = [figures["server"]["accuracy"] for figures in run.members.evaluation.values()]
    assert min(served) > 0.8


def test_a_fleet_without_classes_in_common_is_voted_on_by_labels_alone(tmp_path: Path) -> None:
    fleet = {f"c{i}": softmax_client(((0, 1), (2, 3))[i % 2], seed=i, n=60) for i in range(8)}
    end = planted.run(Kin(), fleet, rounds=6)
    assert end.state.shift == ("labels",)
    assert not end.state.basis, "agents that hold nothing back abstain, so the cut has no votes"
    assert [phase.name for phase, _ in end.phases].count("vote") == 1


def test_in_part_of_the_fleet_the_vote_asks_agents_outside_of_the_cohort_too(
    tmp_path: Path,
) -> None:
    run = complete(tmp_path, swapped, scene(9, 0.5))
    assert [*run.state.assign.values()] == [0, 1] * 4
    assert run.state.outcomes["inputs"]["voters"] > 4


def test_fewer_than_six_agents_have_no_vote(tmp_path: Path) -> None:
    run = complete(tmp_path, swapped, scene(), count=5)
    assert [*run.state.assign.values()] == [0, 1, 0, 1, 0]
    assert phases(tmp_path) == ["signature"]


def test_two_outliers_of_twelve_are_no_group_of_kin_unless_the_scenario_asks_for_it() -> None:
    fleet = people(lambda agent: [2, 3, 1, 0] if agent in (3, 7) else even(agent), 12)
    for least, groups in ((None, []), (1, [0, 1])):
        end = planted.run(Kin(stop="cards", min_group=least), fleet, rounds=1)
        assert end.state.shift == ("concept",)
        assert sorted({*end.state.assign.values()}) == groups


def test_agents_hold_samples_back_until_the_vote_and_all_train_after_it() -> None:
    state = KinState(flat(0, 0), (flat(0, 0),), vote_after=2, tested=True, inputs={"a": 0, "b": 1})
    voted = replace(state, inputs={}, vote_after=0)
    orders = [Kin().order(one, Phase("train"), "a").numbers for one in (state, voted)]
    assert orders == [{"hold_back": 1}, {}]


def test_a_newcomer_joins_the_group_of_its_kin_and_trains_in_it(tmp_path: Path) -> None:
    run = complete(tmp_path, swapped, scene(), newcomers=frozenset({"agent-6", "agent-7"}))
    assert run.state.assign["agent-6"] == run.state.assign["agent-0"]
    assert run.state.assign["agent-7"] == run.state.assign["agent-1"]
    assert phases(tmp_path)[-1] == "entry"


def test_a_newcomer_whose_card_does_not_fit_is_served_the_model_with_the_least_loss() -> None:
    state = KinState(
        flat(0, 0),
        (flat(5, 5), flat(-5, -5)),
        tested=True,
        basis="inputs",
        kin={"inputs": _two_groups()},
    )
    strategy = Kin()
    phase = replace(strategy.plan(state, View(3, 9, 0, ("new",))), cohort=("new",))
    assert phase.name == "entry"
    local = Bowl(flat(-5, -4))
    card = strategy.work(
        planted.job(phase="entry", layout=bowl_layout(2), card=1, squares=1), local, {}
    )
    after = folded(strategy, state, phase, reports=[("new", card[0])])
    assert after.assign == {}
    assert after.asked == ("new",)
    job = planted.job(*after.models)
    [(_, model)] = strategy.personal(job, local, {})
    assert model.tolist() == [-5, -5]


def _two_groups() -> dict[str, Any]:
    zeros = np.zeros((2, 3))
    return {
        "means": np.zeros((3, 32)),
        "noise": 1.0,
        "counts": zeros,
        "sent": zeros,
        "style": np.zeros((2, 32)),
        "concept": np.zeros((2, 3, 32)),
    }


def test_an_agent_whose_data_change_sends_a_new_card_and_joins_the_group_that_is_nearest(
    tmp_path: Path,
) -> None:
    """Of nine rounds groups stand from the seventh on; before the sixth agent-2 gets the data of the other group."""
    run = _with_a_change(tmp_path)
    assert run.state.changed == {"agent-2": 7}
    assert run.state.assign["agent-2"] == 1
    assert [*run.state.assign.values()] == [0, 1, 1, 1, 0, 1, 0, 1]
    assert phases(tmp_path)[-2:] == ["vote", "entry"]
    assert "after round 7: the data of agent-2 have changed; new cards are asked for" in sentences(
        tmp_path
    )


def test_without_groups_no_agent_looks_whether_its_data_have_changed(tmp_path: Path) -> None:
    run = _with_a_change(tmp_path, even, other=swapped)
    assert not run.state.changed
    assert phases(tmp_path) == ["signature"]


def _with_a_change(
    folder: Path, labelling: Labelling = swapped, other: Labelling | None = None
) -> Run:
    """A run in whose sixth round agent-2 has other samples, named as by agent-1 or by another rule."""
    return complete(folder, labelling, scene(9), local=_changing(labelling, other or labelling))


def _changing(labelling: Labelling, rule: Labelling) -> LocalFor:
    changed = people(lambda agent: rule(1), more=50)
    before, after = local_for(people(labelling)), local_for(changed)

    def local(client: ClientId, order: OrderMessage) -> Local:
        assert order.work is not None
        has_changed = client == "agent-2" and order.work.round >= 5
        found: Local = (after if has_changed else before)(client, order)
        return found

    return local


def test_a_liar_whose_data_change_in_every_round_is_asked_for_a_card_in_every_fifth() -> None:
    state = KinState(
        flat(0, 0),
        (flat(5, 5), flat(-5, -5)),
        tested=True,
        basis="inputs",
        assign={"liar": 0},
        done=20,
    )
    strategy = Kin()
    report = Report({"model": flat(1, 1)}, 10, {"changed": 1})
    left = []
    for _ in range(12):
        phase = strategy.plan(state, View(state.done, 99, 0, ("liar",)))
        assert phase.name == "train"
        state = folded(strategy, state, phase, reports=[("liar", report)])
        if "liar" not in state.assign:
            left.append(state.done)
            state = replace(state, assign={"liar": 0})
    assert left == [21, 26, 31]


def test_each_decision_is_a_row_of_the_report_and_an_event_of_the_dashboard(tmp_path: Path) -> None:
    complete(tmp_path, swapped, scene())
    lines = list(records.lines(tmp_path))
    table = decisions_table(lines)
    assert table is not None
    found = sentences(tmp_path)
    assert [row[1] for row in table.rows] == [*found]
    assert [row[0] for row in table.rows] == ["1", "3", "5"]
    sources = Sources(RunPlan(), [line for line in map(reduced, lines) if line is not None])
    shown = dashboard_state(sources).events
    events = [event.text for event in shown if event.kind == "decision"]
    assert events == [*found][::-1]


# -- votes --------------------------------------------------------------------------------------------


def test_a_voter_takes_its_own_model_off_each_average() -> None:
    """Four models at 0, 1, 2, 3; the voter's is 3, its group is 2 and 3."""
    seen: list[float] = []

    class Watched(Bowl):
        def losses(self, model: Any) -> Any:
            seen.append(float(model[0]))
            return np.arange(self.examples, dtype=np.float32) + float(model[0])

    job = replace(
        planted.job(flat(1.5, 0), flat(2.5, 0), phase="vote", share=[0.25, 0.5]),
        held_back=Watched(flat(0, 0)),
    )
    report, kept = Kin().work(job, Bowl(flat(0, 0)), {LAST_MODEL: flat(3, 0)})
    assert seen == [1.0, 2.0]
    assert report.numbers == {"gain": [-1.0], "variance": [0.0]}
    assert kept[LAST_MODEL].tolist() == [3, 0]


def test_the_average_of_an_agent_that_is_alone_in_its_group_is_its_own_model() -> None:
    job = replace(
        planted.job(flat(2, 0), flat(9, 9), phase="vote", share=[0.25, 1.0]),
        held_back=Bowl(flat(4, 0)),
    )
    report, _ = Kin().work(job, Bowl(flat(0, 0)), {LAST_MODEL: flat(4, 0)})
    of_all = (2 - 0.25 * 4) / 0.75
    assert report.numbers["gain"] == [pytest.approx((of_all - 4) ** 2 / 2)]


@pytest.mark.parametrize(
    ("held", "state"), [(None, {LAST_MODEL: flat(3, 0)}), (Bowl(flat(0, 0)), {})]
)
def test_an_agent_without_samples_or_without_its_model_abstains(held: Any, state: Any) -> None:
    job = planted.job(flat(1, 0), flat(2, 0), phase="vote", share=[0.5, 0.5])
    report, _ = Kin().work(replace(job, held_back=held), Bowl(flat(0, 0)), state)
    assert report.numbers == {}


def test_groups_drawn_at_random_are_voted_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents that do not differ, in groups all the same: their test is said to have fired."""
    monkeypatch.setattr(fleet_cards, "tested", lambda cards: (0.001, 0.5, 0.5))
    helped = []
    for seed in range(4):
        folder = tmp_path / str(seed)
        groups = np.random.default_rng(seed).permutation(8) % 2

        monkeypatch.setattr(kin, "card_labels", lambda *_, groups=groups: (groups, 0.5))
        run = complete(folder, even, scene())
        assert "labels" in run.state.outcomes
        helped.append(bool(run.state.basis))
    assert sum(helped) <= 1


def _voted(gains: list[float], basis: str, silhouette: float = 0.5, trial: str = "") -> KinState:
    clients = [f"c{i}" for i in range(len(gains))]
    cut = {client: i % 2 for i, client in enumerate(clients)}
    state = KinState(
        flat(0, 0),
        (flat(0, 0),),
        vote_after=1,
        done=1,
        tested=True,
        chances=(0.001, 0.001, 0.001),
        agents=len(gains),
        kin={basis: _two_groups()},
        averages={f"{basis}-0": flat(1, 1), f"{basis}-1": flat(2, 2)},
        silhouettes={basis: silhouette},
        trial=trial,
        tries=True,
        **{basis: cut},  # type: ignore[arg-type]
    )
    reports = [(client, ballot(gain)) for client, gain in zip(clients, gains, strict=True)]
    return folded(Kin(), state, Phase("vote", tuple(clients), ends_round=False), reports=reports)


def ballot(gain: float) -> Report:
    return Report({}, 20, {"gain": [gain], "variance": [0.04]})


def test_for_a_trial_a_clear_cut_by_inputs_needs_a_majority_and_any_other_must_be_sure() -> None:
    slight = [0.1] * 4 + [-0.05] * 2
    assert _voted(slight, "inputs").trial == "inputs"
    assert _voted(slight, "inputs", silhouette=0.49).trial == ""
    assert _voted([1.0] * 6, "inputs", silhouette=0.49).trial == "inputs"
    assert _voted(slight, "labels").trial == ""
    assert _voted([1.0] * 6, "labels").trial == "labels"
    assert _voted([-0.1] * 6, "inputs").trial == ""


@pytest.mark.parametrize("basis", ["inputs", "labels"])
def test_after_the_trial_groups_need_a_gain_of_the_fleet_and_of_most_agents(basis: str) -> None:
    assert _voted([0.01] * 4 + [-0.01] * 2, basis, trial=basis).basis == basis
    few = _voted([-0.05] * 4 + [1.0] * 2, basis, trial=basis)
    assert few.outcomes[f"{basis} on trial"]["z"] > 0
    assert few.basis == ""
    assert _voted([0.01] * 4 + [-1.0] * 2, basis, trial=basis).basis == ""
    assert _voted([1.0, -0.8] * 3, basis, trial=basis).basis == "", "a group loses"


def test_on_trial_groups_train_next_to_one_model_and_nothing_else_is_voted_on() -> None:
    state = replace(_voted([1.0] * 6, "inputs"), labels={"c0": 0, "c1": 1})
    assert (state.vote_after, [*state.proposed]) == (2, ["inputs"])
    strategy, view = Kin(), View(1, 9, 0, ("c0", "c1", "new"))
    trial = strategy.plan(state, view)
    assert (trial.name, trial.ends_round, trial.draw) == ("trial", False, "train")
    orders = [strategy.order(state, trial, client) for client in view.present]
    assert [one.models for one in orders] == [("inputs-0",), ("inputs-1",), ("0",)]
    reports = [(client, Report({"model": flat(4, 4)}, 10)) for client in view.present]
    after = folded(strategy, state, replace(trial, cohort=view.present), reports=reports)
    assert [one.tolist() for one in after.averages.values()] == [[4, 4], [4, 4]]
    assert after.models[0].tolist() == [0, 0]
    train = strategy.plan(after, view)
    assert (train.name, strategy.order(after, train, "c0").models) == ("train", ("0",))
    assert strategy.order(after, train, "c0").numbers == {"prior": 1, "hold_back": 1}
    ended = folded(strategy, after, replace(train, cohort=view.present), reports=reports)
    assert ended.averages == after.averages, "the round is of the one model"
    vote = strategy.plan(ended, replace(view, round=2))
    assert vote.name == "vote"
    asked = strategy.order(ended, vote, "c0")
    assert asked.models == ("0", "inputs-0")
    assert asked.numbers == {"prior": 1, "hold_back": 1, "share": [0.0, 0.0], "home": 5}


def test_after_a_trial_an_agent_compares_what_it_has_made_of_the_models_at_home() -> None:
    job = replace(
        planted.job(flat(8, 0), flat(4, 0), phase="vote", share=[0.0, 0.0], home=1),
        held_back=Bowl(flat(0, 0)),
    )
    report, _ = Kin().work(job, Bowl(flat(2, 0)), {})
    at_home = [Bowl(flat(2, 0)).train(model, Drill(epochs=1)).end for model in job.models]
    apart = [float(model[0] ** 2 / 2) for model in at_home]
    assert report.numbers["gain"] == [pytest.approx(apart[0] - apart[1], rel=1e-5)]


def test_a_cut_that_harms_one_of_its_groups_does_not_stand_whatever_the_other_gains() -> None:
    after = _voted([1.0, -0.8] * 3, "inputs")
    assert after.outcomes["inputs"]["z"] > 0
    assert (after.trial, after.basis) == ("", "")
    [answer] = after.answers
    assert "do not serve the agents better" in answer
    assert "; a group loses, z -" in answer


def test_the_ballot_of_an_agent_that_was_forgotten_since_is_counted_in_no_group() -> None:
    [outcome] = outcomes_of([("a", ballot(1.0)), ("gone", ballot(-1.0))], [{"a": 0}])
    assert (outcome.voters, outcome.better, outcome.harms) == (2, 1, False)


def test_groups_continue_from_their_own_averages_and_a_refused_cut_leaves_nothing() -> None:
    won, lost = (_voted([gain] * 6, "inputs", trial="inputs") for gain in (1.0, -1.0))
    assert [model.tolist() for model in won.models] == [[1, 1], [2, 2]]
    assert [model.tolist() for model in lost.models] == [[0, 0]]
    for state in (won, lost):
        assert (state.averages, state.shares, state.proposed, state.question) == ({}, {}, {}, False)
    assert lost.kin == {}


# -- over a broker, after a kill, with other sections -------------------------------------------------


@pytest.mark.parametrize("labelling", [swapped, singular])
def test_over_a_broker_the_run_has_the_same_bytes(tmp_path: Path, labelling: Labelling) -> None:
    plan = scene()
    fleet_of = people(labelling)

    async def whole() -> Run:
        broker = MemoryBroker(seed=5, duplicate=0.2)
        fleet = Fleet(tmp_path / "wire", plan, rules(plan, **PATIENT), broker, fleet_of)
        fleet.pool = Numpy(fleet_of, held_back=people(labelling, n=30, more=100))
        async with fleet:
            return await fleet.serve()

    run = clock.run(whole())
    alone = complete(tmp_path / "alone", labelling, plan)
    assert fingerprint(run) == fingerprint(alone)
    assert run.state.outcomes == alone.state.outcomes


def test_in_buffered_rounds_those_before_the_vote_are_synchronous(tmp_path: Path) -> None:
    plan = small_run.buffered("kin", rounds={"count": 9})
    complete(tmp_path, swapped, plan)
    lines = [row for row in records.lines(tmp_path) if row["event"] == "phase"]
    reported = {row["round"] + 1: len(row["reported"]) for row in lines if row["phase"] == "train"}
    assert [reported[number] for number in range(1, 10)] == [8] * 6 + [3] * 3


def test_kills_at_every_step_change_neither_a_vote_nor_a_byte(tmp_path: Path) -> None:
    _killed(tmp_path, scene(), local_for(people(swapped)))


def test_kills_while_an_agent_changes_its_group_change_no_byte(tmp_path: Path) -> None:
    run = _killed(tmp_path, scene(9), _changing(swapped, swapped))
    assert run.state.changed == {"agent-2": 7}
    assert run.state.assign["agent-2"] == 1


def _killed(tmp_path: Path, plan: Scenario, local: LocalFor) -> Run:
    """A run that is killed and resumed at each step, with the bytes of one that is not."""
    samples = samples_of(people(swapped))
    whole = complete(tmp_path / "whole", swapped, plan, local=local)
    first = driver(tmp_path / "killed", swapped, plan, local=local)
    told = rules(plan, start_agents=8)
    run, kills = killed_at_each_step(
        first,
        samples,
        lambda: Run.resume(tmp_path / "killed", plan, setup(plan), rules=told, now=0.0),
    )
    assert kills > plan.rounds.count
    assert fingerprint(run) == fingerprint(whole)
    assert json.dumps(run.state.outcomes) == json.dumps(whole.state.outcomes)
    return run


def test_settings_that_a_vote_cannot_work_with_are_refused_with_a_reason() -> None:
    for sections, why in (
        ({"aggregation": {"rule": "median"}}, "take their own model off an average"),
        ({"privacy": {"client": {"clip": 1.0, "noise_multiplier": 1.0}}}, "kin sends cards"),
    ):
        with pytest.raises(ValidationError, match=why):
            scene(**sections)


def test_the_state_is_what_a_checkpoint_can_hold_at_each_stage() -> None:
    fleet = planted.bowls(*((s * 5.0, 0.1 * i) for i, s in enumerate((1, -1) * 4)))
    run = drive.Run(Kin(), planted.setup(fleet, rounds=6), fleet)
    for count in range(1, 7):
        for leaf in drive.leaves(run.rounds(count).state):
            assert leaf is None or isinstance(leaf, np.ndarray | str | int | float)


@pytest.mark.parametrize(
    ("inputs", "labels", "left"),
    [
        ("000111", "010101", ["inputs"]),  # parts of one and two agents
        ("000111", "000111", ["inputs", "labels"]),
        ("000011", "000111", ["labels"]),
        ("000011", "001111", []),
    ],
)
def test_a_cut_that_needs_sums_of_too_few_agents_is_not_proposed(
    inputs: str, labels: str, left: list[str]
) -> None:
    cuts = [{f"a{i}": int(group) for i, group in enumerate(text)} for text in (inputs, labels)]
    kept: Any = {"inputs": {}, "labels": {}}
    state = KinState(flat(0, 0), inputs=cuts[0], labels=cuts[1], kin=kept)
    assert Kin.facts.sealed is not None
    after = Kin.facts.sealed.allowed(state, 3)
    assert [*after.proposed] == [*after.kin] == left
