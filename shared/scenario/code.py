"""Code of a user's own that a scenario names: it needs the consent of this command line."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from covey.shared.errors import PublicError, UserError
from covey.shared.own_code import plugins
from covey.shared.own_code.consent import BUILT_IN_MODELS, AllowedCode, code_of, framework_of
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.registry import is_built_in


def check_code(scenario: Scenario, allowed: AllowedCode) -> None:
    """Raises ConsentError for a model that is neither built in nor allowed on this command line, and PublicError for what a
    model of another framework cannot do.

    A method of an installed package is checked earlier, when the scenario is read.
    """
    model = scenario.task.model.name
    allowed.check_model(model, f"the scenario {scenario.name}", "this command line")
    if framework := framework_of(model):
        check_training(scenario, clients=framework == "flower")


def named_code(scenario: Scenario) -> tuple[str, ...]:
    """All code of other packages and of the user's own that a scenario names: entry points and "module:name"."""
    methods = [scenario.strategy]
    if scenario.compare is not None:
        methods += [method.strategy for method in scenario.compare.methods]
    own = [method for method in methods if not is_built_in(method)]
    found: set[str] = {method.name for method in own}
    if scenario.task.model.name not in BUILT_IN_MODELS:
        found.add(code_of(scenario.task.model.name))
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


# -- training by code of another kind than torch's modules ----------------------------------------------------------

# Methods whose agents train, average and compare models, and ask for nothing inside of a training. A method that is not
# here is refused; extras/light/tests/test_foreign_clients.py runs those that are.
OF_CLIENTS = (
    "cfl",
    "clove",
    "fedavg",
    "fedclust",
    "feddist",
    "feddws",
    "fedgwc",
    "given",
    "ifca",
    "lg",
    "local",
    "robust",
)
OF_LOOPS = (*OF_CLIENTS, "feroma", "flux", "kin", "pacfl")  # these read the samples, too


def check_training(scenario: Scenario, *, clients: bool) -> None:
    """Refuse what a model asks of code that is not ours: a loop of the user's own, an estimator, or a client of Flower.

    Args:
        scenario: what is to run.
        clients: whether the code is a client, which loads its own data, so that nothing here knows a sample of it.

    Raises:
        PublicError: the method, or a key, asks for more than the code can do. The text names all of these.
    """
    faults = list(_beyond_clients(scenario)) if clients else []
    methods = OF_CLIENTS if clients else OF_LOOPS
    own = scenario.strategy
    if is_built_in(own) and own.name not in methods:
        faults.append(
            f"strategy {own.name} asks for more than this; choose one of {', '.join(methods)}"
        )
    training = scenario.training
    asked = {
        "training.precision": training.precision != "fp32",
        "training.augment": training.augment != "none",
        "privacy.local": scenario.privacy is not None and scenario.privacy.local is not None,
        "task.freeze": bool(scenario.task.freeze),
    }
    faults += [f"{key}: remove it" for key, is_asked in asked.items() if is_asked]
    if faults:
        can = "get_parameters, fit and evaluate" if clients else "start, train and evaluate"
        raise PublicError(
            f"task.model {scenario.task.model.name} can {can}, and nothing else: {'; '.join(faults)}"
        )


def _beyond_clients(scenario: Scenario) -> Iterator[str]:
    """What needs samples of which only the client knows."""
    if scenario.fleet is not None:
        yield "fleet: a client loads its own data; start agents with agent start --learner"
    if scenario.task.asks_fleet_for:
        yield f"task.{', task.'.join(scenario.task.asks_fleet_for)}: give values, or remove the key"
    if getattr(scenario.strategy, "gate", None) == "cards":
        yield "strategy.gate: cards are sums of samples; set it to none"
    if scenario.training.weights != "none":
        yield "training.weights: remove it"
    if scenario.task.label_prior == "on":
        yield "task.label_prior: remove it"
    if scenario.privacy is not None and scenario.privacy.secure is not None:
        yield "privacy.secure: its sums have figures that a client may not know; remove it"
