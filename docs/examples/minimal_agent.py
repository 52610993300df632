"""A whole agent that uses nothing of Covey: an MQTT client, msgpack and the standard library.

    python minimal_agent.py BROKER_PORT AGENT_ID TABLE.csv

It follows docs/protocol.md step by step, so that an agent in another language can be checked against it. It trains a
linear classifier with plain SGD and takes part in FedAvg runs of the model `linear`. The table has a header, numbers as
features, and the class (0, 1, ...) in the last column. It ends when the run is finished.

Left out, because a demonstration can: TLS and passwords, a report that survives a restart of this program, and a second
agent with the same id.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import random
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

Fields = dict[str, Any]
Example = tuple[list[float], int]

FEDERATION = "default"
PROTOCOL_VERSION = 1
FORMAT = 1  # what the fields of statuses, orders and reports mean
RESEND_S = 2.0
RECONNECT_S = 1.0
QOS = 1


# Framing: how fields become the payload of a message.


def checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=8).digest()


def content_digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def pack_report(fields: Fields) -> bytes:
    """A report: version and body. Its digest protects all of it."""
    body: bytes = msgpack.packb(fields, use_bin_type=True)
    return bytes([PROTOCOL_VERSION]) + body


def pack_part(fields: Fields) -> bytes:
    """A part: version, the checksum of all fields but `data`, which is the last one, and the body."""
    body: bytes = msgpack.packb(fields, use_bin_type=True)
    without_data = body[: len(body) - len(fields["data"])]
    return bytes([PROTOCOL_VERSION]) + checksum(without_data) + body


def unpack(payload: bytes) -> Fields:
    """The fields of a msgpack message. ValueError for one that is damaged or of another version."""
    body = payload[9:]
    if payload[0] != PROTOCOL_VERSION or payload[1:9] != checksum(body):
        raise ValueError("another version, or damaged")
    fields: Fields = msgpack.unpackb(body, raw=False)
    return fields


def unpack_part(payload: bytes) -> Fields:
    """The fields of a part. ValueError for one that is damaged, or of another version; its data has a digest."""
    body = payload[9:]
    fields: Fields = msgpack.unpackb(body, raw=False)
    without_data = body[: len(body) - len(fields["data"])]
    if payload[0] != PROTOCOL_VERSION or payload[1:9] != checksum(without_data):
        raise ValueError("another version, or damaged")
    return fields


def write_document(fields: Fields) -> bytes:
    """A JSON message: the checksum of the text without it is its last key."""
    body = json.dumps(fields).encode()
    return body[:-1] + b',"check":"' + checksum(body).hex().encode() + b'"}'


def read_document(payload: bytes) -> Fields:
    """The fields of a JSON message. ValueError for one that is damaged."""
    tail = len(',"check":"0123456789abcdef"}')
    body = payload[:-tail] + b"}"
    fields: Fields = json.loads(payload)
    if fields.pop("check") != checksum(body).hex():
        raise ValueError("damaged")
    return fields


def encode_vector(values: list[float]) -> Fields:
    """A vector in the codec float32, which every coordinator accepts."""
    data = struct.pack(f"<{len(values)}f", *values)
    return {
        "codec": "float32",
        "length": len(values),
        "base": b"",
        "data": data,
        "scale": b"",
        "index": b"",
    }


def decode_vector(encoded: Fields) -> list[float]:
    if encoded["codec"] != "float32":
        raise ValueError(f"this agent does not know the codec {encoded['codec']}")
    return list(struct.unpack(f"<{encoded['length']}f", encoded["data"]))


# The model `linear`: scores = weights x features + biases, in the layout of a vector.


class Linear:
    """A linear classifier of `inputs` features. A vector holds the weights row by row, then the biases."""

    def __init__(self, vector: list[float], inputs: int, classes: int) -> None:
        self.inputs = inputs
        self.classes = classes
        self.vector = list(vector)

    def chances(self, features: list[float]) -> list[float]:
        """The probability of each class."""
        scores = []
        for c in range(self.classes):
            row = self.vector[c * self.inputs : (c + 1) * self.inputs]
            bias = self.vector[self.classes * self.inputs + c]
            scores.append(bias + sum(w * x for w, x in zip(row, features, strict=True)))
        powers = [math.exp(score - max(scores)) for score in scores]
        return [power / sum(powers) for power in powers]

    def step(self, batch: list[Example], rate: float) -> float:
        """One step of SGD on the mean cross-entropy of a batch. Returns the loss before the step."""
        gradient = [0.0] * len(self.vector)
        loss = 0.0
        for features, label in batch:
            chances = self.chances(features)
            loss -= math.log(max(chances[label], 1e-12))
            for c, chance in enumerate(chances):
                error = chance - (1.0 if c == label else 0.0)
                for i, x in enumerate(features):
                    gradient[c * self.inputs + i] += error * x
                gradient[self.classes * self.inputs + c] += error
        for i, slope in enumerate(gradient):
            self.vector[i] -= rate * slope / len(batch)
        return loss / len(batch)

    def figures(self, examples: list[Example]) -> Fields:
        """What an evaluation reports: test examples, hits, accuracy, macro F1 and mean cross-entropy."""
        if not examples:
            return {"n": 0}
        guesses = []
        loss = 0.0
        for features, label in examples:
            chances = self.chances(features)
            guesses.append(chances.index(max(chances)))
            loss -= math.log(max(chances[label], 1e-12))
        labels = [label for _, label in examples]
        correct = sum(guess == label for guess, label in zip(guesses, labels, strict=True))
        scores = []
        for c in sorted({*labels, *guesses}):
            hits = sum(guess == label == c for guess, label in zip(guesses, labels, strict=True))
            scores.append(2 * hits / (labels.count(c) + guesses.count(c)))
        return {
            "n": len(examples),
            "correct": correct,
            "accuracy": correct / len(examples),
            "f1": sum(scores) / len(scores),
            "loss": loss / len(examples),
        }


class MinimalAgent:
    """One agent. All callbacks run in the thread of `run`, one after the other."""

    def __init__(self, port: int, agent: str, examples: list[Example]) -> None:
        cut = len(examples) * 4 // 5
        self.train, self.test = examples[:cut], examples[cut:]
        self.agent, self.port = agent, port
        self.base = f"covey/{FEDERATION}"
        self.session = f"{int(time.time() * 1000):012x}{random.getrandbits(32):08x}"
        self.serial = 0  # of the newest status
        self.epoch = ""  # the roll call that the next status answers
        self.task_digest = ""  # the task that the data was checked against
        self.problem: str | None = None  # why this agent stays out
        self.run_id = ""  # the run of the coordinator that is online
        self.order: Fields = {}  # the newest order of that run
        # an order of a run that no coordinator has named yet
        self.early_order: Fields | None = None
        self.parts: dict[bytes, dict[int, bytes]] = {}  # of models, by digest and index
        self.models: dict[bytes, list[float]] = {}  # by digest
        self.report: tuple[int, bytes, int] | None = None  # step, content and size of its parts
        self.reported_work = b""  # digest of the work that the report came from
        self.resend_at = math.inf
        self.finished = False
        self.client = self.connected_client()

    # Connection: a clean session, a last will, three subscriptions.

    def connected_client(self) -> mqtt.Client:
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=f"covey-{FEDERATION}-{self.agent}-{self.session}",
            clean_session=True,
            protocol=mqtt.MQTTv311,
        )
        will = {
            "format": FORMAT,
            "agent": self.agent,
            "session": self.session,
            "serial": 0,
            "online": False,
        }
        client.will_set(self.topic("status"), write_document(will), qos=QOS, retain=True)
        client.on_connect = self.on_connect
        client.on_message = self.on_message
        return client

    def topic(self, leaf: str) -> str:
        return f"{self.base}/agents/{self.agent}/{leaf}"

    def on_connect(self, *_: Any) -> None:
        for topic in (f"{self.base}/coordinator/status", self.topic("order"), self.topic("status")):
            self.client.subscribe(topic, qos=QOS)
        self.publish_status()
        self.send_report()

    def run(self) -> None:
        """Take part until the run is finished."""
        self.client.connect("127.0.0.1", self.port, keepalive=30)
        while not self.finished:
            if self.client.loop(timeout=0.2) != mqtt.MQTT_ERR_SUCCESS:
                time.sleep(RECONNECT_S)
                self.client.reconnect()
            if time.monotonic() >= self.resend_at:
                self.send_report()
        self.publish_status(online=False)
        self.client.loop(timeout=0.2)
        self.client.disconnect()

    # Messages in: anything that is damaged or unknown is dropped.

    def on_message(self, _client: mqtt.Client, _userdata: Any, message: mqtt.MQTTMessage) -> None:
        if not message.payload:
            return
        try:
            self.handler(message.topic)(bytes(message.payload))
        except (ValueError, KeyError, TypeError) as error:
            print(f"dropped a message on {message.topic}: {error}", flush=True)

    def handler(self, topic: str) -> Callable[[bytes], None]:
        if topic == f"{self.base}/coordinator/status":
            return self.coordinator_seen
        if topic == self.topic("status"):
            return self.own_status_seen
        if topic == self.topic("order"):
            return lambda payload: self.order_seen(unpack(payload))
        return self.model_part_seen

    # Presence: statuses, roll calls, and the question whether this agent is still there.

    def publish_status(self, online: bool = True) -> None:
        self.serial += 1
        status = {
            "format": FORMAT,
            "agent": self.agent,
            "session": self.session,
            "serial": self.serial if online else 0,
            "online": online,
            "epoch": self.epoch,
            "task": self.task_digest,
            "samples": len(self.train),
            "test_samples": len(self.test),
            "problem": self.problem,
        }
        self.client.publish(self.topic("status"), write_document(status), qos=QOS, retain=True)

    def own_status_seen(self, payload: bytes) -> None:
        if not read_document(payload)["online"]:
            self.publish_status()  # somebody believes that this agent is gone

    def coordinator_seen(self, payload: bytes) -> None:
        status = read_document(payload)
        if not status["online"]:
            return
        self.finished = status["state"] == "finished"
        self.run_id = status["run"]
        if status["task"] is not None and status["task_digest"] != self.task_digest:
            self.check_task(status["task"])
            self.task_digest = status["task_digest"]
            self.epoch = ""  # so that the new status goes out
        if status["epoch"] != self.epoch:
            self.epoch = status["epoch"]
            self.publish_status()
        if self.early_order is not None:
            self.order_seen(self.early_order)

    def check_task(self, task: Fields) -> None:
        """Say what does not fit; a coordinator invites only agents without a problem."""
        inputs = len(self.train[0][0])
        self.problem = None
        if task["features"] != [inputs] or task["model"]["name"] != "linear":
            self.problem = f"this agent has {inputs} features and knows the model linear"

    # Orders: the desired state of this agent.

    def order_seen(self, order: Fields) -> None:
        self.early_order = None
        if order["run"] != self.run_id:
            self.early_order = order
            return
        if self.is_older(order):
            return  # a late duplicate
        self.order = order
        done = max(order["accepted"], order["closed"])
        if self.report is not None and self.report[0] <= done:
            self.report = None
            self.resend_at = math.inf
        if order["work"] is None or order["step"] <= done:
            return
        work_digest = content_digest(msgpack.packb(order["work"]))
        if self.report is not None and work_digest == self.reported_work:
            self.send_report()  # the work is done: answer again
            return
        self.report = None
        self.fetch_models(order["work"])

    def is_older(self, order: Fields) -> bool:
        known = self.order
        same_run = bool(known) and known["run"] == order["run"]
        return same_run and (order["again"], order["serial"]) < (known["again"], known["serial"])

    # Models: retained parts, fetched by subscribing to exactly the topics that the order names.

    def model_topics(self, ref: Fields) -> list[str]:
        key = ref["key"]
        folder = f"agents/{key[1:]}" if key.startswith("@") else f"clusters/{key}"
        return [f"{self.base}/{folder}/model/{part}" for part in range(ref["parts"])]

    def fetch_models(self, work: Fields) -> None:
        missing = [ref for ref in work["models"] if ref["digest"] not in self.models]
        if not missing:
            self.do_work(work)
        for ref in missing:
            for topic in self.model_topics(ref):
                self.client.subscribe(topic, qos=QOS)

    def model_part_seen(self, payload: bytes) -> None:
        part = unpack_part(payload)
        work = self.order.get("work")
        if work is None or part["digest"] in self.models:
            return
        wanted = [ref for ref in work["models"] if ref["digest"] == part["digest"]]
        if not wanted:
            return  # a part of an older or a newer model
        pieces = self.parts.setdefault(part["digest"], {})
        pieces[part["index"]] = part["data"]
        if len(pieces) < part["count"]:
            return
        content = b"".join(pieces[index] for index in range(part["count"]))
        self.parts.clear()
        if content_digest(content) != part["digest"]:
            raise ValueError("the parts do not make the content that the order names")
        self.models[part["digest"]] = decode_vector(unpack(content)["vector"])
        self.client.unsubscribe(self.model_topics(wanted[0]))
        if all(ref["digest"] in self.models for ref in work["models"]):
            self.do_work(work)

    # Work: from the order and its models to a report.

    def do_work(self, work: Fields) -> None:
        began = time.monotonic()
        step = self.order["step"]
        self.reported_work = content_digest(msgpack.packb(work))
        report: Fields = {
            "format": FORMAT,
            "run": self.run_id,
            "step": step,
            "work": self.reported_work,
            "client": self.agent,
            "examples": len(self.train),
            "steps": 0,
            "loss": 0.0,
            "numbers": {},
            "seconds": 0.0,
            "vectors": {},
            "failure": None,
        }
        vectors = [self.models[ref["digest"]] for ref in work["models"]]
        if work["phase"] == "train" and work["strategy"]["name"] == "fedavg":
            self.train_model(work, vectors[0], report)
        elif work["phase"] == "evaluate":
            model = self.model_of(work, vectors[0])
            report["numbers"] = {"server": model.figures(self.scaled(work, self.test))}
        else:
            report["failure"] = f"this agent does not know the phase {work['phase']}"
        report["seconds"] = time.monotonic() - began
        self.models = {ref["digest"]: self.models[ref["digest"]] for ref in work["models"]}
        self.report = (step, pack_report(report), work["part_bytes"])
        self.send_report()

    def model_of(self, work: Fields, vector: list[float]) -> Linear:
        [(_, (classes, inputs)), _] = work["layout"]["tensors"]
        return Linear(vector, inputs, classes)

    def scaled(self, work: Fields, examples: list[Example]) -> list[Example]:
        scale = work["task"]["scale"]
        return [([x * scale for x in features], label) for features, label in examples]

    def train_model(self, work: Fields, start: list[float], report: Fields) -> None:
        model = self.model_of(work, start)
        settings = work["training"]
        examples = self.scaled(work, self.train)
        losses = []
        for _ in range(settings["epochs"]):
            random.shuffle(examples)
            for at in range(0, len(examples), settings["batch"]):
                losses.append(model.step(examples[at : at + settings["batch"]], settings["lr"]))
        report["steps"] = len(losses)
        report["loss"] = sum(losses) / len(losses)
        report["vectors"] = {"model": encode_vector(model.vector)}

    # Reports: in parts, again and again, until an order accepts the report.

    def send_report(self) -> None:
        if self.report is None:
            return
        step, content, part_bytes = self.report
        count = -(-len(content) // part_bytes)
        length = -(-len(content) // count)
        for index in range(count):
            part = {
                "digest": content_digest(content),
                "index": index,
                "count": count,
                "size": len(content),
                "about": step,
                "data": content[index * length : (index + 1) * length],
            }
            self.client.publish(self.topic("report/0"), pack_part(part), qos=QOS)
        self.resend_at = time.monotonic() + RESEND_S


def read_table(path: str) -> list[Example]:
    with Path(path).open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    return [([float(cell) for cell in row[:-1]], int(row[-1])) for row in rows]


if __name__ == "__main__":
    MinimalAgent(int(sys.argv[1]), sys.argv[2], read_table(sys.argv[3])).run()
