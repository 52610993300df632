"""The start of a sum is the whole order: members of a sum whose orders differ in anything have no sum together."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

from covey.extras.secure.derivation import OrderStart
from covey.extras.secure.phases import AHEAD, BOX, JOIN, start_of_work
from covey.shared.wire.messages import BASE, Work
from tests.agent.orders import ref, work

MODELS: list[Any] = [np.arange(10, dtype=np.float32), np.ones(4, np.float32)]
ORDER = work(ref("0"), ref(BASE, b"base"), numbers={"beta": 0.5})
MESSAGE = np.arange(3, dtype=np.uint32)


def begun(of: Work, models: list[Any] | None = None) -> OrderStart:
    return start_of_work(of, models or MODELS, own=1, messages=0, begins=slice(None), secret=b"s")


def another(value: Any, annotation: Any) -> Any:
    """Another value of the type of a field."""
    match value:
        case None:
            kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
            assert kinds, annotation
            return 1 if int in kinds else {"a": 1}
        case int() | float():
            return value + 1
        case str():
            return value + "x"
        case bytes():
            return bytes(len(value))
        case dict():
            return {**value, "a": 1}
        case list():
            return [another_model(value[0]), *value[1:]]
    raise AssertionError(f"no other value of {annotation}")


def another_model(model: Any) -> Any:
    return model.model_copy(update={"digest": bytes(16)})


@pytest.mark.parametrize("name", Work.model_fields)
def test_an_order_that_differs_in_any_field_has_another_start(name: str) -> None:
    field = Work.model_fields[name]
    changed = ORDER.model_copy(update={name: another(getattr(ORDER, name), field.annotation)})
    assert (begun(changed) != begun(ORDER)) == (
        name != "sizes"
    )  # which each phase of a sum has again


@pytest.mark.parametrize("place", range(len(MODELS)))
def test_another_model_is_another_start_also_one_that_does_not_travel_back(place: int) -> None:
    models = [model.copy() for model in MODELS]
    models[place][0] = np.nextafter(models[place][0], np.float32(9))
    assert begun(ORDER, models).digest != begun(ORDER).digest


@pytest.mark.parametrize(
    ("phase", "messages"), [(BOX, []), (JOIN, ["terms"]), ("train", ["a", "b"])]
)
def test_the_orders_of_all_phases_of_a_sum_have_one_start(phase: str, messages: list[str]) -> None:
    numbers = ORDER.numbers if phase == "train" else {**ORDER.numbers, AHEAD: "train"}
    refs = [ORDER.models[0], *map(ref, messages), ORDER.models[1]]
    order = ORDER.model_copy(
        update={"phase": phase, "numbers": numbers, "models": refs, "sizes": {"secure": -9}}
    )
    models = [MODELS[0], *[MESSAGE for _ in messages], MODELS[1]]
    found = start_of_work(
        order,
        models,
        own=1 + len(messages),
        messages=len(messages),
        begins=slice(None),
        secret=b"s",
    )
    assert found == begun(ORDER)
