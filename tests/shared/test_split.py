"""Patterns of tensor names, and the parts of a model that they make."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from covey.shared.errors import PublicError
from covey.shared.numerics.split import Split, norms
from covey.shared.numerics.vectors import Layout, Tensor
from covey.shared.scenario.describe import dump
from covey.shared.strategies.fedavg import FedAvg
from covey.shared.strategies.fedbn import FedBn
from covey.shared.strategies.fedrep import FedRep
from covey.shared.work.order_settings import split_by
from tests.bowl import flat
from tests.kit.scenes import VECTORS, Scenes

PLAIN = Layout(
    tuple(
        Tensor(name, (1, 1) if name.endswith("weight") else (1,))
        for name in ("conv.weight", "conv.bias", "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")
    ),
    6,
)
NORMED = Layout(
    (
        Tensor("conv.weight", (4, 1, 3, 3)),
        Tensor("bn.weight", (4,)),
        Tensor("bn.bias", (4,)),
        Tensor("gn.weight", (4,)),
        Tensor("gn.bias", (4,)),
        Tensor("fc.weight", (2, 4)),
        Tensor("fc.bias", (2,)),
        Tensor("bn.running_mean", (4,)),
        Tensor("bn.running_var", (4,)),
    ),
    7,
)


def roles(layout: Layout = PLAIN, **lists: list[str]) -> dict[str, str]:
    """The tensors of each role, as words in one text."""
    split = Split.by_patterns(
        layout, lists.get("share", []), lists.get("keep", []), lists.get("freeze", [])
    )
    parts = {
        role: [one.name for one in split.tensors(role)] for role in ("share", "keep", "freeze")
    }
    return {role: " ".join(names) for role, names in parts.items() if names}


def refusal(layout: Layout = PLAIN, **lists: list[str]) -> str:
    with pytest.raises(PublicError) as caught:
        split_by(
            FedAvg(), layout, lists.get("share", []), lists.get("keep", []), lists.get("freeze", [])
        )
    return str(caught.value)


def test_tensors_without_a_role_are_frozen_if_there_is_a_list_of_shared_ones_and_shared_without() -> (
    None
):
    assert roles(share=["fc2"]) == {
        "share": "fc2.weight fc2.bias",
        "freeze": "conv.weight conv.bias fc1.weight fc1.bias",
    }
    assert roles(keep=["fc*"]) == {
        "share": "conv.weight conv.bias",
        "keep": "fc1.weight fc1.bias fc2.weight fc2.bias",
    }
    assert roles(share=["fc1", "fc2"], keep=["fc2.bias"]) == {
        "share": "fc1.weight fc1.bias fc2.weight",
        "keep": "fc2.bias",
        "freeze": "conv.weight conv.bias",
    }


def test_the_first_pattern_that_matches_decides() -> None:
    assert roles(share=["!fc2.bias", "fc*"])["share"] == "fc1.weight fc1.bias fc2.weight"
    assert roles(share=["fc2.bias", "!fc2", "*.bias"])["share"] == "conv.bias fc1.bias fc2.bias"
    assert roles(share=["!fc2"])["freeze"] == "fc2.weight fc2.bias"  # exclusions alone: all others


@pytest.mark.parametrize(
    ("lists", "why"),
    [
        ({"keep": ["fc3"]}, r"task\.keep: 'fc3' matches no tensor .*fc2\.bias"),
        ({"share": ["head.*"]}, r"task\.share: 'head\.\*' matches no tensor"),
        ({"share": ["fc*", "!fc2.bias"]}, r"'!fc2\.bias' decides nothing.*put it before them"),
        ({"keep": ["fc1"], "freeze": ["fc1.bias"]}, r"both name fc1\.bias"),
        ({"keep": ["*"]}, r"leaves nothing of the model to share.*the method local"),
        ({"freeze": ["*"]}, r"leaves nothing"),
    ],
)
def test_a_pattern_that_makes_no_sense_is_refused_with_the_remedy(
    lists: dict[str, list[str]], why: str
) -> None:
    assert re.search(why, refusal(PLAIN, **lists))


def test_batch_norm_is_shared_only_by_its_name() -> None:
    text = refusal(NORMED, share=["*"])
    assert "bn.weight" in text
    assert "running statistics describe the inputs of one device" in text
    assert "gn.weight" not in text
    assert "bn.weight" in refusal(NORMED, keep=["fc"])
    assert roles(NORMED, share=["*"], keep=["bn"])["keep"] == (
        "bn.weight bn.bias bn.running_mean bn.running_var"
    )
    assert "bn.running_var" in roles(NORMED, share=["bn", "fc"])["share"]


def test_all_of_the_model_is_no_split() -> None:
    assert split_by(FedAvg(), PLAIN, ["*"]) is None
    assert split_by(FedAvg(), PLAIN) is None


def test_a_task_is_stronger_than_the_layers_that_a_method_keeps() -> None:
    own = split_by(FedRep(), PLAIN)
    named = split_by(FedRep(), PLAIN, keep=["conv"])
    assert own is not None
    assert named is not None
    assert [tensor.name for tensor in own.tensors("keep")] == ["fc2.weight", "fc2.bias"]
    assert [tensor.name for tensor in named.tensors("keep")] == ["conv.weight", "conv.bias"]


def test_a_model_is_put_together_from_its_parts() -> None:
    split = Split.by_patterns(PLAIN, ["conv", "fc2"], ["fc2.bias"], [])
    model = flat(1, 2, 3, 4, 5, 6)
    assert split.share_of(model).tolist() == [1, 2, 5]
    assert split.rest_of(model).tolist() == [3, 4, 6]
    assert split.joined(split.share_of(model), split.rest_of(model)).tolist() == model.tolist()
    assert split.padded(flat(7, 8)).tolist() == [7, 8, 0, 0, 0, 0]
    assert split.trains is not None
    assert split.trains.tolist() == [True, True, False, False, True, True]
    assert (split.shared.size, split.shared.parameters, split.values("keep")) == (3, 3, 1)


def test_fedbn_keeps_every_layer_that_normalises_or_statistics_alone() -> None:
    assert norms(NORMED) == ("bn", "gn")
    kept = [tensor.name for tensor in FedBn().split(NORMED).tensors("keep")]
    assert kept == [one.name for one in NORMED.tensors if one.module in ("bn", "gn")]
    silo = FedBn(keeps="statistics").split(NORMED)
    assert [tensor.name for tensor in silo.tensors("keep")] == ["bn.running_mean", "bn.running_var"]
    assert silo.shared.parameters == NORMED.parameters
    with pytest.raises(PublicError, match=r"no normalisation layers.*choose a model"):
        FedBn().split(PLAIN)


def test_what_is_kept_is_part_of_the_task() -> None:
    scenes = Scenes.of("plain", VECTORS)
    keep: dict[str, Any] = {"keep": ["fc.bias"]}
    kept = scenes("fedavg", task=keep)
    assert kept.task.for_agents()["keep"] == ["fc.bias"]
    assert kept.task.digest != scenes("fedavg").task.digest


@pytest.mark.whole
def test_a_compared_method_can_have_parts_of_its_own() -> None:
    methods = [{"name": "fedavg"}, {"label": "fedper", "name": "fedavg", "split": {"keep": ["fc"]}}]
    scenes = Scenes.of("parts", VECTORS)
    scene = scenes("fedavg", task={"share": ["fc"]}, compare={"methods": methods, "seeds": [1]})
    assert scene.compare is not None
    whole, parts = (scene.task_of(method) for method in scene.compare.methods)
    assert (whole.share, whole.keep) == (("fc",), ())
    assert (parts.share, parts.keep) == ((), ("fc",))
    _, split = yaml.safe_load(dump(scene))["compare"]["methods"]
    assert split["split"] == {"keep": ["fc"]}
