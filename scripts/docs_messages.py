"""The reference of messages: every field of every message with its type, bounds, default and meaning, and an example.

Types and bounds come from the message classes. The meanings are here. `page` raises ValueError where a field has no
meaning or a meaning has no field, so that the page and the code cannot drift apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from docs_markdown import cell, code, table, type_text
from pydantic import BaseModel

from covey.shared.wire import documents
from covey.shared.wire import messages as wire
from covey.shared.wire.deployments import Deployment, DeploymentShare

Json = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """One message of the page.

    `topic` is where it travels, or "" for a message inside another one; `format` is "msgpack", "JSON" or "".
    """

    kind: type[BaseModel]
    title: str
    topic: str
    format: str
    about: str
    meanings: Mapping[str, str]
    example: BaseModel | None


DIGEST = bytes(range(16))
STEP = 3

MODEL_REF = wire.ModelRef(key="0", digest=DIGEST, parts=1, size=139)
WORK = wire.Work(
    phase="train",
    round=1,
    seed=7,
    strategy={"name": "fedavg"},
    training={
        "epochs": 1,
        "batch": 10,
        "lr": 0.1,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "lr_steps": [],
    },
    task={
        "features": [2],
        "classes": 2,
        "model": {"name": "linear", "options": {}},
        "scale": 1.0,
        "standardise": "none",
    },
    layout={"trainable": 2, "tensors": [["0.weight", [2, 2]], ["0.bias", [2]]]},
    scaling=None,
    models=[MODEL_REF],
    numbers={},
    cluster=0,
    sizes={"model": 6},
    codec={"name": "float32", "delta": False, "block": 256, "keep": 0.01},
    evaluation={"every": 0, "tune_epochs": 1, "tune": {}, "track": False, "weight": "test"},
    part_bytes=524288,
)
FORMAT_MEANING = "[what messages mean](../protocol.md#formats) to the sender; without it 0"
VECTOR = wire.Encoded(codec="float32", length=2, data=bytes.fromhex("0000803f000000c0"))

ENTRIES = (
    Entry(
        documents.CoordinatorStatus,
        "Coordinator status",
        "covey/{f}/coordinator/status",
        "JSON",
        "What runs. Retained, and the coordinator's last will with `online` false. A new `epoch` calls the roll: every "
        "agent answers with its status.",
        {
            "online": "false in the last will and after the coordinator has ended",
            "version": "version of the coordinator's program, for people",
            "format": FORMAT_MEANING,
            "epoch": "name of this roll call: the coordinator's session, a dot, and a number that grows",
            "run": "the run's id; orders carry the same one",
            "incarnation": "grows with every start of a coordinator of this run; of two, the higher one continues",
            "name": "the scenario's name, for people",
            "round": "the round that is open, or the newest that was folded",
            "rounds": "rounds of the whole run",
            "phase": "name of the open phase; empty where none is open",
            "step": "number of the newest step",
            "state": "what the coordinator does",
            "given_up": "with `state` stopped: the run ended without its last round, and can be resumed",
            "clock": "its time when it published this, in seconds since 1970",
            "trouble": "the error that has stopped it, or what its disk waits for; without a path",
            "task": "the task to check the data against: `features`, `classes`, `model`, `scale`, `standardise`",
            "task_digest": "name of that task; an agent repeats it in its status once its data was checked",
            "batch": "samples of a mini-batch of the run; a device with a limit on its memory tries a step",
            "delivery": "when agents subscribe to models: while an order names them, or all the time",
            "spread_s": "the time over which agents spread their answers to the roll call; left out if it is 0.5",
        },
        documents.CoordinatorStatus(
            online=True,
            epoch="0199f00c5a10ab12cd34.1",
            run="pilot-1a2b3c4d",
            incarnation=1,
            name="pilot",
            round=1,
            rounds=10,
            phase="train",
            step=STEP,
            state="open",
            task=WORK.task,
            task_digest="a1b2c3d4e5f60718",
        ),
    ),
    Entry(
        documents.AgentStatus,
        "Agent status",
        "covey/{f}/agents/{a}/status",
        "JSON",
        "Who an agent is and how it does. Retained, and the agent's last will with `online` false and `serial` 0. The "
        "coordinator invites an agent whose status is online, has no `problem`, and repeats the newest `task` and "
        "`epoch`. At most 32 KiB.",
        {
            "agent": "the agent's id, as in the topic",
            "session": "new for each start of the agent and sorted by time: of two agents with one id the older one stays",
            "serial": "grows with every status of a session; 0 in a last will",
            "online": "false: the agent has left",
            "epoch": "the coordinator's roll call that this answers",
            "task": "digest of the task that the data was checked against",
            "samples": "training examples",
            "test_samples": "test examples",
            "labels": "names of the classes that the agent holds; may stay empty",
            "problem": "why the agent stays out of the run; null: it takes part",
            "busy": "it has been working on an order for a second",
            "version": "version of the agent's program, for people",
            "format": FORMAT_MEANING,
            "dropped": "messages that the agent refused, by reason",
            "model": "the model that the device uses itself; left out if it keeps none",
            "brief": "true if orders may have a `brief`; left out otherwise",
            "certificate": "when the first certificate ends that its connection needs, in seconds since 1970; a last will has it too",
            "disk_free": "bytes on the disk of the agent's state",
            "clock": "the device's time when it published this, in seconds since 1970",
            "links": "connections within a day, the present one included",
            "twins": "times that another program with its id was heard; left out without any",
            "refused": "why the coordinator refused its newest report; left out if it did not",
        },
        documents.AgentStatus(
            agent="pi-7",
            session="0199f00c5b20aa11bb22",
            serial=2,
            online=True,
            epoch="0199f00c5a10ab12cd34.1",
            task="a1b2c3d4e5f60718",
            samples=120,
            test_samples=30,
            labels=["0", "1"],
        ),
    ),
    Entry(
        documents.ModelInUse,
        "Model in use",
        "",
        "",
        "The model that a device uses for its own predictions, inside of an agent's status. For people; the coordinator "
        "decides nothing by it.",
        {
            "run": "the run that made the model; empty before the first one",
            "round": "complete rounds that the model was trained in",
            "name": "of the version, as its publication has it",
            "cluster": "the group that it belongs to; null: the method has none",
            "serial": "of the newest deployment that the device has taken over or kept out",
            "rejected": "models that the device's own check kept out",
            "hook_failures": "failures of the command that runs after a change",
            "uses": "what the device mixes, in words; empty where that may not leave it",
            "note": "the newest decision",
            "figure": "of that model on the device's test part; left out where reports of its runs have no such figure either",
            "measure": "of the figure",
        },
        None,
    ),
    Entry(
        wire.OrderMessage,
        "Order",
        "covey/{f}/agents/{a}/order",
        "msgpack",
        "The desired state of one agent. Retained. At most 16 MiB. `step` 0 or `work` null: nothing to do.",
        {
            "format": FORMAT_MEANING,
            "run": "the run's id",
            "serial": "grows with every order; of two orders the one with the greater (`again`, `serial`) is newer",
            "step": "number of the attempt; each is used once in a run",
            "accepted": "newest step of this agent whose report is on the coordinator's disk",
            "closed": "reports of steps up to this one are not needed any more",
            "again": "grows with every restart of the coordinator, which then needs unaccepted reports again",
            "cluster": "the agent's group; null: not assigned",
            "work": "what to do; null: nothing, or see `brief`",
            "brief": "the work without what all agents share, for agents whose status has `brief`; left out if it is not used",
            "refused": "why the agent's newest report was refused, or why its reports do not count; left out if none was",
            "use": "whether the device may use the model that the order gives it for its own predictions; left out if not",
        },
        wire.OrderMessage(
            run="pilot-1a2b3c4d", serial=4, step=STEP, accepted=1, closed=2, cluster=0, work=WORK
        ),
    ),
    Entry(
        wire.Work,
        "Work",
        "",
        "",
        "The work of an order: everything that training needs besides data and models. A field that an agent does not "
        "know means that the coordinator is newer: answer with a `failure`.",
        {
            "phase": "`train`, `evaluate`, `moments`, or a phase of the method such as `signature`",
            "round": "the round that the phase belongs to",
            "seed": "the scenario's seed",
            "strategy": "`name` of the training method and its hyper-parameters",
            "training": "local SGD: `epochs`, `batch`, `lr`, `momentum`, `weight_decay`, `lr_steps`, `device` where it is not `cpu`",
            "task": "as in the coordinator's status",
            "layout": "`tensors`: pairs of name and shape, in the order of the vector; the first `trainable` of them are parameters, the rest buffers",
            "scaling": "means and deviations per channel, and other statistics that the task asks the fleet for, or null",
            "models": "the models to start from; at most 65 536 parts together",
            "numbers": "figures of the method for this agent and phase",
            "cluster": "the group that the agent trains for",
            "sizes": "by name, the number of values of each vector that the report must hold; -n: at most n",
            "codec": "how to encode the report's vectors: `name`, `delta`, `block`, `keep`",
            "evaluation": "the scenario's section `evaluation`",
            "part_bytes": "largest part of the report, in bytes",
            "privacy": "noise that the agent adds; left out where the scenario has none",
        },
        None,
    ),
    Entry(
        wire.ModelRef,
        "Model reference",
        "",
        "",
        "A model that an order names: where its parts are, and which content they make.",
        {
            "key": "`3` for group 3 (`clusters/3/model/{part}`), `@pi-7` for a model of agent pi-7 alone (`agents/pi-7/model/{part}`)",
            "digest": "blake2b of the whole content, 16 bytes",
            "parts": "number of parts, on topics `.../model/0` to `.../model/{parts - 1}`",
            "size": "bytes of the whole content",
        },
        None,
    ),
    Entry(
        wire.Part,
        "Part",
        "covey/{f}/clusters/{k}/model/{part}, covey/{f}/agents/{a}/model/{part}, covey/{f}/agents/{a}/report/0",
        "msgpack",
        "A slice of a longer content: of a model (retained) or of a report (not retained).",
        {
            "digest": "blake2b of the whole content, 16 bytes",
            "index": "position of this part, from 0",
            "count": "number of parts",
            "size": "bytes of the whole content",
            "about": "a report's step; of a model a number that the agent ignores",
            "data": "the slice: ceil(`size` / `count`) bytes, only the last part may be shorter",
        },
        wire.Part(digest=DIGEST, index=0, count=1, size=4, about=STEP, data=b"\x01\x02\x03\x04"),
    ),
    Entry(
        wire.BriefWork,
        "Brief work",
        "",
        "",
        "Work without what all agents share. The fields are those of work.",
        {
            "shared": "the rest of the work: the key `order-settings`, digest, parts and size, at most 1 MiB",
            "phase": "as in work",
            "round": "as in work",
            "models": "as in work",
            "numbers": "as in work",
            "cluster": "as in work",
            "sizes": "as in work",
        },
        None,
    ),
    Entry(
        wire.SharedWork,
        "Shared work",
        "inside parts",
        "msgpack",
        "What the parts below `clusters/order-settings/model` make: the part of the work that all agents share. The fields are "
        "those of work.",
        {
            "seed": "as in work",
            "strategy": "as in work",
            "training": "as in work",
            "task": "as in work",
            "layout": "as in work",
            "scaling": "as in work",
            "codec": "as in work",
            "evaluation": "as in work",
            "part_bytes": "as in work",
            "privacy": "as in work, or null",
        },
        None,
    ),
    Entry(
        wire.ModelContent,
        "Model",
        "inside parts",
        "msgpack",
        "What the parts of a model make.",
        {"layout": "digest of the layout, 16 hexadecimal digits", "vector": "the model's values"},
        wire.ModelContent(layout="0f1e2d3c4b5a6978", vector=VECTOR),
    ),
    Entry(
        wire.ReportContent,
        "Report",
        "inside parts",
        "msgpack",
        "What the parts of a report make.",
        {
            "format": FORMAT_MEANING,
            "run": "as in the order",
            "step": "as in the order",
            "work": "digest of the order's `work`, packed as it came: 16 bytes of BLAKE2b",
            "client": "the agent's id",
            "examples": "training examples that the report counts with",
            "steps": "steps of SGD",
            "loss": "mean training loss; 0 where none was measured",
            "numbers": "figures that the phase asks for",
            "seconds": "seconds spent on the work",
            "vectors": "by name, the vectors that `work.sizes` asks for",
            "failure": "why the work was not done; null: it was",
            "client_state": "`lost`: the agent's memory of earlier work is gone; `ahead`: it is that of later work, which the coordinator has lost",
            "device": "what the training ran on; left out for `cpu`",
        },
        wire.ReportContent(
            run="pilot-1a2b3c4d",
            step=STEP,
            work=WORK.digest,
            client="pi-7",
            examples=120,
            steps=12,
            loss=0.5,
            numbers={},
            seconds=0.25,
            vectors={"model": VECTOR},
        ),
    ),
    Entry(
        wire.Encoded,
        "Encoded vector",
        "",
        "",
        "One vector. All numbers are little-endian.",
        {
            "codec": "`float32`, `float16`, `bfloat16`, `int8` or `topk`",
            "length": "number of values",
            "base": "digest of the model that this is a difference to; empty: the values themselves",
            "data": "the values",
            "scale": "`int8`: one float32 per block; else empty",
            "index": "`topk`: ascending positions as uint32; else empty",
        },
        None,
    ),
    Entry(
        documents.RosterMessage,
        "Roster",
        "covey/{f}/run/roster",
        "JSON",
        "The agents that the coordinator knows, for people and their tools. Retained. Of more than 500 agents, each page has "
        "a topic of its own, `run/roster/1` and so on, and rows that changed are published on `run/roster/changes`, not retained; "
        "there an empty row means that the agent was forgotten.",
        {
            "run": "the run's id",
            "round": "rounds that are over; left out before the first",
            "agents": "by agent: online, takes_part, `cluster`, seen, samples, problem, quarantined, silent, failing, ...",
            "refusals": "refused messages by reason",
            "pages": "how many pages the roster has; left out if this is the only one",
            "odd": "what `coordinator doctor` lists, on the first page; left out if nothing is odd",
        },
        documents.RosterMessage(
            run="pilot-1a2b3c4d", agents={"pi-7": {"online": True, "takes_part": True}}
        ),
    ),
    Entry(
        documents.Control,
        "Control",
        "covey/{f}/control",
        "JSON",
        "A command of the operator, written by hand or by a tool: the only JSON message without a checksum. Not "
        "retained. At most 4 KiB.",
        {
            "command": "`release` ends the quarantine of `agent`; `tell` makes a running coordinator publish its status",
            "agent": "for `release` alone",
        },
        documents.Control(command="release", agent="pi-7"),
    ),
    Entry(
        Deployment,
        "Deployment",
        "covey/{f}/deployment, covey/{f}/deployment/candidate",
        "msgpack",
        "The models that devices should use for their own predictions: one round of one run. Retained. At most 4 MiB. Agents "
        "that keep no model ignore it.",
        {
            "serial": "grows with every publication of the federation; the greatest one counts",
            "run": "the run that made the models",
            "round": "complete rounds that they were trained in",
            "name": "of the version, as people write it",
            "origin": "`run`: the run has finished; `operator`: `coordinator promote` or `rollback`",
            "task": "the task that they solve, with the statistics that the fleet found in place of `federated` and its like",
            "layout": "names and shapes of their tensors, as in an order",
            "models": "one for each group, in the order of the groups; the keys are `deployed-0`, `deployed-1` and so on, or `candidate-0`",
            "tune": "training settings with which a device trains its model at home; left out if it uses the model as it is",
            "judge": "for the judge on a device: `evaluation.deliver`, and the fleet's weights as an order of an evaluation has them; left out if it uses the model as it is",
            "force": "whether to take a model over without a check, unless the device's policy forbids it; left out if not",
            "devices": "of a candidate, the agents that try it: others ignore the message; left out if it is for all",
        },
        Deployment(
            serial=1772440000000,
            run="pilot-1a2b3c4d",
            round=12,
            origin="run",
            task=WORK.task,
            layout=WORK.layout,
            models=[wire.ModelRef(key="deployed-0", digest=DIGEST, parts=1, size=139)],
        ),
    ),
    Entry(
        DeploymentShare,
        "Deployment share",
        "covey/{f}/agents/{a}/deployment",
        "msgpack",
        "The group of one agent in a deployment. Retained. At most 1 KiB. An agent without one compares all models on "
        "its training data.",
        {
            "serial": "of the deployment that it belongs to; with another one it is outdated",
            "cluster": "the position of the agent's model in `models`",
        },
        DeploymentShare(serial=1772440000000, cluster=0),
    ),
)


def page() -> str:
    """All messages as Markdown."""
    lines: list[str] = []
    for entry in ENTRIES:
        _check_meanings(entry)
        lines += ["", f"## {entry.title}", "", entry.about, ""]
        if entry.topic:
            topics = (
                ", ".join(map(code, entry.topic.split(", "))) if "/" in entry.topic else entry.topic
            )
            lines += [f"Topic: {topics}. Format: {entry.format}.", ""]
        lines += table(["field", "type", "default", "meaning"], _rows(entry))
        lines += _example(entry)
    return "\n".join(lines)


def _check_meanings(entry: Entry) -> None:
    fields = set(entry.kind.model_fields)
    explained = set(entry.meanings)
    if fields != explained:
        differing = sorted(fields ^ explained)
        raise ValueError(f"{entry.title}: {differing} are fields or explained, but not both")


def _rows(entry: Entry) -> list[list[str]]:
    whole = entry.kind.model_json_schema(mode="validation")
    required = whole.get("required", [])
    rows = []
    for name, described in whole["properties"].items():
        kind = "name" if _is_name(entry.kind, name) else type_text(described, whole)
        kind = kind.replace("section", "map")
        default = "**required**" if name in required else _default(described)
        rows.append([code(name), kind, default, cell_with_code(entry.meanings[name])])
    return rows


def _default(described: Json) -> str:
    default = described.get("default", "")
    return "empty" if default in ("", [], {}) else code(json.dumps(default))


def _is_name(kind: type[BaseModel], field: str) -> bool:
    """Is the field of the type `Name`?"""
    [check] = wire.Name.__metadata__  # type: ignore[attr-defined]
    return check in kind.model_fields[field].metadata


def cell_with_code(text: str) -> str:
    """A meaning as a cell: its `code` stays code."""
    return cell(text).replace("\\*", "*")


def _example(entry: Entry) -> list[str]:
    example = entry.example
    if example is None:
        return []
    payload: bytes = example.to_bytes()  # type: ignore[attr-defined]
    if entry.format == "JSON":
        return ["", "Example, the whole payload:", "", "```json", payload.decode(), "```"]
    fields = json.dumps(_readable(example.model_dump()), indent=1)
    return [
        "",
        f"Example ({len(payload)} bytes). Its fields, with bytes as hexadecimal digits:",
        "",
        "```json",
        fields,
        "```",
        "",
        "Its payload:",
        "",
        "```text",
        *hex_lines(payload),
        "```",
    ]


def hex_lines(payload: bytes) -> list[str]:
    """A payload as hexadecimal digits, 32 bytes a line."""
    return [payload[at : at + 32].hex(" ") for at in range(0, len(payload), 32)]


def _readable(value: Any) -> Any:
    """A message's fields for people: bytes become hexadecimal digits."""
    match value:
        case bytes():
            return value.hex()
        case dict():
            return {key: _readable(item) for key, item in value.items()}
        case list():
            return [_readable(item) for item in value]
    return value
