"""A method whose updates are summed under masks: the phases of a secure sum around the phase of the method itself.

The coordinator asks for boxes, then for joins, then for the method's own work, whose vectors come masked, then for answers
(docs/secure-sums.md). Each of these is a phase like any other: orders carry lists and cells as contents, reports carry
joins, heads and answers, and the state is in the checkpoint before the next order is sent. The last phase ends the round.

    secure-box -> secure-join -> the method's phase -> secure-unmask

A sum that is void begins again with boxes, in the same round. One that is passed over leaves its models as they are.
`Secured` is the coordinator's half, `perform` the agent's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass, replace
from functools import cache
from math import floor
from typing import Any, Protocol, cast

import msgpack
import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict

from covey.shared import json_text
from covey.shared.errors import DecodeError, PublicError
from covey.shared.numerics.averages import MEAN, Average
from covey.shared.numerics.vectors import Vector
from covey.shared.privacy.settings import ClientPrivacy, SecureSettings
from covey.shared.secure import agent as at
from covey.shared.secure import coordinator as co
from covey.shared.secure import messages
from covey.shared.secure.derivation import Start, name_of_entry, start_of
from covey.shared.secure.integers import (
    Mean,
    OutOfRangeError,
    Total,
    add_noise,
    moved,
    to_integers,
    total_of,
)
from covey.shared.secure.masks import Integers, add_masks, digest_of
from covey.shared.secure.messages import Box, Entry, Member, ReportHead
from covey.shared.secure.parameters import (
    FEWEST,
    Group,
    Scale,
    group_of,
    groups,
    noised_scale,
    plain_scale,
)
from covey.shared.secure.primitives import Token, hashed
from covey.shared.strategies.base import (
    CAP,
    COUNTED,
    LAST_MODEL,
    MODEL,
    ClientId,
    ClientState,
    Job,
    Local,
    Order,
    Phase,
    PrivacyFacet,
    Report,
    Reports,
    Settings,
    Setup,
    Shown,
    Strategy,
    Sums,
    Terms,
    Training,
    View,
)

BOX, JOIN, UNMASK = "secure-box", "secure-join", "secure-unmask"
WORDS = "secure"  # the vector of a report that holds a message
MASKED = "masked"
HEAD = "head"
MOST_WORDS = 1 << 18  # of a message in a report
TWO_EXAMPLES = 2  # of a report that shows whether a method weighs by examples
MOST_LISTS = 8  # of expelled entries, that members of a sum show one another
MOST_VOIDS = 5  # in one round; then it is passed over
ASKED_FOR_ANSWERS = 3  # times, each with a deadline; then a sum is passed over
LENGTH_BYTES = 4

Secure = Mapping[str, Any]  # what the state has besides that of the method


# -- bytes as vectors --------------------------------------------------------------------------------------------------


def words_of(content: bytes) -> Integers:
    """A message as integers, which travel like a vector."""
    framed = len(content).to_bytes(LENGTH_BYTES, "little") + content
    return np.frombuffer(framed + bytes(-len(framed) % 4), "<u4").astype(np.uint32)


def integers_in(vector: npt.NDArray[Any]) -> Integers:
    """The integers (m,) of a vector, also where a spool has their bits as floating-point numbers."""
    return np.ascontiguousarray(vector).view(np.uint32)


def bytes_of(words: npt.NDArray[Any]) -> bytes:
    """The message in such integers. Raises DecodeError("secure words") for others."""
    content = integers_in(words).astype("<u4").tobytes()
    length = int.from_bytes(content[:LENGTH_BYTES], "little")
    if LENGTH_BYTES + length > len(content):
        raise DecodeError("secure words", "expected a message in unsigned integers")
    return content[LENGTH_BYTES : LENGTH_BYTES + length]


def start_of_work(
    method: Strategy[Any],
    training: Training,
    seed: int,
    round: int,
    numbers: Mapping[str, Any],
    models: Sequence[Vector],
) -> Start:
    """What an order starts from: agents compute it from their own order."""
    settings = json_text.dumps(
        [method.model_dump(mode="json"), training.model_dump(mode="json"), seed]
    )
    packed: bytes = msgpack.packb(dict(numbers))
    digests = [hashed("model", model.astype("<f4", copy=False).tobytes()) for model in models]
    return start_of(hashed("settings", settings.encode()), "train", round, packed, digests)


# -- the coordinator's half --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Summed:
    """The updates under one key."""

    start: npt.NDArray[np.floating]  # (d,) what they are differences to
    total: Total
    scale: Scale

    @property
    def mean(self) -> Mean:
        return self.total.mean(self.scale)


class SecureSums:
    """The sums of a phase: the mean of the updates under a key, added to what they started from."""

    average: Average = MEAN

    def __init__(self) -> None:
        self._sums: dict[str, _Summed] = {}

    def add(self, key: str, start: Vector | None, total: Total, scale: Scale) -> None:
        """The sum of one group.

        Args:
            key: of the sum.
            start: the model (d,) that the updates are differences to; None: they are gradients.
            total: of the updates.
            scale: of the integers, the same for all groups.
        """
        if key in self._sums:
            total = self._sums[key].total + total
        origin = np.zeros(total.values.size) if start is None else start
        self._sums[key] = _Summed(origin, total, scale)

    def mean(self, key: str, otherwise: Vector) -> Vector:
        if not self.weight(key):
            return otherwise
        return moved(self._sums[key].start, self._sums[key].mean)

    def moved(self, key: str, start: Vector, share: float) -> Vector:
        if not self.weight(key):
            return start
        target = self._sums[key].start.astype(np.float64) + self._sums[key].mean.vector
        begin = start.astype(np.float64)
        return (begin + share * (target - begin)).astype(np.float32)

    def weight(self, key: str) -> float:
        return float(self._sums[key].total.weight) if key in self._sums else 0.0

    def count(self, key: str) -> int:
        return self._sums[key].total.reported if key in self._sums else 0


@cache
def _state_type(kind: Any) -> Any:
    """The state of a method with the field `secure`."""
    added: tuple[str, Any, Any] = ("secure", Mapping[str, Any], field(default_factory=dict))
    return make_dataclass(f"Secured{kind.__name__}", [added], bases=(kind,), frozen=True)


def _with(state: Any, secure: Secure) -> Any:
    """A state of the method with this as a further field."""
    if hasattr(state, "secure"):
        return replace(state, secure=secure)
    values = {one.name: getattr(state, one.name) for one in fields(state)}
    return _state_type(cast(Any, type(state)))(**values, secure=secure)


class Secured(Strategy[Any]):
    """A method under secure sums. A run has it in the place of the method itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    method: Any  # a `Strategy`: pydantic would validate one of another state again
    settings: SecureSettings
    noise: ClientPrivacy | None  # that agents add to their updates
    training: Training  # of the scenario
    seed: int
    rounds: int

    @property
    def _own(self) -> Strategy[Any]:
        """The method itself."""
        return cast(Strategy[Any], self.method)

    @property
    def name(self) -> str:
        return str(getattr(self.method, "name", "method"))

    @property
    def starts(self) -> int:
        return self._own.starts

    # what others ask of the method itself
    client_fields = property(lambda self: self._own.client_fields)
    fallback = property(lambda self: self._own.fallback)
    signature_phases = property(lambda self: self._own.signature_phases)

    @property
    def privacy(self) -> PrivacyFacet:
        return self._own.privacy

    def refuses(self, settings: Settings) -> str:
        return self._own.refuses(settings)

    def stop_reason(self, state: Any) -> str:
        return self._own.stop_reason(state)

    def init(self, setup: Setup) -> Any:
        begun = {"stage": BOX, "round": 0, "voids": 0, "blamed": [], "honest": 0, "sums": []}
        return _with(self._own.init(setup), begun)

    def continued(self, state: Any, fresh: Any) -> Any:
        return _with(self._own.continued(state, fresh), fresh.secure)

    def serve(self, state: Any, client: ClientId) -> Order:
        return self._own.serve(state, client)

    def clusters(self, state: Any) -> tuple[Vector, ...]:
        return self._own.clusters(state)

    def assignment(self, state: Any) -> Mapping[ClientId, int]:
        return self._own.assignment(state)

    def shown(self, state: Any) -> Shown:
        """What the method shows, and how the sums of the phase ended that was folded last."""
        shown = self._own.shown(state)
        if "ends" not in state.secure:
            return shown
        return replace(shown, notes={**shown.notes, "secure": list(state.secure["ends"])})

    def plan(self, state: Any, view: View) -> Phase:
        """The next phase of the sums, or of the method where agents send no update.

        Sums that lack members begin again with boxes; answers are asked for several times.
        """
        stage = state.secure["stage"]
        own = self._own.plan(state, view) if stage == BOX else self._phase(state)
        if not self._has_updates(own):
            return own
        sums = [one for one in state.secure["sums"] if not one["end"]]
        asked = {"join": "members", "train": "listed", "unmask": "reported"}.get(stage, "")
        clients = tuple(sorted(client for one in sums for client in one[asked])) if asked else ()
        needed = min((one["least"] for one in sums), default=0)
        has_enough = len(set(clients) & set(view.present)) >= needed
        quorum = needed / len(clients) if clients else 0.0
        words = {WORDS: -MOST_WORDS}
        if stage == "unmask":
            is_last = not clients or not has_enough or view.attempt >= ASKED_FOR_ANSWERS - 1
            return Phase(UNMASK, clients, words, quorum=quorum, may_be_empty=is_last)
        if stage == "join" and has_enough and not view.attempt:
            return Phase(JOIN, clients, words, ends_round=False, quorum=quorum)
        if stage == "train" and has_enough and not view.attempt:
            slots = self._scale((), own, max(state.secure["honest"], 1)).slots
            sizes = {MASKED: sum(own.sizes.values()) + slots, HEAD: -MOST_WORDS}
            train = replace(own, cohort=clients, sizes=sizes, ends_round=False, quorum=quorum)
            return replace(train, numbers={})
        draw = own.draw or own.name
        return Phase(BOX, own.cohort, words, ends_round=False, quorum=own.quorum, draw=draw)

    def _phase(self, state: Any) -> Phase:
        """The method's own phase: it does not depend on who is there."""
        return self._own.plan(state, View(0, self.rounds, 0, ()))

    def _has_updates(self, phase: Phase) -> bool:
        """Whether a phase of the method has vectors that are summed under masks."""
        assert self._own.sealed is not None  # noqa: S101 - a scenario with another method is refused
        return bool(phase.sizes) and phase.name not in self._own.sealed.clear

    def _terms(self, state: Any, own: Phase, client: ClientId) -> Terms:
        """The sums in which the report of a client will count; none for one that takes no part in this round."""
        vectors = {name: np.zeros(0, np.float32) for name in own.sizes}
        return self._own.terms(state, own, client, Report(vectors, examples=TWO_EXAMPLES))

    def order(self, state: Any, phase: Phase, client: ClientId) -> Order:
        if phase.name == BOX:
            return Order(whole=True)
        if state.secure["stage"] == BOX:
            order = self._own.order(state, phase, client)
            return replace(order, numbers={**order.numbers, CAP: self.settings.cap})
        number, one = _sum_of(state.secure["sums"], client)
        if one is None:
            return Order(whole=True)
        own = self._own.order(state, self._phase(state), client)
        match phase.name:
            case "secure-join":
                names = (f"secure-{number}-terms", f"secure-{number}-entries")
                return replace(own, models=(*own.models, *names), whole=True)
            case "secure-unmask":
                return Order(models=(f"secure-{number}-unmask",), whole=True)
        names = (f"secure-{number}-list", f"@{client}")
        return replace(own, models=(*own.models, *names), whole=True)

    def model(self, state: Any, key: str) -> Vector:
        if key.startswith("secure-"):
            _, number, what = key.split("-")
            return cast(Vector, state.secure[f"{number}-{what}"])
        if key.startswith("@"):
            index, one = _sum_of(state.secure["sums"], key[1:])
            assert one is not None  # noqa: S101 - an order names it for members only
            collected = self._collected(state.secure, index)
            place = one["members"].index(key[1:]) + 1
            return cast(Vector, words_of(collected.inbox(place)))
        return self._own.model(state, key)

    def _collected(self, secure: Secure, number: int) -> Collected:
        return Collected.of(secure, number)

    def fold(self, state: Any, phase: Phase, sums: Sums, reports: Reports) -> Any:
        match phase.name:
            case "secure-box":
                return self._boxes(state, reports)
            case "secure-join":
                return self._joins(state, reports)
            case "secure-unmask":
                return self._answers(state, reports)
        if state.secure["stage"] != BOX:
            return self._masked(state, reports)
        kept = {**_plain(state.secure), "sums": []}
        if phase.ends_round:
            kept["round"] += 1
        after = _with(self._own.fold(state, phase, sums, reports), kept)
        assert self._own.sealed is not None  # noqa: S101
        least = max(FEWEST, self.settings.least or 0, self.settings.threshold or 0)
        return self._own.sealed.allowed(after, least)

    # boxes

    def _boxes(self, state: Any, reports: Reports) -> Any:
        """Draw groups among those whose boxes came, and make their terms."""
        entries: dict[ClientId, bytes] = {}
        members: dict[ClientId, Member] = {}
        lists: set[bytes] = set()  # the coordinator cannot know which of them is true
        for client, report in reports:
            try:
                entry, expelled, box = _shown_box(bytes_of(report.vectors[WORDS]))
            except DecodeError:
                continue
            if Entry.from_bytes(entry).agent == client:
                entries[client] = entry
                lists |= {expelled} if len(lists) < MOST_LISTS else set()
                members[client] = Member(agent=client, entry=name_of_entry(entry), box=box)
        own = self._phase(state)
        alike: dict[tuple[Any, ...], list[ClientId]] = {}
        for client in sorted(members.keys() - set(state.secure["blamed"])):
            if terms := self._terms(state, own, client):
                order = self._own.order(state, own, client)
                kind = (order.models, json_text.dumps(order.numbers), terms)
                alike.setdefault(kind, []).append(client)
        secure: dict[str, Any] = {**_plain(state.secure), "sums": []}
        if state.secure["stage"] != BOX:  # the attempt before lacked members
            secure["voids"] += 1
        drawn = [
            chosen
            for clients in alike.values()
            for chosen in groups(
                sorted(clients, key=lambda one: hashed("draw", members[one].box.key)),
                self.settings.group,
            )
        ]
        if not secure["honest"]:  # no group of this round has made a vector yet
            sizes = filter(None, (self._group(len(chosen), 0) for chosen in drawn))
            secure["honest"] = min((group.honest for group in sizes), default=0)
        for chosen in drawn:
            if group := self._group(len(chosen), secure["honest"]):
                self._add_sum(state, secure, group, chosen, members, entries, sorted(lists))
        if not secure["sums"] or secure["voids"] >= MOST_VOIDS:
            return self._void(state, [_ended({}, "void", "too few agents for a sum")])
        return _with(state, {**secure, "stage": "join"})

    def _add_sum(
        self,
        state: Any,
        secure: dict[str, Any],
        group: Group,
        chosen: list[ClientId],
        members: Mapping[ClientId, Member],
        entries: Mapping[ClientId, bytes],
        expelled: list[bytes],
    ) -> None:
        own = self._phase(state)
        training = self.training.in_round(secure["round"], self.rounds)
        order = self._own.order(state, own, chosen[0])
        vectors = [self._own.model(state, key) for key in order.models]
        begun = start_of_work(
            self._own, training, self.seed, secure["round"], order.numbers, vectors
        )
        counts = self._terms(state, own, chosen[0])
        scale = self._scale(counts, own, secure["honest"])
        boxes = [members[client].box.key for client in chosen]
        terms = messages.Terms(
            federation=Entry.from_bytes(entries[chosen[0]]).federation,
            run="run",
            step=secure["round"],
            sum=hashed("sum", *boxes)[:16],
            cluster=counts[0].key,
            number=len(secure["sums"]),
            start=begun.digest,
            vectors=dict(own.sizes),
            clip=scale.clip,
            cap=scale.cap,
            levels=scale.levels,
            deviation=scale.deviation,
            multiplier=self.noise.noise_multiplier if self.noise else 0.0,
            threshold=group.threshold,
            colluders=group.colluders,
            least=group.least,
            seconds=self.settings.seconds,
            members=[members[client] for client in chosen],
        )
        number = len(secure["sums"])
        secure["sums"].append(
            {
                "cluster": terms.cluster,
                "members": chosen,
                "listed": [],
                "reported": [],
                "least": group.least,
                "end": "",
            }
        )
        secure[f"{number}-terms"] = words_of(terms.to_bytes())
        secure[f"{number}-entries"] = words_of(
            msgpack.packb([[entries[client] for client in chosen], expelled])
        )
        secure[f"{number}-records"] = words_of(msgpack.packb([]))

    def _group(self, members: int, honest: int) -> Group | None:
        """The numbers of a group, in which the sum has the noise of that number of honest agents; None for too few members."""
        settings = self.settings
        threshold = settings.threshold or 0
        if self.noise is not None and honest:
            threshold = max(threshold, honest + floor(settings.colluders * members))
        try:
            return group_of(members, settings.colluders, threshold, settings.least)
        except ValueError:
            return None

    def _scale(self, terms: Terms, own: Phase, honest: int) -> Scale:
        """The same for all groups and attempts of a round, so that a vector counts in each of them."""
        settings = self.settings
        if self.noise is not None and self.noise.noise_multiplier:
            length = sum(own.sizes.values())
            return noised_scale(honest, length, settings.clip, self.noise.noise_multiplier)
        is_uniform = self.noise is not None or any(term.weight < TWO_EXAMPLES for term in terms)
        return plain_scale(settings.group, settings.clip, 1 if is_uniform else settings.cap)

    def revealed(self, state: Any) -> list[ClientId]:
        """Agents whose updates are in the sums that the newest unmask lists open."""
        if state.secure["stage"] != "unmask":
            return []
        return [
            client for one in state.secure["sums"] if not one["end"] for client in one["reported"]
        ]

    # joins, reports, answers

    def _joins(self, state: Any, reports: Reports) -> Any:
        secure = dict(state.secure)
        by_client = dict(reports)
        for number, one in enumerate(secure["sums"]):
            collected = self._collected(secure, number)
            for client in one["members"]:
                if client in by_client:
                    content = by_client[client].vectors[WORDS]
                    collected.feed(collected.machine.joined, content)
            collected.take(collected.machine.joins_closed(collected.state))
            listed = [one["members"][place - 1] for place in collected.state.listed]
            collected.keep(secure, number, listed=listed)
            if collected.state.listing:
                secure[f"{number}-list"] = words_of(collected.state.listing)
        return self._next(state, secure, "train")

    def _masked(self, state: Any, reports: Reports) -> Any:
        secure = dict(state.secure)
        by_client = dict(reports)
        for number, one in enumerate(secure["sums"]):
            collected = self._collected(secure, number)
            total = np.zeros(collected.machine.terms.length, np.uint32)
            for client in one["listed"]:
                if client not in by_client:
                    continue
                vector = integers_in(by_client[client].vectors[MASKED])
                head = by_client[client].vectors[HEAD]
                place = one["members"].index(client) + 1
                if collected.feed_head(place, head, vector):
                    total += vector
            online = len(collected.state.heads)
            collected.take(
                collected.machine.reports_closed(collected.state, online, is_last_call=True)
            )
            reported = [one["members"][place - 1] for place in collected.state.reported]
            collected.keep(secure, number, reported=reported)
            if collected.state.unmask:
                secure[f"{number}-unmask"] = words_of(collected.state.unmask)
                secure[f"{number}-total"] = total
        return self._next(state, secure, "unmask")

    def _next(self, state: Any, secure: dict[str, Any], stage: str) -> Any:
        """The next phase; boxes again where no sum is left."""
        if all(one["end"] for one in secure["sums"]):
            ends = [_ended(one, "void", one["end"]) for one in secure["sums"]]
            return self._void(_with(state, secure), ends)
        return _with(state, {**secure, "stage": stage})

    def _void(self, state: Any, ends: list[dict[str, Any]]) -> Any:
        """Nothing was revealed: begin again, or pass the round over after some attempts."""
        voids = state.secure["voids"] + 1
        stage = BOX if voids < MOST_VOIDS else "unmask"
        kept = {**_plain(state.secure), "voids": voids, "sums": [], "stage": stage, "ends": ends}
        return _with(state, kept)

    def _answers(self, state: Any, reports: Reports) -> Any:
        secure = dict(state.secure)
        by_client = dict(reports)
        own = self._phase(state)
        spans = _spans(own.sizes)
        sums, ends, came = SecureSums(), [], []
        for number, one in enumerate(secure["sums"]):
            collected = self._collected(secure, number)
            for client in one["reported"]:
                if client in by_client:
                    collected.feed(collected.machine.answered, by_client[client].vectors[WORDS])
            collected.take(collected.machine.answers_closed(collected.state))
            collected.keep(secure, number)
            end = collected.state.end
            if isinstance(end, co.Opened):
                integers = np.array(secure[f"{number}-total"], np.uint32)
                add_masks(integers, end.streams)
                scale = collected.machine.terms.scale
                try:
                    total = total_of(integers, len(end.reported), scale)
                except OutOfRangeError as error:
                    ends.append(_ended(one, "passed over", str(error)))
                    continue
                for term in self._terms(state, own, one["members"][0]):
                    start = self._own.model(state, term.started_from) if term.started_from else None
                    part = replace(total, values=total.values[spans[term.vector]])
                    sums.add(term.key, start, part, scale)
                came += one["reported"]
                figures = {
                    "weight": total.weight,
                    "shortened": total.shortened,
                    "too_long": total.mean(scale).was_long,
                }
                ends.append({**_ended(one, "sum"), **figures})
            else:
                kind = "passed over" if one["reported"] else "void"
                ends.append(_ended(one, kind, secure["sums"][number]["end"]))
        # the coordinator does not know what a single report weighs: shares of it count by unit of weight
        known = [(client, Report({}, examples=1)) for client in sorted(came)]
        after = self._own.fold(state, own, sums, known)
        kept = {
            "stage": BOX,
            "round": secure["round"] + 1,
            "voids": 0,
            "blamed": secure["blamed"],
            "honest": 0,
            "sums": [],
            "ends": ends or list(secure.get("ends", ())),
        }
        return _with(after, kept)


def _ended(one: Mapping[str, Any], end: str, why: str = "") -> dict[str, Any]:
    """How the sum of a group ended, for the record.

    Args:
        one: the group; empty where none could be formed.
        end: "sum", "void" (nothing was revealed) or "passed over" (its cluster keeps its model).
        why: the reason for the latter two.
    """
    reported = list(one.get("reported", ()))
    missing = [client for client in one.get("members", ()) if client not in reported]
    known = {"cluster": one.get("cluster", ""), "reported": reported, "missing": missing}
    return {**known, "end": end, "why": why}


def _spans(sizes: Mapping[str, int]) -> dict[str, slice]:
    """Where each vector lies in the masked one."""
    ends = np.cumsum([*sizes.values()]).tolist()
    return {
        name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)
    }


def _plain(secure: Secure) -> dict[str, Any]:
    """Without what belongs to the sums of one attempt."""
    return {name: secure[name] for name in ("stage", "round", "voids", "blamed", "honest")}


def _sum_of(
    sums: Sequence[Mapping[str, Any]], client: ClientId
) -> tuple[int, Mapping[str, Any] | None]:
    for number, one in enumerate(sums):
        if client in one["members"]:
            return number, one
    return 0, None


def _shown_box(content: bytes) -> tuple[bytes, bytes, Box]:
    """The entry in a report, the list of expelled ones that its agent knows, and the box. Raises DecodeError."""
    try:
        entry, expelled, number, key, signature = msgpack.unpackb(content)
        Entry.from_bytes(entry)
        return entry, bytes(expelled), Box(number=number, key=key, signature=signature)
    except DecodeError:
        raise
    except Exception as error:
        raise DecodeError("secure box", str(error)[:200]) from None


@dataclass
class Collected:
    """One sum of the state, with the messages that it has."""

    machine: co.SecureSum
    state: co.SumState
    records: list[co.Record]

    @classmethod
    def of(cls, secure: Secure, number: int) -> Collected:
        entries, _ = msgpack.unpackb(bytes_of(secure[f"{number}-entries"]))
        keys = [Entry.from_bytes(entry).key for entry in entries]
        machine = co.SecureSum(bytes_of(secure[f"{number}-terms"]), keys)
        packed = msgpack.unpackb(bytes_of(secure[f"{number}-records"]))
        records = [co.Record(name, content) for name, content in packed]
        return cls(machine, machine.restored(records), records)

    def take(self, step: co.Step) -> None:
        self.state = step.state
        self.records += step.records

    def feed(self, receive: Any, words: npt.NDArray[Any]) -> None:
        """A message of a member; one that does not count is left out."""
        try:
            self.take(receive(self.state, bytes_of(words)))
        except DecodeError:
            return

    def feed_head(self, place: int, words: npt.NDArray[Any], vector: Integers) -> bool:
        """The head of a masked vector. Returns whether the vector counts."""
        try:
            content = bytes_of(words)
            head = ReportHead.from_bytes(content)
            if head.place != place or head.vector != digest_of(vector):
                return False
            self.take(self.machine.reported(self.state, content))
        except DecodeError:
            return False
        return True

    def inbox(self, place: int) -> bytes:
        return co.inbox_of(self.state, place)

    def keep(self, secure: dict[str, Any], number: int, **fields: Any) -> None:
        """Put what is known now into the state."""
        sums = list(secure["sums"])
        end = "" if self.state.end is None else getattr(self.state.end, "reason", "sum")
        blamed = [sums[number]["members"][i - 1] for i in getattr(self.state.end, "blamed", ())]
        if blamed:
            end += f" ({', '.join(blamed)})"
            secure["blamed"] = sorted({*secure["blamed"], *blamed})
        sums[number] = {**sums[number], **fields, "end": end}
        secure["sums"] = sums
        packed = [(record.name, record.content) for record in self.records]
        secure[f"{number}-records"] = words_of(msgpack.packb(packed))


# -- the agent's half --------------------------------------------------------------------------------------------------


class SecureDevice(Protocol):
    """What an agent has for secure sums, over all runs. Before a call that saves returns, the content survives a power cut."""

    @property
    def agent(self) -> at.SecureAgent: ...
    @property
    def token(self) -> Token: ...
    @property
    def now(self) -> float: ...

    def noise_key(self, start: bytes) -> bytes: ...

    def state(self) -> at.AgentState: ...
    def save(self, state: at.AgentState) -> None: ...
    def vector(self, name: str) -> Integers | None: ...
    def save_vector(self, name: str, vector: Integers) -> None: ...
    def forget_vectors(self, but: Sequence[str]) -> None: ...


class OnDevice:
    """A method whose work is done under secure sums.

    Args:
        method: the method itself.
        device: of the agent.
        sends: whether the phase asks for vectors.
    """

    def __init__(self, method: Strategy[Any], device: SecureDevice, *, sends: bool) -> None:
        self._method = method
        self._device = device
        self._sends = sends

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        """Carry out an order.

        Raises:
            PublicError: the agent refuses, with the reason.
            DecodeError: the order's contents are damaged.
        """
        device = self._device
        if why := self._method.refuses(SecureSettings(clip=1.0)):
            raise PublicError(f"secure sums are not for this method: {why}")
        match job.phase:
            case "secure-box":
                return _perform_box(device), client_state
            case "secure-join":
                return _perform_join(self._method, job, device), client_state
            case "secure-unmask":
                sent = _taken(device, device.agent.unmask(device.state(), bytes_of(job.models[0])))
                return _message(sent), client_state
        assert self._method.sealed is not None  # noqa: S101 - it refuses otherwise
        is_clear = job.phase in self._method.sealed.clear
        if self._sends and not is_clear:
            return _perform_work(self._method, job, local, client_state, device)
        report, after = self._method.work(job, local, client_state)
        if report.vectors and not is_clear:
            raise PublicError("secure sums: the order asks for an update without a mask")
        numbers = report.numbers if is_clear else {}
        return replace(report, numbers=numbers, steps=0, loss=0.0), after


def _perform_box(device: SecureDevice) -> Report:
    """Show a new box. An earlier sum that was answered is erased."""
    own = device.state().sum
    if own is not None and own.answer:
        _taken(device, device.agent.closed(device.state()))
    step = device.agent.new_box(device.state(), device.token)
    device.save(step.state)
    (shown,) = step.then
    assert isinstance(shown, at.ShowBox)  # noqa: S101 - it shows a box and nothing else
    box = shown.box
    known = [device.agent.identity.entry, step.state.expelled]
    content = msgpack.packb([*known, box.number, box.key, box.signature])
    return Report({WORDS: cast(Vector, words_of(content))}, examples=1)


def _perform_join(method: Strategy[Any], job: Job, device: SecureDevice) -> Report:
    *models, terms, entries = job.models
    contents, lists = msgpack.unpackb(bytes_of(entries))
    for content in filter(None, lists):
        newer = device.agent.new_expelled(device.state(), content)
        if newer.syncs:  # else it is an old one, or not signed by the fleet key
            device.save(newer.state)
    known = {name_of_entry(entry): entry for entry in contents}
    begun = start_of_work(method, job.training, job.seed, job.round, job.numbers, models)
    step = device.agent.offered(
        device.state(), bytes_of(terms), begun, known, device.now, device.token
    )
    return _message(_taken(device, step))


def _perform_work(
    method: Strategy[Any], job: Job, local: Local, client_state: ClientState, device: SecureDevice
) -> tuple[Report, ClientState]:
    *models, listing, inbox = job.models
    own = device.state().sum
    begun = start_of_work(method, job.training, job.seed, job.round, job.numbers, models)
    terms = None if own is None else messages.Terms.from_bytes(own.terms)
    if own is None or terms is None or terms.start != begun.digest:
        raise PublicError("secure sums: this agent has not joined a sum for this order")
    step = device.agent.listed(device.state(), bytes_of(listing), bytes_of(inbox))
    sent = _taken(device, step)
    if device.state().vector(begun.digest) is None:
        work, before = replace(job, models=tuple(models)), client_state
        report, client_state = method.work(work, local, client_state)
        client_state = {name: client_state[name] for name in client_state if name != COUNTED}
        if MODEL in report.vectors and client_state.get(LAST_MODEL) is before.get(LAST_MODEL):
            client_state[LAST_MODEL] = report.vectors[MODEL]
        update = _update_of(report, models, terms)
        integers = to_integers(update, report.examples, terms.scale)
        add_noise(integers, terms.scale, device.noise_key(begun.digest))
        norm = float(np.linalg.norm(update))
        if MODEL in report.vectors and norm > terms.clip:
            base = models[report.bases[MODEL]].astype(np.float64)
            client_state[COUNTED] = (base + update * (terms.clip / norm)).astype(np.float32)
        device.save_vector(begun.digest.hex(), integers)
        sent += _taken(
            device,
            device.agent.made(device.state(), begun.digest, digest_of(integers), terms.scale),
        )
    for effect in sent:
        if isinstance(effect, at.SendReport):
            masked = device.vector(f"{own.name.hex()}-masked")
            head = ReportHead.from_bytes(effect.content)
            if masked is None or digest_of(masked) != head.vector:
                _taken(device, device.agent.lost(device.state()))
            vectors = {MASKED: cast(Vector, masked), HEAD: cast(Vector, words_of(effect.content))}
            return Report(vectors, examples=1), client_state
    raise PublicError("secure sums: this agent has nothing to report")


def _update_of(
    report: Report, models: Sequence[Vector], terms: messages.Terms
) -> npt.NDArray[np.float64]:
    """What the vectors of a report add to the models that they started from, one after the other."""
    parts = []
    for name in terms.vectors:
        vector = report.vectors[name].astype(np.float64)
        parts.append(vector - models[report.bases[name]] if name in report.bases else vector)
    return np.concatenate(parts)


def _taken(device: SecureDevice, step: at.Step) -> list[at.Effect]:
    """Save the state of a step, then make masked vectors; the effects that are sent. Raises PublicError for a refusal."""
    if step.syncs:
        device.save(step.state)
    sent: list[at.Effect] = []
    for effect in step.then:
        match effect:
            case at.Refuse(reason, detail):
                text = f"{reason}: {detail}" if detail else reason
                raise PublicError(f"secure sums: {text}")
            case at.MakeMasked(terms, begun, streams):
                vector = device.vector(begun.hex())
                if vector is None or digest_of(vector) != device.state().vector(begun):
                    return _taken(device, device.agent.lost(device.state()))
                add_masks(vector, streams)
                device.save_vector(f"{terms.hex()}-masked", vector)
                sent += _taken(
                    device, device.agent.masked(device.state(), terms, digest_of(vector))
                )
            case at.EraseVectors():
                device.forget_vectors([])
            case _:
                sent.append(effect)
    return sent


def _message(sent: Sequence[at.Effect]) -> Report:
    """The report with the only message that is sent."""
    for effect in sent:
        if isinstance(effect, at.SendJoin | at.SendAnswer):
            return Report({WORDS: cast(Vector, words_of(effect.content))}, examples=1)
    raise PublicError("secure sums: nothing to send")
