"""Loading code of the user's own, once the owner of this machine has allowed it."""

from __future__ import annotations

import importlib
from typing import Any

from covey.shared import plugins
from covey.shared.consent import AllowedCode
from covey.shared.errors import UserError


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
