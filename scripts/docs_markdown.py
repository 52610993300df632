"""Small pieces of Markdown for the generated pages: tables, code, and the type of a JSON schema in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]

BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
KINDS = {
    "integer": "integer",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "object": "map",
    "null": "null",
    "array": "list",
}


def code(text: str) -> str:
    """Text as code, safe in a cell of a table."""
    return f"`{text}`".replace("|", "\\|")


def cell(text: str) -> str:
    """Plain text, safe in a cell of a table."""
    safe = text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
    return " ".join(safe.split())


def as_sentence(text: str) -> str:
    """Text with a capital letter in front and a full stop behind."""
    plain = " ".join(text.split())
    if not plain:
        return ""
    first = plain[0].upper() + plain[1:]
    return first if first[-1] in ".:?!" else f"{first}."


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    lines = [" | ".join(["", *head, ""]).strip()]
    lines.append("|" + "---|" * len(head))
    for row in rows:
        lines.append(" | ".join(["", *row, ""]).strip())
    return lines


def type_text(described: Json, whole: Json) -> str:
    """The type of a JSON schema in words, with its bounds.

    Args:
        described: the schema of one value.
        whole: the schema with the definitions that it refers to.
    """
    choices = [*described.get("anyOf", []), *described.get("oneOf", [])]
    if choices:
        texts = [type_text(choice, whole) for choice in choices]
        without_repeats = dict.fromkeys(texts)
        return " or ".join(without_repeats)
    if "$ref" in described:
        name = described["$ref"].rpartition("/")[2]
        definition = whole["$defs"][name]
        if "properties" in definition or "anyOf" in definition:
            return "section"
        return type_text(definition, whole)
    if "enum" in described:
        return ", ".join(code(str(choice)) for choice in described["enum"])
    if "const" in described:
        return code(str(described["const"]))
    return _plain_type(described, whole)


def _plain_type(described: Json, whole: Json) -> str:
    kind = described.get("type")
    if kind == "array":
        return _list_type(described, whole)
    text = KINDS.get(str(kind), "anything")
    if described.get("format") == "binary":
        text = "bytes"
    limits = [
        f"{sign} {_number(described[key])}" for key, sign in BOUNDS.items() if key in described
    ]
    longest = described.get("maxLength")
    shortest = described.get("minLength")
    unit = "bytes" if text == "bytes" else "characters"
    if longest is not None and longest == shortest:
        return f"{longest} {unit}"
    if longest is not None:
        limits.append(f"≤ {longest} {unit}" if text != "bytes" else f"≤ {longest}")
    return ", ".join([text, *limits])


def _list_type(described: Json, whole: Json) -> str:
    items = described.get("items")
    pairs = described.get("prefixItems")
    if pairs:
        inner = ", ".join(type_text(item, whole) for item in pairs)
        return f"list [{inner}]"
    inner = f" of {type_text(items, whole)}" if items else ""
    longest = described.get("maxItems")
    limit = f", ≤ {longest} items" if longest is not None else ""
    return f"list{inner}{limit}"


def _number(value: float) -> str:
    if value == 2**53:
        return "2⁵³"
    if value == 2**40:
        return "2⁴⁰"
    return f"{value:g}" if value < 1e6 else f"{value:,}".replace(",", " ")
