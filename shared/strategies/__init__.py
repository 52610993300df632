"""One method, one file. The union below is the registry: a method joins by being in it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shared.strategies.fedavg import FedAvg
from shared.strategies.fedclust import FedClust
from shared.strategies.fedprox import FedProx
from shared.strategies.fedsgd import FedSgd
from shared.strategies.fesem import Fesem
from shared.strategies.local import LocalOnly

AnyStrategy = Annotated[
    FedAvg | FedClust | FedProx | FedSgd | Fesem | LocalOnly,
    Field(discriminator="name"),
]
