"""The generated pages of the documentation site, as Markdown. Nothing of it is committed.

    python scripts/docs_reference.py scenario

prints one of them: `scenario`, `commands`, `methods`, `python` or `messages`. Each is made from the same source that
the programs use: the JSON schema of a scenario, the command trees, the list of methods, the names that `covey`
exports, and the message classes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import docs_messages
import docs_python
from docs_markdown import as_sentence, cell, code, table, type_text
from typer.main import get_command

from covey.shared.cli import LAB
from covey.shared.scenario.describe import methods, schema

Json = dict[str, Any]

PROGRAMS = ("coordinator", "agent", "broker")

# What a value counts or measures, by key. A key that ends in `_s` is in seconds; one that is not here has no unit.
UNITS = {
    "agents": "agents",
    "back_after_s": "seconds",
    "batch": "examples",
    "count": "rounds",
    "epochs": "epochs",
    "every": "rounds",
    "groups": "groups",
    "joins": "round",
    "leaves": "round",
    "limit": "examples",
    "min_samples": "examples",
    "newcomers": "agents",
    "over_select": "times m",
    "part_bytes": "bytes",
    "participation": "share of the agents",
    "quarantine_after": "steps",
    "quorum": "reports",
    "returns": "round",
    "sketch": "values",
    "start_agents": "agents",
    "test_share": "share of the examples",
    "times_median": "times the median",
    "tune_epochs": "epochs",
    "void_limit": "attempts",
    "workers": "processes",
}


def generated(name: str) -> str:
    """The contents of one generated page. KeyError for a name that no page has."""
    return GENERATORS[name]()


# keys whose sections another heading of the page, or another page, lists
ELSEWHERE = {"compare.methods": ("strategy",), "compare.partitions": ("partition",)}

# -- scenario ---------------------------------------------------------------------------------------------------------


def scenario_page() -> str:
    """Every key of a scenario: type, default, unit and meaning, section by section."""
    whole = schema()
    lines = ["## The top level", ""]
    lines += _keys_table(whole, whole)
    for name, described in whole["properties"].items():
        if name == "strategy":
            lines += _strategy_section()
            continue
        for section in _sections_in(described, whole):
            lines += _section(name, section, whole, level=2)
    return "\n".join(lines)


def _strategy_section() -> list[str]:
    return [
        "",
        "## strategy",
        "",
        "The training method: `name`, and the hyper-parameters of that method as further keys. "
        "[Methods](../methods.md#keys-of-each-method) lists them.",
    ]


def _section(path: str, section: Json, whole: Json, level: int) -> list[str]:
    """One section with its keys, and below it the sections inside."""
    lines = ["", f"{'#' * level} {path}", ""]
    lines += [as_sentence(section.get("description", "")), ""]
    lines += _keys_table(section, whole)
    for key, described in section.get("properties", {}).items():
        inner = _sections_in(described, whole)
        if key in ELSEWHERE.get(path, ()):
            continue
        for part in inner:
            name = _constant_name(part)
            inner_path = f"{path}.{key}" if name is None else f"{path}.{key}, {name}"
            lines += _section(inner_path, part, whole, level=min(level + 1, 4))
    return lines


def _sections_in(described: Json, whole: Json) -> list[Json]:
    """The sections that a key may hold: none for a plain value, several for a choice of rules."""
    found: list[Json] = []
    if "$ref" in described:
        found.append(_resolved(described, whole))
    if "items" in described:
        found += _sections_in(described["items"], whole)
    for choice in [*described.get("anyOf", []), *described.get("oneOf", [])]:
        found += _sections_in(choice, whole)
    return [_nested_form(section) for section in found]


def _nested_form(section: Json) -> Json:
    """Of a section that may be written flat, the form that lists the keys of its own."""
    if "anyOf" not in section:
        return section
    nested: Json = section["anyOf"][-1]
    return nested


def _resolved(described: Json, whole: Json) -> Json:
    if "$ref" not in described:
        return described
    name = described["$ref"].rpartition("/")[2]
    resolved: Json = whole["$defs"][name]
    return resolved


def _constant_name(section: Json) -> str | None:
    """The value of `name` in a section that is one of several rules."""
    name = section.get("properties", {}).get("name", {})
    constant: str | None = name.get("const")
    return constant


def _keys_table(section: Json, whole: Json) -> list[str]:
    """The keys that most scenarios set, and below them the others."""
    first: list[list[str]] = []
    others: list[list[str]] = []
    required = section.get("required", [])
    for key, described in section.get("properties", {}).items():
        if "const" in described:
            continue
        default = "**required**" if key in required else _default_text(described)
        meaning = described.get("description") or _resolved(described, whole).get("description")
        if not meaning:
            raise ValueError(
                f"the key {key} of a scenario has no description: add one to its Field"
            )
        is_first = key in required or key == "name" or described.get("first", False)
        (first if is_first else others).append(
            [code(key), type_text(described, whole), default, _unit(key, described), cell(meaning)]
        )
    head = ["key", "type", "default", "unit", "meaning"]
    lines = table(head, first) if first else []
    if first and others:
        lines += ["", "Seldom set:", ""]
    return [*lines, *(table(head, others) if others else [])]


def _default_text(described: Json) -> str:
    default = described.get("default")
    if isinstance(default, dict) and default:
        return "see below"
    if default is None and "default" not in described:
        return "see below"
    return code(json.dumps(default))


def _unit(key: str, described: Json) -> str:
    kinds = {described.get("type")} | {choice.get("type") for choice in described.get("anyOf", [])}
    if not kinds & {"integer", "number", "array"}:
        return "–"
    if key.endswith("_s"):
        return "seconds"
    return UNITS.get(key, "–")


# -- commands ---------------------------------------------------------------------------------------------------------


def commands_page() -> str:
    """Every command of the three programs with its arguments and options: first those that people type most."""
    trees: dict[str, Any] = {
        program: get_command(import_module(f"covey.{program}.cli.program").app)
        for program in PROGRAMS
    }
    lines: list[str] = []
    for program, tree in trees.items():
        lines += ["", f"## {program}", "", _help_text(tree)]
        lines += _commands(program, tree, skip=LAB)
    for program, tree in trees.items():
        lab = tree.commands[LAB]
        lines += ["", f"## {program} {LAB}", "", _help_text(lab)]
        lines += _commands(f"{program} {LAB}", lab)
    return "\n".join(lines)


def _commands(before: str, group: Any, skip: str = "") -> list[str]:
    """The commands of a group but one, and those of the groups in it."""
    lines: list[str] = []
    for name, command in group.commands.items():
        if name == skip:
            continue
        typed = f"{before} {name}"
        is_group = hasattr(command, "commands")
        lines += _commands(typed, command) if is_group else _command(typed, command)
    return lines


def _command(name: str, command: Any) -> list[str]:
    arguments = [
        parameter for parameter in command.params if parameter.param_type_name == "argument"
    ]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    usage = " ".join([name, *("OPTIONS" for _ in options[:1]), *map(_argument_text, arguments)])
    lines = ["", f"### {name}", "", _help_text(command), "", "```text", usage, "```", ""]
    rows = [_parameter_row(parameter) for parameter in [*arguments, *options]]
    if rows:
        lines += table(["argument or option", "value", "default", "variable", "meaning"], rows)
    return lines


def _help_text(command: Any) -> str:
    """The help of a command: paragraphs as they were written, wrapped lines joined."""
    paragraphs = (command.help or "").replace("\b", "").split("\n\n")
    return "\n\n".join(as_sentence(" ".join(paragraph.split())) for paragraph in paragraphs)


def _argument_text(argument: Any) -> str:
    name = argument.name.upper()
    name = f"{name}..." if argument.nargs == -1 else name
    return name if argument.required else f"[{name}]"


def _parameter_row(parameter: Any) -> list[str]:
    is_argument = parameter.param_type_name == "argument"
    spellings = [parameter.name.upper()]
    if not is_argument:
        spellings = [*parameter.opts, *parameter.secondary_opts]
    variables = parameter.envvar if isinstance(parameter.envvar, list) else [parameter.envvar]
    meaning, default = _meaning_and_default(parameter)
    return [
        ", ".join(map(code, spellings)),
        _value_text(parameter),
        "**required**" if parameter.required else default,
        ", ".join(code(name) for name in variables if name) or "–",
        meaning,
    ]


def _value_text(parameter: Any) -> str:
    """The value that an option takes: nothing for a switch."""
    if getattr(parameter, "is_flag", False):
        return "–"
    annotation = parameter.type_descriptor.annotation
    arguments = get_args(annotation)
    repeats = get_origin(annotation) is list
    if repeats:
        [annotation] = arguments
        arguments = get_args(annotation)
    if get_origin(annotation) is Literal:
        text = ", ".join(code(str(choice)) for choice in arguments)
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        text = ", ".join(code(str(choice.value)) for choice in annotation)
    else:
        text = VALUES.get(annotation, str(getattr(annotation, "__name__", annotation)))
    return f"{text}, repeatable" if repeats else text


VALUES: dict[Any, str] = {Path: "path", str: "text", int: "integer", float: "number"}


def _meaning_and_default(parameter: Any) -> tuple[str, str]:
    """Meaning and default of a parameter. Some help texts name the default themselves."""
    match = re.fullmatch(r"(.*?)\s*\[default: (.*)\]", parameter.help or "", re.DOTALL)
    if match:
        return cell(match[1]), code(match[2])
    meaning = cell(parameter.help or "")
    default = parameter.default
    if isinstance(parameter.show_default, str):
        return meaning, cell(parameter.show_default)
    if default in (None, False, (), []) or callable(default):
        return meaning, "–"
    if default is True:
        return meaning, code(parameter.opts[0])
    return meaning, code(str(getattr(default, "value", default)))


# -- methods ----------------------------------------------------------------------------------------------------------


def methods_page() -> str:
    """Every training method with its source and its hyper-parameters."""
    lines = []
    for method in methods():
        name = method["name"]
        lines += ["", f"### Keys of {name}", "", as_sentence(method["summary"])]
        lines += ["", f"Source: {method['source']}."]
        lines += [""]
        rows = [_parameter_cells(parameter) for parameter in method["parameters"]]
        if rows:
            lines += table(["key", "type", "default", "meaning"], rows)
        else:
            lines += ["No hyper-parameters."]
    return "\n".join(lines)


def _parameter_cells(parameter: Json) -> list[str]:
    default = "**required**" if parameter["required"] else code(json.dumps(parameter["default"]))
    kinds = " or ".join(map(code, parameter["type"].split(" | ")))
    return [code(parameter["name"]), kinds, default, cell(parameter["description"])]


GENERATORS: dict[str, Callable[[], str]] = {
    "scenario": scenario_page,
    "commands": commands_page,
    "methods": methods_page,
    "python": docs_python.page,
    "messages": docs_messages.page,
}

if __name__ == "__main__":
    print(generated(sys.argv[1]))
