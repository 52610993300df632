"""The settings of an order as objects. All orders of a run share them, so a process builds them once."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgpack
from pydantic import TypeAdapter, ValidationError

from covey.shared.consent import AllowedCode, consent
from covey.shared.errors import PublicError
from covey.shared.numerics.vectors import Layout
from covey.shared.scenario.task import Task
from covey.shared.strategies.base import Strategy, Training
from covey.shared.strategies.registry import AnyStrategy
from covey.shared.wire.messages import Work

KEPT = 8  # of the newest settings: an agent may take part in several runs

Settings = tuple[Strategy[Any], Training]

_strategy: TypeAdapter[Strategy[Any]] = TypeAdapter(AnyStrategy)


def settings_of(work: Work) -> Settings:
    """The method with its hyper-parameters, and the training settings. Raises PublicError if either is invalid."""
    return _settings(_packed([work.strategy, work.training]), consent())


def layout_of(work: Work) -> Layout:
    """The layout of the models. Raises DecodeError("layout") if it is malformed, or too large."""
    return _layout(_packed(work.layout))


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
def _layout(packed: bytes) -> Layout:
    return Layout.from_wire(msgpack.unpackb(packed))


@lru_cache(KEPT)
def _task(packed: bytes, allowed: AllowedCode) -> Task:
    """The task in these bytes. Which of a user's own models are found depends on `allowed`."""
    return Task.model_validate(msgpack.unpackb(packed))
