"""The facts of a method: what needs `secure`."""

from __future__ import annotations

from covey.extras.secure.secured import Secured
from covey.methods import Strategy
from covey.shared.strategies.around import Around

# functions that a coordinator does not ask of a method under secure sums
NOT_ASKED = {
    "work": "devices do the method's own work, inside of `OnDevice`",
    "personal": "as above",
}


def test_under_secure_sums_every_function_of_a_method_is_answered_by_it() -> None:
    asked = {
        name
        for name, value in vars(Strategy).items()
        if not name.startswith(("_", "model_")) and (callable(value) or isinstance(value, property))
    }
    assert asked - vars(Secured).keys() - vars(Around).keys() == NOT_ASKED.keys()
