"""Loading code of the user's own, once the owner of this machine has allowed it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from covey.shared.errors import CoveyError, UserError
from covey.shared.own_code import faults, plugins
from covey.shared.own_code.consent import AllowedCode, code_of

if TYPE_CHECKING:
    import numpy.typing as npt

State = Mapping[str, "npt.NDArray[Any]"]  # the values of a model by name


class Loop(Protocol):
    """A model of the user's own with the code that trains it. It is made as any model is: (features, outputs, **options).

    Its arrays may have any type that float32 can hold; they travel as float32.
    """

    def start(self, seed: int) -> State:
        """The initial values."""

    def train(
        self, state: State, data: Any, settings: Any
    ) -> tuple[State, int, Mapping[str, float]]:
        """Train on this device's data.

        Args:
            state: the values to begin with, float32, of the loop's own to change.
            data: `features` (n, *task.features) float32, scaled by the task, and `targets` (n,).
            settings: an `OrderedTraining`.

        Returns:
            The values after training, the number of samples by which they count, and figures, of which `loss` is sent.
        """

    def evaluate(self, state: State, features: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The outputs for features (n, *task.features): logits (n, classes), or values (n, 1) of a regression."""


def users_builder(name: str, allowed: AllowedCode) -> Any:
    """The function or class that makes a model of the user's own: `module:callable` or an entry point. Raises UserError or ConsentError."""
    allowed.check_model(name, "the model", "the owner of this machine")
    try:
        builder = resolve(code_of(name), allowed)
    except CoveyError:
        raise
    except (Exception, SystemExit) as error:  # it is not installed, or the user's code
        raise UserError(
            f"task.model {name!r}: {faults.said(error)}; install the module on the coordinator and every device"
        ) from error
    if not callable(builder):
        raise UserError(
            f"task.model {name!r} is not callable; name a function that returns a torch.nn.Module"
        )
    return builder


def resolve(reference: str, allowed: AllowedCode) -> Any:
    """The object behind "module:name", or behind an installed entry point of the group `covey.models`.

    A module that was allowed as a whole gives what it defines itself or lists in `__all__`, not what it imports from
    elsewhere: to allow one's own models is not to allow `os.system`. Raises ConsentError before anything is imported,
    ImportError and AttributeError where nothing of this name is installed.
    """
    allowed.check(reference)
    module_name, colon, name = reference.partition(":")
    if not colon:
        return plugins.load(plugins.MODELS, reference, allowed)
    faults.note(module_name)
    module = importlib.import_module(module_name)
    found = getattr(module, name)
    if reference not in allowed.names and not _is_of(module, name, found):
        raise UserError(
            f"{reference}: {module_name} only imports {name} from elsewhere; "
            f"list it in its __all__, or allow it by --allow {reference}"
        )
    return found


def _is_of(module: Any, name: str, found: Any) -> bool:
    """Whether the module, or another one of its package, defines this."""
    if name in getattr(module, "__all__", ()):
        return True
    package = str(module.__name__).partition(".")[0]
    home = str(getattr(found, "__module__", package))
    return home.startswith(f"{package}.") or home == package
