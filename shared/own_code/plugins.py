"""Methods, models and sources of data that other packages add. They are imported when they are used.

A package adds a method by three lines of its pyproject.toml:

    [project.entry-points."covey.strategies"]
    my_method = "my_package.my_module:MyMethod"

Such code runs on a machine only if it is installed there and the owner of that machine has allowed its name. This module
needs neither numpy nor torch: an idle agent imports it.
"""

from __future__ import annotations

from importlib import metadata
from typing import Any, Literal

from covey.shared.errors import UserError
from covey.shared.own_code import faults
from covey.shared.own_code.consent import AllowedCode

Group = Literal["covey.strategies", "covey.models", "covey.data"]
DataCode = Literal["function", "package"]
STRATEGIES: Group = "covey.strategies"
MODELS: Group = "covey.models"
DATA: Group = "covey.data"

SQLITE = "sqlite:"  # before the file of a database, in the value of `--data`


def installed(group: Group) -> list[str]:
    """The names that installed packages add to a group, in order. Nothing is imported."""
    return sorted(point.name for point in metadata.entry_points(group=group))


def data_code(name: str) -> DataCode | None:
    """The code that the value of `--data` names, if it names no file or folder. Nothing is imported.

    Returns:
        "function": `module:function[:PATH]`. "package": a source that an installed package adds. None: no code.
    """
    module, colon, _ = name.partition(":")
    if name.startswith(SQLITE):
        return None
    if colon and "/" not in module:
        return "function"
    if name in installed(DATA):
        return "package"
    return None


def load(group: Group, name: str, allowed: AllowedCode) -> Any:
    """The object behind an entry point. `--allow NAME` allows it, and so does `--allow GROUP:NAME`, which allows nothing else.

    Raises:
        ConsentError: the owner of this machine has not allowed the name. Nothing was imported.
        ImportError: no installed package adds this name to the group.
        UserError: two installed packages add the same name, so it is not clear which one is meant.
    """
    if not allowed.allows(f"{group}:{name}"):
        allowed.check(name)
    found = list(metadata.entry_points(group=group, name=name))
    if not found:
        raise ImportError(f"no installed package has an entry point {name!r} in the group {group}")
    values = {point.value for point in found}
    if len(values) > 1:
        raise UserError(
            f"{group}: several installed packages add {name!r} ({', '.join(sorted(values))}); "
            "uninstall all but one of them"
        )
    faults.note(found[0].value.partition(":")[0])
    return found[0].load()
