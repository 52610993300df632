"""LG-FedAvg on clients whose answers are known by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.broker.testing.memory_broker import MemoryBroker
from covey.shared.errors import DataError, UserError
from covey.shared.numerics.vectors import Layout, Tensor
from covey.shared.strategies.base import Setup, Training
from covey.shared.strategies.lg import LgFedAvg
from tests import clock
from tests.bowl import Bowl, Softmax, bowl_layout, flat
from tests.kit.small_fleet import Fleet
from tests.kit.small_run import clients, in_process, rules, scenario
from tests.shared.planted import ONE, SGD, job, run, setup_for, unequal


def test_lg_shares_the_last_layer_and_leaves_the_others_alone() -> None:
    locals_ = {"a": Bowl(flat(4, 4), 10), "b": Bowl(flat(-4, 8), 30)}
    end = run(LgFedAvg(shared_layers=1), locals_, Training(batch=100, lr=0.5), rounds=2)
    # head: 0 -> mean(2, 4, 4, 4) = 3.5 -> mean(3.75, 5.75 thrice); body of each: half of the way, twice
    assert end.state.shared == pytest.approx([5.25])
    for client, body in (("a", 3.0), ("b", -3.0)):
        ((_, model),) = end.personal(client)
        assert model == pytest.approx([body, 5.25])
    assert end.strategy.clusters(end.state)[0] == pytest.approx([0.0, 5.25])


def test_lg_sends_own_layers_initial_values_to_newcomers_alone() -> None:
    end = run(LgFedAvg(shared_layers=1), {"a": Bowl(flat(4, 4))}, ONE, flat(1, 2), rounds=1)
    serve = {client: end.strategy.serve(end.state, client).models for client in ("a", "new")}
    assert serve == {"a": ("0",), "new": ("0", "start")}
    assert [end.strategy.model(end.state, key).tolist() for key in ("0", "start")] == [[3.0], [1.0]]
    assert end.phases[0][0].sizes == {"shared": 1}


def test_lg_weighs_all_agents_alike_with_its_option() -> None:
    locals_ = {"a": Bowl(flat(4, 4), 10), "b": Bowl(flat(-4, 8), 30)}
    end = run(
        LgFedAvg(shared_layers=1, weights="uniform"), locals_, Training(batch=100, lr=0.5), rounds=1
    )
    assert end.state.shared == pytest.approx([3.0])


def test_lg_with_no_layer_shared_sends_no_model_and_exports_none() -> None:
    lg = run(LgFedAvg(shared_layers=0), unequal(), SGD, rounds=3)
    assert lg.strategy.clusters(lg.state) == ()
    assert all(not phase.sizes for phase, _ in lg.phases)


def test_lg_shares_the_buffers_of_shared_layers() -> None:
    tensors = ("low.weight", "top.weight", "low.running_mean", "top.running_mean")
    layout = Layout(tuple(Tensor(name, (1,)) for name in tensors), 2)
    state = LgFedAvg(shared_layers=1).init(Setup((flat(1, 2, 3, 4),), layout, 0, 1, 1.0, ONE))
    assert (state.start.tolist(), state.shared.tolist()) == ([1, 3], [2, 4])
    assert LgFedAvg(shared_layers=1).clusters(state)[0].tolist() == [1, 2, 3, 4]


def test_lg_names_the_layers_when_more_are_to_be_shared_than_there_are() -> None:
    with pytest.raises(
        UserError, match=r"shared_layers is 3.*2 parametrised modules \(body, head\)"
    ):
        LgFedAvg(shared_layers=3).init(Setup((flat(1, 1),), bowl_layout(), 0, 1, 1.0, ONE))


def test_lg_reports_that_own_layers_are_gone() -> None:
    strategy = LgFedAvg(shared_layers=1)
    with pytest.raises(DataError, match="own layers are missing"):
        strategy.personal(job(flat(1.0), layout=bowl_layout()), Bowl(flat(0, 0)), {})


TWO_LAYERS = ("body.weight", "head.bias")


def two_layered() -> dict[str, Softmax]:
    return {client: replace(local, names=TWO_LAYERS) for client, local in clients().items()}


def test_lg_moves_only_shared_values_and_own_layers_once(tmp_path: Path) -> None:
    scene = scenario("lg", rounds={"participation": 1.0, "count": 3})
    end = in_process(tmp_path, scene, two_layered(), start=setup_for(scene, TWO_LAYERS))
    agents, shared, own = 8, 4, 20
    assert end.traffic["up_vectors"] == agents * 3 * shared
    assert end.traffic["down_vectors"] == agents * (
        (3 + 1) * shared + own
    )  # the evaluation takes the shared part too


def test_lg_over_the_wire_gives_the_bytes_of_the_run_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = scenario("lg", wire={"part_bytes": 1024})
    patient = {"absence_s": 3600.0, "rollcall_s": 3600.0, "deadline_s": 36_000.0}
    monkeypatch.setattr("tests.kit.small_fleet.setup", lambda scene: setup_for(scene, TWO_LAYERS))

    async def whole() -> Any:
        broker = MemoryBroker(seed=5, duplicate=0.2, reorder=0.2, drop_session=0.005)
        async with Fleet(
            tmp_path / "wire", scene, rules(scene, **patient), broker, two_layered()
        ) as fleet:
            return await fleet.serve()

    calm = in_process(tmp_path / "calm", scene, two_layered(), start=setup_for(scene, TWO_LAYERS))
    wired = clock.run(whole())
    assert wired.state.shared.tobytes() == calm.state.shared.tobytes()
    assert wired.state.trained == calm.state.trained
    assert wired.facts.evaluation == calm.facts.evaluation  # own layers survived as well


@pytest.mark.parametrize(
    "wire", [{"codec": "int8"}, {"codec": "topk", "keep": 0.5}, {"down": "float16"}]
)
def test_a_part_of_a_model_can_be_the_base_of_a_difference(
    tmp_path: Path, wire: dict[str, Any]
) -> None:
    scene = scenario("lg", wire={"delta": True, **wire})
    end = in_process(tmp_path, scene, two_layered(), start=setup_for(scene, TWO_LAYERS))
    assert len(end.facts.evaluation) == 8
    assert np.isfinite(end.state.shared).all()
    assert end.state.shared.any()
