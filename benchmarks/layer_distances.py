"""Which layers reveal the labels that a client holds: distances between clients' weights, layer by layer, against the truth.

    python benchmarks/layer_distances.py --out runs/layer-distances.json
    python benchmarks/layer_distances.py --data digits --model mlp --out runs/layer-distances.json

Half of the clients hold the labels of one half of the classes, the others those of the other half. All train from one
start, as FedClust's clients do before they are clustered. FedClust claims (Islam et al. 2024, for layers 1, 7, 14 and 16
of VGG16 on CIFAR-10) that the final layer shows the two groups and earlier layers do not. Prints tables, writes the
matrices as JSON.
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

SHOWN = {"vgg16": [1, 7, 14, 16]}  # the paper's layers; of other models all are shown
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
    """A client after its training."""

    group: int
    examples: int
    end: Vector  # (d,)
    loss: float  # mean over its steps
    accuracy: float  # on test images of its labels


@dataclass(frozen=True)
class Layer:
    """How well one layer shows the groups."""

    layer: int  # counted from 1
    module: str
    parameters: int
    moved: float  # mean distance from the start
    within: float  # mean distance of two clients of one group
    between: float  # mean distance of two clients of two groups
    ari: float  # of average linkage, cut into two clusters
    matrix: list[list[float]]  # distances of all clients

    @property
    def ratio(self) -> float:
        """How many times as far apart clients of two groups are; 1 shows nothing, NaN if clients of a group are equal."""
        if self.within <= 0:
            return float("nan")
        return self.between / self.within


def layer_matrices(vectors: Sequence[Vector], layout: Layout) -> list[Matrix]:
    """Euclidean distances (N, N) of the clients' weights and biases, for each parametrised module in order.

    Vectors are (d,); none is copied whole.
    """
    matrices: list[Matrix] = []
    for span in layer_spans(layout):
        parts = [vector[span] for vector in vectors]
        matrices.append(euclidean(parts))
    return matrices


def layer_spans(layout: Layout) -> list[slice]:
    """Each parametrised module's slice of a vector, weights and bias together."""
    whole: list[slice] = []
    for module in layout.modules:
        spans = layout.span_of(module)
        whole.append(slice(spans[0].start, spans[-1].stop))
    return whole


def described(
    layer: int, layout: Layout, start: Vector, clients: Sequence[Client], matrix: Matrix
) -> Layer:
    """How well a layer's matrix shows the groups."""
    span = layer_spans(layout)[layer - 1]
    groups = np.array([client.group for client in clients])
    pairs = np.triu_indices(len(groups), 1)
    distances = matrix[pairs]
    is_same_group = groups[:, None] == groups[None, :]
    same = is_same_group[pairs]
    tree = agglomerative(matrix, "average", n_clusters=2)
    moved: list[float] = []
    for client in clients:
        ends = [start[span], client.end[span]]
        moved.append(euclidean(ends)[0, 1])
    return Layer(
        layer=layer,
        module=layout.modules[layer - 1],
        parameters=span.stop - span.start,
        moved=float(np.mean(moved)),
        within=float(distances[same].mean()),
        between=float(distances[~same].mean()),
        ari=adjusted_rand(tree.labels.tolist(), groups.tolist()),
        matrix=matrix.tolist(),
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
        rng = generator(plan.seed, "layer distances", index)
        local = TorchLocal(own, plan.task, layout, training, rng)
        done = local.train(start)
        logits = local.predict(done.end, "test")
        guesses = logits.argmax(axis=1)
        right = accuracy(local.targets("test"), guesses)
        yield Client(group, local.examples, done.end, done.loss, right)


def widened(start: Vector, layout: Layout, gain: float) -> Vector:
    """The start (d,) with its weights, not its biases, times `gain`.

    Without normalisation a deep model that starts with torch's default weights hardly trains; sqrt(6) times as large they
    have the variance of He et al. (2015).
    """
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
    """The figures of one run, with the matrices of all layers.

    Args:
        plan: the clients as a fleet.
        training: settings of local SGD.
        wanted: the layers to show; empty: the paper's, or all of a model that it does not have.
        data_root: the folder of the larger data sets.
        gain: factor on the initial weights.

    Raises:
        UserError: the model has no such layer. Nothing was trained.
    """
    drawn, layout = initial(plan.task, plan.seed)
    start = widened(drawn, layout, gain)
    model = plan.task.model.name
    count = len(layout.modules)
    all_layers = list(range(1, count + 1))
    shown = list(wanted) or SHOWN.get(model, all_layers)
    for layer in shown:
        if layer not in all_layers:
            raise UserError(f"--layers {layer}: {model} has layers 1 to {count}")
    clients = list(trained(plan, training, start, layout, data_root))
    ends = [client.end for client in clients]
    layers: list[dict[str, Any]] = []
    for number, matrix in enumerate(layer_matrices(ends, layout), start=1):
        layer_figures = described(number, layout, start, clients, matrix)
        layers.append(asdict(layer_figures) | {"ratio": layer_figures.ratio})
    client_figures: list[dict[str, Any]] = []
    for client in clients:
        figures = asdict(client)
        del figures["end"]
        client_figures.append(figures)
    return {
        "data": plan.fleet.data if plan.fleet else None,
        "model": model,
        "seed": plan.seed,
        "gain": gain,
        "training": training.model_dump(),
        "clients": client_figures,
        "shown": shown,
        "layers": layers,
    }


def summary(document: dict[str, Any]) -> Table:
    """One line for each layer that is shown."""
    clients = document["clients"]
    loss = np.mean([client["loss"] for client in clients])
    percent = 100 * np.mean([client["accuracy"] for client in clients])
    table = Table(
        title=f"{document['model']} on {document['data']}: {len(clients)} clients, training loss "
        f"{loss:.3f}, {percent:.0f} % of their own test images"
    )
    for header in ("layer", "", "parameters", "moved", "within", "between", "ratio", "ARI"):
        table.add_column(header, justify="right" if header else "left")
    for number in document["shown"]:
        layer = document["layers"][number - 1]
        table.add_row(
            str(number),
            layer["module"],
            f"{layer['parameters']:,}",
            f"{layer['moved']:.3g}",
            f"{layer['within']:.3g}",
            f"{layer['between']:.3g}",
            f"{layer['ratio']:.3f}",
            f"{layer['ari']:.2f}",
        )
    return table


def matrix_table(document: dict[str, Any], at: int) -> Table:
    """The distances of one layer, relative to the largest, in percent: a picture of the groups in numbers."""
    layer = document["layers"][at - 1]
    rows = layer["matrix"]
    largest = max(max(row) for row in rows) or 1.0
    groups = [str(client["group"]) for client in document["clients"]]
    table = Table("group", title=f"layer {at}, {layer['module']}: percent of {largest:.3g}")
    for group in groups:
        table.add_column(group, justify="right")
    for group, row in zip(groups, rows, strict=True):
        percents = [100 * value / largest for value in row]
        table.add_row(group, *[f"{percent:.0f}" for percent in percents])
    return table


def show(document: dict[str, Any], console: Console) -> None:
    """Print a matrix for each layer that is shown, and the summary."""
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
