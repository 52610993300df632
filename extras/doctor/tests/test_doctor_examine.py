"""The rules about figures, each just beyond its limit and just within it, and the list of all that is odd."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from covey.coordinator.odd import KINDS, Odd, ranked, read_odd, without
from covey.extras.doctor import examine
from covey.extras.doctor.devices import Seen
from covey.extras.doctor.tests.odd_words import NOW, kinds, named
from covey.extras.doctor.tests.test_doctor_columns import column, scaled
from covey.extras.doctor.tests.test_doctor_devices import caller, status
from covey.extras.runs.roster_table import status_lines
from covey.shared.candidate_names import CONSTANT
from covey.shared.wire.documents import EXPELLED, ModelInUse, RosterMessage
from tests.agent.orders import deployment

# -- figures ---------------------------------------------------------------------------------------------------------


def fleet(other: Mapping[str, Any], usual: Mapping[str, Any], count: int = 10) -> list[tuple[str, str]]:  # fmt: skip
    found = {f"gw-{n}": usual for n in range(count - 1)} | {f"gw-{count - 1}": other}
    return named(examine.odd_figures(found))


def errors(mine: float, nothing: float = 1.0, name: str = "rmse", mode: str = "server") -> dict[str, Any]:  # fmt: skip
    return {mode: {"n": 50, name: mine}, "baseline": {"n": 50, name: nothing}}


def test_a_model_is_worse_than_none() -> None:
    usual = errors(0.5)
    assert fleet(errors(1.74), usual) == []
    assert fleet(errors(1.76), usual) == [("gw-9", "figure")]
    assert fleet(errors(2.9, 2.0), usual) == []
    assert fleet(errors(3.06, name="mse"), errors(0.5, name="mse")) == []
    assert fleet(errors(3.07, name="mse"), errors(0.5, name="mse")) == [("gw-9", "figure")]
    assert fleet(errors(1.74, 0.0), usual) == [], "a constant target needs no model"
    assert fleet(errors(1.76, 0.0), usual) == [("gw-9", "figure")]
    assert (
        fleet(
            {"server": {"n": 50, "rmse": 1.76}, "baseline": {"n": 50, "rmse": 0.0}},
            {**usual, "baseline": {}},
        )
        == []
    )
    assert fleet({"server": {"n": 50, "rmse": 1.76}}, usual) == []
    [odd] = examine.odd_figures({"a": usual, "b": usual, "c": errors(1.85)})
    assert odd.what == "its model is worse than none: RMSE 1.85, the constant answer 1"
    assert odd.weight == pytest.approx(0.1)


def shares(mine: float, nothing: float = 0.5, n: int = 100, **more: Any) -> dict[str, Any]:
    return {"server": {"n": n, "accuracy": mine}, "baseline": {"n": n, "accuracy": nothing}, **more}


def test_a_share_is_worse_than_none_beyond_chance() -> None:
    usual = shares(0.9)
    assert fleet(shares(0.35), usual) == []
    assert fleet(shares(0.34), usual) == [("gw-9", "figure")]
    assert fleet(shares(0.34, n=80), usual) == []
    assert fleet(shares(0.3, 0.65), usual) == [], "it has mostly one class"
    assert fleet(shares(0.3, 0.59), usual) == [("gw-9", "figure")]
    assert fleet(shares(0.99, 1.0), usual) == []


def test_many_that_are_worse_than_none_have_a_method_that_fails() -> None:
    found = {f"gw-{n}": shares(0.1 if n < 3 else 0.9) for n in range(10)}
    assert named(examine.odd_figures(found)) == []
    found["gw-2"] = shares(0.4)
    assert named(examine.odd_figures(found)) == [("gw-0, gw-1", "figure")]
    lost = {f"gw-{n}": errors(1.85 if n == 0 else 1.1 if n < 3 else 0.9) for n in range(10)}
    assert named(examine.odd_figures(lost)) == [], "others lose by it too"
    lost["gw-2"] = errors(1.0)
    assert named(examine.odd_figures(lost)) == [("gw-0", "figure")]


def test_the_fleets_model_is_no_good_where_a_device_has_trained_its_own() -> None:
    own: dict[str, Any] = {"delivered": {"n": 100, "accuracy": 0.9}}
    usual = shares(0.9, **own)
    assert fleet(shares(0.1, **own), usual) == [("gw-9", "figure")]
    alone: dict[str, Any] = {"delivered": {"n": 100, "accuracy": 1.0}}
    assert fleet(shares(0.8, 1.0, **alone), usual) == [], "one class alone"
    found = {"a": usual, "b": usual, "c": shares(0.1, **own)}
    [odd] = examine.odd_figures(found)
    assert odd.what == "the fleet's model is worse there than none: accuracy 10.00 %, the constant answer 50.00 %"  # fmt: skip
    assert named(examine.odd_figures({**found, "d": {"server": {"n": 9, "accuracy": 0.9}, **own}})) == [("c", "figure")]  # fmt: skip
    assert named(examine.odd_figures({**found, "d": own})) == [("c", "figure")]
    delivered = {"delivered": {"n": 50, "rmse": 0.4}}
    assert fleet({**errors(4.9), **delivered}, {**errors(0.5), **delivered}) == [("gw-9", "figure")]
    assert fleet({**errors(1.4, 0.2), "delivered": {"n": 50, "rmse": 0.1}}, {**errors(0.5), **delivered}) == [], "small changes there"  # fmt: skip


def test_an_error_is_ten_times_the_fleets() -> None:
    def odd(*losses: float, name: str = "loss") -> list[Odd]:
        return list(examine.odd_figures({f"gw-{n}": {"server": {"n": 50 + n, name: one}} for n, one in enumerate(losses)}))  # fmt: skip

    assert odd(0.2, 0.2, 1.9) == []
    [far] = odd(0.2, 0.2, 2.0)
    assert (far.who, far.kind, far.what) == (
        "gw-2",
        "figure",
        "loss 2.0000, the fleet's median is 0.2000",
    )
    assert far.weight == pytest.approx(10.0)
    assert odd(0.2, 0.2, 0.02) == [], "a small one is no fault"
    assert odd(0.2, 0.2, 0.0) == []
    assert odd(4.0, 4.0, 390.0, name="mse") == []
    [far] = odd(4.0, 4.0, 401.0, name="mse")
    assert far.what == "RMSE 20.02, the fleet's median is 2"
    both = {"n": 50, "rmse": 1.0, "loss": 50.0}
    rest = {f"gw-{n}": {"server": {"n": 51 + n, "rmse": 1.0, "loss": 1.0}} for n in range(3)}
    assert list(examine.odd_figures({**rest, "gw-9": {"server": both}})) == []
    own = {f"gw-{n}": {"server": {"n": 50 + n, "loss": one}, "delivered": {"n": 50 + n, "loss": 0.1}} for n, one in enumerate((0.2, 0.2, 3.0))}  # fmt: skip
    [far] = examine.odd_figures(own)
    assert far.what == "the fleet's model there: loss 3.0000, the fleet's median is 0.2000"


def test_the_figures_of_what_a_device_uses() -> None:
    delivered, server = {"n": 5, "loss": 1.0}, {"n": 5, "loss": 2.0}
    assert examine.in_use({"delivered": delivered, "server": server}) is delivered
    assert examine.in_use({"server": server}) is server
    assert examine.in_use({"delivered": {}, "server": server}) is server
    assert examine.in_use({"last": server}) == {}
    assert examine.in_use({"server": {"n": 0, "loss": 1.0}}) == {}
    assert examine.in_use({"server": {**server, "diverged": True}}) == {}


def test_the_same_loss_on_as_many_rows_is_a_copy() -> None:
    def copied(n: int, loss: float, other: float) -> list[tuple[str, str]]:
        found = {"a": {"server": {"n": n, "loss": loss}}, "b": {"server": {"n": n, "loss": other}}}
        return named(examine.odd_figures(found))

    assert copied(10, 0.25, 0.25) == [("a, b", "copy")]
    assert copied(9, 0.25, 0.25) == []
    assert copied(10, 0.0, 0.0) == []
    assert copied(10, 0.25, 0.26) == []
    rows = {"a": {"server": {"n": 10, "loss": 0.25}}, "b": {"server": {"n": 11, "loss": 0.25}}}
    assert named(examine.odd_figures(rows)) == []


@pytest.mark.parametrize("targets", [{}, {"mean": 5.0, "variance": 1.0}], ids=["classes", "values"])
def test_devices_that_share_a_test_part_alone_are_no_copies(targets: dict[str, float]) -> None:
    def found(*constants: float) -> list[tuple[str, str]]:
        shared = {"n": 90, "loss": 0.25, **targets}
        return named(examine.odd_figures({f"gw-{n}": {"server": shared, "baseline": {"n": 90, "loss": one}} for n, one in enumerate(constants)}))  # fmt: skip

    assert found(1.1, 1.2, 1.3) == []
    assert found(1.1, 1.1) == [("gw-0, gw-1", "copy")]
    # the constant class of two devices is the same by chance
    assert found(1.1, 1.2, 1.1) == ([("gw-0, gw-2", "copy")] if targets else [])


def checked(shift: float, mean: float = 50.0, variance: float = 25.0, n: int = 50, **own: float) -> dict[str, Any]:  # fmt: skip
    """The figures of a device whose test targets are this number of deviations from those it trains on."""
    server = {"n": n, "mse": 1.0 + mean / 1e6, "mean": mean, "variance": variance, **own}
    return {"server": server, "baseline": {"n": n, "mse": variance * (1 + shift**2)}}


def test_test_targets_that_are_unlike_those_trained_on() -> None:
    def odd(shift: float, usual: float = 0.0, others: int = 9) -> list[Odd]:
        rest = {f"gw-{n}": checked(usual, 50 + n / 10) for n in range(others)}
        return list(examine.odd_figures({**rest, "gw-9": checked(shift, 49.0)}))

    assert odd(2.99) == []
    [drift] = odd(3.01)
    assert (drift.who, drift.kind) == ("gw-9", "drift")
    assert drift.what == "its test targets are 3.0 deviations from those it trains on, on the others 0.0"  # fmt: skip
    assert drift.weight == pytest.approx(3.01)
    assert odd(5.9, usual=1.0) == []
    assert named(odd(6.1, usual=1.0)) == [("gw-9", "drift")]
    assert odd(9.0, others=1) == []
    many = {f"gw-{n}": checked(9.0 if n < 3 else 0.0, 50 + n / 10) for n in range(10)}
    assert list(examine.odd_figures(many)) == []
    small = {f"gw-{n}": checked(0.0, 50 + n / 10, 0.5) for n in range(9)}
    assert kinds(examine.odd_figures({**small, "gw-9": checked(9.0, 49.0, 0.5)})) == ["drift"]
    unknown = {"server": {"n": 50, "mse": 1.0, "mean": 49.0, "variance": 0.5}}
    assert kinds(examine.odd_figures({**small, "gw-9": unknown})) == []
    flat = checked(0.0, variance=0.0)
    rest = {f"gw-{n}": checked(0.0, 50 + n / 10) for n in range(9)}
    assert kinds(examine.odd_figures({**rest, "gw-9": flat})) == ["constant"]


def test_targets_are_judged_as_a_column() -> None:
    rest = {f"gw-{n}": checked(0.0, 50 + n / 10) for n in range(9)}
    assert named(examine.odd_figures({**rest, "gw-9": checked(0.0, 5000.0, 250_000.0)})) == [("gw-9", "target")]  # fmt: skip
    [odd] = examine.odd_figures({**rest, "gw-9": checked(0.0, 5000.0, 250_000.0)})
    assert odd.what.startswith("its target is about 5000 here")
    only_mean = {"gw-9": {"server": {"n": 50, "mean": 5000.0}}}
    assert named(examine.odd_figures({**rest, **only_mean})) == []


def test_a_mixture_that_gives_no_model_any_weight() -> None:
    def odd(*weights: Mapping[str, float]) -> list[tuple[str, str]]:
        return named(examine.odd_figures({}, {f"gw-{n}": own for n, own in enumerate(weights)}))

    good, none = {"server": 0.4, "none": 0.6}, {"server": 0.0, "none": 1.0}
    assert odd(good, good, none) == [("gw-2", "no model")]
    assert odd(good, none, none) == [("gw-1, gw-2", "no model")]
    assert odd(good, good, {}) == []
    assert odd(good, good, {"none": 1.0}) == [("gw-2", "no model")]
    [lone] = examine.odd_figures({}, {"a": good, "b": good, "c": none})
    assert lone.weight == 0.0


def test_the_own_word_of_a_device_replaces_what_the_last_run_found() -> None:
    found = list(examine.odd_figures({}, {f"gw-{n}": {"none": 1.0} for n in range(4)}))
    uses = {"gw-0": "100 % served", "gw-1": CONSTANT, "gw-2": "", "gw-8": CONSTANT}
    models = {agent: ModelInUse(run="run-1", round=3, uses=own) for agent, own in uses.items()}
    statuses = {agent: status(agent, model=own) for agent, own in models.items()}
    roster = RosterMessage(odd=[odd.to_json() for odd in found])
    for between, expected in (
        (False, [("gw-0, gw-1, gw-2 and 1 more", "no model")]),
        (True, [("gw-2, gw-3", "no model"), ("gw-1, gw-8", "no model")]),
    ):
        shown = examine.of_retained(NOW, statuses, roster, None, between_runs=between)
        assert named(shown) == expected
    devices = {agent: {"state": "idle", "model": own.model_dump()} for agent, own in models.items()}
    lines = status_lines({"status": None, "roster": {"odd": roster.odd}, "devices": devices})
    assert ["gw-0" in line for line in lines[-2:]] == [False, False]


# -- the list --------------------------------------------------------------------------------------------------------


def thing(device: str = "a", kind: Any = "disk", what: str = "full", **more: Any) -> Odd:
    return Odd((device,), kind, what, "`broker doctor`", **more)


def test_the_list_is_in_the_order_of_kinds_weights_and_names() -> None:
    found = [thing("c", what="x"), thing("b"), thing("a", what="y", weight=-1), thing("d", what="z", weight=2), thing("e", "broker")]  # fmt: skip
    assert [odd.devices[0] for odd in ranked(found)] == ["e", "d", "b", "c", "a"]
    assert len(ranked(thing(what=f"{n}") for n in range(101))) == 100
    assert without(found, "b") == [found[0], *found[2:]]
    assert thing().weight == 0.0
    urgent = {kind for kind, one in KINDS.items() if one.is_urgent}
    assert urgent == {"coordinator", "broker", "certificate", "disk", "target"}
    assert thing().sentence == "a: full; next: `broker doctor`"
    assert Odd(("a", "b", "c", "d"), "copy", "x", "y").who == "a, b, c and 1 more"


def test_several_devices_about_which_the_same_is_odd_are_one_thing() -> None:
    """Before: a fault of the scenario was as many lines as there are devices, and the list had no room for another one."""
    story = [Odd((f"gw-{n}",), "work", "too large", f"`coordinator lab story gw-{n}`", 9.0 - n, n) for n in range(1, 4)]  # fmt: skip
    [one] = ranked([*story, *story])
    assert one == Odd(("gw-1", "gw-2", "gw-3"), "work", "too large", "`coordinator lab story gw-1`", 6.0, 3)  # fmt: skip
    assert ranked([one, story[1]]) == ranked([story[1], one]) == [one]
    assert without([one], "gw-2")[0].devices == ("gw-1", "gw-3")
    assert len(ranked([*story, thing("gw-4", "work", "too large")])) == 2, "another command"
    assert ranked([replace(story[0], since=None), story[1]])[0].since == 7.0
    pairs = [Odd(devices, "copy", "the same", "x") for devices in (("a", "b"), ("c", "d"))]
    assert ranked(pairs) == pairs
    assert without(pairs, "b") == pairs[1:]


def test_the_list_leaves_out_malformed_entries() -> None:
    good = thing(since=3.0).to_json()
    assert read_odd([good]) == [thing(since=3.0)]
    wrong: dict[str, Any]
    for wrong in ({"devices": []}, {"devices": [3]}, {"kind": "x"}, {"since": "1"}, {"weight": None}, {"next": 3}):  # fmt: skip
        assert read_odd([{**good, **wrong}]) == []
    assert read_odd("[]") == read_odd(None) == read_odd(["a", 3]) == []


def test_oddities_of_one_cause_are_named_once() -> None:
    facts = examine.Facts(known=[thing("a", "figure"), thing("b", "figure"), thing("a", "target")])
    assert named(examine.examine(facts)) == [("a", "target"), ("b", "figure")]
    facts = examine.Facts(known=[thing("a", "figure", "one"), thing("a", "figure", "two")])
    assert [odd.what for odd in examine.examine(facts)] == ["one"]
    facts = examine.Facts(known=[thing("a", "scale", "one"), thing("a", "scale", "two")])
    assert len(examine.examine(facts)) == 2, "of two columns"
    facts = examine.Facts(known=[thing("a", "work"), thing("b", "work"), thing("a", "excluded")])
    assert named(examine.examine(facts)) == [("a", "excluded"), ("b", "work")]


@pytest.mark.parametrize("kind", [kind for kind, facts in KINDS.items() if facts.once])
def test_a_fault_that_the_coordinator_and_the_device_state_is_one_row(kind: str) -> None:
    facts = examine.Facts(known=[thing("a", kind, "three"), thing("a", kind, "none")])
    [odd] = examine.examine(facts)
    assert odd.what == "three"


def test_a_disk_has_one_row_with_what_is_true_now() -> None:
    known = [
        thing("a", "disk", "3 MB free on its disk"),
        thing("b", "disk", "1 MB free on its disk"),
    ]
    facts = examine.Facts(Seen(NOW, {"a": status("a", disk_free=1)}), known=known)
    assert [(odd.who, odd.what) for odd in examine.examine(facts)] == [
        ("a", "0 MB free on its disk"),
        ("b", "1 MB free on its disk"),
    ]
    facts = examine.Facts(known=[thing("a", "disk"), thing("a", "figure")])
    assert kinds(examine.examine(facts)) == ["disk", "figure"]
    far = {"gw-9": errors(4.9), **{f"gw-{n}": errors(0.5) for n in range(9)}}
    assert named(examine.examine(examine.Facts(evaluation=far))) == [("gw-9", "figure")]
    weights = {"a": {"none": 1.0}, "b": {"server": 1.0}, "c": {"server": 1.0}}
    assert kinds(examine.examine(examine.Facts(weights=weights))) == ["no model"]
    shown = examine.Facts(Seen(NOW, {"a": status("a", twins=1)}), {"load": column(scaled(12.0))}, "load")  # fmt: skip
    assert kinds(examine.examine(shown)) == ["twin id", "target"]
    assert examine.examine(examine.Facts()) == []


def test_the_list_from_what_a_broker_retains() -> None:
    known = [thing("gw-5", "figure"), thing("gw-6", "offline"), thing("gw-7", "reports"), thing("gw-3", "work")]  # fmt: skip
    roster = RosterMessage(
        agents={"gw-9": {"seen": NOW - 9, "silent": "x"}}, odd=[odd.to_json() for odd in known]
    )
    statuses = {"gw-1": status(version="3.0"), "gw-2": status("gw-2", version="3.0"), "gw-3": status("gw-3", problem=EXPELLED)}  # fmt: skip

    def found(between_runs: bool, **more: Any) -> list[Odd]:
        return examine.of_retained(NOW, statuses, roster, caller(), between_runs=between_runs, **more)  # fmt: skip

    gone = RosterMessage(agents={"gw-4": {"problem": EXPELLED}})
    assert examine.of_retained(NOW, statuses, gone, None, between_runs=True) == [], (
        "a broker that lost its store has no word of it"
    )
    assert named(found(False)) == [("gw-7", "reports"), ("gw-5", "figure"), ("gw-9", "silent"), ("gw-6", "offline"), ("gw-1, gw-2", "version")]  # fmt: skip
    remembered = found(True)
    assert [odd.what for odd in remembered[:2]] == ["full (last run)", "full (last run)"]
    assert kinds(remembered) == ["reports", "figure", "silent", "version"]
    assert remembered[2].since == NOW - 9
    more = found(True, until=NOW, elsewhere={"gw-8": "b"}, deployment=deployment())
    assert kinds(more) == ["certificate", "federation", "reports", "figure", "silent", "version"]
    assert examine.of_retained(NOW, {}, None, None, between_runs=True) == []
