"""A method around a method answers what the method inside answers, from the state inside its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from covey.shared.strategies.around import Around, Outer
from covey.shared.strategies.base import Strategy
from tests.kit.small_run import clients, scenario, setup
from tests.methods import METHODS

CLIENT = "agent-0"
OF_THE_METHOD = ("facts", "name", "starts", "projection_head")
OF_A_STATE = ("clusters", "assignment", "stop_reason", "accused", "failure")


@dataclass(frozen=True)
class Counted(Outer):
    phases: int = 0  # its own


class Counting(Around[Counted]):
    pass


@pytest.fixture(params=[name for name in ("fedclust", "ifca", "local") if name in METHODS])
def inside(request: pytest.FixtureRequest) -> tuple[Strategy[Any], Any]:
    """A method, and a state of it that knows all agents."""
    scene = scenario(request.param)
    state = scene.strategy.init(setup(scene))
    if hasattr(state, "assignment"):
        state = replace(state, assignment=dict.fromkeys(clients(), 0))
    return scene.strategy, state


def test_what_is_asked_of_it_is_answered_by_the_method_inside(
    inside: tuple[Strategy[Any], Any],
) -> None:
    method, state = inside
    outer = Counting(method=method)
    for name in OF_THE_METHOD:
        assert getattr(outer, name) == getattr(method, name), name
    assert outer.buffer.ages_together == method.buffer.ages_together
    assert outer.buffer.refusal == method.buffer.refusal
    assert outer.privacy.routes == method.privacy.routes
    for name in OF_A_STATE:
        answer = getattr(outer, name)(Counted(state, 3))
        assert repr(answer) == repr(getattr(method, name)(state)), name
    assert outer.serve(Counted(state), CLIENT) == method.serve(state, CLIENT)
    layout, training = setup(scenario("fedavg")).layout, scenario("fedavg").training
    assert outer.split(layout) == method.split(layout)
    assert outer.refuses(training) == method.refuses(training)


def test_its_own_state_stays_around_the_one_that_the_method_changes(
    inside: tuple[Strategy[Any], Any],
) -> None:
    method, state = inside
    outer, before = Counting(method=method), Counted(state, 3)
    forgotten = outer.forget(before, CLIENT)
    assert forgotten.phases == 3
    assert repr(forgotten.inner) == repr(method.forget(state, CLIENT))
    try:
        expected = method.continued(state, state)
    except ValueError as error:
        with pytest.raises(ValueError, match=str(error)[:20]):
            outer.continued(before, before)
    else:
        continued = outer.continued(before, Counted(state, 0))
        assert continued.phases == 0  # a new run has it from the start
        assert repr(continued.inner) == repr(expected)


def test_no_function_is_answered_by_the_interface_in_place_of_the_method() -> None:
    """Those that are not here have phases, which a subclass writes."""
    asked = {
        name
        for name, value in vars(Strategy).items()
        if not name.startswith(("_", "model_")) and (callable(value) or isinstance(value, property))
    }
    phases = {"init", "plan", "order", "model", "terms", "for_terms", "fold", "shown"}
    assert asked - vars(Around).keys() == phases | {"work", "personal"}
