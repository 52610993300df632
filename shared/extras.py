"""Extras: what the core works without. They import the core; it asks for them here alone, by their name, when something needs one.

`extras.toml` lists the modules of each. Nothing is imported before somebody asks, and a part that is not there is refused
by the name of its extra.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

from covey.shared.errors import PublicError

# what the core may ask an extra for: the ends of these names
PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "secure": (
            "covey.agent.kept.secure_folder",
            "covey.shared.secure.agent",
            "covey.shared.secure.fleet_key",
            "covey.shared.secure.messages",
            "covey.shared.secure.parameters",
            "covey.shared.secure.simulated",
            "covey.shared.strategies.secured.agent",
            "covey.shared.strategies.secured.coordinator",
            "covey.shared.strategies.secured.figures",
        ),
        "groups": ("covey.shared.strategies.kin", "covey.coordinator.cli.advise"),
        "proposals": ("covey.agent.data.proposal_data", "covey.coordinator.cli.init"),
        "formats": (
            "covey.agent.data.images",
            "covey.agent.data.parquet_images",
            "covey.agent.data.sounds",
        ),
        "compare": (
            "covey.coordinator.cli.compare",
            "covey.coordinator.cli.comparison_files",
            "covey.coordinator.compare.rows",
            "covey.coordinator.compare.tables",
            "covey.coordinator.compare.verdict",
        ),
        "pages": (
            "covey.coordinator.cli.dashboard",
            "covey.coordinator.dashboard.terminal",
            "covey.coordinator.report.curves",
            "covey.coordinator.report.html_report",
            "covey.coordinator.view.svg",
        ),
        "in_use": (
            "covey.coordinator.deploy.registry",
            "covey.coordinator.deploy.finished",
            "covey.agent.cli.models",
            "covey.coordinator.cli.export",
            "covey.coordinator.cli.promote",
            "covey.coordinator.cli.versions",
        ),
        "doctor": ("covey.broker.cli.examining", "covey.coordinator.cli.doctor"),
        "scale": (
            "covey.coordinator.cli.aggregate",
            "covey.coordinator.fold.partial_sums",
            "covey.coordinator.run.sum_acceptance",
            "covey.coordinator.serve.aggregators",
        ),
        "embedded": ("covey.broker.programs.embedded", "covey.broker.programs.websocket_gateway"),
        "light": (
            "covey.agent.data.client_data",
            "covey.agent.light.estimators",
            "covey.agent.light.flower",
            "covey.agent.light.numpy_learner",
            "covey.agent.light.own_loop",
        ),
        "simulate": ("covey.agent.training.batched", "covey.coordinator.simulate.driver"),
        "audit": ("covey.coordinator.cli.audit", "covey.coordinator.cli.story"),
        "outlets": (
            "covey.coordinator.cli.tracked_run",
            "covey.coordinator.serve.prometheus",
            "covey.coordinator.track.tracking",
        ),
        "papers": tuple(
            f"covey.shared.strategies.{name}"
            for name in ("clove", "fedala", "feddbe", "fedgwc", "feroma", "flux")
        ),
    }
)


class MissingExtraError(PublicError):
    """Something was asked for whose extra is not installed."""


def part(extra: str, end: str, asked: str = "") -> Any:
    """A module of an extra.

    Args:
        extra: its name.
        end: the end of the module's name, such as "tracking".
        asked: the key, option or command that needs it, for the message; the module's name if there is none.

    Raises:
        MissingExtraError: the extra is not installed.
    """
    name = _name(extra, end)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise
        raise missing(extra, asked or end.replace("_", " ")) from None


def has(extra: str) -> bool:
    """Whether an extra is installed. Nothing of it is imported."""
    try:
        return find_spec(PARTS[extra][0]) is not None
    except ModuleNotFoundError:  # its package
        return False


def missing(extra: str, asked: str) -> MissingExtraError:
    """The error where something is asked for whose extra is not installed."""
    return MissingExtraError(f"{asked}: needs covey's extra `{extra}`, which is not installed")


def of_module(name: str) -> str | None:
    """The extra that a module belongs to, of those that the core may ask for; None for one of the core."""
    return next((extra for extra, names in PARTS.items() if name in names), None)


def _name(extra: str, end: str) -> str:
    [name] = [one for one in PARTS[extra] if one.endswith(f".{end}")]
    return name
