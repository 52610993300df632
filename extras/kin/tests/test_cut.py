"""Whether a fleet is clustered, and into how many clusters: what needs `groups`."""

from __future__ import annotations

from covey.extras.kin.kin import Kin
from covey.shared.strategies.cfl import Cfl
from covey.shared.strategies.registry import BUILT_IN

MIN_GROUP = Cfl.model_fields["min_group"].description


def test_every_method_with_the_gate_has_the_same_least_size_of_a_group() -> None:
    gated = [kind for kind in BUILT_IN.values() if "gate" in kind.model_fields or kind is Kin]
    assert len(gated) > 6
    for kind in gated:
        assert kind.model_fields["min_group"].default is None
        assert kind.model_fields["min_group"].description == MIN_GROUP
