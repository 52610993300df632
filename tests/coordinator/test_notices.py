"""Notices: every kind has the JSON that programs read, key for key."""

from __future__ import annotations

import json

import pytest

from covey.coordinator.fold.means import Means
from covey.coordinator.record import notices
from covey.coordinator.record.notices import Notice, PhaseFolded

PHASE = PhaseFolded(
    phase="train",
    ends_round=True,
    round=2,
    step=5,
    invited=["a", "b"],
    reported=["a"],
    missing=["b"],
    cluster_sizes={"0": 2},
    moved=1,
    seconds=3.5,
    train_seconds=2.0,
    fold_seconds=0.5,
    traffic={"up_vectors": 7},
    notes={},
    means=Means(loss=0.25),
)
PHASE_JSON = (
    '{"event": "phase", "phase": "train", "ends_round": true, "round": 2, "step": 5, "invited": ["a", "b"], '
    '"reported": ["a"], "missing": ["b"], "cluster_sizes": {"0": 2}, "moved": 1, "loss": 0.25, "seconds": 3.5, '
    '"train_seconds": 2.0, "fold_seconds": 0.5, "traffic": {"up_vectors": 7}, "notes": {}}'
)
EXAMPLES: list[tuple[Notice, str]] = [
    (PHASE, PHASE_JSON),
    (notices.RoundVoid(1, 3, "no quorum"), '{"event": "void", "round": 1, "step": 3, "why": "no quorum"}'),
    (
        notices.ReportSetAside("a", 1, 3, "too far"),
        '{"event": "set_aside", "agent": "a", "round": 1, "step": 3, "why": "too far"}',
    ),
    (
        notices.AgentQuarantined("a", 2, "too far", 1),
        '{"event": "quarantined", "agent": "a", "refused": 2, "why": "too far", "round": 1}',
    ),
    (
        notices.AgentRests("a", "silent", 2, 5, "2 times in a row", 1),
        '{"event": "resting", "agent": "a", "kind": "silent", "times": 2, "until": 5, '
        '"why": "2 times in a row", "round": 1}',
    ),
    (notices.AgentReleased("a", 1), '{"event": "released", "agent": "a", "round": 1}'),
    (notices.RoundsStopped(2, 9, "settled"), '{"event": "stopped", "round": 2, "rounds": 9, "why": "settled"}'),
    (notices.LinesLost(4), '{"event": "lost lines", "lines": 4}'),
    (notices.WorkFailed("a", 3, "no data"), '{"event": "failed", "agent": "a", "step": 3, "why": "no data"}'),
    (notices.AgentForgotten("a", 2), '{"event": "forgotten", "agent": "a", "round": 2}'),
    (notices.ReportIgnored(None, "late"), '{"event": "ignored", "agent": null, "why": "late"}'),
    (notices.ReportRefused("a", "bad"), '{"event": "refused", "agent": "a", "why": "bad"}'),
    (notices.ReportDamaged("a file"), '{"event": "damaged", "why": "a file"}'),
    (notices.AgentExcluded("a", "odd"), '{"event": "problem", "agent": "a", "why": "odd"}'),
    (notices.AgentLeft("a", "odd"), '{"event": "left", "agent": "a", "why": "odd"}'),
    (
        notices.BrokerReady("yours", "mqtt://x", ""),
        '{"event": "broker", "broker": "yours", "url": "mqtt://x", "note": ""}',
    ),
    (
        notices.ModelChosen("lenet5", ["fc.bias"]),
        '{"event": "model", "model": "lenet5", "still": ["fc.bias"]}',
    ),
    (notices.LinkUp(), '{"event": "link", "up": true}'),
    (notices.ShardUp(1, "mqtt://b"), '{"event": "shard", "up": true, "shard": 1, "broker": "mqtt://b"}'),
    (notices.ShardDown(1, "refused", 3), '{"event": "shard", "up": false, "shard": 1, "why": "refused", "agents": 3}'),
    (notices.AggregatorUp(1), '{"event": "aggregator", "up": true, "shard": 1}'),
    (notices.AggregatorDown(1), '{"event": "aggregator", "up": false, "shard": 1}'),
    (notices.AggregatorExcluded(1, "older"), '{"event": "aggregator excluded", "shard": 1, "why": "older"}'),
    (notices.SumRefused(1, "weight"), '{"event": "sum refused", "shard": 1, "why": "weight"}'),
    (notices.LinkDown("refused"), '{"event": "link", "up": false, "why": "refused"}'),
    (notices.SubscriptionsRefused(["t"], "refused"), '{"event": "subscriptions", "refused": ["t"], "why": "refused"}'),
    (notices.BrokerDrops("x", False), '{"event": "delivery", "why": "x", "works": false}'),
    (notices.ControlReceived("pause", "c"), '{"event": "control", "command": "pause", "topic": "c"}'),
    (notices.DiskRemark("full"), '{"event": "disk", "why": "full"}'),
    (notices.ProcessFrozen(6.0, "frozen"), '{"event": "frozen", "seconds": 6.0, "why": "frozen"}'),
    (
        notices.ModelsPublished("a@3", 3, 2, 17),
        '{"event": "published", "version": "a@3", "round": 3, "models": 2, "serial": 17}',
    ),
    (notices.ModelsNotPublished("no broker"), '{"event": "not published", "why": "no broker"}'),
    (notices.RunWaits("too few"), '{"event": "waiting", "why": "too few", "seconds": 0}'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("notice", "text"), EXAMPLES, ids=[type(notice).__name__ for notice, _ in EXAMPLES]
)
def test_a_notice_has_the_json_that_programs_read(notice: Notice, text: str) -> None:
    assert json.dumps(notice.to_json()) == text


def test_every_kind_of_notice_has_an_example() -> None:
    kinds = {kind for kind in vars(notices).values() if isinstance(kind, type)}
    kinds = {kind for kind in kinds if issubclass(kind, Notice) and hasattr(kind, "event")}
    assert {type(notice) for notice, _ in EXAMPLES} == kinds
