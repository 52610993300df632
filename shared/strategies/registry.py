"""One method, one file. The union below is the registry of the built-in methods: a method joins by being in it.

Methods of other installed packages join by an entry point of the group `covey.strategies`. They are subclasses of
`Strategy` with a `name: Literal["..."]` that equals the name of their entry point.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, get_args

from pydantic import Field, SerializationInfo, WrapSerializer, WrapValidator
from pydantic_core.core_schema import SerializerFunctionWrapHandler, ValidatorFunctionWrapHandler

from covey.shared import plugins
from covey.shared.consent import consent
from covey.shared.errors import UserError
from covey.shared.plain_name import OrItsName
from covey.shared.strategies.base import Strategy
from covey.shared.strategies.cfl import Cfl
from covey.shared.strategies.clove import Clove
from covey.shared.strategies.ditto import Ditto
from covey.shared.strategies.fedala import FedAla
from covey.shared.strategies.fedavg import FedAvg
from covey.shared.strategies.fedbabu import FedBabu
from covey.shared.strategies.fedbn import FedBn
from covey.shared.strategies.fedclust import FedClust
from covey.shared.strategies.feddane import FedDane
from covey.shared.strategies.feddbe import FedDbe
from covey.shared.strategies.feddist import FedDist
from covey.shared.strategies.feddws import FedDws
from covey.shared.strategies.fedem import FedEm
from covey.shared.strategies.fedgwc import FedGwc
from covey.shared.strategies.fednova import FedNova
from covey.shared.strategies.fedprox import FedProx
from covey.shared.strategies.fedrep import FedRep
from covey.shared.strategies.fedsgd import FedSgd
from covey.shared.strategies.fedsoft import FedSoft
from covey.shared.strategies.feroma import Feroma
from covey.shared.strategies.fesem import Fesem
from covey.shared.strategies.fesem_ma import FesemMa
from covey.shared.strategies.flux import Flux
from covey.shared.strategies.fuzzy import Fuzzy
from covey.shared.strategies.given import Given
from covey.shared.strategies.ifca import Ifca
from covey.shared.strategies.kin import Kin
from covey.shared.strategies.lg import LgFedAvg
from covey.shared.strategies.local import LocalOnly
from covey.shared.strategies.pacfl import Pacfl
from covey.shared.strategies.perfedavg import PerFedAvg
from covey.shared.strategies.robust import Robust
from covey.shared.strategies.scaffold import Scaffold

BuiltIn = Annotated[
    Cfl
    | Clove
    | Ditto
    | FedAla
    | FedAvg
    | FedBabu
    | FedBn
    | FedClust
    | FedDane
    | FedDbe
    | FedDist
    | FedDws
    | FedEm
    | FedGwc
    | FedNova
    | FedProx
    | FedRep
    | FedSgd
    | FedSoft
    | Feroma
    | Fesem
    | FesemMa
    | Flux
    | Fuzzy
    | Given
    | Ifca
    | Kin
    | LgFedAvg
    | LocalOnly
    | Pacfl
    | PerFedAvg
    | Robust
    | Scaffold,
    Field(discriminator="name"),
]

BUILT_IN: Mapping[str, type[Strategy[Any]]] = {
    kind.model_fields["name"].default: kind for kind in get_args(get_args(BuiltIn)[0])
}


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
    except ImportError as error:
        raise UserError(f"{where} cannot be imported: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, Strategy)):
        raise UserError(f"{where}: expected a subclass of covey.Strategy, found {kind!r}")
    own_names = get_args(kind.model_fields["name"].annotation)
    if name not in own_names:
        raise UserError(
            f"{where}: its class must have the field `name: Literal[{name!r}] = {name!r}`, "
            f"it has the names {own_names}"
        )
    return kind


def _validated(value: Any, built_in: ValidatorFunctionWrapHandler) -> Any:
    """An installed package's method where the value is or names one; in all other cases the built-in union decides."""
    if isinstance(value, Strategy) and type(value) not in BUILT_IN.values():
        return value
    name = value.get("name") if isinstance(value, Mapping) else None
    if (
        isinstance(name, str)
        and name not in BUILT_IN
        and name in plugins.installed(plugins.STRATEGIES)
    ):
        return installed_method(name).model_validate(value)
    return built_in(value)


def _serialized(
    value: Strategy[Any], built_in: SerializerFunctionWrapHandler, info: SerializationInfo
) -> Any:
    """The union's serializer knows the built-in methods alone."""
    if type(value) in BUILT_IN.values():
        return built_in(value)
    return value.model_dump(mode=info.mode, by_alias=bool(info.by_alias))


AnyStrategy = Annotated[
    BuiltIn, WrapValidator(_validated), WrapSerializer(_serialized), OrItsName()
]
