"""Code of a user's own that a scenario names: it needs the consent of this command line."""

from __future__ import annotations

from covey.shared.consent import AllowedCode
from covey.shared.scenario.scenario import Scenario


def check_code(scenario: Scenario, allowed: AllowedCode) -> None:
    """Raises ConsentError for a model that is neither built in nor allowed on this command line.

    A method of an installed package is checked earlier, when the scenario is read.
    """
    model = scenario.task.model.name
    allowed.check_model(model, f"the scenario {scenario.name}", "this command line")


def check_model_name(scenario: Scenario, allowed: AllowedCode) -> None:
    """Raises ConsentError for a model that is not built in, not allowed, and not a function: most often a misspelling.

    A `module:callable` passes: a scenario may be checked on a machine that runs no code.
    """
    if ":" not in scenario.task.model.name:
        check_code(scenario, allowed)
