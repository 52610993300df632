"""The settings of an order as objects. All orders of a run share them, so a process builds them once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgpack
from pydantic import TypeAdapter, ValidationError

from covey.shared.errors import PublicError
from covey.shared.numerics.split import Patterns, Split
from covey.shared.numerics.vectors import Layout
from covey.shared.own_code.consent import AllowedCode, consent
from covey.shared.privacy.settings import Privacy
from covey.shared.scenario.companion import accompanied, companion_in
from covey.shared.scenario.evaluation import Evaluation
from covey.shared.scenario.fleet_statistics import STATISTICS
from covey.shared.scenario.task import SPLIT, Task
from covey.shared.strategies.base import Strategy, Training
from covey.shared.strategies.phase_names import AHEAD, BOX, EVALUATE, EXCHANGES, JOIN, OF_THE_RUN
from covey.shared.strategies.registry import AnyStrategy
from covey.shared.wire.codec import Codec
from covey.shared.wire.messages import SharedWork, Work
from covey.shared.work.judging import ASKED as JUDGED

KEPT = 8  # of the newest settings: an agent may take part in several runs

# alike for all agents, but plain numbers
SECTIONS = tuple(name for name in SharedWork.model_fields if name not in ("seed", "part_bytes"))

Settings = tuple[Strategy[Any], Training]

_strategy: TypeAdapter[Strategy[Any]] = TypeAdapter(AnyStrategy)


def settings_of(work: Work) -> Settings:
    """The method with its hyper-parameters and its companion, and the training settings. Raises PublicError if one is invalid."""
    strategy, training = _settings(_packed([work.strategy, work.training]), consent())
    name = companion_in(work.evaluation)
    return accompanied(strategy, name, task_of(work)) if name else strategy, training


def check_order(strategy: Strategy[Any], work: Work) -> None:
    """Raise PublicError for a phase, a number or a setting in an order without meaning for the method, or written in another way.

    Without this check it would make a second order of the same work.
    """
    phase, numbers = _done_in(strategy, work)
    of_method = strategy.facts.numbers_of(phase)
    declared = {**of_method, **JUDGED} if phase == EVALUATE else of_method
    for name in sorted(numbers):
        if name not in declared:
            raise PublicError(
                f"numbers.{name}: the method {strategy.name} declares no such number for the phase "
                f"{work.phase}; the order is refused"
            )
        if fault := declared[name].fault(numbers[name]):
            raise PublicError(f"numbers.{name} {fault}; the order is refused")
    _check_settings(_packed({name: getattr(work, name) for name in SECTIONS}), consent())


def _done_in(strategy: Strategy[Any], work: Work) -> tuple[str, Mapping[str, Any]]:
    """The phase whose work an order is about, and the numbers of that work. Raises PublicError for one that nobody plans."""
    facts, numbers = strategy.facts, dict(work.numbers)
    exchanges = EXCHANGES if (work.privacy or {}).get("secure") else ()
    if work.phase not in facts.planned.union(OF_THE_RUN, exchanges):
        raise PublicError(
            f"phase {work.phase}: the method {strategy.name} plans no such phase; the order is refused"
        )
    if work.phase not in (BOX, JOIN) or AHEAD not in numbers:
        return work.phase, numbers
    phase = str(numbers.pop(AHEAD))  # which they announce
    if phase not in facts.summed.union((EVALUATE,)):
        raise PublicError(
            f"numbers.{AHEAD} {phase}: the method {strategy.name} plans no such phase with a sum; the order is refused"
        )
    return phase, numbers


@lru_cache(KEPT)
def _check_settings(packed: bytes, allowed: AllowedCode) -> None:
    """Refuse sections of an order that differ from what a coordinator writes for the same settings."""
    said = {name: section or {} for name, section in msgpack.unpackb(packed).items()}
    strategy, training = _settings(_packed([said["strategy"], said["training"]]), allowed)
    rounds = said["privacy"].pop("rounds", 1)
    try:
        meant: dict[str, Mapping[str, Any]] = {
            "strategy": strategy.model_dump(mode="json"),
            "training": training.model_dump(mode="json"),
            "task": _task(_packed(said["task"]), allowed).for_agents(),
            "layout": _layout(_packed(said["layout"])).to_wire(),
            "scaling": {name: said["scaling"].get(name) for name in STATISTICS},
            "codec": Codec.from_wire(said["codec"]).to_wire(),
            "evaluation": Evaluation.model_validate(said["evaluation"]).for_agents(),
            "privacy": Privacy.model_validate(said["privacy"]).for_agents(rounds),
        }
    except ValidationError as error:
        raise _refusal(error) from None
    if strange := _without_meaning(said, meant):
        raise PublicError(
            f"{strange}: an agent has no use for it, or coordinators write it in another way; the order is refused"
        )
    if type(rounds) is not int:
        raise PublicError(f"privacy.rounds is {rounds!r:.60}; expected a whole number")


def _without_meaning(said: Any, meant: Any) -> str:
    """The key and the value in which a section differs from what it means; empty for none. Keys may be left out."""
    if not isinstance(said, dict) or not isinstance(meant, dict):
        return "" if _packed(said) == _packed(meant) else f" is {said!r:.60}"
    for name, value in said.items():
        if name not in meant:
            return f"{name} is {value!r:.60}"
        if found := _without_meaning(value, meant[name]):
            return f"{name}{found}" if found.startswith(" ") else f"{name}.{found}"
    return ""


def _refusal(error: ValidationError) -> PublicError:
    """The first thing that is wrong with a section of an order."""
    first = error.errors(include_url=False, include_input=False)[0]
    key = ".".join(map(str, first["loc"]))
    return PublicError(f"{key} of the order: {first['msg']}; the order is refused")


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
    """Which part of a model travels: what the task names, or else the method; None: all of it. What the model's own code has
    frozen does not.

    Args:
        strategy: the method.
        layout: of the whole model.
        share, keep, freeze: of the task.

    Raises:
        PublicError: the model has no such part.
    """
    split = strategy.split(layout)
    if share or keep or freeze or (split is None and layout.frozen):
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
        raise _refusal(error) from None
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
