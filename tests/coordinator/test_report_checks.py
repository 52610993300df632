"""Numbers come from the network: whatever they are, a report is refused by name or does no harm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.coordinator.checks import checked_numbers
from covey.coordinator.engine.events import Joined
from covey.coordinator.run.effects import SendOrder
from covey.coordinator.run.result import write_all
from covey.coordinator.run.run import Run
from covey.shared.errors import DecodeError
from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import generator
from covey.shared.strategies.base import ClientId, Expected, Phase
from covey.shared.strategies.client_half import ClientState
from covey.shared.wire.messages import ReportContent
from tests.kit.local_clients import report_on
from tests.kit.small_run import begun, clients, local_for, rules, scenario, setup
from tests.methods import of_each_kind

SCENE = Scenario.model_validate(
    {
        "name": "checks",
        "task": {"features": [3], "classes": 2},
        "strategy": {"name": "fedavg"},
        "evaluation": {"track": True},
    }
)
COUNTS = {"counts": Expected(2)}
USES = {"served": 0.75, "near": 0.25}
GOOD = {"n": 4, "correct": 3, "accuracy": 0.75, "f1": 0.7, "loss": 0.6}
JUNK: list[Any] = [
    None,
    True,
    -1,
    0,
    5,
    2**62,
    -1e300,
    1e300,
    1e-300,
    "text",
    [],
    {},
    [1],
    [-1.0, 2.0],
    [1e300, 1e300],
]
JUNK += [
    [0, 0],
    ["a", "b"],
    {"n": 3},
    {"n": -1},
    {"n": 0},
    {"accuracy": 1.0},
    [[1], [2]],
    {**GOOD, "loss": -1.0},
]


def spoiled(numbers: dict[str, Any], draw: np.random.Generator) -> dict[str, Any]:
    """The same with one or more keys missing, or with another value."""
    keys = [*numbers, "track", "extra"]
    for key in draw.choice(keys, size=int(draw.integers(1, len(keys) + 1)), replace=False).tolist():
        if draw.random() < 0.3:
            numbers.pop(key, None)
        else:
            numbers[key] = JUNK[int(draw.integers(len(JUNK)))]
    return numbers


RESUMED_AFTER = 3  # reports: within steps, and between them


@pytest.mark.parametrize("method", of_each_kind("numbers"))
def test_a_run_survives_reports_with_any_numbers_and_so_does_its_resumption(
    tmp_path: Path, method: str
) -> None:
    options: dict[str, Any] = {"share_memberships": True} if method == "fedem" else {}
    task = {"standardise": "federated"}
    scene = scenario(
        method,
        strategy=options,
        task=task,
        evaluation={"every": 1, "track": True},
        rounds={"count": 2},
    )
    people, draw = clients(scene=scene), generator(3, "junk", method)
    refused = answered = 0
    client_states: dict[ClientId, ClientState] = {}
    run = begun(tmp_path, scene, name="r")
    run.members.note_samples(dict.fromkeys(people, (24, 24)))
    for client in people:
        run.handle(Joined(client), 0.0)
    while run.engine.stage.value != "finished":
        first = next(
            e for e in run.desired() if isinstance(e, SendOrder) and e.order.work is not None
        )
        work = first.order.work
        assert work is not None
        local = local_for(people)(first.client, first.order)
        if work.phase == "moments":
            honest = ReportContent.model_validate(
                {
                    **empty(run, first.client, first.order.step),
                    "numbers": moments(24, scene.task.features[0]),
                }
            )
        else:
            honest, client_states[first.client] = report_on(
                run, first.client, first.order, local, client_states.get(first.client)
            )
        for _ in range(3):
            poisoned = honest.model_copy(update={"numbers": spoiled(dict(honest.numbers), draw)})
            try:
                run.accept(first.client, poisoned.to_bytes(), 0.0)
                break
            except DecodeError as error:
                refused += error.reason == "wrong numbers"
        else:
            run.accept(first.client, honest.to_bytes(), 0.0)
        answered += 1
        if answered % RESUMED_AFTER == 0:
            run, _ = Run.resume(tmp_path, scene, setup(scene), rules=rules(scene), now=0.0)
            run.members.note_samples(dict.fromkeys(people, (24, 24)))
    assert refused > 3
    assert json.loads(json.dumps(write_all(run, dict.fromkeys(people, 0))))["rounds"] == 2
    assert all(np.isfinite(model).all() for model in run.strategy.clusters(run.state))


def empty(run: Run, client: ClientId, step: int) -> dict[str, Any]:
    nothing: dict[str, Any] = {
        "examples": 24,
        "steps": 0,
        "loss": 0.0,
        "seconds": 0.0,
        "vectors": {},
    }
    work = run.orders.asked_for(client, step, run.state)
    return {"run": run.id, "step": step, "work": work, "client": client, **nothing}


def moments(count: int, of: int = 5) -> dict[str, Any]:
    """Of a number of values in each channel."""
    return {"count": [count] * of, "sum": [0.0] * of, "square": [1.0 * count] * of}


def channels(**changed: float) -> dict[str, Any]:
    """Moments of four values in each of three channels."""
    plain = {"count": 4, "sum": 2.0, "square": 4.0, **changed}
    return {name: [value] * 3 for name, value in plain.items()}


def report(**numbers: Any) -> ReportContent:
    told: dict[str, Any] = {
        "examples": 10,
        "steps": 1,
        "loss": 0.0,
        "seconds": 0.0,
        "vectors": {},
        "numbers": numbers,
    }
    return ReportContent.model_validate(
        {"run": "r", "step": 1, "work": bytes(16), "client": "c", **told}
    )


@pytest.mark.parametrize(
    ("phase", "numbers", "said"),
    [
        (Phase(numbers=COUNTS), {}, "counts is None; expected 2 numbers from 0 to 10"),
        (Phase(numbers=COUNTS), {"counts": [1, 11]}, "counts is [1, 11]; expected 2 numbers from 0 to 10"),
        (Phase(numbers=COUNTS), {"counts": [4, True]}, "counts is [4, True]; expected 2 numbers from 0 to 10"),
        (Phase(numbers={"a": Expected(most=3.0)}), {"a": [1]}, "a is [1]; expected a number from 0 to 3"),
        (Phase(numbers={"k": Expected(most=3.0, whole=True)}), {"k": 1.0}, "k is 1.0; expected a number from 0 to 3"),
        (Phase(numbers={"l": Expected(-2)}), {"l": []}, "l is []; expected 1 to 2 numbers from 0 to 10"),
        (Phase(), {"track": 3}, "track is 3; expected figures with a number of samples n"),
        (Phase("evaluate"), {"tuned": GOOD}, "server is missing"),
        (
            Phase("evaluate"),
            {"server": {"n": 2.5}},
            "server is {'n': 2.5}; expected figures with a number of samples n",
        ),
        (Phase("evaluate"), {"server": GOOD, "last": {**GOOD, "f1": 2}}, "expected f1 from 0 to 1"),
        (Phase("evaluate"), {"server": {**GOOD, "loss": 1.7e308}}, "expected loss from 0 to 1e+100"),
        (Phase("evaluate"), {"server": {**GOOD, "correct": 5}}, "expected correct from 0 to n"),
        pytest.param(
            Phase("evaluate"),
            {"server": GOOD, "delivered": GOOD, "uses": {"served": 0.5}},
            "uses is {'served': 0.5}; expected weights from 0 to 1 that sum to 1",
            marks=pytest.mark.whole,
        ),
        pytest.param(
            Phase("evaluate"),
            {"server": GOOD, "delivered": GOOD, "uses": USES, "weights": {"boom": 1.0}},
            "weights is {'boom': 1.0}; expected a weight by candidate",
            marks=pytest.mark.whole,
        ),
        pytest.param(
            Phase("evaluate"),
            {"server": GOOD, "delivered": GOOD, "uses": USES, "gain": [0.1, -1]},
            "gain is [0.1, -1]; expected a mean and its variance",
            marks=pytest.mark.whole,
        ),
        (Phase("moments"), moments(1) | {"count": [0] * 3}, "count is [0, 0, 0]; expected 3 numbers from 1 to 1e+100"),
        (Phase("moments"), channels(square=5e305), "square is [5e+305"),
        (Phase("moments"), channels(square=1e90), "expected values up to 1e+18"),
        (Phase("moments"), channels(sum=100.0), "no 4 values have both"),
    ],
)  # fmt: skip
def test_wrong_numbers_are_named_with_what_is_expected(
    phase: Phase, numbers: dict[str, Any], said: str
) -> None:
    with pytest.raises(DecodeError, match=r"^wrong numbers") as refused:
        checked_numbers(phase, report(**numbers), SCENE)
    assert said in str(refused.value)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("phase", "numbers", "kept"),
    [
        (
            Phase(numbers=COUNTS),
            {"counts": [0, 10.0], "track": {**GOOD, "mse": "boom"}},
            {"counts": [0, 10.0], "track": GOOD},
        ),
        (
            Phase("evaluate"),
            {
                "server": {**GOOD, "mse": "boom"},
                "tuned": {"n": 0, "loss": "x"},
                "best": 3,
                "track": GOOD,
            },
            {"server": GOOD, "tuned": {"n": 0}},
        ),
        (
            Phase("evaluate"),
            {"server": GOOD, "delivered": GOOD, "uses": USES, "gain": [-0.5, 0.25]},
            {"server": GOOD, "delivered": GOOD, "uses": USES, "gain": [-0.5, 0.25]},
        ),
        (Phase("evaluate"), {"server": GOOD, "uses": "boom"}, {"server": GOOD}),
        (Phase("train"), {"anything": "else", "pi": [1.0]}, {}),
        (Phase(numbers={"few": Expected(2, required=False)}), {}, {}),
        (Phase("moments"), {**channels(), "pi": 1}, channels()),
    ],
)
def test_only_numbers_that_the_phase_declares_are_kept(
    phase: Phase, numbers: dict[str, Any], kept: dict[str, Any]
) -> None:
    assert checked_numbers(phase, report(**numbers), SCENE) == kept


def test_unasked_figures_are_dropped() -> None:
    tuned = SCENE.evaluation.model_copy(update={"tune_epochs": 0, "track": False})
    scene = SCENE.model_copy(update={"evaluation": tuned})
    assert checked_numbers(Phase("evaluate"), report(server=GOOD, tuned="boom"), scene) == {
        "server": GOOD
    }
    assert checked_numbers(Phase(), report(track="boom"), scene) == {}
