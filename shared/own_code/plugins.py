"""Modules that are imported when they are used: ours that a usual run never needs, and those that other packages add.

Ours have one table, `DOORS`. Other people's methods, models and sources of data come by entry points.

A package adds a method by three lines of its pyproject.toml:

    [project.entry-points."covey.strategies"]
    my_method = "my_package.my_module:MyMethod"

Such code runs on a machine only if it is installed there and the owner of that machine has allowed its name. This module
needs neither numpy nor torch: an idle agent imports it.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import Any, Literal

from covey.shared.errors import UserError
from covey.shared.own_code import faults
from covey.shared.own_code.consent import AllowedCode

Group = Literal["covey.strategies", "covey.models", "covey.data"]
DataCode = Literal["function", "package"]
STRATEGIES: Group = "covey.strategies"
MODELS: Group = "covey.models"
DATA: Group = "covey.data"

DOORS = {
    "images": "covey.agent.data.images",
    "sounds": "covey.agent.data.sounds",
    "parquet images": "covey.agent.data.parquet_images",
    "tables": "covey.agent.data.tables",
    "sqlite": "covey.agent.data.sqlite_rows",
    "flower clients": "covey.agent.light.flower",
    "estimators": "covey.agent.light.estimators",
    "embedded broker": "covey.broker.programs.embedded",
    "websockets": "covey.broker.programs.websocket_gateway",
    "secure sums": "covey.shared.strategies.secured.coordinator",
    "secure work": "covey.shared.strategies.secured.agent",
    "dask": "covey.coordinator.cluster.dask_cells",
    "mlflow": "covey.coordinator.track.to_mlflow",
    "tensorboard": "covey.coordinator.track.to_tensorboard",
    "wandb": "covey.coordinator.track.to_wandb",
}


def door(name: str) -> Any:
    """The module of ours behind a name in DOORS."""
    return import_module(DOORS[name])


def installed(group: Group) -> list[str]:
    """The names that installed packages add to a group, in order. Nothing is imported."""
    return sorted(point.name for point in metadata.entry_points(group=group))


def data_code(name: str) -> DataCode | None:
    """The code that the value of `--data` names, if it names no file or folder. Nothing is imported.

    Returns:
        "function": `module:function[:PATH]`. "package": a source that an installed package adds. None: no code.
    """
    module, colon, _ = name.partition(":")
    if name.startswith("sqlite:"):  # a database
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
