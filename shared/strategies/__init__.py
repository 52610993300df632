"""One method, one file. The union below is the registry: a method joins by being in it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shared.strategies.fedavg import FedAvg

AnyStrategy = Annotated[FedAvg, Field(discriminator="name")]
