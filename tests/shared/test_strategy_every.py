"""Rules that every method keeps. A method joins by being in the union; its options to try stand in OPTIONS."""

import json
import typing
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from covey.shared.strategies.base import Phase, Setup, Strategy, Training
from covey.shared.strategies.registry import AnyStrategy
from tests.bowl import Softmax, softmax_client
from tests.drive import Run, fingerprint, leaves

registry: TypeAdapter[Any] = TypeAdapter(AnyStrategy)
MEMBERS: tuple[type[Strategy[Any]], ...] = typing.get_args(typing.get_args(AnyStrategy)[0])
NAMES = [typing.get_args(member.model_fields["name"].annotation)[0] for member in MEMBERS]

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "cfl": [
        {"eps_mode": "relative", "eps_1": 1.01, "eps_2": 0.5, "warmup": 1, "min_size": 1},
        {
            "trigger": "rounds",
            "every": 1,
            "warmup": 0,
            "linkage": "average",
            "features": "last_kernel",
            "gamma": 0.13,
        },
        {"linkage": "complete", "weights": "uniform", "eps_1": 9.0, "eps_2": 0.0, "warmup": 0},
        {},
    ],
    "ifca": [
        {"n_clusters": 2, "initial": "random"},
        {},
        {"averaging": "gradient", "weights": "uniform", "shared_trunk": True, "n_clusters": 3},
        {"initial": "restarts", "restarts": 2, "restart_rounds": 1},
        {
            "initial": "kmeans++",
            "candidates": 4,
            "n_clusters": 3,
            "reseed_dead": True,
            "dead_after": 1,
        },
        {"initial": "warmup", "warmup_rounds": 2, "select_on": "test"},
    ],
    "pacfl": [
        {"n_clusters": 2},
        {
            "p": 1,
            "beta": 20,
            "measure": "principal",
            "linkage": "complete",
            "newcomers": "recluster",
        },
        {"measure": "trace", "linkage": "single"},
        {"choose": "gap"},
        {"signed": True, "beta": -1},
    ],
    "robust": [
        {"n_clusters": 2, "first_epochs": 2},
        {
            "trim": "ball",
            "features": "last_layer",
            "beta": 0.3,
            "restarts": 2,
            "first_tolerance": 0.1,
        },
        {"trim": "median", "averaging": "gradient", "restarts": 2, "round_beta": 0.4},
        {"features": "logreg", "beta": 0.25, "restarts": 2},
    ],
    "fedclust": [
        {"n_clusters": 2},
        {},
        {"choose": "gap"},
        {
            "lambda_quantile": 0.3,
            "linkage": "ward",
            "normalize": "unit",
            "newcomer_ref": "current",
            "first_epochs": 2,
        },
    ],
    "feddane": [{}, {"mu": 0.5, "resample": True}],
    "feddist": [{}, {"anneal": "linear", "epsilon": 1.0}],
    "fednova": [{}, {"mu": 0.1}, {"server_momentum": 0.5}],
    "lg": [{"shared_layers": 1}, {"shared_layers": 0}],
    "perfedavg": [
        {},
        {"variant": "hf", "beta": 0.1, "weights": "uniform", "adapt_epochs": 1},
        {"adapt_epochs": 0},
    ],
    "fedprox": [{"straggler_fraction": 0.5}],
    "fedsgd": [{"batch": "full"}, {"batch": 4}],
    "fedsoft": [{}, {"n_clusters": 3, "selected": 2, "estimate_every": 1}],
    "fedem": [{"n_clusters": 2, "share_memberships": True}, {"damped": True, "entry_steps": 3}],
    "fesem_ma": [
        {"n_clusters": 2},
        {"n_clusters": 2, "sweeps": 0, "warmup_epochs": 1, "restarts": 2},
        {"matching": "fedma"},
    ],
    "fuzzy": [
        {"n_clusters": 2},
        {"variant": "fedavg+clu"},
        {"variant": "fedavg+clusteredFL", "known": {"c0": [0.9, 0.1], "c1": [0.2, 0.8]}},
    ],
    "fesem": [
        {"n_clusters": 2, "restarts": 3},
        {
            "n_clusters": 3,
            "restarts": 2,
            "features": "sketch",
            "prox": "paper",
            "weighted_centers": True,
            "max_age": 1,
        },
        {
            "n_clusters": 2,
            "distance": "cosine",
            "features": "last_kernel",
            "m_step": "participants",
        },
        {
            "n_clusters": 2,
            "distance": "l1",
            "features": "last_layer",
            "update_center_every": 2,
            "warmup_epochs": 1,
        },
    ],
}
CASES = [{"name": name, **options} for name in NAMES for options in OPTIONS.get(name, [{}])]
every = pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))


def fleet() -> dict[str, Softmax]:
    owned = [(0, 1), (2, 3)] * 4
    return {f"c{i}": softmax_client(labels, seed=i, n=12 + 2 * i) for i, labels in enumerate(owned)}


def lossy(phase: str, round_: int, client: str) -> bool:
    """c1 misses the first phase, c2 the second round; the newcomer c7 has a broken start."""
    first = phase in ("signature", "warmup")
    return (client, first) == ("c1", True) or (client, round_) in {("c2", 1), ("c7", 2)}


def a_run(
    case: dict[str, Any], *, shuffle: int = 0, seed: int = 5, participation: float = 0.6
) -> Run:
    locals_ = fleet()
    layout = locals_["c0"].layout
    strategy = registry.validate_python(case)
    draw = np.random.default_rng(1)
    starts = tuple(
        draw.normal(0, 0.1, layout.size).astype(np.float32) for _ in range(strategy.starts)
    )
    setup = Setup(
        starts, layout, seed, 5, participation, Training(epochs=2, batch=8, lr=0.1, momentum=0.5)
    )
    return Run(strategy, setup, locals_, {"c6": 1, "c7": 2}, lossy, shuffle)


@every
def test_the_order_of_arrival_does_not_change_a_byte(case: dict[str, Any]) -> None:
    first, *others = (a_run(case, shuffle=shuffle).rounds(5) for shuffle in (0, 1, 2))
    for other in others:
        assert fingerprint(other.state) == fingerprint(first.state)
        assert fingerprint(sorted(other.client_states.items())) == fingerprint(
            sorted(first.client_states.items())
        )


@every
def test_another_seed_makes_another_run(case: dict[str, Any]) -> None:
    runs = [a_run(case, seed=seed).rounds(5) for seed in (5, 6)]
    ends = [
        [model.tobytes() for client in run.locals for _, model in run.personal(client)]
        for run in runs
    ]
    assert ends[0] != ends[1]


@every
def test_a_run_lowers_everybodys_loss(case: dict[str, Any]) -> None:
    end = a_run(case, participation=1.0).rounds(5)
    for client in ("c0", "c3", "c5"):
        mixture = end.personal(client)
        assert sum(weight for weight, _ in mixture) == pytest.approx(1.0)
        loss = sum(weight * end.locals[client].loss(model) for weight, model in mixture)
        assert loss < end.locals[client].loss(end.setup.starts[0])


@every
def test_a_state_holds_only_what_a_checkpoint_can(case: dict[str, Any]) -> None:
    run = a_run(case)
    for count in (0, 1, 5):
        for leaf in leaves(run.rounds(count).state):
            assert (
                leaf is None
                or isinstance(leaf, np.ndarray)
                or type(leaf) in (str, int, float, bool)
            ), type(leaf)


@every
def test_notes_and_orders_can_be_written_as_json(case: dict[str, Any]) -> None:
    run = a_run(case)
    for count in (0, 1, 5):
        state = run.rounds(count).state
        assert json.loads(json.dumps(dict(run.strategy.notes(state)), allow_nan=False)) is not None
        for order in (run.strategy.order(state, Phase(), "c0"), run.strategy.serve(state, "c0")):
            json.dumps(dict(order.numbers), allow_nan=False)
            assert all(run.strategy.model(state, key).dtype == np.float32 for key in order.models)


@every
def test_a_cluster_in_the_assignment_is_a_cluster_with_a_model(case: dict[str, Any]) -> None:
    end = a_run(case).rounds(5)
    models, assignment = end.strategy.clusters(end.state), end.strategy.assignment(end.state)
    assert all(
        model.shape == end.setup.starts[0].shape and model.dtype == np.float32 for model in models
    )
    assert set(assignment.values()) <= set(range(len(models)))
    for client, k in assignment.items():
        assert end.strategy.serve(end.state, client).cluster == k
    if assignment:
        assert set(assignment) == set(end.locals)  # c1, c6 and c7 came late and are in


@every
def test_everybody_can_be_served_before_anything_happened(case: dict[str, Any]) -> None:
    run = a_run(case)
    assert all(
        run.personal(client)[0][1].shape == run.setup.starts[0].shape for client in run.locals
    )


@every
def test_settings_survive_the_wire(case: dict[str, Any]) -> None:
    strategy = registry.validate_python(case)
    assert (
        registry.validate_python(json.loads(json.dumps(strategy.model_dump(), allow_nan=False)))
        == strategy
    )


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.__name__)
def test_every_option_is_described_and_every_method_says_what_it_is(
    member: type[Strategy[Any]],
) -> None:
    assert member.summary
    assert member.source
    assert all(info.description for name, info in member.model_fields.items() if name != "name")


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_option_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValidationError, match="colour"):
        registry.validate_python({"name": name, "colour": "blue"})


def test_options_are_tried_for_members_only() -> None:
    assert set(OPTIONS) <= set(NAMES)
