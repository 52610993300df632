"""Covey: clustered, personalised federated learning on fleets of devices, over MQTT.

In a notebook or a script:

    import covey

    result = covey.run("scenarios/digits.yaml")
    result.accuracy("server")      # macro average over the agents
    result.assignment              # the cluster of each agent

A method of your own is a subclass of `covey.Strategy`; docs/ has a tutorial. The names below are imported when they are
first used, so that an agent that waits for work holds neither NumPy nor torch in memory.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covey.api import Comparison, Result, RunEnded, compare, load, run
    from covey.coordinator.view.milestones import Evaluated, RoundEnded
    from covey.shared.own_code.consent import ConsentError
    from covey.shared.errors import UserError
    from covey.shared.scenario.scenario import Scenario
    from covey.shared.strategies.base import (Order, Phase, Strategy)
    from covey.shared.strategies.client_half import (Local, Report)

__all__ = [
    "Comparison",
    "ConsentError",
    "Evaluated",
    "Local",
    "Order",
    "Phase",
    "Report",
    "Result",
    "RoundEnded",
    "RunEnded",
    "Scenario",
    "Strategy",
    "UserError",
    "compare",
    "load",
    "run",
]

_HOMES = {
    "Comparison": "covey.api",
    "ConsentError": "covey.shared.own_code.consent",
    "Evaluated": "covey.coordinator.view.milestones",
    "Local": "covey.shared.strategies.base",
    "Order": "covey.shared.strategies.base",
    "Phase": "covey.shared.strategies.base",
    "Report": "covey.shared.strategies.base",
    "Result": "covey.api",
    "RoundEnded": "covey.coordinator.view.milestones",
    "RunEnded": "covey.api",
    "Scenario": "covey.shared.scenario.scenario",
    "Strategy": "covey.shared.strategies.base",
    "UserError": "covey.shared.errors",
    "compare": "covey.api",
    "load": "covey.api",
    "run": "covey.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'covey' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    own = [name for name in globals() if name.startswith("__")]
    return sorted([*own, *__all__])
