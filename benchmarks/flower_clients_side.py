"""The Flower half of `benchmarks.flower_clients`, run by an interpreter that has flwr[simulation]. It imports nothing of Covey.

    PYTHONPATH=examples /tmp/flower/bin/python benchmarks/flower_clients_side.py ROUNDS SEED

prints a line of JSON: the weighted accuracy after each round of FedAvg with `examples/flower_client.py`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import flwr
from flower_client import client_fn  # type: ignore[import-not-found, unused-ignore]
from flwr.client import ClientApp
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation

AGENTS = 6
SEEDS_OF_A_RUN = 1000


def main() -> None:
    rounds, seed = map(int, sys.argv[1:])
    shares: list[float] = []

    def weighted(found: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
        total = sum(count for count, _ in found)
        share = sum(count * metrics["accuracy"] for count, metrics in found) / total
        shares.append(share)
        return {"accuracy": share}

    def server_fn(_: Any) -> ServerAppComponents:
        strategy = FedAvg(
            min_fit_clients=AGENTS,
            min_evaluate_clients=AGENTS,
            min_available_clients=AGENTS,
            on_fit_config_fn=lambda round_: {"seed": SEEDS_OF_A_RUN * seed + round_},
            evaluate_metrics_aggregation_fn=weighted,
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))

    app = ClientApp(client_fn)
    run_simulation(ServerApp(server_fn=server_fn), app, num_supernodes=AGENTS)
    print(json.dumps({"flwr": flwr.__version__, "accuracy": shares}))


if __name__ == "__main__":
    main()
