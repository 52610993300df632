"""The Flower programs of `benchmarks.flower`, run by an interpreter that has flwr. They import nothing of Covey.

python benchmarks/flower_side.py version
python benchmarks/flower_side.py server PORT VALUES ROUNDS
python benchmarks/flower_side.py client PORT
"""

from __future__ import annotations

import sys
import time
from typing import Any

import flwr
import numpy as np
from flwr.client import NumPyClient, start_client
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerConfig, start_server
from flwr.server.strategy import FedAvg

CLIENTS = 10
WARM_UP = 2  # rounds before the measured ones
PAUSE_S = 2.0  # before and after the measured rounds: time to read how much processor time was used


class MarkedFedAvg(FedAvg):  # type: ignore[misc]
    """FedAvg that prints the time before and after the measured rounds, and pauses there."""

    def __init__(self, rounds: int, values: int) -> None:
        model = np.zeros(values, np.float32)
        super().__init__(
            fraction_fit=1.0,
            fraction_evaluate=0.0,
            min_fit_clients=CLIENTS,
            min_available_clients=CLIENTS,
            initial_parameters=ndarrays_to_parameters([model]),
        )
        self._first = WARM_UP + 1
        self._after = self._first + rounds

    def configure_fit(self, server_round: int, **others: Any) -> Any:
        if server_round == self._after:
            print("measured", time.time(), flush=True)
            time.sleep(PAUSE_S)
        if server_round == self._first:
            print("warm", flush=True)
            time.sleep(PAUSE_S)
            print("began", time.time(), flush=True)
        return super().configure_fit(server_round, **others)


class Echo(NumPyClient):  # type: ignore[misc]
    """A client that trains nothing: it returns the values that it got."""

    def fit(self, parameters: Any, _config: Any) -> Any:
        return parameters, 8, {}


def serve(port: int, values: int, rounds: int) -> None:
    config = ServerConfig(num_rounds=WARM_UP + rounds + 1)
    strategy = MarkedFedAvg(rounds, values)
    start_server(server_address=f"127.0.0.1:{port}", config=config, strategy=strategy)


def main() -> None:
    role, *numbers = sys.argv[1:]
    match role:
        case "version":
            print(flwr.__version__)
        case "server":
            port, values, rounds = map(int, numbers)
            serve(port, values, rounds)
        case "client":
            start_client(server_address=f"127.0.0.1:{numbers[0]}", client=Echo().to_client())


if __name__ == "__main__":
    main()
