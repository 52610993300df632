"""Orders, models and statuses as a coordinator would publish them, for tests of the agent."""

from __future__ import annotations

from typing import Any

from covey.shared.numerics.vectors import Layout, Tensor
from covey.shared.scenario.task import Task
from covey.shared.strategies.base import Training
from covey.shared.strategies.fedavg import FedAvg
from covey.shared.wire.deployments import Deployment
from covey.shared.wire.documents import CoordinatorStatus
from covey.shared.wire.messages import ModelRef, OrderMessage, Work, digest
from covey.shared.wire.parts import part_count
from covey.shared.wire.topics import deployed_key

TASK = Task(features=(4,), classes=2)
LAYOUT = Layout((Tensor("fc.weight", (2, 4)), Tensor("fc.bias", (2,))), 2)
MODEL = b"a model" * 100
PART_BYTES = 1024
CONTENTS = (b"model of cluster 0", b"model of cluster 1")  # published for use


def ref(key: str = "0", content: bytes = MODEL, part_bytes: int = PART_BYTES) -> ModelRef:
    return ModelRef(
        key=key,
        digest=digest(content),
        parts=part_count(len(content), part_bytes),
        size=len(content),
    )


def work(*refs: ModelRef, phase: str = "train", round_: int = 0, **changes: Any) -> Work:
    fields: dict[str, Any] = {
        "phase": phase,
        "round": round_,
        "seed": 0,
        "strategy": FedAvg().model_dump(mode="json"),
        "training": Training().model_dump(mode="json"),
        "task": TASK.for_agents(),
        "layout": LAYOUT.to_wire(),
        "scaling": None,
        "models": list(refs),
        "numbers": {},
        "cluster": None,
        "sizes": {"model": LAYOUT.size},
        "codec": {"name": "float32"},
        "evaluation": {"tune_epochs": 1},
        "part_bytes": PART_BYTES,
    }
    return Work(**{**fields, **changes})


def order(
    step: int,
    *refs: ModelRef,
    run: str = "run-1",
    accepted: int = 0,
    closed: int = -1,
    **changes: Any,
) -> OrderMessage:
    """An order to work on `step`; everything before it is closed."""
    again, serial, use = (changes.pop(name, 0) for name in ("again", "serial", "use"))
    cluster = changes.pop("cluster", None)
    closed = max(step - 1, 0) if closed < 0 else closed
    wanted = work(*refs, **changes)
    plain = {"accepted": accepted, "closed": closed, "again": again, "serial": serial}
    return OrderMessage(run=run, step=step, cluster=cluster, work=wanted, use=bool(use), **plain)


def rest(*, run: str = "run-1", accepted: int = 0, closed: int = 0, **changes: Any) -> OrderMessage:
    """Nothing to do."""
    return OrderMessage(run=run, step=0, accepted=accepted, closed=closed, **changes)


def status(epoch: str = "e1", *, task: bool = False, **changes: Any) -> CoordinatorStatus:
    fields: dict[str, Any] = {"online": True, "epoch": epoch, "run": "run-1"}
    if task:
        fields |= {"task": TASK.for_agents(), "task_digest": TASK.digest}
    return CoordinatorStatus(**{**fields, **changes})


def deployment(serial: int = 5, clusters: int = 2, **changes: Any) -> Deployment:
    refs = [ref(deployed_key(k), CONTENTS[k]) for k in range(clusters)]
    fields: dict[str, Any] = {
        "serial": serial,
        "run": "run-1",
        "round": 3,
        "origin": "run",
        "task": TASK.for_agents(),
        "layout": LAYOUT.to_wire(),
        "models": refs,
    }
    return Deployment(**{**fields, **changes})
