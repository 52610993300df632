"""A companion of the model: an extra with phases of its own before the last round, and with candidates for the judge of a device.

It is a method around any method, as secure sums are: it plans its phases and those of the method, and the models that it adds to
an order of the last evaluation make its candidates. `evaluation.deliver.companion` names the extra, in a scenario and in orders,
and its module `companion` is all that is asked of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from covey.shared import extras
from covey.shared.strategies.base import Strategy
from covey.shared.strategies.client_half import Job, Local

KEY = "evaluation.deliver.companion"


class Companion(Protocol):
    """The module `companion` of an extra."""

    def around(self, method: Strategy[Any]) -> Strategy[Any]:
        """The method with what the companion does before its last round. Its facts have the phases of both."""

    def makers(self, job: Job) -> Mapping[str, Callable[[Local], Any]]:
        """What an order of the last evaluation brings, by the names of candidates: each is made of the samples that train."""


def companion_in(evaluation: Mapping[str, Any]) -> str:
    """The extra that the section `evaluation` of an order names; empty: none."""
    deliver = evaluation.get("deliver")
    name = deliver.get("companion") if isinstance(deliver, Mapping) else None
    return name if isinstance(name, str) and name.isidentifier() else ""


def companion(name: str) -> Companion:
    """The companion that is in an extra. Raises MissingExtraError if it is not installed."""
    return cast(Companion, extras.part(name, "companion", KEY))


def accompanied(method: Strategy[Any], name: str) -> Strategy[Any]:
    """The method with a companion; empty: as it is."""
    return companion(name).around(method) if name else method
