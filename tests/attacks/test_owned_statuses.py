"""A device answers a made-up task with the same status for two tables that differ in one row, under any demand of its owner.

The tasks are those of every field of `Task`, the demands those of every key of `Policy`: a new one without a value here fails.
"""

from __future__ import annotations

import csv
import types
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

from covey.agent.device.events import Inspected
from covey.agent.device.presence import SessionPresence, SessionProgress, Vitals
from covey.agent.policy import OwnersRules, Policy, PrivacyDemand
from covey.agent.worker.worker import answer
from covey.shared.disclosures import cleared_status
from covey.shared.scenario.task import Task
from covey.shared.wire.documents import AgentStatus, CoordinatorStatus, ModelInUse
from covey.shared.wire.jobs import DataSummary, DeviceData, InspectData

HEADER = ("patient", "diagnosis", "age", "weight", "seen", "y")
ROWS = [
    (f"p{n % 3}", ("flu", "hiv", "none")[n % 3], 30 + n, 50.5 + n, f"2026-01-{n + 1:02d} 13:45", n % 2)
    for n in range(24)
]  # fmt: skip
LAST = ROWS[-1]
# a table that differs from `ROWS` in its last row -> that row
OTHER_ROWS = {
    "as it is": LAST,
    "a word": (*LAST[:1], "syphilis", *LAST[2:]),
    "a number": (*LAST[:2], 61, *LAST[3:]),
    "a missing cell": (*LAST[:2], "", *LAST[3:]),
    "an unreadable cell": (*LAST[:2], "old", *LAST[3:]),
    "no time": (*LAST[:4], "never", *LAST[5:]),
    "another series": ("p9", *LAST[1:]),
    "another target": (*LAST[:5], 7),
    "a word as target": (*LAST[:5], "ill"),
    "no target": (*LAST[:5], ""),
}
BASE: dict[str, Any] = {
    "features": [2],
    "columns": ["age", "weight"],
    "classes": None,
    "target": "y",
    "ignore": ["*"],
    "model": {"name": "linear"},
}
OF_CLASSES = {"classes": ["0", "1"]}
WINDOWED = {"features": [2, 3]}
TIMED = {"features": [5], "columns": ["age", "seen"], "times": ["seen"]}
WORDS = {"features": [3], "columns": ["age", "diagnosis"], "classes": None}
IMAGES = {"features": [1, 2, 1]}
PIVOT = {"name": "diagnosis", "value": "age", "time": "seen"}
OF_ANOMALIES = {"model": {"name": "autoencoder"}, "classes": ["0", "1"]}
# by field of `Task` and of its sections: the keys of a task that has a second value there
SECOND: dict[str, dict[str, Any]] = {
    "features": {"features": [1], "columns": ["age"]},
    "classes": {"classes": ["0", "1"]},
    "columns": {"columns": ["age", "diagnosis"]},
    "target": {"target": "diagnosis", "classes": ["flu", "hiv"]},
    "anomalies": {"anomalies": {}, **OF_ANOMALIES},
    "anomalies.quantile": {"anomalies": {"quantile": 0.5}, **OF_ANOMALIES},
    "read": {"read": {"missing": ["61"]}, "impute": "drop"},
    "read.decimal": {"read": {"decimal": ","}},
    "read.dates": {"read": {"dates": ["%d.%m.%Y"]}, **TIMED},
    "read.encoding": {"read": {"encoding": "cp1252"}},
    "read.names": {"read": {"names": ["age", "patient", "weight", "diagnosis", "seen", "label"]}},
    "read.join": {"read": {"join": ["seen", "patient"]}},
    "read.pivot": {"read": {"pivot": PIVOT}},
    "read.zeros": {"read": {"zeros": ["age"]}},
    "read.pivot.name": {"read": {"pivot": {**PIVOT, "name": "patient"}}},
    "read.pivot.value": {"read": {"pivot": {**PIVOT, "value": ["weight", "age"]}}},
    "read.pivot.time": {"read": {"pivot": {**PIVOT, "time": "y"}}},
    "read.pivot.every": {"read": {"pivot": {**PIVOT, "every": "1d"}}},
    "read.pivot.by": {"read": {"pivot": {**PIVOT, "by": "patient"}}},
    "read.separator": {"read": {"separator": ","}},
    "read.missing": {"read": {"missing": ["syphilis", "61"]}, "impute": "drop", **WORDS, "categories": {"diagnosis": ["flu"]}},
    "read.thousands": {"read": {"thousands": ","}},
    "read.units": {"read": {"units": ["kg"]}},
    "ignore": {"ignore": ["patient", "diagnosis", "seen"]},
    "impute": {"impute": "drop"},
    "optional": {"optional": ["age"], "impute": {"age": 40, "weight": 60}},
    "flags": {"features": [3], "flags": ["age"], "impute": {"age": 40}},
    "categories": {**WORDS, "categories": {"diagnosis": ["flu"]}},
    "categories.values": {**WORDS, "categories": {"diagnosis": {"values": ["flu"], "room": 1}}},
    "categories.room": {**WORDS, "features": [4], "categories": {"diagnosis": {"values": ["flu"], "room": 2}}},
    "drop_unlabelled": {"drop_unlabelled": True},
    "times": TIMED,
    "seasons": {**TIMED, "features": [7], "seasons": ["seen"]},
    "elapsed": {**TIMED, "features": [6], "elapsed": ["seen"]},
    "window": {**WINDOWED, "window": {"rows": 3}},
    "window.rows": {"features": [2, 4], "window": {"rows": 4}},
    "window.stride": {**WINDOWED, "window": {"rows": 3, "stride": 1}},
    "window.group": {**WINDOWED, "window": {"rows": 3, "group": "patient"}},
    "window.label": {**WINDOWED, "window": {"rows": 3, "label": "majority"}, **OF_CLASSES},
    "window.horizon": {**WINDOWED, "window": {"rows": 3, "horizon": 2}},
    "test": {"test": "latest"},
    "target_scale": {"target_scale": "federated"},
    "target_scale.mean": {"target_scale": {"mean": 1, "std": 1}},
    "target_scale.std": {"target_scale": {"mean": 0, "std": 2}},
    "resize": {**IMAGES, "resize": "nearest"},
    "model": {"model": {"name": "mlp"}},
    "model.name": {"model": {"name": "mlp"}},
    "model.options": {"model": {"name": "mlp", "options": {"hidden": 3}}},
    "model.adapters": {"model": {"name": "mlp", "adapters": {}}},
    "model.adapters.rank": {"model": {"name": "mlp", "adapters": {"rank": 2}}},
    "model.adapters.alpha": {"model": {"name": "mlp", "adapters": {"alpha": 3}}},
    "model.adapters.targets": {"model": {"name": "mlp", "adapters": {"targets": ["fc"]}}},
    "scale": {**IMAGES, "scale": 0.5},
    "standardise": {"standardise": "federated"},
    "standardise.mean": {"standardise": {"mean": [1, 1], "std": [1, 1]}},
    "standardise.std": {"standardise": {"mean": [0, 0], "std": [2, 2]}},
    "measure": {"measure": "mae"},
    "label_prior": {**OF_CLASSES, "label_prior": "on"},
    "min_cell": {"min_cell": 2},
    "init": {"init": "start.npz"},
    "base": {"base": {"file": "b.safetensors", "digest": "0" * 32}},
    "base.file": {"base": {"file": "c.safetensors", "digest": "0" * 32}},
    "base.digest": {"base": {"file": "b.safetensors", "digest": "1" * 32}},
    "share": {"share": ["fc"]},
    "keep": {"keep": ["fc"]},
    "freeze": {"freeze": ["fc"], "share": ["*"]},
}  # fmt: skip
DEMANDED: dict[str, Any] = {
    "secure_known": ["a1"],
    "secure_least": 3,
    "secure_known_least": 1,
    "min_cell": 5,
    "local_delta": 0.5,
}
STARTED = SessionProgress(busy=False, dropped={})


def fields_of(section: type[BaseModel], within: str = "") -> Iterator[str]:
    """Every field of a section, and of the sections in it."""
    for name, field in section.model_fields.items():
        yield within + name
        for inner in sections_in(field.annotation):
            yield from fields_of(inner, f"{within}{name}.")


def sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        if issubclass(annotation, BaseModel):
            yield annotation
        return
    for one in get_args(annotation):
        yield from sections_in(one)


def demands() -> Iterator[dict[str, Any]]:
    """A policy for each demand that an owner can make."""
    for key, field in PrivacyDemand.model_fields.items():
        value = DEMANDED.get(key, True if field.annotation is bool else 0.5)
        yield {"privacy": {key: value}}
    for key, field in Policy.model_fields.items():
        if get_origin(field.annotation) is Literal and "hidden" in get_args(field.annotation):
            yield {key: "hidden"}


def policies() -> list[Policy]:
    """Those of all demands, with and without consent to all that a task may do to rows; one for each set of promises."""
    [keys, _] = get_args(Policy.model_fields["task"].annotation)
    made = [
        Policy.model_validate({**demand, "task": consent})
        for demand in demands()
        for consent in ((), get_args(keys))
    ]
    return list({(one.promises, one.task): one for one in made}.values())


def table(folder: Path, name: str, last: tuple[Any, ...]) -> DeviceData:
    path = folder / f"{name}.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([HEADER, *ROWS[:-1], last])
    return DeviceData(data=str(path))


def task_of(changes: Mapping[str, Any]) -> dict[str, Any]:
    return Task.model_validate({**BASE, **changes}).for_agents()


def stated(task: dict[str, Any], source: DeviceData, policy: Policy) -> bytes:
    """The status that an agent publishes after this task."""
    rules = OwnersRules(policy, learner="numpy")
    why_not = rules.refuses_task(task)
    found = DataSummary(problem=why_not or "")
    if why_not is None:
        found = answer(InspectData(source=source, task=task, rules=rules.for_job()))
        assert isinstance(found, DataSummary), found
    presence = SessionPresence("a1", "s1", "1.0")
    presence.is_new_task(CoordinatorStatus(online=True, task=task, task_digest="t"))
    presence.inspected(
        Inspected(
            "t", found.samples, found.test_samples, tuple(found.labels), found.problem or None
        )
    )
    return cleared_status(presence.status(STARTED), policy.promises).to_bytes()


def test_every_field_of_a_task_has_a_second_value_here() -> None:
    assert set(SECOND) == set(fields_of(Task))
    first = Task.model_validate(BASE)
    tasks = [Task.model_validate({**BASE, **changes}) for changes in SECOND.values()]
    assert first not in tasks


@pytest.mark.whole
def test_under_any_demand_a_status_is_the_same_for_two_tables_that_differ_in_one_row(
    tmp_path: Path,
) -> None:
    sources = [table(tmp_path, name, last) for name, last in OTHER_ROWS.items()]
    compared = 0
    leaks: set[tuple[str, str]] = set()
    for field, changes in SECOND.items():
        for policy in policies():
            statuses = {stated(task_of(changes), source, policy) for source in sources}
            compared += len(sources) * len(statuses.pop())
            if statuses:
                leaks.add((field, str(policy.model_dump(exclude_defaults=True))))
    print(
        f"{compared} bytes of statuses: {len(SECOND)} tasks, {len(policies())} policies, {len(sources)} tables"
    )
    assert compared > 0
    assert not leaks, sorted({field for field, _ in leaks})


@pytest.mark.whole
def test_under_any_demand_the_counts_are_the_same_for_all_tasks_of_single_rows(
    tmp_path: Path,
) -> None:
    source = table(tmp_path, "t", OTHER_ROWS["a number"])
    single = [task_of(one) for one in SECOND.values() if "window" not in one]
    for policy in policies():
        statuses = [AgentStatus.from_bytes(stated(task, source, policy)) for task in single]
        counts = {(one.samples, one.test_samples) for one in statuses if not one.problem}
        assert counts == {(0, 0) if policy.samples == "hidden" else (19, 5)}


@pytest.mark.whole
def test_without_a_demand_these_keys_of_a_task_change_what_a_status_counts(tmp_path: Path) -> None:
    """Among them are all that need consent; the others choose rows by refusing them, or say what a sample is."""
    source = table(tmp_path, "t", OTHER_ROWS["no target"])
    counting: set[str] = set()
    for field, changes in SECOND.items():
        status = AgentStatus.from_bytes(stated(task_of(changes), source, Policy()))
        if (status.samples, status.test_samples) not in ((0, 0), (19, 5)):
            counting.add(field)
    assert counting == {"drop_unlabelled"}


def test_a_status_has_nothing_of_what_a_device_with_a_demand_keeps() -> None:
    """Neither its models nor the room on its disk: what work leaves there differs with how it ended."""
    progress = replace(STARTED, model=ModelInUse(run="r"))
    full = SessionPresence("a1", "s1", "1.0", Vitals(disk_free=1 << 30)).status(progress)
    empty = SessionPresence("a1", "s1", "1.0").status(STARTED)
    for policy in map(Policy.model_validate, demands()):
        assert cleared_status(full, policy.promises) == empty
