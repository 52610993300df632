"""Extras: what the core works without. They import the core; it asks for them here alone, by their name, when something needs one.

The folder `extras/NAME` is all that there is of an extra. Nothing is imported before somebody asks, and a part that is not
there is refused by the name of its extra.
"""

from __future__ import annotations

import json
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from covey.shared.errors import PublicError

PACKAGE = "covey.extras"


class MissingExtraError(PublicError, ValueError):
    """Something was asked for whose extra is not installed. A ValueError too: a key that is checked is refused with its line."""


def part(extra: str, module: str, asked: str = "") -> Any:
    """A module of an extra.

    Args:
        extra: its name.
        module: its name in the folder of the extra.
        asked: the key, option or command that needs it, for the message; the module's name if there is none.

    Raises:
        MissingExtraError: the extra is not installed.
    """
    name = f"{PACKAGE}.{extra}.{module}"
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise
        raise missing(extra, asked or module.replace("_", " ")) from None


def installed() -> list[str]:
    """Their names. Nothing of them is imported."""
    return sorted(one.parent.name for folder in _folders() for one in folder.glob("*/__init__.py"))


def has(extra: str) -> bool:
    """Whether an extra is installed. One look at the disk, for a device asks with each order."""
    return any((folder / extra / "__init__.py").is_file() for folder in _folders())


def _folders() -> list[Path]:
    """Where extras are; none in a core without them."""
    found = find_spec(PACKAGE)
    return [Path(one) for one in (found and found.submodule_search_locations) or ()]


def brought(what: str) -> dict[str, tuple[str, Any]]:
    """What extras bring of one kind: the mappings of this name, such as METHODS, in their `__init__`, which is data alone.

    Returns:
        The extra and the value by the name that a value has in such a mapping, in the order of the extras.
    """
    return {
        name: (extra, value)
        for extra in installed()
        for name, value in getattr(import_module(f"{PACKAGE}.{extra}"), what, {}).items()
    }


def find(what: str, name: str, asked: str) -> Any:
    """What an extra brings of one kind under a name that has its module and its name there, as "module:name". None: no extra has the name.

    `brought.json` has the names of the whole product, by kind, with their extras: data, which a test compares with the extras.

    Args:
        what: the kind, as in `brought`.
        name: as it was asked for.
        asked: what stands for it in the message.

    Raises:
        MissingExtraError: in the whole product an extra brings it, which is not installed.
    """
    if found := brought(what).get(name):
        module, _, one = found[1].partition(":")
        return getattr(part(found[0], module, asked), one)
    whole = json.loads(Path(__file__).with_name("brought.json").read_text(encoding="utf-8"))
    if extra := whole[what].get(name):
        raise missing(extra, asked)
    return None


def missing(extra: str, asked: str) -> MissingExtraError:
    """The error where something is asked for whose extra is not installed."""
    return MissingExtraError(f"{asked}: needs covey's extra `{extra}`, which is not installed")
