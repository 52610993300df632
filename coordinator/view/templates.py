"""The templates of pages: all values are escaped, and a name without a value is an error."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined


def templates(package: str) -> Environment:
    """Those that lie in a package."""
    return Environment(
        loader=PackageLoader(package, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
