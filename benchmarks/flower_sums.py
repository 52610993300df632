"""One sum of Flower's SecAgg+, run by an interpreter that has flwr. It imports nothing of Covey.

    /tmp/flower/bin/python benchmarks/flower_sums.py --out benchmarks/results/flower_sums.json

`SecAggPlusWorkflow` and `secaggplus_mod` call each other in this process, on a grid that counts the bytes of each message.
As in `benchmarks.secure_sums`, t members must answer, one in ten vanishes before its vector, and three agents are measured;
the others send zeros, which take the server as long. Each agent shares with all others, as in one of our groups.
Seconds of an agent are those of its masks, keys and shares, and of turning its values into integers.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flwr
import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.client.mod.secure_aggregation.secaggplus_mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Status, ndarray_to_bytes, ndarrays_to_parameters
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from flwr.common.serde import recorddict_to_proto
from flwr.compat.common import recorddict_compat as compat
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import SecAggPlusWorkflow
from flwr.supercore.task_identity import TaskIdentity

SAMPLE = 3  # agents that are measured
MISSING = 0.1
CASES = [  # agents, values, threshold as ours
    (10, 44_426, 7),
    (100, 44_426, 61),
    (10, 11_000_000, 7),
]


class Grid:
    """Calls the clients in turn, and counts."""

    def __init__(self, count: int, values: int) -> None:
        self.values = values
        names = [1000 + i for i in range(count)]
        self.contexts = {name: Context(1, name, {}, RecordDict(), {}) for name in names}
        self.sampled = set(names[:SAMPLE])
        self.gone = set(names[count - round(MISSING * count) :])
        self.client_s, self.clients_s, self.bytes = 0.0, 0.0, 0
        self.stage = -1
        # the others' vector, in the form in which a client sends it
        self.zeros = [ndarray_to_bytes(np.zeros(size, np.int64)) for size in (1, values)]

    def send_and_receive(self, messages: list[Message], *, timeout: Any = None) -> list[Message]:
        self.stage += 1
        began, replies = time.process_time(), []
        for message in messages:
            name = message.metadata.dst_node_id
            if self.stage >= 2 and name in self.gone:
                replies.append(Message(Error(0), reply_to=message))
                continue
            is_sampled = name in self.sampled
            sent = recorddict_to_proto(message.content).ByteSize() if is_sampled else 0
            message = copy.deepcopy(message)  # the client takes its settings out of it
            start = time.process_time()
            reply = secaggplus_mod(
                message, self.contexts[name], self.train if is_sampled else self.train_nothing
            )
            if is_sampled:
                self.client_s += time.process_time() - start
                self.bytes += sent + recorddict_to_proto(reply.content).ByteSize()
            elif self.stage == 2:
                reply.content.config_records[RECORD_KEY_CONFIGS][Key.MASKED_PARAMETERS] = self.zeros
            replies.append(reply)
        self.clients_s += time.process_time() - began
        return replies

    def train(self, message: Message, _context: Context, values: int = 0) -> Message:
        vector = np.zeros(values or self.values, np.float32)
        result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([vector]), 10, {})
        return Message(compat.fitres_to_recorddict(result, False), reply_to=message)

    def train_nothing(self, message: Message, context: Context) -> Message:
        return self.train(message, context, 1)


def measured(count: int, values: int, threshold: int) -> dict[str, Any]:
    grid = Grid(count, values)
    model = ndarrays_to_parameters([np.zeros(values, np.float32)])
    proxies = [SimpleNamespace(node_id=name) for name in grid.contexts]
    strategy = SimpleNamespace(
        configure_fit=lambda *_: [(proxy, FitIns(model, {})) for proxy in proxies],
        aggregate_fit=lambda *_: (None, {}),
    )
    state = RecordDict()
    state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({"current_round": 1})
    state.array_records[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(model, True)
    manager = SimpleNamespace(num_available=lambda: count)
    context = LegacyContext(Context(1, 0, {}, state, {}), strategy=strategy, client_manager=manager)
    workflow = SecAggPlusWorkflow(1.0, threshold, max_weight=1000.0, clipping_range=1.0)
    began = time.process_time()
    workflow(grid, context)
    server_s = time.process_time() - began - grid.clients_s
    plain = 2 * 4 * values
    return {
        "device_s": grid.client_s / SAMPLE,
        "coordinator_s": server_s,
        "bytes": grid.bytes / SAMPLE,
        "ratio_of_bytes": grid.bytes / SAMPLE / plain,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 0
    settings = {"flwr": flwr.__version__, "sample": SAMPLE, "missing": MISSING}
    found: dict[str, Any] = {}
    for case in CASES:
        key = f"{case[0]} agents, {case[1]} values"
        found[key] = measured(*case)
        print(key, found[key], flush=True)
        content = json.dumps({"settings": settings, "cells": found}, indent=1)
        options.out.write_text(content)


if __name__ == "__main__":
    main()
