"""How to install what an optional feature needs. Covey is installed from a clone; no registry has it."""

from __future__ import annotations


def install(extra: str) -> str:
    """The command that adds an extra of pyproject.toml."""
    return f"in your clone of Covey, run pip install '.[{extra}]'"
