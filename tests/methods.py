"""The options with which tests try each method: the one place in the tests where a method has a line of its own.

A method joins the tests by its line in `covey.shared.strategies.method_names`, or in its extra's METHODS. Without a line here it is tried with its
defaults; add one where it needs other options, or has further modes to try.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any
from zlib import crc32

from covey.shared.strategies.base import Strategy
from covey.shared.strategies.registry import BUILT_IN
from tests.night import is_night

# methods that share some layers and keep others: a model with one layer alone has nothing left
LAYERED = {"fedbabu", "fedrep"}
NORMED = {"fedbn"}  # keep layers that normalise

# for rules that every method keeps (tests/shared/test_strategy_every.py): one run per set of options
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "cfl": [
        {"eps_1": 9.0, "eps_2": 0.0, "warmup": 1},
        {
            "trigger": "rounds",
            "every": 1,
            "warmup": 0,
            "linkage": "average",
            "features": "last_kernel",
            "gamma": 0.13,
        },
        {"linkage": "complete", "eps_1": 9.0, "eps_2": 0.0, "warmup": 0},
        {},
    ],
    "ifca": [
        {"n_clusters": 2, "initial": "random"},
        {},
        {"averaging": "gradient", "weights": "uniform", "shared_trunk": True, "n_clusters": 3},
        {"initial": "restarts"},
        {"initial": "kmeans++", "n_clusters": 3, "reseed_dead": True},
        {"initial": "warmup", "warmup_rounds": 2},
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
        {"beta": -1},
    ],
    "robust": [
        {"n_clusters": 2, "first_epochs": 2},
        {"trim": "ball", "features": "last_layer", "beta": 0.3},
        {"trim": "median", "averaging": "gradient"},
        {"features": "logreg", "beta": 0.25},
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
    "clove": [{"n_clusters": 2}, {}],
    "fedgwc": [{"settled": 1.0}, {}],
    "feddane": [{}, {"mu": 0.5}],
    "feddist": [{}, {"anneal": "linear", "epsilon": 1.0}],
    "fednova": [{}, {"mu": 0.1}],
    "lg": [{"shared_layers": 1}],
    "fedrep": [{}, {"head": "last"}, {"head": "joint"}],
    "perfedavg": [{}, {"variant": "hf", "beta": 0.1}],
    "fedsgd": [{"batch": "full"}, {"batch": 4}],
    "given": [{"groups": {"even": ["*[02468]"], "odd": ["*"]}}, {"groups": {"one": ["*1"]}}],
    "fedsoft": [{}, {"n_clusters": 3, "selected": 2}],
    "fedem": [{"n_clusters": 2, "share_memberships": True}, {"damped": True}],
    "fesem_ma": [
        {"n_clusters": 2},
        {"n_clusters": 2, "warmup_start": "own"},
        {"matching": "fedma"},
    ],
    "fuzzy": [
        {"n_clusters": 2},
        {"variant": "fedavg+clu"},
        {"variant": "fedavg+clusteredFL", "known": {"c0": [0.9, 0.1], "c1": [0.2, 0.8]}},
    ],
    "fesem": [
        {"n_clusters": 2},
        {"n_clusters": 3, "features": "sketch"},
        {
            "n_clusters": 2,
            "distance": "cosine",
            "features": "last_kernel",
            "m_step": "participants",
        },
        {"n_clusters": 2, "distance": "l1", "features": "last_layer"},
    ],
}

# for small whole runs of eight agents (tests/kit/small_run.py): one run per entry, by the name of the method or of a mode
SMALL: dict[str, dict[str, Any]] = {
    "ditto": {},
    "local": {},
    "fedsgd": {},
    "fedavg": {},
    "fedprox": {"mu": 0.1},
    "fednova": {"mu": 0.1},
    "feddane": {"mu": 0.1},
    "feddist": {},
    "feddws": {"anneal": "linear"},
    "perfedavg": {"alpha": 0.05, "beta": 0.1},
    "lg": {"shared_layers": 1},
    "scaffold": {},
    "fedala": {},
    "feddbe": {},
    "fedrep": {},
    "fedrep-fedper": {"name": "fedrep", "head": "joint"},
    "fedbabu": {},
    "fedbn": {},
    "fesem": {"n_clusters": 2},
    "fesem_ma": {"n_clusters": 2},
    "fesem_ma-own": {"name": "fesem_ma", "n_clusters": 2, "warmup_start": "own"},
    "fesem_ma-fedma": {"name": "fesem_ma", "n_clusters": 2, "matching": "fedma"},
    "fedsoft": {"n_clusters": 2},
    "fedem": {"n_clusters": 2, "damped": True},
    "fuzzy": {"n_clusters": 2},
    "given": {"groups": {"even": ["*[02468]"]}},
    "fedclust": {"n_clusters": 2},
    "robust": {"n_clusters": 2, "first_epochs": 3},
    "cfl": {"eps_1": 9.0, "eps_2": 0.1, "warmup": 1},
    "clove": {"n_clusters": 2},
    "fedgwc": {"settled": 0.1},
    "ifca": {"n_clusters": 2, "shared_trunk": True, "initial": "random"},
    "pacfl": {"n_clusters": 2},
    "kin": {},
}

# every method that is there is tried: those without an entry with their defaults
METHODS: dict[str, dict[str, Any]] = {
    **{name: options for name, options in SMALL.items() if options.get("name", name) in BUILT_IN},
    **{name: {} for name in BUILT_IN if name not in SMALL},
}


@cache
def kind_of(method: str) -> tuple[object, ...]:
    """The facts of a method by which the coordinator and agents treat it, and the base that it shares with its relatives."""
    this = BUILT_IN[METHODS[method].get("name", method)]
    base = this.__mro__[this.__mro__.index(Strategy) - 1]
    return (
        base if base.__module__ != this.__module__ else Strategy,
        this.facts.individual,
        this.facts.keeps,
        this.facts.sealed is None,
        bool(this.facts.signatures),
        bool(this.facts.numbers),
    )


def of_each_kind(rule: str, methods: Iterable[str] = METHODS) -> list[str]:
    """A method of each kind, another one for each rule; at night all of them.

    A method has a file of its own for what it could break by itself, which sees all planted faults that a matrix of methods sees.

    Args:
        rule: a word about the test, from which the choice follows.
        methods: those that the rule is about.
    """
    among: dict[object, list[str]] = {}
    for method in methods:
        among.setdefault(kind_of(method), []).append(method)
    assert among, f"no method for {rule}"
    if is_night():
        return [method for kin in among.values() for method in kin]
    return [kin[crc32(f"{rule} {kin[0]}".encode()) % len(kin)] for kin in among.values()]
