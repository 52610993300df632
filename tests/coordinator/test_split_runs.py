"""Whole runs in which a part of the model travels, a part stays with each agent, and a part does not train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.coordinator.disk.versions import last_version
from covey.coordinator.engine.events import Failed
from covey.coordinator.run.run import Run
from covey.shared.errors import PublicError, UserError
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId
from covey.shared.strategies.client_half import LAST_MODEL, ClientState
from covey.shared.wire.codec import decode_model
from covey.shared.wire.messages import OrderMessage, ReportContent, Work
from covey.shared.work.at_hand import AtHand
from covey.shared.work.execute import execute_order
from covey.shared.work.use import model_for_use
from tests.kit import small_run
from tests.kit.small_fleet import over_the_wire
from tests.kit.small_run import clients, fingerprint, local_for, samples_of, setup
from tests.methods import METHODS, of_each_kind

MLP = {"model": {"name": "mlp"}}  # fc1, fc2 and out
HEAD = {"keep": ["out"]}
BOTH = {"share": ["fc*", "out"], "keep": ["out.bias"], "freeze": ["fc1"]}
ALL = {"participation": 1.0}

# send gradients, have no head that the split names, no norm, or take whole models alone
WITHOUT = {"fedsgd", "perfedavg", "fedbabu", "feddbe", "fedbn", "fedrep", "fedrep-fedper"}

Ended = tuple[Run, Mapping[ClientId, ClientState]]


def scene_of(method: str, split: Mapping[str, Any] = HEAD, **sections: Any) -> Scenario:
    return small_run.scenario(method, task={**MLP, **split}, **sections)


def ended(folder: Path, scene: Scenario) -> Ended:
    """A run to its end, with the states of its agents."""
    driver = small_run.driver(folder, scene)
    run = driver.complete(samples_of(clients(scene=scene)))
    return run, driver.clients.memories


def tensors(run: Run, model: Any) -> dict[str, Any]:
    return run.setup.whole.named(model)


SPLIT = sorted(set(METHODS) - WITHOUT - {"fesem_ma-fedma"})


@pytest.mark.parametrize("method", of_each_kind("split", SPLIT))
def test_a_method_trains_what_is_shared_and_kept_and_leaves_the_rest_as_it_was(
    tmp_path: Path, method: str
) -> None:
    scene = scene_of(method, BOTH, rounds=ALL)
    run, states = ended(tmp_path, scene)
    starts, layout = small_run.starts(scene)
    start = layout.named(starts[0])
    lasts = [tensors(run, state[LAST_MODEL]) for state in states.values()]
    assert len(lasts) == 8
    for last in lasts:
        assert np.array_equal(last["fc1.weight"], start["fc1.weight"])
        assert not np.array_equal(last["fc2.weight"], start["fc2.weight"])
    assert len({last["out.bias"].tobytes() for last in lasts}) == 8
    for model in run.models:
        assert np.array_equal(tensors(run, model)["out.bias"], start["out.bias"])
    assert all(np.isfinite(one["tuned"]["loss"]) for one in run.members.evaluation.values())


@pytest.mark.parametrize("method", ["fesem", "fedrep"])
def test_over_a_misbehaving_broker_a_split_run_has_the_bytes_of_the_run_without_one(
    tmp_path: Path, method: str
) -> None:
    split = {} if method == "fedrep" else BOTH
    scene = scene_of(method, split, wire={"part_bytes": 1024})
    calm, _ = ended(tmp_path / "calm", scene)
    wired = over_the_wire(tmp_path / "wire", scene, duplicate=0.2, reorder=0.2)
    assert fingerprint(wired) == fingerprint(calm)
    assert wired.members.evaluation == calm.members.evaluation  # kept values survived as well


def test_shared_values_alone_travel_and_all_others_once(tmp_path: Path) -> None:
    scene = scene_of("fedavg", BOTH, rounds={**ALL, "count": 3})
    run, _ = ended(tmp_path, scene)
    setting = run.setup
    assert setting.split is not None
    shared, rest = setting.layout.size, setting.whole.size - setting.layout.size
    assert shared == setting.split.values("share")
    assert run.traffic["up_vectors"] == 8 * 3 * shared
    # the evaluation takes the shared part too
    assert run.traffic["down_vectors"] == 8 * ((3 + 1) * shared + rest)


def test_fedper_is_fedavg_that_keeps_its_last_layer(tmp_path: Path) -> None:
    by_task, states = ended(tmp_path / "task", scene_of("fedavg"))
    by_method, others = ended(tmp_path / "method", scene_of("fedrep-fedper", {}))
    assert fingerprint(by_task) == fingerprint(by_method)
    trained = [client for client, state in states.items() if LAST_MODEL in state]
    assert len(trained) == len(by_task.members.by_agent(lambda one: one.owns)) == 7
    for client in trained:
        assert np.array_equal(states[client][LAST_MODEL], others[client][LAST_MODEL])


def test_the_head_of_fedrep_trains_before_or_after_the_body_and_that_of_fedbabu_never(
    tmp_path: Path,
) -> None:
    models = {}
    for name, sections in {
        "first": {"head": "first"},
        "last": {"head": "last"},
        "joint": {"head": "joint"},
    }.items():
        scene = scene_of("fedrep", {}, strategy=sections, rounds=ALL)
        run, states = ended(tmp_path / name, scene)
        models[name] = fingerprint(run)[0]
        assert len({state[LAST_MODEL].tobytes() for state in states.values()}) == 8
    assert len(set(models.values())) == 3
    scene = scene_of("fedbabu", {}, rounds=ALL)
    run, states = ended(tmp_path / "fedbabu", scene)
    starts, layout = small_run.starts(scene)
    for state in states.values():
        head = layout.named(state[LAST_MODEL])["out.weight"]
        assert np.array_equal(head, layout.named(starts[0])["out.weight"])
    figures = run.members.evaluation.values()
    assert all(one["tuned"]["loss"] < one["server"]["loss"] for one in figures)


@pytest.mark.parametrize(
    "wire", [{"codec": "int8"}, {"codec": "topk", "keep": 0.5}, {"down": "float16"}]
)
def test_a_part_of_a_model_can_be_the_base_of_a_difference(
    tmp_path: Path, wire: dict[str, Any]
) -> None:
    run, _ = ended(tmp_path, scene_of("fedclust", BOTH, wire={"delta": True, **wire}))
    assert len(run.members.evaluation) == 8
    assert all(np.isfinite(model).all() for model in run.models)


@pytest.mark.parametrize("method", ["fedavg", "fedclust"])
def test_buffered_rounds_take_any_split(tmp_path: Path, method: str) -> None:
    scene = small_run.buffered(method, task={**MLP, **BOTH}, rounds={"count": 4})
    driver = small_run.driver(tmp_path, scene)
    run = driver.run
    keep = run.orders.own.keep
    seen: list[tuple[list[str], list[str]]] = []  # keys of an order's models, and the method's

    def noted(number: int, work: Work, message: OrderMessage) -> None:
        keep(number, work, message)
        keys = [ref.key.partition(".")[0] for ref in work.models]
        seen.append((keys, run.orders.own.keys_of(number)))

    run.orders.own.keep = noted  # type: ignore[method-assign]
    driver.complete(samples_of(clients(scene=scene)))
    assert all("own" not in keys for _, keys in seen)
    if method == "fedavg":  # FedClust's agents have all trained before
        assert (["0", "own"], ["0"]) in seen
    assert (["0"], ["0"]) in seen
    assert run.engine.round == 4
    assert len(run.members.evaluation) == 8
    assert set(run.members.by_agent(lambda one: one.owns)) <= set(clients())


def test_an_agent_that_has_lost_what_it_kept_gets_initial_values_again(tmp_path: Path) -> None:
    scene = scene_of("fedavg", rounds={**ALL, "count": 3})
    people = clients(scene=scene)
    driver = small_run.driver(tmp_path, scene, people)
    report: Callable[..., bytes] = driver.clients.report
    failures = []

    def forgetful(run: Run, client: ClientId, order: Any) -> bytes:
        if client == "agent-3" and order.work.round == 1:
            driver.clients.memories.pop(client, None)
            try:
                return report(run, client, order)
            except UserError as error:
                failures.append(str(error))
                raise
        return report(run, client, order)

    driver.clients.report = forgetful  # type: ignore[method-assign]
    with pytest.raises(UserError, match="values that it keeps are missing"):
        driver.complete(samples_of(people))
    run = driver.run
    run.handle(Failed("agent-3", run.engine.number, failures[0]), 0.0)
    assert "agent-3" not in run.members.by_agent(lambda one: one.owns)
    assert "agent-4" in run.members.by_agent(lambda one: one.owns)


def test_exported_models_are_whole(tmp_path: Path) -> None:
    from tests.coordinator.test_origin import finish

    scene = scene_of("fedclust", BOTH)
    run = finish(tmp_path / "run", scene)
    version = last_version(tmp_path / "run")
    assert version.layout == run.setup.whole
    for stored, model in zip(version.models, run.models, strict=True):
        assert np.array_equal(stored, model)


@pytest.mark.parametrize("method", ["fedavg", "fedrep"])
def test_a_version_of_a_run_names_the_tensors_that_each_device_keeps(
    tmp_path: Path, method: str
) -> None:
    scene = scene_of(method, HEAD if method == "fedavg" else {})
    run, _ = ended(tmp_path, scene)
    assert run.version({}).task["keep"] == ["out.weight", "out.bias"]


@pytest.mark.parametrize(
    ("method", "split", "why"),
    [
        ("fedavg", {"keep": ["fc9"]}, "'fc9' matches no tensor"),
        ("fedsgd", HEAD, "not for fedsgd: agents send gradients"),
        ("perfedavg", HEAD, "not for perfedavg: agents send gradients"),
        ("fedrep", {"freeze": ["fc1"]}, "not for fedrep: it needs a head"),
    ],
)
def test_a_split_that_cannot_work_is_refused_before_the_run(
    method: str, split: dict[str, Any], why: str
) -> None:
    with pytest.raises(PublicError, match=why):
        setup(scene_of(method, split))


def test_an_agent_whose_model_has_other_names_fails_with_a_message(tmp_path: Path) -> None:
    scene = scene_of("fedavg", rounds=ALL)
    people = clients(scene=scene)
    driver = small_run.driver(tmp_path, scene, people)
    order = None

    def first(run: Run, client: ClientId, asked: Any) -> bytes:
        nonlocal order
        order = asked
        raise KeyboardInterrupt

    driver.clients.report = first  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        driver.complete(samples_of(people))
    assert order is not None
    tensors_of = [["other.weight", [4, 5]]]
    layout = {"trainable": 1, "tensors": tensors_of}
    renamed = order.model_copy(update={"work": order.work.model_copy(update={"layout": layout})})
    with pytest.raises(PublicError, match="'out' matches no tensor of the model"):
        execute_order(renamed, [], AtHand(people["agent-0"]), {}, client="agent-0")


def test_a_device_uses_the_shared_part_with_what_it_keeps(tmp_path: Path) -> None:
    scene = scene_of("fedavg", rounds=ALL)
    people = clients(scene=scene)
    driver = small_run.driver(tmp_path, scene, people)
    seen = {}
    work = driver.clients.work

    def watched(run: Run, client: ClientId, order: OrderMessage) -> ReportContent:
        assert order.work is not None
        models = [
            decode_model(run.orders.content_of(ref.key), run.setup.whole)
            for ref in order.work.models
        ]
        state = driver.clients.memories.get(client, {})
        local = local_for(people)(client, order)
        used = model_for_use(order, models, AtHand(local), state, client=client)
        seen[client, order.work.phase, order.work.round] = (used, state, models)
        return work(run, client, order)

    driver.clients.work = watched  # type: ignore[method-assign]
    run = driver.complete(samples_of(people))
    assert seen["agent-0", "train", 0][0] is None  # nothing has trained yet
    for phase, round_ in (("train", 2), ("evaluate", 3)):
        used, state, models = seen["agent-0", phase, round_]
        assert used is not None
        [(_, model)] = used
        own = tensors(run, state[LAST_MODEL])["out.weight"]
        assert np.array_equal(tensors(run, model)["out.weight"], own)
        assert run.setup.split is not None
        assert np.array_equal(run.setup.split.share_of(model), models[0])
