"""A client for Flower, of its documented interface: handwritten digits, softmax regression, NumPy alone.

Flower runs it as a `ClientApp(client_fn)`. Covey runs the same file on devices that need no Flower:

    agent start --learner flower:flower_client:client_fn --allow flower_client --data "partition-id=0 num-partitions=6"
"""

import numpy as np
from sklearn.datasets import load_digits

try:
    from flwr.client import NumPyClient
except ImportError:  # the class has all methods that it needs
    NumPyClient = object

CLASSES = 10


def load_data(partition, partitions):
    """Devices with an even number hold the digits 0 to 4, the others 5 to 9. One sample of five tests."""
    x, y = load_digits(return_X_y=True)
    group = np.flatnonzero((y < 5) == (partition % 2 == 0))
    own = group[partition // 2 :: partitions // 2]
    x, y = np.float32(x[own] / 16), y[own]
    tests = np.arange(len(y)) % 5 == 0
    return x[~tests], y[~tests], x[tests], y[tests]


class DigitsClient(NumPyClient):
    def __init__(self, partition, partitions):
        self.x, self.y, self.test_x, self.test_y = load_data(partition, partitions)
        self.weight = np.zeros((CLASSES, 64), np.float32)
        self.bias = np.zeros(CLASSES, np.float32)

    def get_parameters(self, config):
        return [self.weight, self.bias]

    def fit(self, parameters, config):
        self.weight, self.bias = (array.copy() for array in parameters)
        draws = np.random.default_rng(config.get("seed", 0))
        for _ in range(config.get("epochs", 1)):
            order = draws.permutation(len(self.y))
            for start in range(0, len(order), config.get("batch", 10)):
                rows = order[start : start + config.get("batch", 10)]
                slopes = self.shares(self.x[rows]) - np.eye(CLASSES)[self.y[rows]]
                self.weight -= config.get("lr", 0.1) * slopes.T @ self.x[rows] / len(rows)
                self.bias -= config.get("lr", 0.1) * slopes.mean(axis=0)
        return [self.weight, self.bias], len(self.y), {}

    def evaluate(self, parameters, config):
        self.weight, self.bias = parameters
        shares = self.shares(self.test_x)
        loss = -np.log(shares[np.arange(len(self.test_y)), self.test_y] + 1e-12).mean()
        hits = shares.argmax(axis=1) == self.test_y
        return float(loss), len(self.test_y), {"accuracy": float(hits.mean())}

    def shares(self, x):
        logits = x @ self.weight.T + self.bias
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)


def client_fn(context):
    config = context.node_config
    client = DigitsClient(config["partition-id"], config.get("num-partitions", 6))
    return client.to_client() if hasattr(client, "to_client") else client
