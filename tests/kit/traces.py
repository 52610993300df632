"""Where an object names an agent, found by looking at everything that it refers to: no list of fields is kept by hand."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from collections.abc import Set as AnySet
from contextlib import suppress
from copy import deepcopy
from functools import cache, partial
from pathlib import PurePath
from types import MethodType
from typing import Any

from covey.shared.strategies.base import ClientId

OURS = ("covey.coordinator.", "covey.extras.", "covey.shared.")
MAKES = {"dict": dict, "list": list, "set": set, "str": str, "int": int, "float": float}


def traces(root: object, agent: ClientId) -> set[str]:
    """The attributes from which the agent's name is reached, each as `Class.attribute`, in keys, values and sentences."""
    return {where for where, value in _reached(root) if _is_named(value, agent)}


def fill(root: object, agent: ClientId) -> set[str]:
    """Put an agent into every collection that is declared as one of agents. Returns these attributes."""
    filled: set[str] = set()
    for _, one in list(_reached(root)):
        if not _is_ours(one):
            continue
        kind: Any = type(one)
        for name, annotation in _of_agents(kind).items():
            with suppress(
                AttributeError
            ):  # a variable of a base class, or a field that is made later
                before = getattr(one, name)
                after = _with(before, annotation, agent)
                if after is not before:
                    object.__setattr__(one, name, after)
                filled.add(f"{type(one).__name__}.{name}")
    return filled


def _is_named(value: object, agent: ClientId) -> bool:
    if isinstance(value, PurePath):
        value = str(value)
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    return isinstance(value, str) and is_in_text(agent, value)


def is_in_text(agent: ClientId, text: str) -> bool:
    """Whether a text has this name, and not only one that begins or ends with it."""
    return re.search(rf"(?<![\w-]){re.escape(agent)}(?![\w-])", text) is not None


def _is_ours(value: object) -> bool:
    module = type(value).__module__
    return module.startswith(OURS) and ".tests." not in module


def _reached(root: object) -> Iterator[tuple[str, Any]]:
    """Everything that is reached from an object, each with the attribute that leads to it."""
    seen: set[int] = set()
    alive: list[object] = []  # what is made on the way: no other object gets its id
    rest: list[tuple[str, object]] = [(type(root).__name__, root)]
    while rest:
        where, value = rest.pop()
        if isinstance(value, str | bytes | PurePath):
            yield where, value
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        alive.append(value)
        yield where, value
        rest += [(name or where, one) for name, one in _parts(value)]


def _parts(value: object) -> Iterable[tuple[str, object]]:
    """What an object refers to; a name where it is an attribute of ours."""
    if isinstance(value, type):
        return
    if isinstance(value, Mapping):
        for key in value:
            yield "", key
            with suppress(ValueError):  # vectors of which only a sum is here
                yield "", value[key]
    elif isinstance(value, AnySet | MutableSequence | tuple):
        for one in value:
            yield "", one
    elif isinstance(value, MethodType):
        yield "", value.__self__
    elif isinstance(value, partial):
        yield "", value.func
        yield "", value.args
        yield "", value.keywords
    if not _is_ours(value):
        return
    slots = [slot for kind in type(value).__mro__ for slot in getattr(kind, "__slots__", ())]
    for name in [*getattr(value, "__dict__", ()), *slots]:
        if hasattr(value, name):
            yield f"{type(value).__name__}.{name}", getattr(value, name)


@cache
def _of_agents(kind: type) -> Mapping[str, str]:
    """The attributes of a class that are declared as collections of agents, with their types as they are written."""
    found: dict[str, str] = {}
    for one in kind.__mro__:
        if not one.__module__.startswith(OURS):
            continue
        names = _names_of_agents(one.__module__)
        try:
            source = ast.parse(inspect.cleandoc("\n" + inspect.getsource(one)))
        except (OSError, TypeError):  # a class that was made at run time
            continue
        for node in ast.walk(source):
            if not isinstance(node, ast.AnnAssign):
                continue
            written = names.get(ast.unparse(node.annotation), ast.unparse(node.annotation))
            if "ClientId" not in written or "[" not in written:
                continue
            match node.target:
                case ast.Attribute(value=ast.Name(id="self"), attr=name):
                    found[name] = written
                case ast.Name(id=name) if node in source.body[0].body:  # type: ignore[attr-defined]
                    found[name] = written
    return found


@cache
def _names_of_agents(module: str) -> Mapping[str, str]:
    """The names that a module has for types of collections of agents."""
    found: dict[str, str] = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript() as value):
                found[name] = ast.unparse(value)
    return found


def _with(collection: Any, written: str, agent: ClientId) -> Any:
    """A collection that has the agent: itself, where it can be changed."""
    if isinstance(collection, Mapping):
        if not written.partition("[")[2].startswith(
            "ClientId"
        ):  # its values are collections of agents
            inner = written.partition(", ")[2][:-1]
            for value in collection.values():
                _with(value, inner, agent)
            return collection
        if agent in collection:
            return collection
        value = _value(collection, written)
        if isinstance(collection, MutableMapping):
            collection[agent] = value
            return collection
        return {**collection, agent: value}
    if isinstance(collection, set):
        collection.add(agent)
    elif written == "list[ClientId]" and agent not in collection:
        collection.append(agent)
    elif isinstance(collection, frozenset):
        return collection | {agent}
    return collection


def _value(collection: Mapping[Any, Any], written: str) -> Any:
    """What another agent has there, or nothing at all."""
    for other in collection.values():
        return deepcopy(other)
    make: Callable[[], Any] | None = MAKES.get(written.partition(", ")[2].rstrip("]"))
    return None if make is None else make()
