"""A companion of the model: a scenario and an order that name one have it around the method, and what it brings is a candidate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from pydantic import ValidationError

from covey.shared import extras
from covey.shared.errors import PublicError
from covey.shared.scenario.companion import brought
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.task import Task
from covey.shared.strategies.base import Facts, Strategy
from covey.shared.strategies.client_half import Job
from covey.shared.strategies.fedavg import FedAvg
from covey.shared.work.order_settings import check_order, settings_of
from tests.agent.orders import ref, work
from tests.kit.small_run import scenario

EVALUATION = {"deliver": {"companion": "second"}}
ORDER = work(ref("0"), evaluation=EVALUATION)


class WithSecond(FedAvg):
    """FedAvg with a phase before its last round."""

    facts: ClassVar[Facts] = replace(FedAvg.facts, phases=(*FedAvg.facts.phases, "second"))


class Second:
    """What an extra brings."""

    def refuses(self, scenario: Scenario) -> str:
        return "too many rounds" if scenario.rounds.count > 100 else ""

    def around(self, method: Strategy[Any], task: Task) -> Strategy[Any]:
        return WithSecond(**method.model_dump())

    def maker(self, job: Job, task: Task) -> Callable[[int | None], Any]:
        return lambda fold: fold


@pytest.fixture(autouse=True)
def judge(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra whose candidate a companion is, installed or not."""
    monkeypatch.setattr(extras, "has", lambda extra: extra == "judge")


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> None:
    part, known = extras.part, extras.brought

    def found(extra: str, module: str, asked: str = "") -> Any:
        is_second = (extra, module) == ("other", "second")
        return SimpleNamespace(IT=Second()) if is_second else part(extra, module, asked)

    def brought(what: str) -> Mapping[str, tuple[str, Any]]:
        return {"second": ("other", "second:IT")} if what == "COMPANIONS" else known(what)

    monkeypatch.setattr(extras, "part", found)
    monkeypatch.setattr(extras, "brought", brought)


def accompanied_scenario(**changes: Any) -> Scenario:
    return scenario("fedavg", evaluation=EVALUATION, **changes)


@pytest.mark.usefixtures("second")
def test_a_scenario_that_names_a_companion_has_it_around_its_method() -> None:
    assert isinstance(accompanied_scenario().method, WithSecond)
    assert type(scenario("fedavg").method) is FedAvg


@pytest.mark.usefixtures("second")
def test_a_run_that_a_companion_cannot_take_part_in_is_refused_with_its_reason() -> None:
    with pytest.raises(ValidationError, match=r"companion: second: too many rounds"):
        accompanied_scenario(rounds={"count": 101})


@pytest.mark.usefixtures("second")
def test_a_companion_plans_phases_that_a_device_takes_from_an_order_that_names_it() -> None:
    order = ORDER.model_copy(update={"phase": "second"})
    check_order(settings_of(order)[0], order)
    plain = order.model_copy(update={"evaluation": {}})
    with pytest.raises(PublicError, match="plans no such phase"):
        check_order(settings_of(plain)[0], plain)


@pytest.mark.usefixtures("second")
def test_an_order_that_names_a_companion_brings_its_candidate() -> None:
    job = cast(Job, None)
    task = scenario("fedavg").task
    found = brought(job, EVALUATION, task)
    assert found is not None
    assert found(2) == cast(Any, 2)
    assert brought(job, {"deliver": {}}, task) is None
    assert brought(job, {}, task) is None


def test_a_companion_whose_extra_is_not_installed_is_refused_by_its_key() -> None:
    needs = r"evaluation\.deliver\.companion: no extra brings 'second'"
    with pytest.raises(ValidationError, match=needs):
        accompanied_scenario()
    with pytest.raises(extras.MissingExtraError, match=needs):
        settings_of(ORDER)
