"""Lying coordinators against the workers of real devices: only the coordinator's code is changed."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.coordinator.run.orders import OrderBook
from covey.coordinator.simulate.virtual_clock import GivenUpError
from covey.extras.light.numpy_learner import NumpyLocal
from covey.extras.secure.messages import Introduction
from covey.extras.secure.phases import AHEAD, BOX, WORDS, bytes_of, words_of
from covey.extras.secure.secured import Secured
from covey.extras.secure.tests.live import LAYOUT, TASK, Devices, made, sums
from covey.shared.scenario.task import Task
from covey.shared.strategies.base import Order, Phase, Term
from covey.shared.strategies.fedavg import FedAvg
from covey.shared.strategies.feddane import FedDane
from covey.shared.strategies.fedem import FedEm

VICTIM = "a3"


def tell_others(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Orders of everybody but the victim differ in these fields of the work."""
    honest = OrderBook._work

    def lied(self: OrderBook, client: str, step: Any, state: Any) -> Any:
        work = honest(self, client, step, state)
        if client == VICTIM or step.phase.name == "evaluate":
            return work
        told = {name: getattr(work, name) for name in type(work).model_fields}
        lie = type(work)(**{**told, **changes})
        step.asked[client] = replace(step.asked[client], work=lie.digest)
        return lie

    monkeypatch.setattr(OrderBook, "_work", lied)


def name_start_of(monkeypatch: pytest.MonkeyPatch, client: str) -> None:
    """The terms have the start of one agent, whatever the others have shown."""
    honest = Secured._boxes

    def lied(self: Secured, state: Any, reports: Any) -> Any:
        shown = {
            name: Introduction.from_bytes(bytes_of(report.vectors[WORDS]))
            for name, report in reports
        }
        start = shown[client].start if client in shown else bytes(32)
        alike = [
            (name, replace(report, vectors={WORDS: words_of(of_start(shown[name], start))}))
            for name, report in reports
        ]
        return honest(self, state, alike)

    monkeypatch.setattr(Secured, "_boxes", lied)


def of_start(shown: Introduction, start: bytes) -> bytes:
    return shown.model_copy(update={"start": start}).to_bytes()


def test_devices_make_the_sum_of_an_honest_coordinator(tmp_path: Path) -> None:
    devices = Devices(tmp_path)
    [one] = sums(made(devices, "run"))
    assert (one["end"], len(one["reported"])) == ("sum", 5)
    assert devices.failures == []


NOTHING_TO_LEARN = Task.model_validate(
    {**TASK, "standardise": {"mean": [0.0] * 3, "std": [1e30] * 3}}
).for_agents()


def test_members_with_another_task_are_in_no_sum_with_the_victim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_others(monkeypatch, task=NOTHING_TO_LEARN)
    found = sums(made(Devices(tmp_path), "run"))
    assert not [one for one in found if one["end"] == "sum" and VICTIM in one["reported"]]


def test_members_with_another_task_refuse_the_start_of_the_victim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_others(monkeypatch, task=NOTHING_TO_LEARN)
    name_start_of(monkeypatch, VICTIM)
    devices = Devices(tmp_path)
    assert not [one for one in sums(made(devices, "run")) if one["end"] == "sum"]
    assert any("another start" in failure for failure in devices.failures)


def leave_out(monkeypatch: pytest.MonkeyPatch, client: str) -> None:
    honest = Secured._boxes

    def lied(self: Secured, state: Any, reports: Any) -> Any:
        return honest(self, state, [one for one in reports if one[0] != client])

    monkeypatch.setattr(Secured, "_boxes", lied)


@pytest.mark.parametrize("lie", ["another round", "one ulp", "another learning rate"])
def test_two_sums_of_one_training_with_a_member_less_are_refused_by_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    devices = Devices(tmp_path, "privacy={secure_least: 3}")
    [first] = sums(made(devices, "run-1"))
    assert (first["end"], devices.failures) == ("sum", [])
    sections: dict[str, Any] = {}
    model = FedAvg.model
    match lie:
        case "another round":
            sections = {"seed": 4}
        case "another learning rate":
            sections = {"training": {"lr": 0.0500001}}
        case "one ulp":
            monkeypatch.setattr(
                FedAvg, "model", lambda *known: np.nextafter(model(*known), np.float32(1))
            )
    leave_out(monkeypatch, VICTIM)
    found = sums(made(devices, "run-2", **sections))
    assert not [one for one in found if one["end"] == "sum"]
    assert any("from the same models, with other members" in why for why in devices.failures)


def test_one_of_several_models_that_is_another_one_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that fits no sample leaves the training of the other one as it was."""
    devices = Devices(tmp_path, "privacy={secure_least: 3}")
    two = {"name": "fedem", "n_clusters": 2}
    [first] = sums(made(devices, "run-1", strategy=two))
    assert (first["end"], devices.failures) == ("sum", [])
    honest = FedEm.model
    monkeypatch.setattr(
        FedEm, "model", lambda own, state, key: honest(own, state, key) + 9 * (key == "1")
    )
    leave_out(monkeypatch, VICTIM)
    found = sums(made(devices, "run-2", strategy=two))
    assert not [one for one in found if one["end"] == "sum"]
    assert any("from the same models, with other members" in why for why in devices.failures)


def test_terms_with_a_vector_that_no_work_makes_are_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Secured._terms_of_sum
    strange = {"vectors": {"strange": LAYOUT.size}}
    monkeypatch.setattr(
        Secured,
        "_terms_of_sum",
        lambda *known, **more: honest(*known, **more).model_copy(update=strange),
    )
    devices = Devices(tmp_path)
    assert not [one for one in sums(made(devices, "run")) if one["end"] == "sum"]
    assert any("makes the vector 'strange'" in failure for failure in devices.failures)


def test_an_order_of_a_sum_without_a_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = FedAvg.order
    monkeypatch.setattr(FedAvg, "order", lambda *known: replace(honest(*known), models=()))
    monkeypatch.setattr(FedAvg, "terms", lambda *known: (Term("0", 1.0, "model", base=""),))
    devices = Devices(tmp_path)
    with contextlib.suppress(GivenUpError):
        made(devices, "run")
    assert any("no model that other agents have too" in failure for failure in devices.failures)


@pytest.mark.parametrize("phase", [BOX, "train", "evaluate"])
def test_a_number_that_the_method_does_not_declare_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    honest, train = OrderBook._work_with, NumpyLocal.train
    trained = []

    def lied(self: OrderBook, own: Phase, order: Order, models: Any) -> Any:
        numbers = {**order.numbers, "nonce": 2} if own.name == phase else order.numbers
        return honest(self, own, replace(order, numbers=numbers), models)

    def counted(self: NumpyLocal, *how: Any, **more: Any) -> Any:
        trained.append(self)
        return train(self, *how, **more)

    monkeypatch.setattr(OrderBook, "_work_with", lied)
    monkeypatch.setattr(NumpyLocal, "train", counted)
    devices = Devices(tmp_path)
    with contextlib.suppress(GivenUpError):
        made(devices, "run")
    why = f"numbers.nonce: the method fedavg declares no such number for the phase {phase}; "
    assert any(why in failure for failure in devices.failures)
    assert bool(trained) == (phase == "evaluate")  # it comes after the training


def test_two_sums_of_one_training_in_phases_of_other_names_are_refused_by_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = Devices(tmp_path, "privacy={secure_least: 3}")
    [first] = sums(made(devices, "run-1"))
    assert (first["end"], devices.failures) == ("sum", [])
    honest = OrderBook._work_with

    def lied(self: OrderBook, own: Phase, order: Order, models: Any) -> Any:
        told = {AHEAD: "x"} if AHEAD in order.numbers else {}
        named = replace(own, name="x") if own.name == "train" else own
        return honest(self, named, replace(order, numbers={**order.numbers, **told}), models)

    monkeypatch.setattr(OrderBook, "_work_with", lied)
    leave_out(monkeypatch, VICTIM)
    with contextlib.suppress(GivenUpError):
        assert not [one for one in sums(made(devices, "run-2")) if one["end"] == "sum"]
    assert any("ahead x: the method fedavg plans no such phase" in why for why in devices.failures)


def test_a_model_too_many_does_not_hide_the_one_whose_gradient_is_summed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, model = FedDane.order, FedDane.model
    number = [1.0]

    def with_another(self: FedDane, state: Any, phase: Phase, client: str) -> Order:
        order = honest(self, state, phase, client)
        return replace(order, models=(*order.models, "another"))

    def known(self: FedDane, state: Any, key: str) -> Any:
        found = model(self, state, "0" if key == "another" else key)
        return found + np.float32(number[0]) * (key == "another")

    monkeypatch.setattr(FedDane, "order", with_another)
    monkeypatch.setattr(FedDane, "model", known)
    devices = Devices(tmp_path, "privacy={secure_least: 3}")
    found = []
    for run in ("run-1", "run-2"):
        number[0] += 1.0
        with contextlib.suppress(GivenUpError):
            found += [
                one for one in sums(made(devices, run, strategy="feddane")) if one["end"] == "sum"
            ]
        leave_out(monkeypatch, VICTIM)
    assert not [one for one in found if VICTIM not in one["reported"]]


def test_declared_other_work_from_the_same_model_may_have_other_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient of FedDANE, then its training."""
    honest, sums_begun = Secured._boxes, []

    def one_drops_out(self: Secured, state: Any, reports: Any) -> Any:
        sums_begun.append(state.progress.round)
        kept = [one for one in reports if one[0] != VICTIM or len(sums_begun) == 1]
        return honest(self, state, kept)

    monkeypatch.setattr(Secured, "_boxes", one_drops_out)
    devices = Devices(tmp_path, "privacy={secure_least: 3}")
    first, second = sums(made(devices, "run", strategy="feddane"))
    assert (first["end"], second["end"], devices.failures) == ("sum", "sum", [])
    assert {*first["reported"]} - {*second["reported"]} == {VICTIM}
