"""Which layers tell what labels a client holds: distances between clients' weights, layer by layer, against the truth.

    python benchmarks/layer_distances.py --out runs/layer-distances.json
    python benchmarks/layer_distances.py --data digits --model mlp --out runs/layer-distances.json

Half of the clients hold the labels of one half of the classes, the others those of the other half. All train from one
start, as FedClust's clients do before they are clustered. FedClust's claim (Islam et al. 2024, shown there for layers
1, 7, 14 and 16 of VGG16 on CIFAR-10): the final layer shows the two groups, earlier layers do not. Prints tables,
writes the matrices as JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from covey.agent.data import fit
from covey.agent.data.partition import client_dataset, fleet_data
from covey.agent.training.learner import TorchLocal
from covey.agent.training.models import initial
from covey.shared.errors import UserError
from covey.shared.numerics.clustering import Matrix, agglomerative, euclidean
from covey.shared.numerics.metrics import accuracy, adjusted_rand
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import generator
from covey.shared.strategies.base import Training

SHOWN = {"vgg16": [1, 7, 14, 16]}  # what the paper shows; of other models all layers
TASKS: dict[str, dict[str, Any]] = {
    "digits": {"features": (1, 8, 8), "scale": 1 / 16},
    "fashion-mnist": {
        "features": (1, 28, 28),
        "scale": 1 / 255,
        "standardise": {"mean": (0.1307,), "std": (0.3081,)},
    },
    "cifar10": {
        "features": (3, 32, 32),
        "scale": 1 / 255,
        "standardise": {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2023, 0.1994, 0.2010)},
    },
}


@dataclass(frozen=True)
class Client:
    """What a client trained: `end` (d,), the mean loss over its steps, the accuracy on test images of its labels."""

    group: int
    examples: int
    end: Vector
    loss: float
    accuracy: float


@dataclass(frozen=True)
class Layer:
    """One layer, counted from 1: `moved` is the mean distance from the start, `within` and `between` the mean distances
    of two clients of one group and of two groups, `ari` that of average linkage cut into two clusters."""

    layer: int
    module: str
    parameters: int
    moved: float
    within: float
    between: float
    ari: float
    matrix: list[list[float]]

    @property
    def ratio(self) -> float:
        """How many times as far apart clients of two groups are; 1 tells nothing."""
        return self.between / self.within if self.within > 0 else float("nan")


def layer_matrices(vectors: Sequence[Vector], layout: Layout) -> list[Matrix]:
    """Euclidean distances (N, N) of the clients' weights and biases, for each parametrised module in order.

    Vectors are (d,); none is copied whole.
    """
    return [euclidean([vector[span] for vector in vectors]) for span in layer_spans(layout)]


def layer_spans(layout: Layout) -> list[slice]:
    """Each parametrised module's slice of a vector, weights and bias together."""
    spans = [layout.span_of(module) for module in layout.modules]
    return [slice(own[0].start, own[-1].stop) for own in spans]


def described(
    layer: int, layout: Layout, start: Vector, clients: Sequence[Client], matrix: Matrix
) -> Layer:
    """What a layer's matrix says about the groups."""
    span = layer_spans(layout)[layer - 1]
    groups = np.array([client.group for client in clients])
    pairs = np.triu_indices(len(groups), 1)
    same = (groups[:, None] == groups[None, :])[pairs]
    found = agglomerative(matrix, "average", n_clusters=2).labels
    return Layer(
        layer,
        layout.modules[layer - 1],
        span.stop - span.start,
        float(np.mean([euclidean([start[span], client.end[span]])[0, 1] for client in clients])),
        float(matrix[pairs][same].mean()),
        float(matrix[pairs][~same].mean()),
        adjusted_rand(found.tolist(), groups.tolist()),
        matrix.tolist(),
    )


def scenario(data: str, model: str, clients: int, samples: int, seed: int) -> Scenario:
    """The clients as a fleet of two groups with about `samples` training images each."""
    return Scenario.model_validate(
        {
            "name": "layer_distances",
            "seed": seed,
            "task": {**TASKS[data], "classes": 10, "model": {"name": model}},
            "strategy": {"name": "fedclust"},
            "fleet": {
                "agents": clients,
                "data": data,
                "limit": clients * samples,
                "partition": {"name": "grouped_labels", "groups": 2},
            },
        }
    )


def trained(
    plan: Scenario, training: Training, start: Vector, layout: Layout, data_root: Path | None
) -> Iterator[Client]:
    """Each client after its local training from the common start."""
    data, split = fleet_data(plan, data_root)
    assert split.truth is not None
    for index, group in enumerate(split.truth.tolist()):
        own = fit(client_dataset(data, split, index), plan.task)
        local = TorchLocal(
            own, plan.task, layout, training, generator(plan.seed, "layer distances", index)
        )
        done = local.train(start)
        right = accuracy(local.targets("test"), local.predict(done.end, "test").argmax(axis=1))
        yield Client(group, local.examples, done.end, done.loss, right)


def widened(start: Vector, layout: Layout, gain: float) -> Vector:
    """The start with its weights, not its biases, times `gain`. Without normalisation a deep model that starts with
    torch's default weights hardly trains; sqrt(6) times as large they have the variance of He et al. (2015)."""
    wide = start.copy()
    for tensor, span in layout.spans():
        if len(tensor.shape) > 1:
            wide[span] *= np.float32(gain)
    return wide


def run(
    plan: Scenario,
    training: Training,
    wanted: Sequence[int] = (),
    data_root: Path | None = None,
    gain: float = 1.0,
) -> dict[str, Any]:
    """The figures of one run, with the matrices of all layers; `shown` are those wanted, or the paper's, or all.

    Raises UserError for a layer that is not there, before anything is trained.
    """
    start, layout = initial(plan.task, plan.seed)
    start = widened(start, layout, gain)
    model, count = plan.task.model.name, len(layout.modules)
    shown = list(wanted) or SHOWN.get(model, list(range(1, count + 1)))
    if strangers := [layer for layer in shown if not 1 <= layer <= count]:
        raise UserError(f"--layers {strangers[0]}: {model} has layers 1 to {count}")
    clients = list(trained(plan, training, start, layout, data_root))
    matrices = layer_matrices([client.end for client in clients], layout)
    layers = [
        described(at, layout, start, clients, matrix) for at, matrix in enumerate(matrices, start=1)
    ]
    return {
        "data": plan.fleet.data if plan.fleet else None,
        "model": model,
        "seed": plan.seed,
        "gain": gain,
        "training": training.model_dump(),
        "clients": [
            {key: getattr(one, key) for key in ("group", "examples", "loss", "accuracy")}
            for one in clients
        ],
        "shown": shown,
        "layers": [asdict(layer) | {"ratio": layer.ratio} for layer in layers],
    }


def summary(document: dict[str, Any]) -> Table:
    """One line for each layer that is shown."""
    clients, layers = document["clients"], document["layers"]
    loss, right = (
        float(np.mean([client[key] for client in clients])) for key in ("loss", "accuracy")
    )
    title = f"{document['model']} on {document['data']}: {len(clients)} clients, training loss {loss:.3f}, "
    made = Table(title=f"{title}{100 * right:.0f} % of their own test images")
    for header in ("layer", "", "parameters", "moved", "within", "between", "ratio", "ARI"):
        made.add_column(header, justify="left" if not header else "right")
    for at in document["shown"]:
        one = layers[at - 1]
        distances = (f"{one[key]:.3g}" for key in ("moved", "within", "between"))
        name = (str(at), one["module"], f"{one['parameters']:,}")
        made.add_row(*name, *distances, f"{one['ratio']:.3f}", f"{one['ari']:.2f}")
    return made


def matrix_table(document: dict[str, Any], at: int) -> Table:
    """The distances of one layer, relative to the largest, in percent: a picture of the groups in numbers."""
    one = document["layers"][at - 1]
    largest = max(map(max, one["matrix"])) or 1.0
    groups = [str(client["group"]) for client in document["clients"]]
    made = Table("group", title=f"layer {at}, {one['module']}: percent of {largest:.3g}")
    for group in groups:
        made.add_column(group, justify="right")
    for group, row in zip(groups, one["matrix"], strict=True):
        made.add_row(group, *(f"{100 * value / largest:.0f}" for value in row))
    return made


def show(document: dict[str, Any], console: Console) -> None:
    for at in document["shown"]:
        console.print(matrix_table(document, at))
    console.print(summary(document))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", choices=TASKS, default="cifar10")
    parser.add_argument(
        "--data-root", type=Path, help="where named data sets lie; COVEY_DATA_ROOT if not given"
    )
    parser.add_argument("--model", default="vgg16", help="vgg16, lenet5, mlp, ...")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument(
        "--samples", type=int, default=200, help="training images per client, on average"
    )
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--momentum", type=float, default=0.5)
    parser.add_argument(
        "--gain", type=float, default=1.0, help="times the initial weights; 2.449: He et al.'s"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--layers", nargs="+", type=int, default=[], help="which are shown; the file has all"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the figures as JSON in place of tables"
    )
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)  # as an agent's worker: the same result each time
    try:
        plan = scenario(given.data, given.model, given.clients, given.samples, given.seed)
        training = Training(
            epochs=given.epochs, batch=given.batch, lr=given.lr, momentum=given.momentum
        )
        document = run(plan, training, given.layers, given.data_root, given.gain)
    except UserError as error:
        parser.error(str(error))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(document))
    if given.json:
        figures = [{key: one[key] for key in one if key != "matrix"} for one in document["layers"]]
        print(json.dumps(document | {"layers": figures}))
    else:
        show(document, Console())


if __name__ == "__main__":
    main()
