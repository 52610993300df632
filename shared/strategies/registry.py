"""One method, one file. The union below is the registry: a method joins by being in it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from covey.shared.strategies.cfl import Cfl
from covey.shared.strategies.ditto import Ditto
from covey.shared.strategies.fedavg import FedAvg
from covey.shared.strategies.fedclust import FedClust
from covey.shared.strategies.feddane import FedDane
from covey.shared.strategies.feddist import FedDist
from covey.shared.strategies.feddws import FedDws
from covey.shared.strategies.fedem import FedEm
from covey.shared.strategies.fednova import FedNova
from covey.shared.strategies.fedprox import FedProx
from covey.shared.strategies.fedsgd import FedSgd
from covey.shared.strategies.fedsoft import FedSoft
from covey.shared.strategies.fesem import Fesem
from covey.shared.strategies.fesem_ma import FesemMa
from covey.shared.strategies.fuzzy import Fuzzy
from covey.shared.strategies.ifca import Ifca
from covey.shared.strategies.lg import LgFedAvg
from covey.shared.strategies.local import LocalOnly
from covey.shared.strategies.pacfl import Pacfl
from covey.shared.strategies.perfedavg import PerFedAvg
from covey.shared.strategies.robust import Robust

AnyStrategy = Annotated[
    Cfl
    | Ditto
    | FedAvg
    | FedClust
    | FedDane
    | FedDist
    | FedDws
    | FedEm
    | FedNova
    | FedProx
    | FedSgd
    | FedSoft
    | Fesem
    | FesemMa
    | Fuzzy
    | Ifca
    | LgFedAvg
    | LocalOnly
    | Pacfl
    | PerFedAvg
    | Robust,
    Field(discriminator="name"),
]
