"""The server's optimiser: formulas by hand, moments per cluster, and methods that refuse it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from covey.shared.numerics.accumulator import Accumulator
from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.base import MODEL, Phase
from covey.shared.strategies.bases.single import Single
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.fedavg import FedAvg
from covey.shared.strategies.fedclust import FedClust, FedClustState
from covey.shared.strategies.reading import folded
from covey.shared.strategies.registry import BUILT_IN, AnyStrategy
from covey.shared.strategies.server import TAU, Moving, Served, Server
from covey.shared.strategies.sums import ExactSums
from tests.bowl import flat
from tests.kit.small_fleet import over_the_wire
from tests.kit.small_run import fingerprint, in_process, scenario
from tests.methods import of_each_kind

registry: TypeAdapter[Any] = TypeAdapter(AnyStrategy)
REFUSE: dict[str, dict[str, Any]] = {
    "fedem-damped": {"damped": True},
    "ifca-gradient": {"averaging": "gradient"},
    "ifca-trunk": {"shared_trunk": True},
}


def report(*values: float) -> Report:
    return Report({MODEL: flat(*values)}, examples=10)


def rounds(server: dict[str, Any], *means: float) -> list[float]:
    """The model after rounds whose reports all are these values, from 0."""
    strategy = FedAvg(server=Server(**server))
    state = Single(flat(0.0))
    found = []
    for mean in means:
        state = folded(strategy, state, Phase(), reports=[("a", report(mean))])
        found.append(float(state.model[0]))
    return found


def test_fedavgm_repeats_a_share_of_its_last_step() -> None:
    # steps of 2, and then of half of it while no agent moves
    assert rounds({"name": "sgd", "momentum": 0.5}, 2.0, 2.0, 3.0) == [2.0, 3.0, 3.5]
    assert rounds({"name": "sgd", "lr": 0.5}, 2.0, 3.0) == [1.0, 2.0]


def test_the_adaptive_steps_are_those_of_the_paper() -> None:
    common = {"lr": 0.1, "momentum": 0.5}
    # Delta = 2: m = 0.5 * 2; v begins with tau^2
    v = TAU**2
    adagrad = 0.1 * 1.0 / (np.sqrt(v + 4.0) + TAU)
    assert rounds({"name": "adagrad", **common}, 2.0) == pytest.approx([adagrad])
    adam = 0.1 * 1.0 / (np.sqrt(0.99 * v + 0.01 * 4.0) + TAU)
    assert rounds({"name": "adam", **common}, 2.0) == pytest.approx([adam])
    yogi = 0.1 * 1.0 / (np.sqrt(v + 0.01 * 4.0) + TAU)  # v < Delta^2: its sign is -1
    assert rounds({"name": "yogi", **common}, 2.0) == pytest.approx([yogi])
    # no agent moves: Delta = 0, so only the momentum moves on, and v shrinks with adam alone
    later = adam + 0.1 * 0.5 / (np.sqrt(0.99 * (0.99 * v + 0.01 * 4.0)) + TAU)
    found = rounds({"name": "adam", **common}, 2.0, adam)
    assert found[1] == pytest.approx(later, rel=1e-5)


def test_a_plain_server_changes_no_byte(tmp_path: Path) -> None:
    plain = fingerprint(in_process(tmp_path / "plain", scenario("fedavg")))
    server = {"server": {"name": "sgd", "lr": 1, "momentum": 0}}
    same = in_process(tmp_path / "same", scenario("fedavg", strategy=server))
    assert fingerprint(same) == plain
    assert same.state.moments == {}


def two_clusters(server: Server) -> tuple[FedClust, FedClustState]:
    strategy = FedClust(n_clusters=2, server=server)
    models = (flat(0.0), flat(10.0))
    return strategy, FedClustState(flat(0.0), models, {"a": 0, "b": 1})


def test_each_cluster_has_moments_of_its_own_and_one_without_reports_rests() -> None:
    strategy, state = two_clusters(Server(name="sgd", momentum=0.5))
    both = [("a", report(2.0)), ("b", report(14.0))]
    state = folded(strategy, state, Phase(), reports=both)
    assert [model.tolist() for model in state.models] == [[2.0], [14.0]]
    state = folded(strategy, state, Phase(), reports=[("a", report(2.0))])
    assert [model.tolist() for model in state.models] == [[3.0], [14.0]]
    state = folded(strategy, state, Phase(), reports=[("b", report(14.0))])
    assert [model.tolist() for model in state.models] == [[3.0], [16.0]], "its moments waited"


def test_an_aggregator_gets_a_state_without_moments() -> None:
    strategy, state = two_clusters(Server(name="adam"))
    after = folded(strategy, state, Phase(), reports=[("a", report(2.0)), ("b", report(14.0))])
    assert set(after.moments) == {"0", "1"}
    assert strategy.for_terms(after) == replace(after, moments={})


def test_moments_belong_to_the_model_that_they_led_to() -> None:
    strategy, state = two_clusters(Server(name="sgd", momentum=0.5))
    state = folded(strategy, state, Phase(), reports=[("a", report(2.0)), ("b", report(14.0))])
    replaced = replace(state, models=(flat(5.0), state.models[1]))  # as a vote or a restart does
    after = folded(strategy, replaced, Phase(), reports=[("a", report(6.0)), ("b", report(14.0))])
    assert [model.tolist() for model in after.models] == [[6.0], [16.0]]


def test_buffers_take_the_mean() -> None:
    sums = Accumulator()
    sums.add("0", flat(1.0, 0.5), 1.0)
    served = Served(ExactSums(sums), Server(name="adam", lr=0.01), {}, parameters=1)
    model = served.mean("0", flat(0.0, 0.25))
    assert model[1] == 0.5
    assert 0 < model[0] < 0.2


def test_only_sums_of_models_are_moved_and_a_sum_may_be_asked_for_twice() -> None:
    sums = Accumulator()
    for key in ("0", "buffers"):
        sums.add(key, flat(4.0), 1.0)
    served = Served(ExactSums(sums), Server(name="sgd", lr=0.5), {})
    start: Vector = flat(0.0)
    assert [served.mean("0", start).tolist() for _ in range(2)] == [[2.0], [2.0]]
    assert served.mean("buffers", start).tolist() == [4.0]
    assert served.moved("0", start, 0.5).tolist() == [1.0]
    assert served.mean("1", start) is start


@pytest.mark.parametrize("case", REFUSE)
def test_methods_without_a_mean_of_models_refuse_the_server(case: str) -> None:
    name, _, _ = case.partition("-")
    options = {"name": name, **REFUSE[case], "server": {"name": "adam"}}
    with pytest.raises(ValidationError, match=f"server is not for {name}: .*leave it out"):
        registry.validate_python(options)


@pytest.mark.parametrize("name", of_each_kind("server", BUILT_IN))
def test_methods_that_never_make_a_mean_of_models_have_no_server(name: str) -> None:
    kind = BUILT_IN[name]
    makes_means = kind.facts.makes_means
    assert ("server" in kind.model_fields) == makes_means


def test_the_defaults_are_those_of_the_optimiser() -> None:
    adam, sgd = Server(name="adam"), Server()
    assert (adam.lr, adam.momentum, sgd.lr, sgd.momentum) == (0.01, 0.9, 1.0, 0.0)
    assert Server.model_validate(adam.model_dump()) == adam


def test_a_state_of_another_kind_is_named() -> None:
    strategy = FedAvg(server=Server(name="adam"))
    with pytest.raises(TypeError, match="int has no moments"):
        folded(strategy, cast(Single, 3), Phase(), reports=[])
    assert issubclass(Single, Moving)


@pytest.mark.parametrize(
    ("method", "optimiser"),
    [("fedavg", "sgd"), ("fedavg", "adagrad"), ("ifca", "adam"), ("fedclust", "yogi")],
)
def test_over_the_wire_a_served_run_has_the_bytes_of_the_run_without_a_network(
    tmp_path: Path, method: str, optimiser: str
) -> None:
    options: dict[str, Any] = {"server": {"name": optimiser, "momentum": 0.5}}
    if method == "ifca":
        options["shared_trunk"] = False
    twice = {"rounds": {"count": 2}}
    scene = scenario(method, strategy=options, **twice)
    reference = in_process(tmp_path / "in-process", scene)
    assert fingerprint(over_the_wire(tmp_path / "wire", scene)) == fingerprint(reference)
    assert reference.state.moments
    plain = scenario(
        method, strategy={key: options[key] for key in options if key != "server"}, **twice
    )
    assert fingerprint(reference) != fingerprint(in_process(tmp_path / "plain", plain))
