"""One method, one file. The union below is the registry: a method joins by being in it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shared.strategies.cfl import Cfl
from shared.strategies.ditto import Ditto
from shared.strategies.fedavg import FedAvg
from shared.strategies.fedclust import FedClust
from shared.strategies.feddane import FedDane
from shared.strategies.feddist import FedDist
from shared.strategies.feddws import FedDws
from shared.strategies.fedem import FedEm
from shared.strategies.fednova import FedNova
from shared.strategies.fedprox import FedProx
from shared.strategies.fedsgd import FedSgd
from shared.strategies.fedsoft import FedSoft
from shared.strategies.fesem import Fesem
from shared.strategies.fesem_ma import FesemMa
from shared.strategies.fuzzy import Fuzzy
from shared.strategies.ifca import Ifca
from shared.strategies.lg import LgFedAvg
from shared.strategies.local import LocalOnly
from shared.strategies.pacfl import Pacfl
from shared.strategies.perfedavg import PerFedAvg
from shared.strategies.robust import Robust

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
