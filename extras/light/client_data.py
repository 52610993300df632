"""Data that only a client of another framework knows: it loads them itself, and nothing here reads them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from covey.agent.data.dataset import Dataset
from covey.shared.errors import PublicError
from covey.shared.scenario.task import Task


@dataclass(frozen=True)
class ClientData(Dataset):
    """Stands where a data set stands. Its only sample is none: whatever would read it is refused (`FlowerLocal`)."""

    node: str = ""  # the value of --data, which device this is, for the client

    def __repr__(self) -> str:
        return f"<ClientData {self.node}>"


def client_data(node: str, task: Task) -> ClientData:
    """The data of a client. Raises PublicError for a task that asks the fleet for statistics of its data."""
    if task.asks_fleet_for:
        keys = ", ".join(f"task.{key}" for key in task.asks_fleet_for)
        raise PublicError(
            f"{keys}: the client of this device loads its own data, of which Covey has no statistics; give values, or remove the key"
        )
    features = np.zeros((1, *task.features), np.float32)
    targets = np.zeros(1, np.float32 if task.classes is None else np.int64)
    return ClientData(features, targets, features[:0], targets[:0], source=node, node=node)
