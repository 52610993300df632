"""Seconds of a run from planted benchmarks: by hand for two devices, a percentile, other files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from covey.coordinator.plan.cost import PhaseCost
from covey.coordinator.plan.devices import parse_network, read_benchmarks
from covey.coordinator.plan.seconds import Network, broker_seconds, run_seconds
from covey.shared.errors import UserError
from covey.shared.mqtt.profiles import Profile
from covey.shared.wire.documents import Benchmark
from tests.kit.scenes import Scenes

FAST = Benchmark(
    model="linear",
    values=1000,
    samples=95,
    test_samples=20,
    batch=10,
    threads=1,
    import_s=2.0,
    step_s=0.01,
    evaluation_s=0.5,
    memory_mb=180,
)
SLOW = FAST.model_copy(update={"step_s": 0.1, "evaluation_s": 5.0})
TRAIN = PhaseCost("train", 20, 2, 1_000_000, 500_000, 1000, 1000, 0)
EVALUATE = PhaseCost("evaluate", 1, 2, 1_000_000, 100, 1000, 0, 0, ends_round=False)
MOMENTS = PhaseCost("moments", 1, 2, 100, 100, 0, 0, 0, ends_round=False)


scenario = Scenes.of(
    "s",
    {"features": [4], "classes": 2},
    training={"epochs": 3, "batch": 10},
    rounds={"deadline_s": 4.0},
)


def test_a_phase_lasts_as_long_as_its_slowest_device() -> None:
    phases = [MOMENTS, TRAIN, EVALUATE]
    found = run_seconds(scenario(), 1000, phases, [SLOW, FAST], Network(20.0, 5.0))
    moments, train, evaluate, choice = found.phases
    assert moments.work_s == 0.0
    assert train.work_s == pytest.approx(3 * 10 * 0.1)  # 10 steps in each of 3 epochs
    assert train.transfer_s == pytest.approx(8 / 20 + 4 / 5)
    assert train.seconds == pytest.approx(4.2)
    assert train.too_slow == 1  # of the two, with a deadline of 4 s
    assert evaluate.work_s == pytest.approx(
        3 * 5.0 + 10 * 0.1
    )  # three modes, one epoch of fine-tuning
    # three trainings on two thirds, and each sample tested under two models
    assert (choice.times, choice.transfer_s) == (1, 0.0)
    assert choice.work_s == pytest.approx(2 * 10 * 0.1 + 2 * 5.0 * 95 / 20)
    parts = [phase.times * phase.seconds for phase in found.phases]
    assert found.seconds == pytest.approx(sum(parts))
    assert found.to_json()["seconds"] == found.seconds
    rows = dict(found.rows())
    assert rows["seconds of train"].endswith("1 of 2 devices need longer than the deadline")


def test_an_adaptive_deadline_waits_for_its_percentile() -> None:
    adaptive = scenario(rounds={"deadline": {"percentile": 0.5}})
    found = run_seconds(adaptive, 1000, [TRAIN], [SLOW, FAST], None)
    assert found.percentile == 0.5
    assert found.phases[0].seconds == pytest.approx(0.3)
    slowest = run_seconds(adaptive, 1000, [TRAIN], [SLOW, FAST], None, percentile=1.0)
    assert slowest.phases[0].seconds == pytest.approx(3.0)
    assert slowest.phases[0].too_slow == 0  # of at most 600 s


def test_a_larger_batch_costs_more_per_step_and_needs_fewer_steps() -> None:
    large = scenario(training={"epochs": 1, "batch": 20}, evaluation={"tune_epochs": 0})
    found = run_seconds(large, 1000, [TRAIN, EVALUATE], [FAST], None)
    assert found.phases[0].seconds == pytest.approx(5 * 0.02)
    assert found.phases[1].seconds == pytest.approx(2 * 0.5)


def test_benchmarks_come_from_files_of_devices_and_from_rosters(tmp_path: Path) -> None:
    row = FAST.model_dump(mode="json")
    printed = {**row, "epochs": 1, "round_s": 0.1}  # as `agent bench --json` prints it
    one = tmp_path / "one.json"
    one.write_text(json.dumps(printed, indent=1))
    lines = tmp_path / "lines.jsonl"
    lines.write_text(f"{json.dumps(printed)}\n{json.dumps(printed)}\n")
    roster = {"agents": {"pi-1": {"bench": row}, "pi-2": {}}}
    of_run = tmp_path / "roster.json"
    of_run.write_text(json.dumps(roster))
    status = tmp_path / "status.json"
    status.write_text(json.dumps({"status": None, "roster": roster}))
    assert read_benchmarks([one, lines, of_run, status]) == [FAST] * 5


def test_a_file_without_a_benchmark_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for content, words in (
        ("{", "x.json: not JSON"),
        ('{"model": "linear"}', "no benchmark of a device"),
    ):
        path.write_text(content)
        with pytest.raises(UserError, match=words):
            read_benchmarks([path])
    with pytest.raises(UserError, match="cannot be read"):
        read_benchmarks([tmp_path / "none.json"])
    with pytest.raises(UserError, match="no benchmark of a device was found"):
        run_seconds(scenario(), 1000, [TRAIN], [], None)
    with pytest.raises(UserError, match="1000 values, but the scenario's model has 7"):
        run_seconds(scenario(), 7, [TRAIN], [FAST], None)


def test_a_network_is_one_number_or_two() -> None:
    assert parse_network("20/5") == Network(20.0, 5.0)
    assert parse_network("8") == Network(8.0, 8.0)
    for wrong in ("", "20/", "0", "-3", "inf", "nan", "1/2/3"):
        with pytest.raises(UserError, match="expected Mbit/s"):
            parse_network(wrong)


def test_the_limits_of_a_managed_broker_take_time_by_hand() -> None:
    # two devices, 1 MB each down and half of it up; 20 parts of 50 kB are published once
    phase = PhaseCost("train", 3, 2, 1_000_000, 500_000, 1000, 1000, 1_000_000)
    slow = Profile(
        "slow",
        filters=8,
        subscribes_per_s=3,
        messages_per_s=11,
        all_bytes_per_s=500_000,
        retained_messages=21,
    )
    found = broker_seconds([phase], 50_000, slow)
    out_s = (20 + 2) / 10  # models and orders
    down_s = 2 * 1_000_000 / 500_000  # longer than 2 * 3 packets with subscriptions
    up_s = 2 * 500_000 / 500_000  # longer than 10 messages of each device
    assert found.seconds == pytest.approx(3 * (out_s + down_s + up_s))
    assert found.text == "at least 24.6 s; its models take 22 of 21 retained messages"
