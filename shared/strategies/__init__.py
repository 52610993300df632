"""One method, one file. The union below is the registry: a method joins by being in it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shared.strategies.fedavg import FedAvg
from shared.strategies.fedclust import FedClust
from shared.strategies.feddane import FedDane
from shared.strategies.feddist import FedDist
from shared.strategies.feddws import FedDws
from shared.strategies.fednova import FedNova
from shared.strategies.fedprox import FedProx
from shared.strategies.fedsgd import FedSgd
from shared.strategies.fesem import Fesem
from shared.strategies.lg import LgFedAvg
from shared.strategies.local import LocalOnly
from shared.strategies.perfedavg import PerFedAvg

AnyStrategy = Annotated[
    FedAvg
    | FedClust
    | FedDane
    | FedDist
    | FedDws
    | FedNova
    | FedProx
    | FedSgd
    | Fesem
    | LgFedAvg
    | LocalOnly
    | PerFedAvg,
    Field(discriminator="name"),
]
