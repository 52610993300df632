"""What the numbers of a report must be before anybody computes with them: they come from the network. Pure.

A phase of a strategy says which numbers it wants (`Phase.numbers`); what belongs to the run itself is listed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.messages import ReportContent
from shared.scenario import Task
from shared.strategy import Phase

EVALUATE, MOMENTS = "evaluate", "moments"  # the phases that belong to the run and not to a strategy
TRACK = "track"  # test figures right after training, in any report


def mistake(phase: Phase, report: ReportContent, task: Task) -> str:
    """What is wrong with a report's numbers; empty where nothing is."""
    numbers = report.numbers
    match phase.name:
        case "moments":
            wrong = _moments(numbers, task.features[0])
        case "evaluate":
            wrong = "server is missing" if "server" not in numbers else ""
            wrong = wrong or next(filter(None, (_figures(mode, one, task) for mode, one in numbers.items())), "")
        case _:
            most = max(report.examples, 1)
            wanted = ((name, numbers.get(name), length) for name, length in phase.numbers.items())
            wrong = next((_shown(*one, f"from 0 to {most}") for one in wanted if not _list(*one[1:], 0, most)), "")
    return wrong or (_figures(TRACK, numbers[TRACK], task) if TRACK in numbers else "")


def _figures(mode: str, told: Any, task: Task) -> str:
    """One mode's test figures: none for no samples, otherwise all that the task has."""
    if not isinstance(told, Mapping) or not _number(told.get("n"), 0) or not isinstance(told["n"], int):
        return f"{mode} is {told!r:.60}; figures with a number of samples n are wanted"
    shares = ("accuracy", "f1") if task.classes is not None else ()
    others = ("loss",) if task.classes is not None else ("mse", "loss")
    if told["n"] and not all(_number(told.get(name), 0, 1) for name in shares):
        return f"{mode} is {told!r:.120}; {' and '.join(shares)} from 0 to 1 are wanted"
    if told["n"] and not all(_number(told.get(name), 0) for name in others):
        return f"{mode} is {told!r:.120}; {' and '.join(others)} of 0 or more are wanted"
    return ""


def _moments(numbers: Mapping[str, Any], channels: int) -> str:
    for name, least in (("count", 1), ("sum", None), ("square", 0)):
        if not _list(numbers.get(name), channels, least):
            return _shown(name, numbers.get(name), channels, "finite" if least is None else f"{least} or more")
    return ""


def _list(told: Any, length: int, least: float | None = None, most: float | None = None) -> bool:
    return isinstance(told, list) and len(told) == length and all(_number(one, least, most) for one in told)


def _number(told: Any, least: float | None = None, most: float | None = None) -> bool:
    """Messages hold no other numbers than finite ones."""
    return (
        isinstance(told, int | float)
        and not isinstance(told, bool)
        and (least is None or told >= least)
        and (most is None or told <= most)
    )


def _shown(name: str, told: Any, length: int, wanted: str) -> str:
    return f"{name} is {told!r:.60}; {length} numbers {wanted} are wanted"
