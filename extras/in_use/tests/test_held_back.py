"""The samples that an agent holds back for votes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.agent.data import Dataset
from covey.agent.data.dataset import dataset, hold_back, units_of
from covey.agent.worker.worker import answer
from covey.extras.in_use.model_dir import ModelDir
from covey.extras.in_use.tests.test_kept import BAD, GOOD, LAYOUT, TASK, perform, samples
from covey.shared.numerics.units import JUDGING
from covey.shared.numerics.vectors import Vector
from covey.shared.seeds import generator
from covey.shared.wire.codec import Codec, encode_model
from covey.shared.wire.jobs import DeviceData, KeepPlace, Perform
from covey.shared.wire.messages import ModelRef, ReportContent, digest
from tests.agent.orders import order


def numbered(count: int, tests: int = 4) -> Dataset:
    """Each sample has its own number as its only feature; test samples continue the count."""
    x = np.arange(count + tests, dtype=np.float32).reshape(-1, 1)
    y = np.zeros(count + tests, np.int64)
    return dataset(x[:count], y[:count], (x[count:], y[count:]), source="numbers")


def numbers(data: Dataset | None) -> list[int]:
    assert data is not None
    return [int(value) for value in data.features[:, 0]]


@pytest.mark.parametrize(("count", "held"), [(25, 5), (50, 5), (51, 5), (70, 7), (1000, 100)])
def test_a_tenth_of_the_training_samples_is_held_back_at_least_five_and_no_test_sample(
    count: int, held: int
) -> None:
    rest, alone = hold_back(numbered(count), 3, "pi-1")
    assert len(numbers(alone)) == held
    assert sorted([*numbers(rest), *numbers(alone)]) == list(range(count))
    assert numbers(rest) == sorted(numbers(rest))
    assert rest.test_features[:, 0].tolist() == numbered(count).test_features[:, 0].tolist()
    assert alone is not None
    assert not alone.has_test
    assert not len(alone.test_features)


def test_the_same_agent_holds_back_the_same_samples_in_every_phase_of_a_run() -> None:
    data = numbered(80)
    _, first = hold_back(data, 3, "pi-1")
    assert numbers(hold_back(data, 3, "pi-1")[1]) == numbers(first)
    assert numbers(hold_back(data, 3, "pi-2")[1]) != numbers(first)
    assert numbers(hold_back(data, 4, "pi-1")[1]) != numbers(first)


def test_an_agent_with_few_samples_trains_on_all_of_them() -> None:
    data = numbered(24)
    rest, alone = hold_back(data, 3, "pi-1")
    assert rest is data
    assert alone is None


def test_what_is_held_back_of_a_series_is_of_all_its_time() -> None:
    places = [
        place
        for seed in range(20)
        for place in numbers(hold_back(replace(numbered(400), overlap=1), seed, "pi-1")[1])
    ]
    assert np.histogram(places, 4, (0, 400))[0].min() > len(places) / 8


def test_copies_are_held_back_together_and_are_one_unit() -> None:
    data = replace(numbered(160), features=np.arange(160).reshape(-1, 1) // 4)
    rest, alone = hold_back(data, 3, "pi-1")
    assert alone is not None
    assert (
        np.bincount(numbers(alone)).max() == np.bincount(numbers(alone))[numbers(alone)].min() == 4
    )
    assert not {*numbers(rest)} & {*numbers(alone)}
    assert len(np.unique(units_of(alone))) == len({*numbers(alone)}) == 5


@pytest.mark.parametrize("kinds", [1, 3, 9])
def test_an_agent_of_a_few_units_has_no_vote(kinds: int) -> None:
    data = replace(numbered(90), features=np.arange(90).reshape(-1, 1) % kinds)
    assert hold_back(data, 3, "pi-1") == (data, None)


def test_no_window_in_training_shares_rows_with_one_that_is_held_back() -> None:
    windows = replace(numbered(400), overlap=3)
    rest, alone = hold_back(windows, 3, "pi-1")
    held = set(numbers(alone))
    assert len(held) >= 40
    near = {place + apart for place in held for apart in range(-3, 4)}
    assert set(numbers(rest)) == set(range(400)) - near
    assert alone is not None
    stretches = units_of(windows, JUDGING)[numbers(alone)]
    assert np.unique(stretches, return_inverse=True)[1].tolist() == units_of(alone).tolist()
    overlapping = replace(windows, overlap=400)
    assert hold_back(overlapping, 3, "pi-1") == (overlapping, None)


# -- the worker --------------------------------------------------------------------------------------------------------


def answered(
    folder: Path, served: Vector, other: Vector, **of_order: Any
) -> tuple[dict[str, Any], Any, ModelDir]:
    """The numbers of the report of an order with two models, the worker's answer, and the device's models."""
    folder.mkdir()
    refs: list[ModelRef] = []
    for key, vector in (("0", served), ("good-0", other)):
        content = encode_model(vector, LAYOUT.digest, Codec(), generator(0, "down"))
        (folder / key).write_bytes(content)
        refs.append(ModelRef(key=key, digest=digest(content), parts=1, size=len(content)))
    message = order(
        1,
        *refs,
        round_=2,
        task=TASK.for_agents(),
        layout=LAYOUT.to_wire(),
        sizes={},
        cluster=0,
        **of_order,
    )
    models = ModelDir(folder / "models")
    job = Perform(
        source=DeviceData(data=str(samples(folder))),
        client="pi",
        order=message.to_bytes(),
        models=[folder / ref.key for ref in refs],
        durable=False,
        report_out=folder / "report",
        memory_out=folder / "memory",
        keep=KeepPlace(folder=models.folder, current="", accepted="", margin=0.05),
    )
    done = answer(job)
    assert done.failed == ""
    report = ReportContent.from_bytes((folder / "report").read_bytes(), verified=True)
    return dict(report.numbers), done, models


@pytest.mark.parametrize(("numbers", "trained"), [({"hold_back": 1}, 43), ({}, 48)])
def test_an_agent_trains_on_what_it_does_not_hold_back(
    tmp_path: Path, single_thread: None, numbers: dict[str, Any], trained: int
) -> None:
    models = ModelDir(tmp_path / "models")
    perform(tmp_path, GOOD, models, strategy={"name": "kin"}, numbers=numbers)
    report = ReportContent.from_bytes((tmp_path / "report").read_bytes(), verified=True)
    assert report.examples == trained


@pytest.mark.parametrize(("better", "sign"), [(GOOD, 1), (BAD, -1)])
def test_an_agent_votes_on_the_samples_that_it_holds_back_if_the_order_asks(
    tmp_path: Path, single_thread: None, better: Vector, sign: int
) -> None:
    """A vote of Kin, in which neither average has the agent's own model in it."""
    numbers, _, _ = answered(
        tmp_path / "vote",
        GOOD + BAD - better,
        better,
        phase="vote",
        strategy={"name": "kin"},
        numbers={"hold_back": 1, "share": [0.0, 0.0]},
        evaluation={"tune_epochs": 0},
    )
    assert np.sign(numbers["gain"]) == [sign]
    assert numbers["variance"][0] > 0


def test_an_agent_whose_order_does_not_ask_holds_nothing_back_and_abstains(
    tmp_path: Path, single_thread: None
) -> None:
    numbers, _, _ = answered(
        tmp_path / "vote",
        BAD,
        GOOD,
        phase="vote",
        strategy={"name": "kin"},
        numbers={"share": [0.0, 0.0]},
        evaluation={"tune_epochs": 0},
    )
    assert numbers == {}
