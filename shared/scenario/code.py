"""Code of a user's own that a scenario names: it needs the consent of this command line."""

from __future__ import annotations

from importlib.util import find_spec

from covey.shared.errors import UserError
from covey.shared.own_code import plugins
from covey.shared.own_code.consent import BUILT_IN_MODELS, AllowedCode
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.registry import is_built_in


def check_code(scenario: Scenario, allowed: AllowedCode) -> None:
    """Raises ConsentError for a model that is neither built in nor allowed on this command line.

    A method of an installed package is checked earlier, when the scenario is read.
    """
    model = scenario.task.model.name
    allowed.check_model(model, f"the scenario {scenario.name}", "this command line")


def named_code(scenario: Scenario) -> tuple[str, ...]:
    """All code of other packages and of the user's own that a scenario names: entry points and "module:name"."""
    methods = [scenario.strategy]
    if scenario.compare is not None:
        methods += [method.strategy for method in scenario.compare.methods]
    own = [method for method in methods if not is_built_in(method)]
    found: set[str] = {method.name for method in own}
    if scenario.task.model.name not in BUILT_IN_MODELS:
        found.add(scenario.task.model.name)
    data = scenario.fleet.data if scenario.fleet is not None else ""
    match plugins.data_code(data):
        case "function":
            module, function, *_ = data.split(":")
            found.add(f"{module}:{function}")
        case "package":
            found.add(data)
    return tuple(sorted(found))


def check_found(scenario: Scenario, allowed: AllowedCode) -> None:
    """Raises UserError for a module that is allowed, and that no process of a run would find. Packages above it are imported."""
    for reference in named_code(scenario):
        module, colon, _ = reference.partition(":")
        if not colon or not allowed.allows(reference):
            continue
        try:
            is_there = find_spec(module) is not None
        except ImportError:
            is_there = False
        if not is_there:
            raise UserError(
                f"{reference}: no module {module!r} is installed here, and the working directory does not count; "
                "install it, or put its folder into PYTHONPATH"
            )


def check_model_name(scenario: Scenario, allowed: AllowedCode) -> None:
    """Raises ConsentError for a model that is not built in, not allowed, and not a function: most often a misspelling.

    A `module:callable` passes: a scenario may be checked on a machine that runs no code.
    """
    if ":" not in scenario.task.model.name:
        check_code(scenario, allowed)
