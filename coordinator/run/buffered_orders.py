"""Orders of buffered rounds: each agent has its own, and it stays as it was made while models move on.

An order names versions of models: a version has a key of its own, the cluster and the start of its digest, and stays
readable until neither an open order nor a report that waits has begun with it. The work of each of them is in a file,
`outgoing/order-<step>`, so that a restarted coordinator publishes the very order that the agent has.

An order is brief where it can be. Brokers retain one content that orders share, the newest. It changes with the learning
rate, as at an evaluation with settings of its own: an older order that is published again then is whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from covey.coordinator.engine.buffered import BufferedEngine
from covey.coordinator.engine.stage import Stage
from covey.coordinator.run.disk_space import Room
from covey.coordinator.run.effects import DropModel, SendModel, SendOrder
from covey.coordinator.run.orders import OrderBook
from covey.coordinator.run.run_state import RunState
from covey.shared.client import decode_model
from covey.shared.errors import DecodeError
from covey.shared.files import write_atomically
from covey.shared.numerics.vectors import Vector
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId, Phase, Setup
from covey.shared.wire.brief_work import brief_of, shared_of
from covey.shared.wire.messages import ModelRef, OrderMessage, Work, digest

Kind = tuple[str, tuple[str, ...], int | None]  # a phase, keys of models, and a cluster
PREFIX = "order-"  # of the files with orders
VERSION_DIGITS = 16  # hexadecimal, of a version's digest in its key


class BufferedOrderBook(OrderBook):
    """An `OrderBook` whose orders of buffered rounds outlive the state that they were made from."""

    _engine: BufferedEngine

    def __init__(
        self,
        folder: Path,
        scenario: Scenario,
        setup: Setup,
        engine: BufferedEngine,
        facts: RunState,
        room: Room,
    ) -> None:
        super().__init__(folder, scenario, setup, engine, facts, room)
        # an agent at hand is evaluated in between, in no time; others finish their order first
        self.evaluates_busy = False
        self.durable = True  # files survive a power cut; a simulation does not wait for the disk
        self._begun: dict[int, Work] = {}  # of open orders and of reports that wait, by step
        # digests of what these orders share with others; those that an earlier process made have none
        self._settings: dict[int, bytes] = {}
        self._useless: list[Path] = []  # files that the next checkpoint does not need
        # of this state: agents with the same models share one object, which is made and checked once
        self._newest: dict[Kind, Work] = {}
        self._newest_settings: dict[Kind, bytes] = {}  # what these share with others: its digest
        self._present: dict[str, SendModel] = {}  # versions of the models of this state, by key
        self._versions: dict[str, SendModel] = {}  # those and older ones, by their own keys

    def make(self, client: ClientId, number: int, phase: Phase, state: Any) -> None:
        """Make the work of a new order, on the newest models."""
        order = self._strategy.order(state, phase, client)
        models: list[ModelRef] = []
        for key in order.models:
            send = self._version(key, number, state)
            models.append(send.ref)
        numbers = dict(order.numbers)
        kind = (phase.name, order.models, order.cluster)
        work = self._newest.get(kind)
        if work is None or work.numbers != numbers:
            work = self._work_with(phase, order, models)
            self._newest[kind] = work
            self._newest_settings.pop(kind, None)
        self._begun[number] = work
        if self.readers:
            self._share(kind, number, work)
        message = self._message(client, number, work)
        content = message.to_bytes()
        self._write(self._file(number), content)

    def _share(self, kind: Kind, number: int, work: Work) -> None:
        """Let the brokers retain what this order shares with others."""
        settings = self._newest_settings.get(kind)
        if settings is None:
            settings = digest(shared_of(work).to_bytes())
            self._newest_settings[kind] = settings
        self._settings[number] = settings
        if not self.is_outdated(number) and self.shared is not None:
            return
        if self._engine.stage is Stage.OPEN:
            return  # agents still fetch what the orders of the open step share
        self.shared = self._new_shared(work, number)

    def _brief_form(self, message: OrderMessage, number: int, work: Work) -> OrderMessage:
        """The order without what all share, as long as brokers retain that."""
        shared = self.shared
        if shared is None:
            return message
        if self._settings.get(number) != shared.ref.digest:
            return message
        return message.model_copy(update={"work": None, "brief": brief_of(work, shared.ref)})

    def is_outdated(self, number: int) -> bool:
        """Whether an order was brief, and the brokers no longer retain what it left out."""
        settings = self._settings.get(number)
        if settings is None or self.shared is None:
            return False
        return settings != self.shared.ref.digest

    def is_made(self, client: ClientId) -> bool:
        order = self._engine.stream.orders.get(client)
        return order is None or order.step in self._begun

    def work_of(self, client: ClientId, number: int, state: Any) -> Work:
        """The work of an open order, of one whose report waits, or of the step that asks all agents."""
        work = self._begun.get(number)
        return super().work_of(client, number, state) if work is None else work

    def order_of(self, client: ClientId, state: Any) -> SendOrder:
        order = self._engine.stream.orders.get(client)
        if order is None or self._is_asked_first(client):
            return super().order_of(client, state)
        number = order.step
        work = self._begun[number]
        message = self._message(client, number, work)
        if client in self.readers:
            message = self._brief_form(message, number, work)
        return SendOrder(client, message)

    def _is_asked_first(self, client: ClientId) -> bool:
        """Whether the open step of all agents comes before this agent's own order."""
        if not self.evaluates_busy:
            return False
        step = self._engine.step
        is_open = self._engine.stage is Stage.OPEN
        if step is None or not is_open:
            return False
        return client in step.awaited

    def _message(self, client: ClientId, number: int, work: Work) -> OrderMessage:
        self._serial += 1
        return OrderMessage(
            run=self._facts.run,
            serial=self._serial,
            step=number,
            accepted=self._facts.accepted.get(client, 0),
            closed=number - 1,
            again=self._facts.incarnation,
            cluster=work.cluster,
            work=work,
            use=self._is_for_use(work.phase),
        )

    def forget_models(self) -> None:
        super().forget_models()
        self._present.clear()
        self._newest.clear()
        self._newest_settings.clear()

    def tidy(self) -> list[DropModel]:
        """Forget orders that are over, and versions that nobody needs any more."""
        needed = self._needed()
        over = self._begun.keys() - needed
        for number in over:
            del self._begun[number]
            self._settings.pop(number, None)
            self._useless.append(self._file(number))
        named: set[str] = set()
        for send in self._present.values():
            named.add(send.ref.key)
        for work in self._begun.values():
            for ref in work.models:
                named.add(ref.key)
        dropped: list[DropModel] = []
        for key in sorted(self._versions.keys() - named):
            send = self._versions.pop(key)
            self._useless.append(send.path)
            dropped.append(DropModel(key, send.ref.parts))
        return dropped

    def remove_useless_files(self) -> None:
        """Remove the files of all that `tidy` forgot: a checkpoint was written that does not need them."""
        for path in self._useless:
            path.unlink(missing_ok=True)
        self._useless.clear()

    def _needed(self) -> set[int]:
        """The numbers of open orders, and of those whose reports wait."""
        stream = self._engine.stream
        numbers: set[int] = {order.step for order in stream.orders.values()}
        for report in stream.waiting():
            numbers.add(report.step)
        return numbers

    def keys_of(self, number: int) -> list[str]:
        """The strategy's keys of the models that an order names."""
        work = self._begun[number]
        return [_strategy_key(ref.key) for ref in work.models]

    def start_of(self, number: int, key: str) -> Vector:
        """The model (d,) behind one of these keys, as the agent of this order has it."""
        place = self.keys_of(number).index(key)
        work = self._begun[number]
        ref = work.models[place]
        return self._decoded(self._versions[ref.key])

    def base(self, wanted: bytes) -> Vector:
        for send in self._versions.values():
            if send.ref.digest == wanted:
                return self._decoded(send)
        return super().base(wanted)

    def _decoded(self, send: SendModel) -> Vector:
        """A version (d,) as agents see it."""
        return decode_model(send.path.read_bytes(), self._setup.layout)

    def _sent(self, key: str) -> SendModel:
        version = self._versions.get(key)
        if version is not None:
            return version
        return super()._sent(key)

    def _version(self, key: str, number: int, state: Any) -> SendModel:
        """The present version of a model."""
        known = self._present.get(key)
        if known is not None:
            return known
        model = self._strategy.model(state, key)
        content = self._content(key, model)
        start = digest(content).hex()[:VERSION_DIGITS]
        ref = self._ref(f"{key}.{start}", content)
        path = self._folder / ref.key
        if path in self._useless:  # the models of a fold can be those of an earlier state
            self._useless.remove(path)
        self._write(path, content)
        send = SendModel(ref=ref, path=path, about=number, values=model.size)
        self._present[key] = send
        self._versions[ref.key] = send
        return send

    def _write(self, path: Path, content: bytes) -> None:
        durable = self.durable
        self._room.write(lambda: write_atomically(path, content, durable=durable))

    def _file(self, number: int) -> Path:
        return _file_of(self._folder, number)

    # -- a restart ---------------------------------------------------------------------------------

    def restore(self) -> None:
        """Take up the orders that an earlier process has left in files."""
        values = self._setup.layout.size
        for number in sorted(self._needed()):
            order = saved_order(self._folder, number)
            assert order is not None  # noqa: S101 - the others were found to be lost
            assert order.work is not None  # noqa: S101
            self._begun[number] = order.work
            for ref in order.work.models:
                self._versions[ref.key] = SendModel(
                    ref=ref, path=self._folder / ref.key, about=number, values=values
                )


def saved_order(folder: Path, number: int) -> OrderMessage | None:
    """The order that a file has; None if the order or a model that it names is missing or damaged."""
    path = _file_of(folder, number)
    try:
        order = OrderMessage.from_bytes(path.read_bytes())
    except (OSError, DecodeError):
        return None
    if order.work is None:
        return None
    for ref in order.work.models:
        if not _is_whole(folder, ref):
            return None
    return order


def _file_of(folder: Path, number: int) -> Path:
    return folder / f"{PREFIX}{number}"


def _is_whole(folder: Path, ref: ModelRef) -> bool:
    path = folder / ref.key
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return digest(content) == ref.digest


def lost_orders(folder: Path, numbers: Iterable[int]) -> set[int]:
    """Those of these orders that cannot be published again."""
    return {number for number in numbers if saved_order(folder, number) is None}


def _strategy_key(version: str) -> str:
    """The key that the strategy knows: a version's key ends with a dot and its digest."""
    key, _, _ = version.rpartition(".")
    return key
