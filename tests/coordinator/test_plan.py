from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest

from covey.coordinator.plan.plan import PhaseCost, Plan, broker_seconds, plan
from covey.coordinator.processes.launch import setup_of
from covey.shared.mqtt.profiles import Profile
from covey.shared.numerics.vectors import Layout, Tensor
from covey.shared.scenario.describe import methods
from covey.shared.scenario.scenario import Scenario
from covey.shared.wire.codec import Codec, encode
from covey.shared.wire.messages import ModelContent, ReportContent, digest
from covey.shared.wire.parts import split
from covey.shared.wire.topics import Topics
from tests.kit.scenes import Scenes
from tests.methods import METHODS, NORMED

LENET = Layout(
    (
        Tensor("conv1.weight", (6, 1, 5, 5)),
        Tensor("conv1.bias", (6,)),
        Tensor("conv2.weight", (16, 6, 5, 5)),
        Tensor("conv2.bias", (16,)),
        Tensor("fc1.weight", (120, 256)),
        Tensor("fc1.bias", (120,)),
        Tensor("fc2.weight", (84, 120)),
        Tensor("fc2.bias", (84,)),
        Tensor("fc3.weight", (10, 84)),
        Tensor("fc3.bias", (10,)),
    ),
    10,
)
VALUES, HEAD, UPPER = 44_426, 850, 11_014


scenario = Scenes.of(
    "lenet",
    {"features": [1, 28, 28], "classes": 10, "model": {"name": "lenet5"}},
    fleet={"agents": 100},
    rounds={"count": 200, "participation": 0.1},
)


def planned(given: Scenario, layout: Layout = LENET) -> Plan:
    if given.strategy.name in NORMED:
        layout = replace(layout, tensors=(*layout.tensors, Tensor("norm.running_mean", (6,))))
    start = np.zeros(layout.size, np.float32)
    starts = (start,) * given.strategy.starts
    return plan(given, setup_of(given, starts, layout))


def phase(of: Plan, name: str) -> PhaseCost:
    (found,) = [one for one in of.phases if one.name == name]
    return found


def packet(topic: str, payload: bytes) -> int:
    """MQTT 3.1.1, section 3.3, written out for packets of 16 kB to 2 MB (remaining length in three bytes)."""
    return 1 + 3 + 2 + len(topic) + 2 + len(payload)


@pytest.mark.parametrize(
    ("evaluation", "said"),
    [
        (
            {},
            "at most 61 epochs of each agent's samples, as in 30.5 rounds, within 60 s on a device",
        ),
        (
            {"deliver": "served", "tune_epochs": 3},
            "at most 3 epochs of each agent's samples, as in 1.5 rounds",
        ),
        ({"tune_epochs": 0, "deliver": "served"}, None),
    ],
)
def test_a_plan_names_what_agents_train_in_the_last_evaluation(
    evaluation: dict[str, object], said: str | None
) -> None:
    scene = scenario("fedavg", evaluation=evaluation, training={"epochs": 2})
    assert dict(planned(scene).rows()).get("the last evaluation trains") == said


def test_fedavg_on_lenet_costs_one_vector_down_and_one_up_per_invited_agent() -> None:
    figures = planned(scenario("fedavg"))
    train = phase(figures, "train")
    assert (figures.agents, figures.rounds, figures.models, figures.values) == (100, 200, 1, VALUES)
    assert (train.times, train.invited, train.down_values, train.up_values) == (
        200,
        10,
        VALUES,
        VALUES,
    )
    assert figures.mbit_per_agent == pytest.approx(
        200 * 0.1 * 2 * 1.421632
    )  # 1.4216 Mbit per vector


def test_planned_bytes_are_those_sent_but_for_a_few() -> None:
    figures = planned(scenario("fedavg"))
    vector, _ = encode(np.zeros(VALUES, np.float32), Codec(), rng=np.random.default_rng(0))
    model = ModelContent(layout=LENET.digest, vector=vector).to_bytes()
    (part,) = split(
        io.BytesIO(model), digest=digest(model), size=len(model), part_bytes=1 << 19, about=1000
    )
    sent = packet(Topics("default").model("0") + "/0", part.to_bytes())
    assert phase(figures, "train").down_bytes == pytest.approx(sent, abs=50)
    report = ReportContent(
        run="run-2026-11-20-1",
        step=1000,
        work=bytes(16),
        client="agent-0000",
        examples=32,
        steps=1,
        loss=1.0,
        numbers={},
        seconds=1.0,
        vectors={"model": vector},
    ).to_bytes()
    (part,) = split(
        io.BytesIO(report), digest=digest(report), size=len(report), part_bytes=1 << 19, about=1000
    )
    topic = Topics("default").report("agent-0000", 0)
    sent = packet(topic, part.to_bytes())
    assert phase(figures, "train").up_bytes == pytest.approx(sent, abs=50)


def test_phases_add_up_to_the_round_and_rounds_to_the_run() -> None:
    figures = planned(scenario("fedavg"))
    train, last = phase(figures, "train"), phase(figures, "evaluate")
    assert figures.round_down_bytes == 10 * train.down_bytes
    assert figures.down_bytes == 200 * 10 * train.down_bytes + 3 * 100 * last.down_bytes
    assert figures.up_bytes == 200 * 10 * train.up_bytes + 3 * 100 * last.up_bytes
    assert (last.times, last.invited, last.down_values, last.up_values) == (3, 100, VALUES, 0)


def test_fedclust_sends_the_start_to_all_and_final_layers_back_once() -> None:
    figures = planned(scenario({"name": "fedclust", "n_clusters": 4}))
    first, train = phase(figures, "signature"), phase(figures, "train")
    assert (first.times, first.invited, first.down_values, first.up_values) == (
        1,
        100,
        VALUES,
        HEAD,
    )
    assert (train.times, train.invited, train.down_values, train.up_values) == (
        200,
        10,
        VALUES,
        VALUES,
    )
    assert figures.models == 4
    regular = 200 * 0.1 * 2 * VALUES
    assert figures.mbit_per_agent == pytest.approx((regular + VALUES + HEAD) * 32 / 1e6)


def test_lg_sends_the_last_layers_alone_and_the_others_once() -> None:
    figures = planned(scenario({"name": "lg"}))
    once, train = phase(figures, "values that stay"), phase(figures, "train")
    assert (once.times, once.invited, once.down_values) == (1, 100, VALUES - UPPER)
    assert (train.times, train.down_values, train.up_values) == (200, UPPER, UPPER)
    assert train.down_bytes == pytest.approx(4 * UPPER, abs=400)


def test_parts_cost_a_header_each() -> None:
    one = planned(scenario("fedavg"))
    many = planned(scenario("fedavg", wire={"part_bytes": 1024}))
    parts = -(-(4 * VALUES + 120) // 1024)
    more = phase(many, "train").down_bytes - phase(one, "train").down_bytes
    assert 80 * parts < more < 180 * parts


def test_a_codec_makes_reports_smaller_and_topk_only_those_with_a_base() -> None:
    method = {"name": "fedclust", "n_clusters": 2}
    plain = phase(planned(scenario(method)), "train").up_bytes
    for codec, share in (("float16", 0.5), ("int8", 0.25 + 1 / 256), ("topk", 0.02)):
        figures = planned(scenario(method, wire={"codec": codec, "delta": True}))
        assert phase(figures, "train").up_bytes == pytest.approx(share * plain, abs=400)
        assert phase(figures, "train").down_bytes == pytest.approx(plain, abs=200)
    assert phase(figures, "signature").up_bytes == pytest.approx(4 * HEAD, abs=400)


def test_delivery_to_all_costs_a_model_per_agent_in_every_round() -> None:
    some = planned(scenario("fedavg"))
    all_agents = planned(scenario("fedavg", wire={"delivery": "all"}))
    assert all_agents.round_down_bytes == 10 * some.round_down_bytes
    assert all_agents.round_up_bytes == some.round_up_bytes


def test_over_selected_agents_are_counted() -> None:
    rounds = {"count": 5, "agents": 10, "over_select": 1.3}
    assert phase(planned(scenario("fedavg", rounds=rounds)), "train").invited == 13


def test_a_buffered_round_counts_the_reports_of_a_buffer() -> None:
    rounds = {"mode": "buffered", "buffer": 7, "count": 4}
    of = planned(scenario({"name": "fedclust"}, rounds=rounds))
    assert phase(of, "signature").invited == 100
    assert phase(of, "train").invited == 7


def test_a_run_evaluates_at_its_interval_and_once_at_the_end() -> None:
    for every in (50, 60):
        for deliver, further in (("served", 0), ({}, 2)):  # with the weights of the fleet
            settings: dict[str, object] = {"every": every, "deliver": deliver}
            found = phase(planned(scenario("fedavg", evaluation=settings)), "evaluate")
            assert found.times == 4 + further


def test_federated_standardisation_is_a_phase_of_all_without_vectors() -> None:
    task = {"features": [1, 28, 28], "classes": 10, "standardise": "federated"}
    moments = phase(planned(scenario("fedavg", task=task)), "moments")
    assert (moments.times, moments.invited, moments.down_bytes, moments.up_values) == (1, 100, 0, 0)


def test_memory_depends_on_the_clusters_and_not_on_the_agents() -> None:
    few, many = (
        planned(scenario({"name": "fedclust", "n_clusters": 2}, fleet={"agents": n}))
        for n in (20, 2000)
    )
    models_and_sums = 3 * 4 * VALUES + 2 * 16 * VALUES
    assert few.memory_bytes == many.memory_bytes == models_and_sums + (4 << 20)


def test_disk_holds_the_reports_of_the_largest_phase_and_the_state_per_agent() -> None:
    fedavg, fesem = (planned(scenario({"name": name})) for name in ("fedavg", "fesem"))
    vector = 4 * VALUES
    assert (
        20 * vector < fedavg.disk_bytes < 26 * vector
    )  # ten reports twice, two checkpoints, outgoing, exported
    assert (
        fesem.disk_bytes > 100 * vector * 4
    )  # the warm-up's reports twice, each agent's latest model in two checkpoints


def test_without_a_simulated_fleet_the_agents_that_the_run_waits_for_are_counted() -> None:
    waited_for = {"count": 3, "start_agents": 7, "participation": 1.0}
    given = scenario("fedavg", fleet=None, rounds=waited_for)
    assert phase(planned(given), "train").invited == 7


@pytest.mark.parametrize("method", [method["name"] for method in methods()])
@pytest.mark.parametrize("agents", [1, 3, 20])
def test_every_method_can_be_planned_shown_and_written_as_json(method: str, agents: int) -> None:
    figures = planned(
        scenario(
            {"name": method, **METHODS[method]},
            fleet={"agents": agents},
            rounds={"count": 6, "participation": 0.2},
        )
    )
    again = json.loads(json.dumps(figures.to_json()))
    assert again["down_bytes"] == figures.down_bytes > 0
    assert all(
        len(row) == 2 and all(isinstance(text, str) for text in row) for row in figures.rows()
    )
    assert all(one.invited <= agents for one in figures.phases)


def test_rows_show_sizes_in_readable_units() -> None:
    rows = dict(planned(scenario("fedavg")).rows())
    assert rows["model"] == "44426 values, 178 kB; 1 kept"
    assert rows["agents, rounds"] == "100, 200"
    assert rows["train, 200 times"] == "10 agents, each 178 kB down, 178 kB up"
    assert rows["as papers count it"] == "56.87 Mbit of float32 values per agent"


@pytest.mark.parametrize(
    ("method", "kept"),
    [("ifca", "at most 8"), ("fedclust", "one for each cluster"), ("fedem", "3"), ("fedavg", "1")],
)
def test_a_number_of_clusters_that_is_unknown_before_the_run_is_shown_as_such(
    method: str, kept: str
) -> None:
    assert planned(scenario({"name": method})).kept == kept


def test_a_phase_that_takes_place_once_is_not_named_in_the_plural() -> None:
    rows = dict(planned(scenario({"name": "fedclust"})).rows())
    assert "signature, once" in rows


def test_a_plan_shows_what_travels_what_stays_and_what_does_not_train() -> None:
    task = {"share": ["fc*"], "keep": ["fc3.bias"]}
    figures = planned(scenario("fedavg", task=task))
    parts = {part.role: (part.parameters, part.bytes) for part in figures.parts}
    assert parts == {"share": (41_844, 167_376), "keep": (10, 40), "freeze": (2_572, 10_288)}
    assert sum(values for values, _ in parts.values()) == VALUES
    assert dict(figures.rows())["keep"] == "1 tensor, 10 values, 0.04 kB: fc3.bias"
    once, train = phase(figures, "values that stay"), phase(figures, "train")
    assert once.down_values == VALUES - 41_844
    assert (train.down_values, train.up_values) == (41_844, 41_844)


def test_the_limits_of_a_managed_broker_take_time_by_hand() -> None:
    # two devices, 1 MB each down and half of it up; 20 parts of 50 kB are published once
    train = PhaseCost("train", 3, 2, 1_000_000, 500_000, 1000, 1000, 1_000_000)
    slow = Profile(
        "slow",
        filters=8,
        subscribes_per_s=3,
        messages_per_s=11,
        all_bytes_per_s=500_000,
        retained_messages=21,
    )
    found = broker_seconds([train], 50_000, slow)
    out_s = (20 + 2) / 10  # models and orders
    down_s = 2 * 1_000_000 / 500_000  # longer than 2 * 3 packets with subscriptions
    up_s = 2 * 500_000 / 500_000  # longer than 10 messages of each device
    assert found.seconds == pytest.approx(3 * (out_s + down_s + up_s))
    assert found.text == "at least 24.6 s; its models take 22 of 21 retained messages"
