"""One filled-in example of every message, for golden files and for mutation."""

from __future__ import annotations

from covey.shared.wire.aggregates import (
    AggregatorOrder,
    AggregatorStatus,
    AggregatorTask,
    FailedReport,
    PartialSum,
    RefusedReport,
    SummedReport,
)
from covey.shared.wire.brief_work import shared_of
from covey.shared.wire.deployments import Deployment, DeploymentShare
from covey.shared.wire.documents import AgentStatus, Control, CoordinatorStatus, RosterMessage
from covey.shared.wire.framing import Document, Packed
from covey.shared.wire.messages import (
    Encoded,
    ModelContent,
    ModelRef,
    OrderMessage,
    Part,
    ReportContent,
    Work,
    digest,
)

VECTOR = Encoded(codec="float32", length=2, data=b"\x00\x00\x80\x3f\x00\x00\x00\xc0")
WORK = Work(
    phase="train",
    round=3,
    seed=7,
    strategy={"name": "fedavg"},
    training={"epochs": 1, "batch": 10, "lr": 0.01, "momentum": 0.0, "weight_decay": 0.0},
    task={"features": [2], "classes": ["no", "yes"]},
    layout={"trainable": 2, "tensors": [["out.weight", [2, 2]], ["out.bias", [2]]]},
    scaling={"mean": [0.5], "std": [2.0]},
    models=[ModelRef(key="0", digest=digest(b"a model"), parts=1, size=7)],
    numbers={"mu": 0.5, "weights": [0.25, 0.75]},
    cluster=1,
    sizes={"model": 6},
    codec={"name": "int8", "delta": True, "block": 256, "keep": 0.01},
    evaluation={},
    part_bytes=65536,
)
SAMPLES: dict[str, Packed | Document] = {
    "part": Part(digest=digest(b"content"), index=1, count=2, size=7, about=12, data=b"ent"),
    "order": OrderMessage(
        run="run-1", serial=40, step=12, accepted=11, closed=10, again=1, cluster=1, work=WORK
    ),
    "shared_work": shared_of(WORK),
    "model": ModelContent(layout="0123456789abcdef", vector=VECTOR),
    "report": ReportContent(
        run="run-1",
        step=12,
        work=WORK.digest,
        client="pi-7",
        examples=120,
        steps=12,
        loss=0.75,
        numbers={"choice": 1},
        seconds=1.5,
        vectors={"model": VECTOR},
    ),
    "agent_status": AgentStatus(
        agent="pi-7",
        session="s1",
        serial=4,
        online=True,
        epoch="e1",
        samples=120,
        test_samples=30,
        labels=["no", "yes"],
        busy=True,
        version="0.1.0",
        dropped={"truncated": 2},
    ),
    "coordinator_status": CoordinatorStatus(
        online=True,
        epoch="e1",
        run="run-1",
        name="two-groups",
        round=3,
        rounds=10,
        phase="train",
        step=12,
        state="open",
        task={"features": [2]},
        task_digest="d1",
    ),
    "roster": RosterMessage(run="run-1", agents={"pi-7": {"online": True}}, refusals={"fields": 1}),
    "control": Control(command="pause"),
    "deployment": Deployment(
        serial=12,
        run="run-1",
        round=3,
        origin="operator",
        task={"features": [2], "classes": ["no", "yes"]},
        layout={"trainable": 2, "tensors": [["out.weight", [2, 2]], ["out.bias", [2]]]},
        models=[ModelRef(key="deployed-0", digest=digest(b"a model"), parts=1, size=7)],
    ),
    "deployment_share": DeploymentShare(serial=12, cluster=1),
    "aggregator_status": AggregatorStatus(session="s1", online=True, run="run-1", step=12),
    "aggregator_order": AggregatorOrder(
        run="run-1",
        step=12,
        task=ModelRef(key="aggregator-task", digest=digest(b"a task"), parts=1, size=6),
        agents={"pi-7": 120, "pi-8": None},
        settled=[digest(b"a sum")],
    ),
    "aggregator_task": AggregatorTask(
        run="run-1",
        step=12,
        scenario="{}",
        phase="{}",
        state=b"a state",
        arrays={digest(b"an array").hex(): b"an array"},
        layout=WORK.layout,
        bases={digest(b"a model").hex(): b"a model"},
    ),
    "partial_sum": PartialSum(
        run="run-1",
        step=12,
        session="s1",
        serial=4,
        reports=[
            SummedReport(
                client="pi-7",
                digest=digest(b"a report"),
                work=WORK.digest,
                examples=120,
                steps=12,
                loss=0.75,
                numbers={"choice": 1},
                seconds=1.5,
                norms={"model": 0.5},
            )
        ],
        failures=[FailedReport(client="pi-8", why="the disk is full")],
        refusals=[RefusedReport(client="pi-9", reason="other run", detail="report of run run-0")],
        ignored=["pi-1"],
        sums=b"sums",
    ),
}
