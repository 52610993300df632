"""Statistics of the whole fleet's data that a task asks for, and the task with their values in it. Pure.

Agents send sums, quantiles and words before round 0 (the phase `moments`); the coordinator pools them; orders carry the
result (`Work.scaling`), and a model's file has the task with the result in place of the question. Keys of the result:

    mean, std     per input of the model, for `task.standardise: federated`
    impute        {column: value}, for `task.impute: mean` or `median`
    categories    {column: [word, ...]}, for numbers in `task.categories`
    target        {mean, std}, for `task.target_scale: federated`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from covey.shared.errors import PublicError
from covey.shared.scenario.task import Task

STATISTICS = ("mean", "std", "impute", "categories", "target")
# Levels of the quantiles that agents send of each column of numbers: each stands for a tenth of the values, so that
# the median of the pooled quantiles has a rank within 5 % of the exact one.
QUANTILE_LEVELS = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)
# An agent with fewer values than this sends its median in place of all quantiles: they would be its very values.
FEW_VALUES = 20
# A word that occurs in fewer cells of an agent than this is not sent: a column of names or numbers of people has only such.
FEWEST_ROWS = 2


def asked_statistics(task: Task) -> tuple[str, ...]:
    """Names of the numbers in the phase `moments` that a task asks for: a run keeps these and no others."""
    asked = task.asks_fleet_for
    names: list[str] = []
    if not asked or "standardise" in asked or task.impute == "mean":
        names += ("count", "sum", "square")
    if task.impute == "median":
        names += ["count", "quantiles"]
    if "categories" in asked:
        names.append("words")
    if "target_scale" in asked:
        names.append("target")
    return tuple(names)


def resolved(task: Task, statistics: Mapping[str, Any] | None) -> Task:
    """The task with the fleet's statistics in place of its questions.

    Args:
        task: as the scenario has it.
        statistics: what the fleet found; None: nothing, and the task stays as it is.

    Raises:
        PublicError: the statistics are not those that the task asks for, or they are out of bounds.
    """
    if statistics is None:
        return task
    changes: dict[str, Any] = {}
    if "mean" in statistics:
        changes["standardise"] = {"mean": statistics["mean"], "std": statistics.get("std")}
    if "impute" in statistics:
        changes["impute"] = statistics["impute"]
    if "target" in statistics:
        changes["target_scale"] = statistics["target"]
    if "categories" in statistics:
        changes["categories"] = _vocabularies(task, statistics["categories"])
    content = task.model_dump(mode="json") | changes
    try:
        found = Task.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise PublicError(
            f"the fleet's statistics do not fit the task: {key}: {first['msg']}"
        ) from None
    if missing := found.asks_fleet_for:
        raise PublicError(f"the order has no statistics for {', '.join(missing)} of the task")
    return found


def _vocabularies(task: Task, words: Any) -> dict[str, Any]:
    """`task.categories` with the words that the fleet found."""
    if not isinstance(words, Mapping):
        raise PublicError("the fleet's categories are no words by column")
    categories: dict[str, Any] = task.model_dump(mode="json")["categories"]
    for name, found in words.items():
        room = categories.get(name)
        if not isinstance(room, int):
            raise PublicError(
                f"the fleet's categories name {name!r:.60}, whose words the task knows"
            )
        categories[name] = {"values": found, "room": room}
    return categories
