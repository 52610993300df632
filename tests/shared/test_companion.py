"""A companion of the model: a scenario and an order that name one have it around the method, and what it brings are candidates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, cast

import pytest
from pydantic import ValidationError

from covey.shared import extras
from covey.shared.extras import MissingExtraError
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import Facts, Strategy
from covey.shared.strategies.client_half import Job, Local
from covey.shared.strategies.fedavg import FedAvg
from covey.shared.work.evaluate import brought
from covey.shared.work.order_settings import check_order, settings_of
from tests.agent.orders import ref, work
from tests.kit.small_run import scenario

EVALUATION = {"deliver": {"companion": "second"}}
ORDER = work(ref("0"), evaluation=EVALUATION)


class WithSecond(FedAvg):
    """FedAvg with a phase before its last round."""

    facts: ClassVar[Facts] = replace(FedAvg.facts, phases=(*FedAvg.facts.phases, "second"))


class Second:
    """The module `companion` of an extra."""

    def around(self, method: Strategy[Any]) -> Strategy[Any]:
        return WithSecond(**method.model_dump())

    def makers(self, job: Job) -> Mapping[str, Callable[[Local], Any]]:
        return {"second": lambda local: local}


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> None:
    part = extras.part

    def found(extra: str, module: str, asked: str = "") -> Any:
        is_second = (extra, module) == ("second", "companion")
        return Second() if is_second else part(extra, module, asked)

    monkeypatch.setattr(extras, "part", found)


def accompanied_scenario() -> Scenario:
    return scenario("fedavg", evaluation=EVALUATION)


@pytest.mark.usefixtures("second")
def test_a_scenario_that_names_a_companion_has_it_around_its_method() -> None:
    assert isinstance(accompanied_scenario().method, WithSecond)
    assert type(scenario("fedavg").method) is FedAvg


@pytest.mark.usefixtures("second")
def test_a_companion_plans_phases_that_a_device_takes_from_an_order_that_names_it() -> None:
    order = ORDER.model_copy(update={"phase": "second"})
    check_order(settings_of(order)[0], order)
    plain = order.model_copy(update={"evaluation": {}})
    with pytest.raises(Exception, match="plans no such phase"):
        check_order(settings_of(plain)[0], plain)


@pytest.mark.usefixtures("second")
def test_what_a_companion_brings_is_a_candidate() -> None:
    job = cast(Job, None)
    assert list(brought(job, ORDER)) == ["second"]
    assert brought(job, work(ref("0"), evaluation={"deliver": {}})) == {}
    assert brought(job, work(ref("0"), evaluation={})) == {}


def test_a_companion_whose_extra_is_not_installed_is_refused_by_its_key() -> None:
    needs = r"evaluation\.deliver\.companion: needs covey's extra `second`"
    with pytest.raises(ValidationError, match=needs):
        accompanied_scenario()
    with pytest.raises(MissingExtraError, match=needs):
        settings_of(ORDER)
