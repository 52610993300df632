"""The run without a network: what is folded, what is refused, and that a kill at any point costs nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.engine.events import Joined
from covey.coordinator.fold.means import means_of
from covey.coordinator.fold.statistics import pooled
from covey.coordinator.record import records
from covey.coordinator.record.notices import ReportIgnored
from covey.coordinator.record.store import Store
from covey.coordinator.report.tables import none_evaluated, results, unevaluated
from covey.coordinator.run.effects import Announce, Effect, RunOver, SendOrder
from covey.coordinator.run.parts import Parts
from covey.coordinator.run.result import result_of, write_all, write_models
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.virtual_clock import GivenUpError
from covey.shared.errors import DecodeError
from covey.shared.strategies.base import ClientId, Training
from covey.shared.strategies.client_half import ClientState, Report
from covey.shared.wire.messages import ReportContent
from tests.kit import small_run
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
from tests.methods import of_each_kind


def opened(folder: Path, **sections: Any) -> tuple[Run, dict[ClientId, Any]]:
    """A FedAvg run with everybody invited, and the orders that were given."""
    scene = scenario("fedavg", rounds={"participation": 1.0}, **sections)
    run = begun(folder, scene)
    effects: list[Effect] = []
    for client in clients():
        run.members.of(client).samples = (24, 24)
        effects += run.handle(Joined(client), 0.0)
    return run, {effect.client: effect.order for effect in effects if isinstance(effect, SendOrder)}


def answer(run: Run, client: ClientId, order: Any) -> ReportContent:
    return report_on(run, client, order, local_for(clients())(client, order))[0]


class Killed(Exception):  # noqa: N818 - it is no error
    pass


STOPS: dict[str, Any] = {"stop": "assignments"}


@pytest.mark.parametrize(
    ("method", "options", "late"),
    [
        ("fesem", STOPS, {"agent-7"}),
        ("fesem_ma-fedma", {}, set()),
        ("fedavg", {"server": {"name": "adam", "lr": 0.1}}, set()),
        ("ifca", {"server": {"name": "sgd", "momentum": 0.9}, "shared_trunk": False}, set()),
        ("fedclust", {"server": {"name": "yogi", "lr": 0.1}}, set()),
        ("fedrep", {}, {"agent-7"}),
    ],
)
def test_a_kill_between_any_two_reports_changes_no_byte_and_no_count(
    tmp_path: Path, method: str, options: dict[str, Any], late: set[str]
) -> None:
    scene = scenario(method, strategy=options, rounds={"count": 2})
    people = clients(scene=scene)
    newcomers = frozenset(late)
    undisturbed = in_process(tmp_path / "whole", scene, newcomers=newcomers)
    client_states: dict[ClientId, ClientState] = {}
    folder = tmp_path / "killed"
    run = begun(folder, scene, name="in-process", newcomers=newcomers)
    run.members.note_samples(dict.fromkeys(people, (24, 24)))
    for client in people:
        run.handle(Joined(client), 0.0)
    kills = 0
    while run.engine.stage.value != "finished":
        waiting = [
            e for e in run.desired() if isinstance(e, SendOrder) and e.order.work is not None
        ]
        first = waiting[0]
        assert first.order.work is not None
        local = local_for(people)(first.client, first.order)
        report, kept = report_on(
            run, first.client, first.order, local, client_states.get(first.client)
        )
        run.accept(first.client, report.to_bytes(), 0.0)
        client_states[first.client] = kept
        settings = rules(scene, newcomers=newcomers)
        run, _ = Run.resume(
            folder, scene, setup(scene), rules=settings, now=0.0
        )  # the old one is never asked again
        run.members.note_samples(dict.fromkeys(people, (24, 24)))
        kills += 1
    assert kills > 12
    assert fingerprint(run) == fingerprint(undisturbed)
    assert run.traffic == undisturbed.traffic
    assert result_of(run, None).newcomers == result_of(undisturbed, None).newcomers
    assert run.store.rounds.count == len(
        (tmp_path / "whole" / "rounds.jsonl").read_text().splitlines()
    )


def test_a_kill_between_the_fold_and_its_checkpoint_folds_again(
    tmp_path: Path, monkeypatch: Any
) -> None:
    whole = fingerprint(in_process(tmp_path / "whole", scenario("fedclust")))
    scene, people = scenario("fedclust"), clients()
    driver = small_run.driver(tmp_path / "killed", scene)
    save, saves = Store._save, 0

    def dies(store: Store, parts: Parts) -> None:
        nonlocal saves
        saves += 1
        if saves == 4:  # after the second fold, before it is written down
            raise Killed
        save(store, parts)

    monkeypatch.setattr(Store, "_save", dies)
    with pytest.raises(Killed):
        driver.complete(dict.fromkeys(people, (24, 24)))
    monkeypatch.undo()
    driver.run, first = Run.resume(
        tmp_path / "killed", scene, setup(scene), rules=rules(scene), now=0.0
    )
    run = driver.complete(dict.fromkeys(people, (24, 24)), [*first, *driver.run.desired()])
    assert fingerprint(run) == whole


def test_a_round_waits_for_one_checkpoint_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, saves = Checkpoint.save, 0

    def counted(checkpoint: Checkpoint, *arguments: Any) -> Any:
        nonlocal saves
        saves += 1
        return save(checkpoint, *arguments)

    monkeypatch.setattr(Checkpoint, "save", counted)
    run = in_process(tmp_path, scenario("fedavg"))
    rounds_and_evaluation = run.engine.round + 1
    start_and_end = 2
    assert saves <= rounds_and_evaluation + start_and_end


def test_reports_are_refused_by_name_and_never_spooled(tmp_path: Path) -> None:
    run, orders = opened(tmp_path)
    good = answer(run, "agent-0", orders["agent-0"])
    vector = good.vectors["model"]
    poison = np.frombuffer(vector.data, "<f4").copy()
    poison[3] = np.nan
    bad: dict[str, dict[str, Any]] = {
        "other run": {"run": "r2"},
        "other sender": {"client": "agent-1"},
        "wrong vectors": {"vectors": {}},
        "wrong length": {
            "vectors": {"model": vector.model_copy(update={"length": 3, "data": vector.data[:12]})}
        },
        "not finite": {"vectors": {"model": vector.model_copy(update={"data": poison.tobytes()})}},
        "too many examples": {"examples": 25},
    }
    for reason, change in bad.items():
        with pytest.raises(DecodeError) as caught:
            run.accept("agent-0", good.model_copy(update=change).to_bytes(), 0.0)
        assert caught.value.reason == reason
    assert run.store.reports.who(1) == []
    run.accept("agent-0", good.to_bytes(), 0.0)
    assert run.store.reports.who(1) == ["agent-0"]


def test_a_second_or_late_report_is_ignored_with_a_reason(tmp_path: Path) -> None:
    run, orders = opened(tmp_path)
    good = answer(run, "agent-0", orders["agent-0"])
    run.accept("agent-0", good.to_bytes(), 0.0)
    again = run.accept("agent-0", good.to_bytes(), 0.0)
    late = run.accept(
        "agent-1",
        answer(run, "agent-1", orders["agent-1"]).model_copy(update={"step": 9}).to_bytes(),
        0.0,
    )
    assert again[0] == Announce(ReportIgnored("agent-0", "agent-0 has reported step 1 before"))
    assert late[0] == Announce(ReportIgnored("agent-1", "report is for step 9, open is 1"))


def test_the_agents_next_order_confirms_an_accepted_report(tmp_path: Path) -> None:
    run, orders = opened(tmp_path)
    effects = run.accept("agent-0", answer(run, "agent-0", orders["agent-0"]).to_bytes(), 0.0)
    assert not any(isinstance(effect, SendOrder) for effect in effects)
    told = run.order_of("agent-0").order
    assert (told.accepted, told.work) == (1, None)


def test_a_lossy_delta_is_added_to_the_model_that_the_agent_saw(tmp_path: Path) -> None:
    wire = {"codec": "int8", "delta": True, "down": "float16"}
    exact = in_process(tmp_path / "exact", scenario("fedavg"))
    coarse = in_process(tmp_path / "coarse", scenario("fedavg", wire=wire))
    [a], [b] = exact.strategy.clusters(exact.state), coarse.strategy.clusters(coarse.state)
    assert 0 < np.max(np.abs(a - b)) < 0.02


def test_topk_keeps_what_it_owes_and_still_learns(tmp_path: Path) -> None:
    sections = {"rounds": {"count": 12, "participation": 1.0}}
    wire = {"codec": "topk", "delta": True, "keep": 0.2}
    exact = in_process(tmp_path / "exact", scenario("fedavg", **sections))
    sparse = in_process(tmp_path / "sparse", scenario("fedavg", wire=wire, **sections))
    accuracy = [
        result_of(run, None).accuracy["server"]["accuracy"]["macro"] for run in (exact, sparse)
    ]
    assert accuracy[1] > accuracy[0] - 0.1
    assert sparse.traffic["up_vectors"] == exact.traffic["up_vectors"]


def test_agents_train_with_the_rate_of_the_round_and_fine_tune_with_settings_of_their_own(
    tmp_path: Path,
) -> None:
    training = {"lr": 0.8, "lr_steps": [[0.5, 0.5], [0.75, 0.25]]}
    scene = scenario(
        "fedavg", training=training, rounds={"count": 4}, evaluation={"tune": {"momentum": 0.5}}
    )
    people, seen = clients(scene=scene), {}

    def noted(client: ClientId, order: Any) -> Any:
        seen[order.work.round, order.work.phase] = Training.model_validate(order.work.training)
        return local_for(people)(client, order)

    run = in_process(tmp_path, scene, local=noted)
    settings = {"epochs": 1, "batch": 8, "lr": 0.8, "momentum": 0.5, "weight_decay": 0.0}
    assert result_of(run, None).fine_tuning == settings
    assert [seen[round_, "train"].lr for round_ in range(4)] == pytest.approx([0.8, 0.8, 0.4, 0.1])
    assert (seen[4, "evaluate"].lr, seen[4, "evaluate"].momentum) == (0.8, 0.5)
    assert seen[3, "train"].momentum == scene.training.momentum != 0.5


def test_pooled_moments_are_those_of_all_data() -> None:
    a, b = np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([[8.0, 5.0]])
    told = [
        {"count": len(x), "sum": x.sum(0).tolist(), "square": (x**2).sum(0).tolist()}
        for x in (a, b)
    ]
    both = np.concatenate([a, b])
    found = pooled(told)
    np.testing.assert_allclose(found["mean"], both.mean(0))
    np.testing.assert_allclose(
        found["std"], [both[:, 0].std(), 1.0]
    )  # a channel without spread is only centred


def test_a_constant_channel_is_only_centred_whatever_its_size_and_a_small_spread_on_a_large_mean_counts() -> (
    None
):
    draw = np.random.default_rng(0)
    constant = np.tile([7.08, 1e6, -0.1, 3e-9], (3000, 1)).astype(np.float32).astype(np.float64)
    seconds = 1.6e9 + draw.normal(0, 1000, (3000, 1))
    x = np.concatenate([constant, seconds], axis=1)
    told = [
        {"count": len(one), "sum": one.sum(0), "square": (one**2).sum(0)}
        for one in np.array_split(x, 7)
    ]
    found = pooled(told)
    assert found["std"][:4] == [1.0] * 4
    assert found["std"][4] == pytest.approx(x[:, 4].std(), rel=1e-2)


def test_a_run_evaluates_at_its_interval_and_at_the_end(tmp_path: Path) -> None:
    in_process(tmp_path, scenario("fedavg", evaluation={"every": 2}, rounds={"count": 5}))
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines if line["phase"] == "evaluate"] == [2, 4, 5]


def test_a_line_and_the_result_mean_the_same_by_e_last(tmp_path: Path) -> None:
    """Half of the agents have not trained after the first round; who never did is measured on what it would use."""
    run = in_process(tmp_path, scenario("fedavg", evaluation={"every": 1}, rounds={"count": 1}))
    [line] = [one for one in records.lines(tmp_path) if one["phase"] == "evaluate"]
    assert len(run.members.trained) == 4
    assert line["evaluation"]["last"] == result_of(run, None).accuracy["last"]
    assert line["evaluation"]["last"]["agents"] == 8


def test_a_run_without_a_broker_ends_where_the_agents_that_it_waits_for_cannot_come(
    tmp_path: Path,
) -> None:
    scene = scenario("fedavg", rounds={"count": 2})
    nothing = (("agent-0",), ("stranger",))
    with pytest.raises(
        GivenUpError, match="it cannot continue: agents that the next phase needs are away"
    ):
        in_process(tmp_path / "away", scene, participants=nothing)
    with pytest.raises(
        GivenUpError, match=r"it cannot continue: 8 agents online, rounds\.quorum is 9"
    ):
        in_process(tmp_path / "few", scene, quorum=9)


def test_tracking_measures_participants_and_the_best_they_ever_had(tmp_path: Path) -> None:
    run = in_process(tmp_path, scenario("fedavg", evaluation={"track": True}))
    accuracy = result_of(run, None).accuracy
    assert (
        accuracy["best"]["accuracy"]["macro"]
        >= accuracy["last_of_participants"]["accuracy"]["macro"]
    )
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert all("tracked" in line for line in lines if line["phase"] == "train")


# clusters are known for these; FedSoft estimates its clients' shares in every second round, and newcomers after any
NAMED = [("fesem", 3), ("fedclust", 3), ("fedsoft", 4)]


@pytest.mark.parametrize(
    ("method", "rounds"), [*((method, 3) for method in of_each_kind("leaves")), *NAMED]
)
def test_a_run_leaves_models_records_and_a_result_and_serves_newcomers_after_its_last_round(
    tmp_path: Path, method: str, rounds: int
) -> None:
    late = {"agent-6", "agent-7"}
    scene = scenario(method, rounds={"count": rounds})
    run = in_process(tmp_path, scene, newcomers=frozenset(late))
    write_models(run)
    document = write_all(run, {f"agent-{i}": i % 2 for i in range(8)})
    assert document == json.loads((tmp_path / "result.json").read_text())
    assert (document["method"], document["agents"]) == (scene.strategy.name, 6)
    assert len(list((tmp_path / "models").iterdir())) == len(run.strategy.clusters(run.state))
    if method in ("fesem", "fedclust"):
        assert document["ari"] == 1.0
    result = result_of(run, None)
    assert result.newcomers is not None
    assert result.newcomers["agents"] == sorted(late)
    assert result.newcomers["accuracy"]["tuned"]["agents"] == 2
    assert result.accuracy["server"]["agents"] == 6
    assert (result.rounds, late & set(result.took_part)) == (rounds, set())
    if method == "fedsoft":
        assert late <= set(run.state.importance)
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert sum(line["ends_round"] for line in lines) == rounds
    assert lines[-1]["phase"] == "evaluate"
    assert all(not late & set(line["invited"]) for line in lines if line["round"] < rounds)
    assert lines[-1]["evaluation"]["server"] == result.accuracy["server"]
    assert lines[-1]["newcomers"]["tuned"] == result.newcomers["accuracy"]["tuned"]
    if method in ("fedclust", "pacfl", "ifca", "fesem", "fesem_ma", "robust"):
        assert late <= set(run.strategy.assignment(run.state)) or method == "ifca"


def test_a_run_whose_method_has_converged_ends_early_with_a_reason_and_serves_newcomers(
    tmp_path: Path,
) -> None:
    late = {"agent-6", "agent-7"}
    scene = scenario("fesem", strategy={"stop": "assignments"}, rounds={"count": 9})
    rows: list[Any] = []
    run = in_process(
        tmp_path, scene, observer=lambda one: rows.append(one.to_json()), newcomers=frozenset(late)
    )
    why = "no agent changed its group in 3 successive E-steps"
    result = result_of(run, None)
    assert (result.rounds, result.stopped) == (3, why)
    assert [row for row in rows if row["event"] == "stopped"] == [
        {"event": "stopped", "round": 3, "rounds": 9, "why": why}
    ]
    assert [row["phase"] for row in rows if row["event"] == "phase"][-2:] == ["entry", "evaluate"]
    assert result.newcomers is not None
    assert result.newcomers["accuracy"]["tuned"]["agents"] == 2
    assert late <= set(result.assignment)


def test_a_run_that_makes_all_its_rounds_was_not_stopped(tmp_path: Path) -> None:
    scene = scenario("fesem", strategy={"stop": "assignments"}, rounds={"count": 2})
    result = result_of(in_process(tmp_path, scene), None)
    assert (result.rounds, result.stopped) == (2, None)


def test_megabits_per_agent_are_those_of_the_rounds_and_not_of_the_evaluations(
    tmp_path: Path,
) -> None:
    run = in_process(tmp_path, scenario("fedavg", evaluation={"every": 1}, rounds={"count": 3}))
    vectors = 3 * 4 * 2  # rounds, half of eight agents, down and up
    assert result_of(run, None).mbit_per_agent == pytest.approx(
        vectors * 32 * run.setup.layout.size / 1e6 / 8
    )


def test_megabits_are_shared_by_those_who_federate_and_not_by_newcomers(tmp_path: Path) -> None:
    late = frozenset({"agent-6", "agent-7"})
    run = in_process(tmp_path, scenario("fedavg", rounds={"count": 3}), newcomers=late)
    vectors = 3 * 3 * 2  # rounds, half of six agents, down and up
    assert result_of(run, None).mbit_per_agent == pytest.approx(
        vectors * 32 * run.setup.layout.size / 1e6 / 6
    )


def test_micro_averages_of_the_record_weigh_agents_as_those_of_the_result(tmp_path: Path) -> None:
    run = in_process(tmp_path, scenario("fedavg", evaluation={"weight": "total"}))
    line = json.loads((tmp_path / "rounds.jsonl").read_text().splitlines()[-1])
    assert line["evaluation"]["server"] == result_of(run, None).accuracy["server"]
    reports = [("a", scored(0.0, examples=1)), ("b", scored(1.0, examples=9))]
    means = means_of(reports, "evaluate", "total")
    assert means.evaluation is not None
    assert means.evaluation["server"]["accuracy"]["micro"] == 10 / 12


def scored(accuracy: float, examples: int) -> Report:
    """The report of an agent with one test sample."""
    return Report({}, examples, {"server": {"n": 1, "accuracy": accuracy}})


def orders_of(effects: list[Effect]) -> dict[ClientId, Any]:
    return {
        effect.client: effect.order
        for effect in effects
        if isinstance(effect, SendOrder) and effect.order.work is not None
    }


def failure(run: Run, client: ClientId, step: int, why: str) -> bytes:
    nothing: dict[str, Any] = {"examples": 0, "steps": 0, "loss": 0.0, "seconds": 0.0}
    nothing |= {"numbers": {}, "vectors": {}}
    nothing |= {"run": run.id, "step": step, "work": bytes(16), "client": client}
    content = ReportContent(failure=why, **nothing)
    return content.to_bytes()


def test_figures_of_an_earlier_evaluation_and_failures_are_named_in_the_result(
    tmp_path: Path,
) -> None:
    """An agent that cannot work at the end is not counted as if it had been evaluated there."""
    run, orders = opened(tmp_path, evaluation={"every": 1})
    steps = 0
    while orders:
        effects: list[Effect] = []
        for client, order in orders.items():
            broken = client == "agent-0" and steps >= 2
            if broken or client == "agent-1":
                content = failure(run, client, order.step, "the training diverged")
            else:
                content = answer(run, client, order).to_bytes()
            effects += run.accept(client, content, 0.0)
        orders = orders_of(effects)
        steps += 1
    assert any(isinstance(effect, RunOver) for effect in effects)
    document = result_of(run, None).to_json()
    assert document["unevaluated"] == ["agent-1"]
    assert document["stale"] == {"agent-0": 1}
    assert document["failures"]["agent-0"] == {
        "times": 3,
        "round": 3,
        "why": "the training diverged",
    }
    assert document["failures"]["agent-1"]["times"] == 3, "it rested"
    table = results([document])
    assert dict(zip(table.headers, table.rows[0], strict=True))["evaluated"] == "6 of 8, 1 earlier"
    remarks = unevaluated(document)
    assert "1 of 8 agents was never evaluated: agent-1" in remarks
    more = unevaluated({**document, "unevaluated": ["agent-1", "agent-2"]})
    assert "2 of 8 agents were never evaluated: agent-1, agent-2" in more
    assert "agent-0 (round 1)" in remarks
    assert (
        "agent-1 could not do its work 3 times, last in round 3: the training diverged" in remarks
    )
    assert none_evaluated(document) == ""
    assert "no agent was evaluated" in none_evaluated({"accuracy": {"server": {"agents": 0}}})


def test_the_result_of_a_run_without_losses_has_no_such_keys(tmp_path: Path) -> None:
    run = in_process(tmp_path, scenario("fedavg", rounds={"count": 1}))
    document = result_of(run, None).to_json()
    assert document.keys().isdisjoint({"unevaluated", "stale", "failures"})
    assert unevaluated(document) == ""
