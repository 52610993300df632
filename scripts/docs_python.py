"""The Python reference: signatures and docstrings of the public names, as Markdown.

Docstrings are Markdown with the sections `Args:`, `Returns:`, `Raises:` and `Example:` in Google's manner. They are read
from the live objects, so that a name joins this page by joining `covey.__all__` or `covey.methods`.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

from docs_markdown import cell, code, table
from pydantic import BaseModel

import covey
from covey import learners, methods

# the names of these modules that the page describes in full; the others are listed
METHOD_INTERFACE = (
    "Strategy",
    "Setup",
    "View",
    "Phase",
    "Order",
    "Job",
    "Local",
    "GradientCorrection",
    "TrainingResult",
    "Report",
    "trained_report",
    "SingleModel",
    "averaged",
    "HardClustered",
    "Clustered",
)

SECTION = re.compile(
    r"^(Args|Attributes|Returns|Raises|Yields|Example|Examples):\s*$", re.MULTILINE
)
METHODS = sorted(name for name in vars(methods) if not name.startswith("_"))
TITLES = {"Args": "Arguments", "Examples": "Example"}
ITEM = re.compile(r"^(\*{0,2}[\w.]+)(?: \([^)]*\))?: (.*)$", re.DOTALL)


def page() -> str:
    """All public names with their documentation."""
    lines: list[str] = []
    public = [name for name in getattr(covey, "__all__", ()) if not name.startswith("_")]
    if public:
        lines += ["", "## covey", ""]
        for name in public:
            lines += _entry(f"covey.{name}", getattr(covey, name))
    lines += ["", "## covey.methods", ""]
    lines += [
        "A training method of your own is written with these names; "
        "[Your own method](../tutorials/your-own-method.md) shows it in use. "
        "The module has:",
        "",
        *_names(METHODS),
    ]
    for name in METHOD_INTERFACE:
        if name not in public:
            lines += _entry(name, getattr(methods, name))
    lines += ["", "## covey.learners", ""]
    lines += [
        "A training loop of your own is written with these names "
        "([how](../from-flower.md#a-training-loop-of-your-own)):",
        "",
        *_names(learners.__all__),
    ]
    for name in learners.__all__:
        thing = getattr(learners, name)
        if name not in METHODS and getattr(thing, "__module__", "").startswith("covey"):
            lines += _entry(name, thing)
    return "\n".join(lines)


def _names(names: Iterable[str]) -> list[str]:
    """Public names in one line."""
    return [", ".join(code(name) for name in names) + ".", ""]


def _entry(title: str, thing: Any) -> list[str]:
    """A class, function or value with its signature and its docstring."""
    lines = ["", f"### {title}", ""]
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        return [*lines, _first_paragraph(inspect.getdoc(thing) or ""), ""]
    if not _hides_constructor(thing):
        lines += _signature(title.rpartition(".")[2], thing)
    lines += [docstring(inspect.getdoc(thing) or ""), ""]
    if inspect.isclass(thing):
        lines += _fields(thing)
        for name, method in _methods(thing):
            lines += [f"#### {title.rpartition('.')[2]}.{name}", ""]
            lines += _signature(name, method)
            lines += [docstring(inspect.getdoc(method) or ""), ""]
    return lines


def _hides_constructor(thing: Any) -> bool:
    """Is it a class that is never called: a protocol, or a model whose fields are listed anyway?"""
    if not inspect.isclass(thing):
        return False
    return bool(getattr(thing, "_is_protocol", False)) or issubclass(thing, BaseModel)


def _signature(name: str, thing: Any) -> list[str]:
    if isinstance(thing, property):
        return []
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return []
    own = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    shown = signature.replace(parameters=own)
    if inspect.isclass(thing):
        shown = shown.replace(return_annotation=inspect.Signature.empty)
    text = f"{name}{shown}".replace("'", "")
    return ["```python", _wrapped(text, own), "```", ""]


def _wrapped(text: str, parameters: list[inspect.Parameter]) -> str:
    """A long signature with a line for each parameter."""
    if len(text) <= 88 or not parameters:
        return text
    head, _, _ = text.partition("(")
    _, arrow, result = text.rpartition(") -> ")
    lines = [f"{head}("]
    keyword_only = False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            lines.append("    *,")
        lines.append(f"    {str(parameter).replace(chr(39), '')},")
    lines.append(f"){' -> ' + result if arrow else ''}")
    return "\n".join(lines)


def _fields(thing: Any) -> list[str]:
    """The fields of a dataclass or of a pydantic model, where there are any."""
    rows = []
    if issubclass(thing, BaseModel):
        for name, field in thing.model_fields.items():
            default = "**required**" if field.is_required() else code(repr(field.default))
            rows.append([code(name), default, cell(field.description or "")])
    elif dataclasses.is_dataclass(thing):
        for one in dataclasses.fields(thing):
            kind = str(one.type).replace("'", "")
            rows.append([code(one.name), code(kind), ""])
        return [*table(["field", "type"], [row[:2] for row in rows]), ""] if rows else []
    return [*table(["field", "default", "meaning"], rows), ""] if rows else []


def _methods(thing: Any) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class of ours defines, with a docstring."""
    seen: set[str] = set()
    for owner in inspect.getmro(thing):
        if not owner.__module__.startswith("covey"):
            continue
        for name, member in vars(owner).items():
            plain = getattr(member, "__func__", member)
            is_callable = inspect.isfunction(plain) or isinstance(plain, property)
            if name.startswith("_") or name in seen or not is_callable:
                continue
            if not inspect.getdoc(plain):
                continue
            seen.add(name)
            yield name, plain


def docstring(text: str) -> str:
    """A docstring as Markdown: sections become lists, examples become code."""
    pieces = SECTION.split(text)
    lines = [pieces[0].strip()]
    for title, body in zip(pieces[1::2], pieces[2::2], strict=True):
        block, rest = _indented(body)
        lines += ["", f"**{TITLES.get(title, title)}**", ""]
        if title.startswith("Example"):
            lines += ["```python", inspect.cleandoc(block), "```"]
        else:
            lines += [f"- {item}" for item in _items(block)]
        if rest.strip():
            lines += ["", rest.strip()]
    return "\n".join(lines)


def _indented(body: str) -> tuple[str, str]:
    """The indented lines that follow a section's title, and what comes after them."""
    lines = body.strip("\n").splitlines()
    count = 0
    for line in lines:
        if line.strip() and not line.startswith(" "):
            break
        count += 1
    return inspect.cleandoc("\n".join(lines[:count])), "\n".join(lines[count:])


def _items(block: str) -> list[str]:
    """The items of a section, one text each; further lines of an item are indented."""
    items: list[str] = []
    for line in block.splitlines():
        if line.startswith(" ") and items:
            items[-1] += f" {line.strip()}"
        elif line.strip():
            items.append(line.strip())
    return [_item(text) for text in items]


def _item(text: str) -> str:
    match = ITEM.match(text)
    return f"{code(match[1])}: {match[2]}" if match else text


def _first_paragraph(text: str) -> str:
    return text.split("\n\n", 1)[0]
