"""The layer-distance demonstration: its matrices against brute force, and a small run on scikit-learn's digits."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from benchmarks.layer_distances import (
    Client,
    described,
    layer_matrices,
    layer_spans,
    main,
    run,
    scenario,
    show,
    widened,
)
from covey.shared.errors import UserError
from covey.shared.numerics.vectors import Layout, Tensor, Vector
from covey.shared.seeds import generator
from covey.shared.strategies.base import Training

LAYOUT = Layout(
    tuple(
        Tensor(name, shape)
        for name, shape in [
            ("conv.weight", (2, 1, 3, 3)),
            ("conv.bias", (2,)),
            ("norm.weight", (2,)),
            ("norm.bias", (2,)),
            ("fc.weight", (3, 4)),
            ("fc.bias", (3,)),
            ("norm.running_mean", (2,)),  # a buffer: part of a vector, of no layer
        ]
    ),
    trainable=6,
)


def vectors(count: int) -> list[Vector]:
    return list(generator(1, "layers").standard_normal((count, LAYOUT.size)).astype(np.float32))


def test_a_layers_distance_is_that_of_all_its_weights_and_biases() -> None:
    clients = vectors(4)
    matrices = layer_matrices(clients, LAYOUT)
    assert len(matrices) == 3
    for module, matrix in zip(("conv", "norm", "fc"), matrices, strict=True):
        for i, a in enumerate(LAYOUT.named(vector) for vector in clients):
            for j, b in enumerate(LAYOUT.named(vector) for vector in clients):
                gaps = [
                    a[f"{module}.{part}"] - b[f"{module}.{part}"] for part in ("weight", "bias")
                ]
                brute = math.sqrt(sum(float(gap) ** 2 for part in gaps for gap in part.reshape(-1)))
                assert matrix[i, j] == pytest.approx(brute, rel=1e-6)


def test_layers_cover_all_parameters_once_and_the_last_is_the_final_layer() -> None:
    spans = layer_spans(LAYOUT)
    covered = [at for span in spans for at in range(span.start, span.stop)]
    assert covered == list(range(LAYOUT.parameters))
    assert spans[-1] == LAYOUT.final_layer


def test_a_layer_is_described_by_its_distances_within_and_between_groups() -> None:
    start = np.zeros(LAYOUT.size, np.float32)
    final, first = LAYOUT.final_layer, layer_spans(LAYOUT)[0]
    clients = []
    for group, (own, common) in zip([0, 0, 1, 1], [(1, 0), (2, 9), (7, 1), (9, 8)], strict=True):
        end = start.copy()
        end[final.start], end[first.start] = (
            own,
            common,
        )  # the final layer separates the groups, the first misleads
        clients.append(Client(group, 1, end, 0.0, 1.0))
    matrices = layer_matrices([client.end for client in clients], LAYOUT)
    told = described(3, LAYOUT, start, clients, matrices[2])
    assert (told.module, told.parameters, told.moved, told.ari) == (
        "fc",
        15,
        (1 + 2 + 7 + 9) / 4,
        1.0,
    )
    assert (told.within, told.between) == ((1 + 2) / 2, (6 + 8 + 5 + 7) / 4)
    assert told.ratio == told.between / told.within
    assert described(1, LAYOUT, start, clients, matrices[0]).ari < 0


def test_a_gain_widens_weights_and_leaves_biases_and_buffers() -> None:
    (start,) = vectors(1)
    wide = LAYOUT.named(widened(start, LAYOUT, 3.0))
    for name, values in LAYOUT.named(start).items():
        factor = 3.0 if name in {"conv.weight", "fc.weight"} else 1.0
        assert wide[name] == pytest.approx(factor * values, rel=1e-6)


@pytest.fixture
def _threads() -> Iterator[None]:
    """The program sets the number of threads for its own process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_threads")
def test_the_final_layer_shows_who_holds_which_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "distances.json"
    words = f"--data digits --model mlp --clients 6 --samples 60 --lr 0.1 --json --out {out}"
    monkeypatch.setattr(sys, "argv", ["layer_distances", *words.split()])
    main()
    document = json.loads(out.read_text())
    assert document["shown"] == [1, 2]
    assert [client["group"] for client in document["clients"]] == [0, 0, 0, 1, 1, 1]
    first, final = document["layers"]
    assert final["ari"] == 1.0
    assert final["ratio"] > first["ratio"]
    matrix = np.array(final["matrix"])
    assert matrix[:3, 3:].mean() == pytest.approx(final["between"])
    told = json.loads(capsys.readouterr().out)
    assert [layer["ratio"] for layer in told["layers"]] == [first["ratio"], final["ratio"]]
    assert "matrix" not in told["layers"][0]
    show(document, Console(width=120))
    tables = capsys.readouterr().out
    assert f"{final['ratio']:.3f}" in tables
    assert tables.count("percent of") == 2


def test_a_layer_that_is_not_there_is_refused_before_any_data_is_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--layers 3: mlp has layers 1 to 2"):
        run(scenario("cifar10", "mlp", 6, 60, 1), Training(), wanted=[1, 3], data_root=tmp_path)
