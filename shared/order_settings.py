"""The settings of an order as objects. All orders of a run share them, so a process builds them once."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgpack
from pydantic import TypeAdapter, ValidationError

from covey.shared.consent import AllowedCode, consent
from covey.shared.errors import PublicError
from covey.shared.numerics.split import Patterns, Split
from covey.shared.numerics.vectors import Layout
from covey.shared.scenario.task import SPLIT, Task
from covey.shared.strategies.base import ALTERNATIVE, Strategy, Training
from covey.shared.strategies.phase_names import AHEAD, BOX, EVALUATE, JOIN
from covey.shared.strategies.registry import AnyStrategy
from covey.shared.wire.messages import Work

KEPT = 8  # of the newest settings: an agent may take part in several runs

Settings = tuple[Strategy[Any], Training]

_strategy: TypeAdapter[Strategy[Any]] = TypeAdapter(AnyStrategy)


def settings_of(work: Work) -> Settings:
    """The method with its hyper-parameters, and the training settings. Raises PublicError if either is invalid."""
    return _settings(_packed([work.strategy, work.training]), consent())


def check_numbers(strategy: Strategy[Any], work: Work) -> None:
    """Raise PublicError for a number in an order that neither the method nor the run has in this phase.

    Without this check a number without meaning would make a second order of the same work.
    """
    for name in sorted(work.numbers.keys() - _numbers_of(strategy, work)):
        raise PublicError(
            f"numbers.{name}: the method {strategy.name} declares no such number for the phase {work.phase}; "
            "the order is refused"
        )


def _numbers_of(strategy: Strategy[Any], work: Work) -> frozenset[str]:
    """The names that an order of this phase may have."""
    if work.phase in (BOX, JOIN):  # which announce the work of another phase
        return strategy.numbers_of(str(work.numbers.get(AHEAD))) | {AHEAD}
    of_method = strategy.numbers_of(work.phase)
    can_fall_back = strategy.fallback is not None and bool(work.evaluation.get("fallback"))
    return of_method | {ALTERNATIVE} if work.phase == EVALUATE and can_fall_back else of_method


def layout_of(work: Work) -> Layout:
    """The layout of the models. Raises DecodeError("layout") if it is malformed, or too large."""
    return _layout(_packed(work.layout))


def split_of(work: Work) -> Split | None:
    """Which part of the model travels; None: all of it. Raises PublicError if the model has no such part."""
    patterns = [work.task.get(key, ()) for key in SPLIT]
    return _split(_packed([work.strategy, patterns, work.layout]), consent())


def split_by(
    strategy: Strategy[Any],
    layout: Layout,
    share: Patterns = (),
    keep: Patterns = (),
    freeze: Patterns = (),
) -> Split | None:
    """Which part of a model travels: what the task names, or else the method; None: all of it.

    Args:
        strategy: the method.
        layout: of the whole model.
        share, keep, freeze: of the task.

    Raises:
        PublicError: the model has no such part.
    """
    split = strategy.split(layout)
    if share or keep or freeze:
        split = Split.by_patterns(layout, share, keep, freeze)
    if split is None or split.is_whole:
        return None
    if not split.shared.size:
        raise PublicError(
            "the scenario leaves nothing of the model to share; let task.share, task.keep and task.freeze, or the layers "
            "that the method keeps, leave at least one tensor, or choose the method local, which sends nothing"
        )
    return split


def task_of(work: Work) -> Task:
    """The task. Raises ValidationError if it is invalid."""
    return _task(_packed(work.task), consent())


def _packed(tree: Any) -> bytes:
    """Plain data as a key: equal bytes are equal data, with equal types."""
    packed: bytes = msgpack.packb(tree)
    return packed


@lru_cache(KEPT)
def _settings(packed: bytes, allowed: AllowedCode) -> Settings:
    """The settings in these bytes. Which of a user's own methods are found depends on `allowed`."""
    strategy_fields, training_fields = msgpack.unpackb(packed)
    try:
        strategy = _strategy.validate_python(strategy_fields)
        training = Training.model_validate(training_fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, first["loc"]))
        problem = f"the order's {error.title} is not valid: {key}: {first['msg']}"
        raise PublicError(problem) from None
    return strategy, training


@lru_cache(KEPT)
def _split(packed: bytes, allowed: AllowedCode) -> Split | None:
    strategy, patterns, layout = msgpack.unpackb(packed)
    return split_by(_strategy.validate_python(strategy), Layout.from_wire(layout), *patterns)


@lru_cache(KEPT)
def _layout(packed: bytes) -> Layout:
    return Layout.from_wire(msgpack.unpackb(packed))


@lru_cache(KEPT)
def _task(packed: bytes, allowed: AllowedCode) -> Task:
    """The task in these bytes. Which of a user's own models are found depends on `allowed`."""
    return Task.model_validate(msgpack.unpackb(packed))
