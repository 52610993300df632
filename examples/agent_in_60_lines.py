"""An agent in 60 lines with its imports: an MQTT client, msgpack and NumPy, and nothing of Covey.

    python agent_in_60_lines.py PORT AGENT_ID TABLE.csv

It takes part in FedAvg runs of the model `linear`, next to Covey's own agents, and follows docs/protocol.md. The table has
a header, numbers, and the class (0, 1, ...) in the last column. All rows are for training, so evaluations get no figures.
Models and reports have one part, which is enough for 100 000 values. docs/examples/minimal_agent.py does without these
limits, has a last will, verifies checksums and digests, and sends again on a timer.
"""

import hashlib
import json
import sys
import time

import msgpack
import numpy as np
import paho.mqtt.client as mqtt

port, name, table = sys.argv[1:]
rows = np.loadtxt(table, delimiter=",", skiprows=1)
x, y = np.c_[rows[:, :-1], np.ones(len(rows))], rows[:, -1].astype(int)  # ones: for the biases
coordinator, me = "covey/default/coordinator/status", f"covey/default/agents/{name}"
# sessions sort by time
order, status = {}, {"agent": name, "session": f"{time.time_ns() // 10**6:012x}00", "serial": 0}


def digest(content, size):
    return hashlib.blake2b(content, digest_size=size).digest()


def pack(part):  # version, checksum of the fields before the data, body
    return b"\1" + digest(msgpack.packb(part)[: -len(part["data"])], 8) + msgpack.packb(part)


def say(**changes):  # a JSON message: its last key is the checksum of the text without it
    status.update(changes, serial=status["serial"] + 1)
    text = json.dumps(status)
    message = f'{text[:-1]},"check":"{digest(text.encode(), 8).hex()}"}}'
    client.publish(f"{me}/status", message, qos=1, retain=True)


def on_connect(*_):
    client.subscribe([(coordinator, 1), (f"{me}/order", 1)])
    say(format=1, online=True, epoch="", samples=len(y))


def on_message(_client, _userdata, message):
    if message.topic == coordinator:
        seen = json.loads(message.payload)
        if seen["online"] and seen["epoch"] != status["epoch"]:  # a roll call
            say(epoch=seen["epoch"], task=seen["task_digest"])
    elif message.topic == f"{me}/order":
        order.update(msgpack.unpackb(message.payload[9:]))
        client.subscribe("covey/default/clusters/0/model/0", qos=1)  # it is retained
    elif order.get("work"):
        part = msgpack.unpackb(message.payload[9:])
        if part["digest"] == order["work"]["models"][0]["digest"]:
            vector = msgpack.unpackb(part["data"][9:])["vector"]["data"]
            report(order.pop("work"), np.frombuffer(vector, "<f4"))


def report(work, vector):
    fields = {"run": order["run"], "step": order["step"], "work": digest(msgpack.packb(work), 16)}
    fields |= {"client": name, "examples": len(y), "steps": 0, "loss": 0, "seconds": 0}
    fields |= {"format": 1, "numbers": {"server": {"n": 0}}, "vectors": {}}
    if work["phase"] == "train":
        fields |= train(vector, work["layout"]["tensors"][1][1][0], work["training"])
    data = b"\1" + msgpack.packb(fields)
    part = {"digest": digest(data, 16), "index": 0, "count": 1, "size": len(data)}
    client.publish(f"{me}/report/0", pack(part | {"about": order["step"], "data": data}), qos=1)


def train(vector, classes, settings):  # gradient descent on the softmax cross-entropy of all rows
    model = np.c_[vector[:-classes].reshape(classes, -1), vector[-classes:]]
    for _ in range(settings["epochs"]):
        powers = np.exp(x @ model.T)
        chances = powers / powers.sum(axis=1, keepdims=True)
        model -= settings["lr"] / len(y) * (chances - np.eye(classes)[y]).T @ x
    loss = -float(np.log(chances[range(len(y)), y]).mean())
    data = np.r_[model[:, :-1].ravel(), model[:, -1]].astype("<f4").tobytes()
    vectors = {"model": {"codec": "float32", "length": len(vector), "data": data}}
    return {"numbers": {}, "vectors": vectors, "loss": loss, "steps": settings["epochs"]}


client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, f"covey-default-{name}-{status['session']}")
client.on_connect, client.on_message = on_connect, on_message
client.connect("127.0.0.1", int(port))
client.loop_forever()
