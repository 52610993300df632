"""The templates of pages: all values are escaped, and a name without a value is an error."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape


def templates() -> Environment:
    """Those of this folder."""
    environment = Environment(
        loader=PackageLoader("covey.extras.dashboard", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["with_code"] = with_code
    return environment


def with_code(text: str) -> Markup:
    """A sentence whose `commands` are code on a page."""
    parts = [
        Markup("<code>{}</code>").format(one) if at % 2 else escape(one)
        for at, one in enumerate(text.split("`"))
    ]
    return Markup("").join(parts)
