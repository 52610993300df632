"""A Flower app whose clients train nothing: they return the values that they got. `benchmarks.flower` runs it on a SuperLink.

It imports nothing of Covey. Its server writes the times of `benchmarks/flower_side.py` into a file, and pauses as that does.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

CLIENTS = 10
WARM_UP = 2  # rounds before the measured ones
PAUSE_S = 2.0  # before and after the measured rounds: time to read how much processor time was used

server = ServerApp()
client = ClientApp()


class MarkedFedAvg(FedAvg):  # type: ignore[misc, unused-ignore]
    """FedAvg that notes the time before and after the measured rounds, and pauses there."""

    def __init__(self, rounds: int, times: Path) -> None:
        super().__init__(
            fraction_train=1.0,
            fraction_evaluate=0.0,
            min_train_nodes=CLIENTS,
            min_available_nodes=CLIENTS,
        )
        self._first = WARM_UP + 1
        self._after = self._first + rounds
        self._times = times

    def configure_train(self, server_round: int, *others: Any) -> Iterable[Message]:
        if server_round == self._after:
            self._note(f"measured {time.time()}")
            time.sleep(PAUSE_S)
        if server_round == self._first:
            self._note("warm")
            time.sleep(PAUSE_S)
            self._note(f"began {time.time()}")
        messages: Iterable[Message] = super().configure_train(server_round, *others)
        return messages

    def _note(self, line: str) -> None:
        with self._times.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


@server.main()  # type: ignore[untyped-decorator, unused-ignore]
def serve(grid: Grid, context: Context) -> None:
    chosen = context.run_config
    rounds = int(chosen["rounds"])
    strategy = MarkedFedAvg(rounds, Path(str(chosen["times"])))
    model = ArrayRecord([np.zeros(int(chosen["values"]), np.float32)])
    strategy.start(grid, initial_arrays=model, num_rounds=WARM_UP + rounds + 1)


@client.train()  # type: ignore[untyped-decorator, unused-ignore]
def train(message: Message, _context: Context) -> Message:
    content = RecordDict(
        {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 8})}
    )
    return Message(content=content, reply_to=message)
