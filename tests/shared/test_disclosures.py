"""The table of what leaves a device covers each field that there is, and what it does not cover stays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from covey.shared.disclosures import (
    ANY,
    NUMBERS_OF_STATISTICS,
    REPORT,
    STATUS,
    VECTORS,
    DisclosureRow,
    Promise,
    cleared,
    cleared_status,
    numbers_of,
)
from covey.shared.errors import PublicError
from covey.shared.scenario.fleet_statistics import asked_statistics
from covey.shared.scenario.task import Task
from covey.shared.strategies.phase_names import EVALUATE, MOMENTS, TRAIN
from covey.shared.wire.documents import AgentStatus, ModelInUse
from covey.shared.wire.messages import Encoded, ReportContent


def report(**changes: Any) -> ReportContent:
    """A report with something in each field."""
    fields: dict[str, Any] = {
        "run": "r",
        "step": 1,
        "work": bytes(16),
        "client": "a",
        "examples": 7,
        "steps": 3,
        "loss": 0.5,
        "numbers": {},
        "seconds": 1.0,
        "vectors": {},
    }
    return ReportContent(**{**fields, **changes})


def status(**changes: Any) -> AgentStatus:
    seen = ModelInUse(run="r", round=3, rejected=2, note="rejected: r, round 4")
    return AgentStatus(
        agent="a", session="s", online=True, labels=["ill", "well"], model=seen, **changes
    )


def fields_of(message: type[BaseModel], within: str = "") -> Iterator[str]:
    """The fields of a message, and after a dot those of the messages in them."""
    for name, field in message.model_fields.items():
        yield within + name
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from fields_of(kind, f"{within}{name}.")


def test_each_field_of_a_report_and_of_a_status_has_a_row_and_each_row_a_field() -> None:
    assert set(REPORT) == set(ReportContent.model_fields)
    assert set(STATUS) == set(fields_of(AgentStatus))


TASKS: list[dict[str, Any]] = [
    {"features": [1, 8, 8], "classes": 2, "standardise": "federated"},
    {"features": [3], "classes": None, "target_scale": "federated"},
    {
        "features": [5],
        "columns": ["x", "y"],
        "classes": 2,
        "target": "z",
        "impute": "median",
        "categories": {"x": 3},
    },
]


def test_each_statistic_of_a_fleet_has_a_row() -> None:
    asked = {name for task in TASKS for name in asked_statistics(Task.model_validate(task))}
    assert asked == set(NUMBERS_OF_STATISTICS)


def rows() -> Iterator[DisclosureRow]:
    for table in (REPORT, STATUS, VECTORS, *map(numbers_of, (TRAIN, EVALUATE, MOMENTS))):
        yield from table.values()


@pytest.mark.parametrize("promise", Promise)
def test_each_promise_keeps_something_back(promise: Promise) -> None:
    assert any(not row.leaves([promise]) for row in rows())


def test_a_field_without_a_row_is_not_sent() -> None:
    class Report(ReportContent):
        median: float
        rows: dict[str, int]
        note: str = ""

    class Status(AgentStatus):
        rare: str = "measles"

    wide = Report(**report().model_dump(), median=2.5, rows={"ill": 3}, note="measles")
    sent = cleared(wide, TRAIN, ())
    assert (sent.median, sent.rows, sent.note) == (0.0, {}, "")
    of_status = Status(**status().model_dump(), rare="mumps")
    assert cleared_status(of_status, ()).rare == "measles", "the default is not of the data"


def test_a_number_of_an_evaluation_without_a_row_is_not_sent() -> None:
    numbers = {"server": {"n": 4, "accuracy": 0.5, "worst": "a"}, "quartiles": [1, 2]}
    sent = cleared(report(numbers=numbers), EVALUATE, ())
    assert sent.numbers == {"server": {"n": 4, "accuracy": 0.5}}


def test_without_a_promise_a_report_of_training_is_sent_as_it_is() -> None:
    whole = report(numbers={"choice": 2, "losses": [0.5, 0.7], "track": {"n": 4, "accuracy": 0.5}})
    assert cleared(whole, TRAIN, ()) == whole


@pytest.mark.parametrize("promise", [Promise.SUMMED, Promise.NOISED])
def test_under_sums_or_noise_what_one_agent_learned_is_not_sent(promise: Promise) -> None:
    numbers = {"choice": 2, "track": {"n": 4}, "epsilon": 1.5, "head": [1]}
    sent = cleared(report(numbers=numbers), TRAIN, [promise])
    assert sent.numbers == {"epsilon": 1.5, "head": [1]}
    assert (sent.loss, sent.steps, sent.examples) == (0.0, 0, 7)


@pytest.mark.parametrize(
    ("name", "promise"),
    [
        ("model", Promise.SUMMED),
        ("signature", Promise.SUMMED),
        ("gradient", Promise.NOISED),
        ("card", Promise.NOISED),
        ("card", Promise.NO_SAMPLES),
        ("of a new method", Promise.NOISED),
    ],
)
def test_a_vector_that_may_not_leave_is_refused_with_the_promise(
    name: str, promise: Promise
) -> None:
    vector = Encoded(codec="float32", length=1, data=bytes(4))
    with pytest.raises(PublicError, match=promise.value):
        cleared(report(vectors={name: vector}), TRAIN, [promise])


def test_a_status_keeps_classes_and_choices_of_models_back_where_the_owner_wants_that() -> None:
    whole = status()
    assert cleared_status(whole, ()) == whole
    assert cleared_status(whole, [Promise.OWNED]).labels == []
    assert cleared_status(whole, [Promise.OWNED]).model is None
    assert ANY not in STATUS
