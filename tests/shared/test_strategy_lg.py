"""LG-FedAvg on clients whose answers are known by hand."""

from __future__ import annotations

import pytest

from covey.shared.errors import UserError
from covey.shared.numerics.vectors import Layout, Tensor
from covey.shared.strategies.base import Training
from covey.shared.strategies.lg import LgFedAvg
from tests.bowl import Bowl, bowl_layout, flat
from tests.shared.planted import run


def test_lg_shares_the_last_layer_and_leaves_the_others_alone() -> None:
    locals_ = {"a": Bowl(flat(4, 4), 10), "b": Bowl(flat(-4, 8), 30)}
    end = run(LgFedAvg(shared_layers=1), locals_, Training(batch=100, lr=0.5), rounds=2)
    # head: 0 -> mean(2, 4, 4, 4) = 3.5 -> mean(3.75, 5.75 thrice); body of each: half of the way, twice
    assert end.state.model == pytest.approx([5.25])
    for client, body in (("a", 3.0), ("b", -3.0)):
        ((_, model),) = end.personal(client)
        assert model == pytest.approx([body, 5.25])


def test_lg_shares_the_buffers_of_shared_layers() -> None:
    tensors = ("low.weight", "top.weight", "low.running_mean", "top.running_mean")
    split = LgFedAvg(shared_layers=1).split(
        Layout(tuple(Tensor(name, (1,)) for name in tensors), 2)
    )
    assert [tensor.name for tensor in split.tensors("share")] == ["top.weight", "top.running_mean"]
    assert split.share_of(flat(1, 2, 3, 4)).tolist() == [2, 4]
    assert split.rest_of(flat(1, 2, 3, 4)).tolist() == [1, 3]


def test_lg_names_the_layers_when_more_are_to_be_shared_than_there_are() -> None:
    with pytest.raises(
        UserError, match=r"shared_layers is 3.*2 parametrised modules \(body, head\)"
    ):
        LgFedAvg(shared_layers=3).split(bowl_layout())
