"""Faults that the product once had, put back: the simulator must find each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from covey.agent.device.outbox import Outbox
from covey.coordinator.disk import spool
from covey.coordinator.run.effects import DropModel, Effect, SendOrder
from covey.coordinator.run.happenings import Happening
from covey.coordinator.run.own_orders import OwnOrders
from covey.coordinator.run.run import Run
from covey.coordinator.serve import reader
from covey.coordinator.serve.desk import Desk
from covey.extras.scale import aggregators
from covey.extras.scale.aggregators import Aggregators, AggregatorSeen
from covey.extras.secure.agent import SecureAgent
from covey.extras.secure.coordinator import SecureSum, SumState
from covey.extras.secure.derivation import Stream, name_of_list, self_key
from covey.extras.secure.progress import Collected, GroupSum
from covey.shared.mqtt.link import Received
from covey.shared.storage import files
from covey.shared.strategies.base import ClientId
from covey.shared.wire.documents import CoordinatorStatus
from covey.shared.wire.messages import Work
from tests.simulator.plan import Fault, Plan

# a fix of the product, and the simplest plan that shows what happens without it
FOUND = {
    "digest of the work": Plan(
        100, "fedavg", "hasty", 1, False, (Fault("put back folder", at=5, lasts=34),)
    ),
    "live aggregators": Plan(2, "fedavg", "hasty", 1, True, (Fault("power cut", at=3),)),
    "newest coordinator": Plan(
        18, "fedavg", "hasty", 1, False, (Fault("copy folder", at=1, lasts=7),)
    ),
    "free reader": Plan(
        203432,
        "fedavg",
        "hasty",
        1,
        True,
        (
            Fault("full disk", at=5.8, lasts=4.6),
            Fault("power cut of coordinator", at=3.9, lasts=1.5, target=28),
        ),
    ),
    "orders before the disk": Plan(0, "fedavg", "hasty", 1, False, ()),
    "masks of the missing": Plan(
        0, "fedavg", "hasty", 1, False, (Fault("kill agent", at=1.2, lasts=60),), secure=True
    ),
    "memory on the disk": Plan(
        34,
        "fedavg",
        "hasty",
        1,
        False,
        tuple(
            Fault("power cut of agent", at=at, lasts=1, target=target)
            for at, target in ((1.5, 4), (2.5, 6), (3.5, 1), (4.5, 8))
        ),
    ),
    "synced spool": Plan(
        5, "fedavg", "hasty", 1, False, (Fault("power cut of coordinator", at=3, lasts=5),)
    ),
    "models in use": Plan(0, "fedavg", "buffered", 1, False, ()),
    "one answer": Plan(
        0, "fedavg", "hasty", 1, False, (Fault("put back folder", at=1, lasts=5),), secure=True
    ),
    "listed members": Plan(
        0, "fedavg", "hasty", 1, False, (Fault("kill agent", at=1.2, lasts=60),), secure=True
    ),
    "synced files": Plan(
        0, "fedavg", "hasty", 1, False, (Fault("power cut of coordinator", at=3, lasts=5),)
    ),
}
FIXES = ("", *FOUND)


@contextmanager
def without(fix: str) -> Iterator[None]:
    """Take a fix of the product out; "": none."""
    match fix:
        case "digest of the work":  # a report is bound to its run and the number of its step only
            with patch.object(Work, "digest", property(lambda work: bytes(16))):
                yield
        case "live aggregators":  # a retained "online" of one that died with its broker counts
            status = Aggregators._status

            def believed(self: Aggregators, message: Received) -> AggregatorSeen | None:
                return status(self, replace(message, retained=False))

            with (
                patch.object(Aggregators, "lost", lambda self, shard: None),
                patch.object(Aggregators, "_status", believed),
            ):
                yield
        case "newest coordinator":  # of two coordinators the older session wins, whatever its state
            with patch.object(reader, "CoordinatorStatus", _OfAnyRun()):
                yield
        case "free reader":  # the reader waits for a call that waits for its disk
            with patch.object(aggregators, "orders_of", _orders_under_the_lock):
                yield
        case "memory on the disk":  # an agent's state does not wait for its disk
            begin = Outbox.__init__

            def hasty(self: Outbox, folder: Path, **about: Any) -> None:
                begin(self, folder, **{**about, "durable": False})

            with patch.object(Outbox, "__init__", hasty):
                yield
        case "synced spool":  # reports are acknowledged before they are on the disk
            with patch.object(spool, "sync_files", lambda paths: None):
                yield
        case "orders before the disk":  # what follows from events leaves before they are written
            with patch.object(Run, "handle_all", _committed_later):
                yield
        case "models in use":  # files of models are removed that open orders name
            with patch.object(OwnOrders, "tidy", _forgetting_all):
                yield
        case "one answer":  # an agent answers for a start as often as it is asked
            with patch.object(SecureAgent, "_check_lock", lambda *about: None):
                yield
        case "listed members":  # the record counts members that have not reported
            kept = Collected.kept

            def with_all_listed(collected: Collected, **contents: bytes) -> GroupSum:
                group = kept(collected, **contents)
                return replace(group, reported=group.listed) if group.reported else group

            with patch.object(Collected, "kept", with_all_listed):
                yield
        case "synced files":  # programs write, and do not wait for the disk
            with patch.object(files, "sync", lambda path: None):
                yield
        case (
            "masks of the missing"
        ):  # a sum keeps the masks that reporters share with missing members
            with patch.object(SecureSum, "_masks", _masks_of_reporters):
                yield
        case _:
            yield


def _forgetting_all(orders: OwnOrders, needed: object, present: object) -> list[DropModel]:
    for send in orders.versions.values():
        orders._store.useless(send.path)
    return []


def _committed_later(run: Run, events: Iterable[Happening], now: float) -> list[list[Effect]]:
    run.store.commit(run)
    return [run._decided(event, now) for event in events]


def _orders_under_the_lock(desk: Desk, clients: Iterable[ClientId]) -> list[SendOrder]:
    return [desk.run.order_of(client) for client in clients]


def _masks_of_reporters(
    machine: SecureSum, state: SumState, secrets: Mapping[int, bytes]
) -> tuple[Stream, ...]:
    named = name_of_list(state.listing)
    keys = [self_key(secrets[place], named, place) for place in state.reported]
    return tuple(Stream(1, key).opposite for key in keys)


class _OfAnyRun:
    """Reads the statuses of coordinators as if none had this run."""

    @staticmethod
    def from_bytes(content: bytes) -> CoordinatorStatus:
        return CoordinatorStatus.from_bytes(content).model_copy(update={"run": ""})
