"""Rules that every method keeps; by day a method of each kind is tried. A method joins by its line in the registry; tests/methods.py has options to try."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from covey.shared.errors import UserError
from covey.shared.strategies.base import Phase, Setup, Strategy, Training
from covey.shared.strategies.client_half import Job
from covey.shared.strategies.registry import BUILT_IN, AnyStrategy
from tests.bowl import Softmax, normed_client, perceptron_client, softmax_client
from tests.drive import Run, fingerprint, leaves
from tests.kit.traces import fill, traces
from tests.methods import LAYERED, METHODS, NORMED, OPTIONS, of_each_kind

registry: TypeAdapter[Any] = TypeAdapter(AnyStrategy)
MEMBERS: tuple[type[Strategy[Any]], ...] = tuple(BUILT_IN.values())
NAMES = list(BUILT_IN)
ROUNDS = 4  # in the last of them a newcomer answers that was asked before
CASES = [{"name": name, **options} for name in NAMES for options in OPTIONS.get(name, [{}])]


def every(rule: str) -> pytest.MarkDecorator:
    """The cases of a method of each kind, of every one at night."""
    names = of_each_kind(rule, NAMES)
    cases = [case for case in CASES if case["name"] in names]
    return pytest.mark.parametrize(
        "case", cases, ids=lambda case: "-".join(map(str, case.values()))
    )


def fleet(name: str = "fedavg") -> dict[str, Softmax]:
    owned = [(0, 1), (2, 3)] * 4
    client: Callable[..., Softmax] = perceptron_client if name in LAYERED else softmax_client
    if name in NORMED:
        client = normed_client
    return {f"c{i}": client(labels, seed=i, n=12 + 2 * i) for i, labels in enumerate(owned)}


def lossy(phase: str, round_: int, client: str) -> bool:
    """c1 misses the first phase, c2 the second round; the newcomer c7 has a broken start."""
    first = phase in ("signature", "warmup")
    return (client, first) == ("c1", True) or (client, round_) in {("c2", 1), ("c7", 2)}


def a_run(
    case: dict[str, Any], *, shuffle: int = 0, seed: int = 5, participation: float = 0.6
) -> Run:
    locals_ = fleet(case["name"])
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


LOOKED_AT = (0, 1, ROUNDS)
_played: dict[str, tuple[Run, list[Any]]] = {}


def played(case: dict[str, Any]) -> tuple[Run, list[Any]]:
    """The usual run of a case and its states after some of them: made once, for all tests that only look."""
    key = json.dumps(case)
    if key not in _played:
        run = a_run(case)
        states = [run.rounds(count).state for count in LOOKED_AT]
        _played[key] = run, states
    return _played[key]


@every("other models")
def test_an_order_with_fewer_models_than_it_needs_or_one_more_is_no_fault_of_the_program(
    case: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator may leave some out, or add one; the device refuses it by name, or the work has no use for it."""
    method = type(registry.validate_python(case))
    tried = 0
    for half in ("work", "personal"):
        whole = getattr(method, half)

        def with_others(self: Any, job: Job, *known: Any, whole: Any = whole) -> Any:
            nonlocal tried
            fewer = [job.models[:count] for count in range(len(job.models))]
            for models in [*fewer, (*job.models, job.models[-1])] if fewer else []:
                tried += 1
                with suppress(UserError):
                    whole(self, replace(job, models=models), *known)
            return whole(self, job, *known)

        monkeypatch.setattr(method, half, with_others)
    run = a_run(case).rounds(ROUNDS)
    for client in run.locals:
        run.personal(client)
    assert tried


@every("order")
def test_the_order_of_arrival_does_not_change_a_byte(case: dict[str, Any]) -> None:
    first, other = played(case)[0], a_run(case, shuffle=1).rounds(ROUNDS)
    assert fingerprint(other.state) == fingerprint(first.state)
    assert fingerprint(sorted(other.client_states.items())) == fingerprint(
        sorted(first.client_states.items())
    )


@every("seed")
def test_another_seed_makes_another_run(case: dict[str, Any]) -> None:
    runs = [a_run(case, seed=seed).rounds(2) for seed in (5, 6)]
    ends = [
        [model.tobytes() for client in run.locals for _, model in run.personal(client)]
        for run in runs
    ]
    assert ends[0] != ends[1]


@every("loss")
def test_a_run_lowers_every_agents_loss(case: dict[str, Any]) -> None:
    end = a_run(case, participation=1.0).rounds(ROUNDS)
    for client in ("c0", "c3", "c5"):
        mixture = end.personal(client)
        assert sum(weight for weight, _ in mixture) == pytest.approx(1.0)
        loss = sum(weight * end.locals[client].loss(model) for weight, model in mixture)
        assert loss < end.locals[client].loss(end.setup.starts[0])


@every("checkpoint")
def test_a_checkpoint_can_hold_a_state_and_json_its_notes_and_orders(case: dict[str, Any]) -> None:
    run, states = played(case)
    for state in states:
        for leaf in leaves(state):
            assert (
                leaf is None
                or isinstance(leaf, np.ndarray)
                or type(leaf) in (str, int, float, bool)
            ), type(leaf)
        assert (
            json.loads(json.dumps(dict(run.strategy.shown(state).notes), allow_nan=False))
            is not None
        )
        for order in (run.strategy.order(state, Phase(), "c0"), run.strategy.serve(state, "c0")):
            json.dumps(dict(order.numbers), allow_nan=False)
            assert all(run.strategy.model(state, key).dtype == np.float32 for key in order.models)
    each_cluster_of_an_assignment_has_a_model(run)


def each_cluster_of_an_assignment_has_a_model(end: Run) -> None:
    models, assignment = end.strategy.clusters(end.state), end.strategy.assignment(end.state)
    assert all(
        model.shape == end.part.starts[0].shape and model.dtype == np.float32 for model in models
    )
    assert set(assignment.values()) <= set(range(len(models)))
    for client, k in assignment.items():
        assert end.strategy.serve(end.state, client).cluster == k
    if assignment:
        assert set(assignment) == set(end.locals)  # c1, c6 and c7 came late and are in


@pytest.mark.parametrize("name", of_each_kind("forgotten", NAMES))
def test_nothing_of_a_forgotten_client_is_kept_and_it_comes_back_as_a_newcomer(name: str) -> None:
    [options, *_] = OPTIONS.get(name, [{}])
    run = a_run({"name": name, **options}, participation=1.0).rounds(2)
    run.state = run.strategy.forget(run.state, "c3")
    assert "c3" not in [leaf for leaf in leaves(run.state) if isinstance(leaf, str)]
    assert run.personal("c3")[0][1].shape == run.setup.starts[0].shape
    run.client_states.pop("c3", None)
    others = set(run.strategy.assignment(run.state))
    run.rounds(5)
    assert not others or "c3" in run.strategy.assignment(run.state)


@every("traces")
def test_no_field_of_any_state_names_an_agent_that_was_forgotten(case: dict[str, Any]) -> None:
    run = a_run(case)
    fill(run.state, "c3")
    assert traces(run.strategy.forget(run.state, "c3"), "c3") == set()


@every("served")
def test_every_agent_can_be_served_before_anything_happened(case: dict[str, Any]) -> None:
    run = a_run(case)
    assert all(
        run.personal(client)[0][1].shape == run.setup.starts[0].shape for client in run.locals
    )


@every("settings")
def test_settings_survive_the_wire(case: dict[str, Any]) -> None:
    strategy = registry.validate_python(case)
    assert (
        registry.validate_python(json.loads(json.dumps(strategy.model_dump(), allow_nan=False)))
        == strategy
    )


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.__name__)
def test_every_option_and_every_method_has_a_description(member: type[Strategy[Any]]) -> None:
    assert member.summary
    assert member.source
    assert all(info.description for name, info in member.model_fields.items() if name != "name")


@pytest.mark.parametrize("name", of_each_kind("unknown", NAMES))
def test_an_unknown_option_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValidationError, match="colour"):
        registry.validate_python({"name": name, "colour": "blue"})


@pytest.mark.whole
def test_options_are_tried_for_methods_of_the_registry_only() -> None:
    assert set(OPTIONS) <= set(NAMES)
    assert {options.get("name", name) for name, options in METHODS.items()} == set(NAMES)
