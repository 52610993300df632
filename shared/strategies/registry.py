"""One method, one file. A built-in method joins by its line in `method_names`; it is imported when it is used.

Methods of other installed packages join by an entry point of the group `covey.strategies`. They are subclasses of
`Strategy` with a `name: Literal["..."]` that equals the name of their entry point.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any, Union, get_args

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from covey.shared import extras
from covey.shared.errors import CoveyError, UserError
from covey.shared.own_code import plugins
from covey.shared.own_code.consent import consent
from covey.shared.own_code.faults import said
from covey.shared.strategies.base import Strategy
from covey.shared.strategies.method_names import SECOND_NAMES, places
from covey.shared.written import OrItsName

Kind = type[Strategy[Any]]
# what any method must have, of its base or of its own
TO_WRITE = ("init", "plan", "order", "model", "fold", "serve", "clusters", "work")


class _BuiltIn(Mapping[str, Kind]):
    """The classes of the built-in methods by name. A look-up imports one module, a walk all of them."""

    def __getitem__(self, name: str) -> Kind:
        module, kind = places()[name]
        method: Kind = getattr(import_module(module), kind)
        return method

    def __iter__(self) -> Iterator[str]:
        return iter(places())

    def __contains__(self, name: object) -> bool:
        return name in places()

    def __len__(self) -> int:
        return len(places())


BUILT_IN = _BuiltIn()


def is_built_in(method: Strategy[Any]) -> bool:
    """Whether a method is Covey's own, whatever its name is."""
    name = _first_name(method.name)
    return name in BUILT_IN and type(method) is BUILT_IN[name]


def _first_name(name: str) -> str:
    return SECOND_NAMES.get(name, name)


def installed_method(name: str) -> type[Strategy[Any]]:
    """The class of a method that an installed package adds.

    Raises:
        ConsentError: the owner of this machine has not allowed the name. Nothing was imported.
        UserError: the entry point is not a method of this name, or it cannot be imported.
    """
    where = f"method {name!r} of an installed package"
    allowed = consent()
    allowed.check(name)
    try:
        kind = plugins.load(plugins.STRATEGIES, name, allowed)
    except CoveyError:
        raise
    except (Exception, SystemExit) as error:  # it is not installed, or the package's own code
        raise UserError(f"{where} cannot be imported: {said(error)}") from error
    if not (isinstance(kind, type) and issubclass(kind, Strategy)):
        raise UserError(f"{where}: expected a subclass of covey.Strategy, found {kind!r}")
    left = {name for name in TO_WRITE if getattr(kind, name) is getattr(Strategy, name)}
    if unwritten := ", ".join(sorted(left | kind.__abstractmethods__)):
        raise UserError(f"{where}: its class must write {unwritten}, which its base leaves open")
    if name not in (own_names := get_args(kind.model_fields["name"].annotation)):
        raise UserError(
            f"{where}: its class must have the field `name: Literal[{name!r}] = {name!r}`, "
            f"it has the names {own_names}"
        )
    return kind


class _ByName:
    """Marks the type of a method: the `name` among its keys chooses the class, and only this class is imported."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            _validated, serialization=core_schema.simple_ser_schema("any")
        )

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        kinds: Any = Union[tuple(BUILT_IN.values())]  # noqa: UP007 - a union of a list
        return handler(TypeAdapter(Annotated[kinds, Field(discriminator="name")]).core_schema)


def _validated(value: Any) -> Strategy[Any]:
    """The method that a value is or names. Errors are those of pydantic for unions."""
    if isinstance(value, Strategy):
        return value
    if not isinstance(value, Mapping):
        raise PydanticKnownError("model_attributes_type")
    if "name" not in value:
        raise PydanticKnownError("union_tag_not_found", {"discriminator": "'name'"})
    name = value["name"]
    if isinstance(name, str) and _first_name(name) in BUILT_IN:
        return BUILT_IN[_first_name(name)].model_validate(value)
    if isinstance(name, str) and name in plugins.installed(plugins.STRATEGIES):
        return installed_method(name).model_validate(value)
    extras.find("METHODS", str(name), f"method {name}")
    known = ", ".join(map(repr, [*BUILT_IN, *SECOND_NAMES]))
    context = {"discriminator": "'name'", "tag": str(name), "expected_tags": known}
    raise PydanticKnownError("union_tag_invalid", context)


AnyStrategy = Annotated[Strategy[Any], _ByName(), OrItsName()]
