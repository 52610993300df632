"""Orders of single agents, in buffered rounds: each stays as it was made while models move on.

An order names versions of models: a version has a key of its own, the cluster and the start of its digest, and stays
readable until neither an open order nor a report that waits has begun with it. The work of each of them is in a file,
`outgoing/order-<step>`, so that a restarted coordinator publishes the very order that the agent has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from covey.coordinator.disk.spool import Spool
from covey.coordinator.engine.pace import Pace
from covey.coordinator.record.store import Store
from covey.coordinator.run.effects import DropModel, SendModel
from covey.shared.errors import DecodeError
from covey.shared.wire.messages import INITIAL, ModelRef, OrderMessage, Work, digest

PREFIX = "order-"  # of the files with orders
VERSION_DIGITS = 16  # hexadecimal, of a version's digest in its key


class OwnOrders:
    """Open orders and those whose reports wait, with the versions of models that they name, in memory and in files.

    In step there is nothing here.
    """

    def __init__(self, folder: Path, store: Store) -> None:
        self._folder = folder
        self._store = store
        self.works: dict[int, Work] = {}  # by step
        self.versions: dict[str, SendModel] = {}  # by their own keys

    def __repr__(self) -> str:
        return f"<OwnOrders: {len(self.works)} orders, {len(self.versions)} versions of models>"

    def keep(self, number: int, work: Work, message: OrderMessage) -> None:
        """A new order is in its file after this."""
        self.works[number] = work
        self._store.order_file(file_of(self._folder, number), message.to_bytes())

    def keep_version(self, send: SendModel, content: bytes) -> None:
        """A model that a new order names is in its file after this."""
        self._store.order_file(send.path, content)
        self.versions[send.ref.key] = send

    def tidy(self, needed: Collection[int], present: Iterable[SendModel]) -> list[DropModel]:
        """Forget orders that are over, and versions that are neither `present` nor named by an order."""
        for number in self.works.keys() - needed:
            del self.works[number]
            self._store.useless(file_of(self._folder, number))
        named = {send.ref.key for send in present}
        named.update(ref.key for work in self.works.values() for ref in work.models)
        dropped: list[DropModel] = []
        for key in sorted(self.versions.keys() - named):
            send = self.versions.pop(key)
            self._store.useless(send.path)
            dropped.append(DropModel(key, send.ref.parts))
        return dropped

    def keys_of(self, number: int) -> list[str]:
        """The strategy's keys of the models that an order names: a version's key ends with a dot and its digest."""
        keys = [ref.key.rpartition(".")[0] for ref in self.works[number].models]
        return [key for key in keys if key not in INITIAL]  # these are the last ones

    def start_of(self, number: int, key: str) -> SendModel:
        """The model behind one of these keys, as the agent of this order has it."""
        place = self.keys_of(number).index(key)
        return self.versions[self.works[number].models[place].key]

    def restore(self, needed: Collection[int], values: int, own: int) -> None:
        """Take up the orders that an earlier process has left in files.

        Args:
            needed: their numbers.
            values: of each model that they name.
            own: values of the models with the keys `INITIAL`.
        """
        for number in sorted(needed):
            order = _saved_order(self._folder, number)
            assert order is not None  # noqa: S101 - the others were found to be lost
            assert order.work is not None  # noqa: S101
            self.works[number] = order.work
            for ref in order.work.models:
                path = self._folder / ref.key
                is_own = ref.key.partition(".")[0] in INITIAL
                self.versions[ref.key] = SendModel(
                    ref, path, about=number, values=own if is_own else values
                )


def version_key(key: str, content: bytes) -> str:
    """The key of a version of the model that the strategy knows by `key`."""
    return f"{key}.{digest(content).hex()[:VERSION_DIGITS]}"


def lost_orders(folder: Path, pace: Pace, spool: Spool) -> set[int]:
    """The orders of a saved pace that are of no use: their reports waited and cannot be read, or they cannot be published again."""
    lost = {
        report.step for report in pace.waiting() if report.client not in spool.sound(report.step)
    }
    return lost | {number for number in pace.numbers() if _saved_order(folder, number) is None}


def _saved_order(folder: Path, number: int) -> OrderMessage | None:
    """The order that a file has; None if the order or a model that it names is missing or damaged."""
    try:
        order = OrderMessage.from_bytes(file_of(folder, number).read_bytes())
    except (OSError, DecodeError):
        return None
    if order.work is None or not all(_is_whole(folder, ref) for ref in order.work.models):
        return None
    return order


def file_of(folder: Path, number: int) -> Path:
    """The file of an order for one agent."""
    return folder / f"{PREFIX}{number}"


def _is_whole(folder: Path, ref: ModelRef) -> bool:
    try:
        return digest((folder / ref.key).read_bytes()) == ref.digest
    except OSError:
        return False
