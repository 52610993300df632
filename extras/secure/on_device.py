"""An agent's half of a method under secure sums: boxes, joins, masked reports and answers instead of the bare vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from covey.extras.secure import agent as at
from covey.extras.secure import phases
from covey.extras.secure.agent_state import (
    AgentState,
    AgentTransition,
    Effect,
    EraseVectors,
    MakeMasked,
    Refuse,
    SendAnswer,
    SendJoin,
    SendMasked,
    ShowBox,
)
from covey.extras.secure.derivation import OrderStart
from covey.extras.secure.figures import FIGURES, FigureSlots
from covey.extras.secure.integers import Integers, add_masks, add_noise, digest_of, to_integers
from covey.extras.secure.messages import Introduction, ReportHead, Terms
from covey.extras.secure.phases import AHEAD, HEAD, MASKED, WORDS, bytes_of, start_of_work, words_of
from covey.extras.secure.primitives import Token, hashed
from covey.shared.errors import PublicError
from covey.shared.numerics.vectors import Vector
from covey.shared.privacy.settings import SecureSettings
from covey.shared.strategies import clear_phases as clear
from covey.shared.strategies.base import EVALUATE, MODEL, Strategy
from covey.shared.strategies.client_half import (
    COUNTED,
    LAST_MODEL,
    ClientState,
    Job,
    Local,
    Report,
    Works,
    check_finite,
)
from covey.shared.strategies.facts import MOST_COMPARED, Shows
from covey.shared.wire.messages import Work

Arrays = Mapping[str, npt.NDArray[Any]]


class SecureDevice(Protocol):
    """What an agent has for secure sums, over all runs. Before a call that saves returns, the content survives a power cut."""

    @property
    def agent(self) -> at.SecureAgent: ...
    @property
    def token(self) -> Token: ...
    @property
    def now(self) -> float: ...
    @property
    def ahead(self) -> bool:
        """Whether the method's work is done ahead of its list, and stays here."""

    def keep_work(self, name: bytes, arrays: Arrays, kind: str = "work") -> None:
        """The newest work of a kind, in the place of the one before: `work` for a sum, `shown` in the clear."""

    def kept_work(self, name: bytes, kind: str = "work") -> Arrays | None:
        """The work of this name; None if it is not the newest one of its kind, or damaged."""

    def noise_key(self, start: bytes) -> bytes: ...

    def state(self) -> AgentState: ...
    def save(self, state: AgentState) -> None: ...
    def vector(self, name: str) -> Integers | None: ...
    def save_vector(self, name: str, vector: Integers) -> None: ...
    def erase_work(self) -> None:
        """Delete the newest work and all vectors."""


# the report of an evaluation, in the clear, and the client state after it
Evaluate = Callable[[Job, Local, ClientState], tuple[Report, ClientState]]


@dataclass(frozen=True)
class Measuring:
    """An evaluation in the place of a method's work: its figures are the vector of the report."""

    evaluate: Evaluate
    slots: FigureSlots

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        report, state = self.evaluate(job, local, client_state)
        vector = self.slots.vector(report.numbers, report.examples)
        return Report({FIGURES: vector}, examples=1), state


class OnDevice:
    """A method whose work is done under secure sums.

    Args:
        method: the method itself.
        device: of the agent.
        work: of the order.
        models: all that it names, in their order.
        evaluate: does an evaluation, whose figures are summed too.
    """

    def __init__(
        self,
        method: Strategy[Any],
        device: SecureDevice,
        work: Work,
        models: Sequence[Vector],
        evaluate: Evaluate,
    ) -> None:
        self._method = method
        self._evaluates = EVALUATE in (work.phase, work.numbers.get(AHEAD))
        self._slots = FigureSlots.of(work.evaluation, work.task)
        self._worker: Works = Measuring(evaluate, self._slots) if self._evaluates else method
        self._device = device
        self._work = work
        self._models = models

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        """Carry out an order.

        Raises:
            PublicError: the agent refuses, with the reason.
            DecodeError: the order's contents are damaged.
        """
        device = self._device
        if not device.ahead:  # another worker decides
            _taken(device, device.agent.tick(device.state(), device.now))
        if why := self._method.refuses(SecureSettings(clip=1.0)):
            raise PublicError(f"secure sums are not for this method: {why}")
        if device.ahead:
            begun = self._start(job, messages=0)
            if device.state().vector(begun.digest) is None:
                _worked(
                    self._worker, job, local, before=client_state, device=device, start=begun.digest
                )
            return Report({}, examples=1), client_state
        match job.phase:
            case phases.BOX if self._evaluates and not len(local.targets("test")):
                # what it would add is known, and would leave the others apart
                return Report({WORDS: words_of(b"")}, examples=1), client_state
            case phases.BOX:
                return _perform_box(device, self._start(job, messages=0)), client_state
            case phases.JOIN:
                begun = self._start(job, messages=1)
                slots = self._slots if self._evaluates else None
                return _perform_join(job, device, begun, slots), client_state
            case phases.UNMASK:
                _check_messages(job, 1)
                sent = _taken(device, device.agent.unmask(device.state(), bytes_of(job.models[0])))
                return _message(sent), client_state
        assert self._method.facts.sealed is not None  # noqa: S101 - it refuses otherwise
        if what := self._method.facts.sealed.clear.get(job.phase):
            return self._show(what, job, local, client_state)
        if self._work.sizes:
            begun = self._start(job, messages=2)
            return _perform_work(
                self._worker, job, local, client_state=client_state, device=device, begun=begun
            )
        report, after = self._method.work(job, local, client_state)
        if report.vectors:
            raise PublicError("secure sums: the order asks for an update without a mask")
        return replace(report, numbers={}, steps=0, loss=0.0), after

    def _show(
        self, what: Shows, job: Job, local: Local, client_state: ClientState
    ) -> tuple[Report, ClientState]:
        """The report of a phase in the clear: the same bytes for the same order, and as few as the device allows.

        It lies on the disk before it counts, and counts before it leaves.
        """
        if what == "choice" and len(job.models) > MOST_COMPARED:
            raise PublicError(
                f"secure sums: a choice among {len(job.models)} models; this device compares {MOST_COMPARED} at most"
            )
        device, start = self._device, self._start(job, messages=0).digest
        step = device.agent.shows(device.state(), what, start)
        _taken(device, replace(step, syncs=False))  # raises for one too many
        name = hashed("shown", start)
        # noise that is drawn again could be averaged away
        has_noise = bool((self._work.privacy or {}).get("signatures"))
        kept = None if has_noise else device.kept_work(name, "shown")
        if kept is not None:
            report, after = clear.unpacked(kept), client_state
        elif step.syncs:
            report, after = self._method.work(job, local, client_state)
            report = clear.told(report, what, job.layout, getattr(local, "trained", None))
            device.keep_work(name, clear.packed(report), "shown")
        else:
            raise PublicError(
                f"secure sums: {at.SHOWN_BEFORE}: what was shown is not kept any more; begin a new run (--out)"
            )
        _taken(device, step)
        return report, after

    def _start(self, job: Job, *, messages: int) -> OrderStart:
        assert self._method.facts.sealed is not None  # noqa: S101 - it refuses otherwise
        _check_messages(job, messages)
        own = len(job.models)
        # no lock could tell a second sum of it; a box alone has none where the agent sits out
        if own == messages and (messages or self._evaluates):
            raise PublicError("secure sums: the order has no model that other agents have too")
        # an agent that joins a sum keeps what it began with; the other phases compare the digest alone
        secret = self._device.agent.identity.secret if job.phase == phases.JOIN else b""
        begins = None if self._evaluates else self._method.facts.sealed.begins
        return start_of_work(
            self._work,
            self._models,
            own,
            messages=messages,
            begins=begins,
            secret=secret,
            apart=(*self._method.facts.sealed.apart, EVALUATE),
        )


def _check_messages(job: Job, messages: int) -> None:
    """The messages of a phase follow the models of its order."""
    if len(job.models) < messages:
        raise PublicError(
            f"secure sums: {messages} messages belong to an order of this phase, it has {len(job.models)}"
        )


def _perform_box(device: SecureDevice, begun: OrderStart) -> Report:
    """Show a new box. An earlier sum that was answered is erased."""
    own = device.state().sum
    if own is not None and own.answer:
        _taken(device, device.agent.closed(device.state()))
    step = device.agent.new_box(device.state(), device.token)
    device.save(step.state)
    (shown,) = step.then
    assert isinstance(shown, ShowBox)  # noqa: S101 - it shows a box and nothing else
    box = shown.box
    content = Introduction(
        entry=device.agent.entry,
        box=box,
        start=begun.digest,
        expelled=step.state.expelled,
        least=device.agent.policy.least,
    ).to_bytes()
    return Report({WORDS: words_of(content)}, examples=1)


def _worked(
    method: Works,
    job: Job,
    local: Local,
    *,
    before: ClientState,
    device: SecureDevice,
    start: bytes,
) -> Arrays:
    """Do the method's work for a start, and keep the report and the client state after it: a report may have to be made
    again, of the vector that is there and with what that training left."""
    name = _name_of_work(start, local, before)
    report, after = method.work(job, local, before)
    check_finite(report, job.client)
    arrays: dict[str, npt.NDArray[Any]] = {"examples": np.array(report.examples)}
    arrays |= {f"vector {name}": vector for name, vector in report.vectors.items()}
    arrays |= {f"base {name}": np.array(index) for name, index in report.bases.items()}
    arrays |= {f"same {name}": np.array(0) for name in after if after[name] is before.get(name)}
    arrays |= {
        f"state {name}": after[name] for name in after if after[name] is not before.get(name)
    }
    of_learner = {name: getattr(local, name, None) for name in ("trained", "rest")}
    arrays |= {name: array for name, array in of_learner.items() if array is not None}
    device.keep_work(name, arrays)
    return arrays


def _name_of_work(start: bytes, local: Local, before: ClientState) -> bytes:
    """Of what an agent does for a start with this memory: after damage or a power cut it may have another one."""
    kept = {**before, "": getattr(local, "rest", None)}
    parts = (
        part
        for name, array in sorted(kept.items())
        for part in (name.encode(), b"" if array is None else np.asarray(array).tobytes())
    )
    return hashed("work", start, *parts)


def _made(arrays: Arrays, local: Local, before: ClientState) -> tuple[Report, ClientState]:
    """What `_worked` has kept: the report, and the client state after it."""

    def those(kind: str) -> dict[str, npt.NDArray[Any]]:
        return {name.removeprefix(kind): arrays[name] for name in arrays if name.startswith(kind)}

    learner = cast(Any, local)  # remembers what it has trained, and what of it does not travel
    if "trained" in arrays:
        learner.trained = arrays["trained"]
    if "rest" in arrays:
        learner.take_rest(arrays["rest"])
    bases = {name: int(index) for name, index in those("base ").items()}
    report = Report(those("vector "), int(arrays["examples"]), bases=bases)
    return report, {**{name: before[name] for name in those("same ")}, **those("state ")}


def _perform_join(
    job: Job, device: SecureDevice, begun: OrderStart, slots: FigureSlots | None
) -> Report:
    """Join a sum, of figures where there are slots."""
    terms = job.models[-1]
    offered = Terms.from_bytes(bytes_of(terms))
    if slots is not None and offered.scale.unit * slots.longest > offered.clip:
        raise PublicError("secure sums: the terms have too few levels for figures")
    for content in filter(None, offered.expelled):
        newer = device.agent.new_expelled(device.state(), content)
        if newer.syncs:  # else it is an old one, or not signed by the fleet key
            device.save(newer.state)
    step = device.agent.offered(device.state(), bytes_of(terms), begun, device.now, device.token)
    return _message(_taken(device, step))


def _perform_work(
    method: Works,
    job: Job,
    local: Local,
    *,
    client_state: ClientState,
    device: SecureDevice,
    begun: OrderStart,
) -> tuple[Report, ClientState]:
    *models, listing, inbox = job.models
    own = device.state().sum
    terms = None if own is None else Terms.from_bytes(own.terms)
    if own is None or terms is None or terms.start != begun.digest:
        raise PublicError("secure sums: this agent has not joined a sum for this order")
    step = device.agent.listed(device.state(), bytes_of(listing), bytes_of(inbox))
    sent = _taken(device, step)
    if any(isinstance(effect, SendAnswer) for effect in sent):
        raise PublicError("secure sums: this agent has answered for this sum")
    work = device.kept_work(_name_of_work(begun.digest, local, client_state))
    is_first = device.state().vector(begun.digest) is None
    if work is None and is_first:
        of_models = replace(job, models=tuple(models))
        work = _worked(
            method, of_models, local, before=client_state, device=device, start=begun.digest
        )
    # without it the memory has this work already, as its report was accepted
    if work is not None:
        before = client_state
        report, client_state = _made(work, local, before)
        client_state = {name: client_state[name] for name in client_state if name != COUNTED}
        if MODEL in report.vectors and client_state.get(LAST_MODEL) is before.get(LAST_MODEL):
            client_state[LAST_MODEL] = report.vectors[MODEL]
        update = _update_of(report, models, terms)
        if FIGURES in report.vectors:
            update *= terms.scale.unit
        norm = float(np.linalg.norm(update))
        if MODEL in report.vectors and norm > terms.clip:
            base = models[report.bases[MODEL]].astype(np.float64)
            change = (report.vectors[MODEL] - base) * (terms.clip / norm)
            client_state[COUNTED] = (base + change).astype(np.float32)
        if is_first:
            integers = to_integers(update, report.examples, terms.scale)
            add_noise(integers, terms.scale, device.noise_key(begun.digest))
            device.save_vector(begun.digest.hex(), integers)
            sent += _taken(
                device,
                device.agent.made(device.state(), begun.digest, digest_of(integers), terms.scale),
            )
    for effect in sent:
        if isinstance(effect, SendMasked):
            masked = device.vector(f"{own.name.hex()}-masked")
            head = ReportHead.from_bytes(effect.content)
            if masked is None or digest_of(masked) != head.vector:
                _taken(device, device.agent.lost(device.state()))
            numbers = {HEAD: words_of(effect.content).tolist()}
            return Report({MASKED: cast(Vector, masked)}, 1, numbers), client_state
    raise PublicError("secure sums: this agent has nothing to report")


def _update_of(report: Report, models: Sequence[Vector], terms: Terms) -> npt.NDArray[np.float64]:
    """What the vectors of a report add to the models that they started from, one after the other.

    Raises PublicError for terms with a vector that this work does not make.
    """
    if strange := terms.vectors.keys() - report.vectors.keys():
        raise PublicError(f"secure sums: no work of this order makes the vector {min(strange)!r}")
    parts = []
    for name in terms.vectors:
        vector = report.vectors[name].astype(np.float64)
        parts.append(vector - models[report.bases[name]] if name in report.bases else vector)
    return np.concatenate(parts)


def _taken(device: SecureDevice, step: AgentTransition) -> list[Effect]:
    """Save the state of a step, then make masked vectors; the effects that are sent. Raises PublicError for a refusal."""
    if step.syncs:
        device.save(step.state)
    sent: list[Effect] = []
    for effect in step.then:
        match effect:
            case Refuse(reason, detail):
                text = f"{reason}: {detail}" if detail else reason
                raise PublicError(f"secure sums: {text}")
            case MakeMasked(terms, begun, streams):
                vector = device.vector(begun.hex())
                if vector is None or digest_of(vector) != device.state().vector(begun):
                    return _taken(device, device.agent.lost(device.state()))
                add_masks(vector, streams)
                device.save_vector(f"{terms.hex()}-masked", vector)
                sent += _taken(
                    device, device.agent.masked(device.state(), terms, digest_of(vector))
                )
            case EraseVectors():
                device.erase_work()
            case _:
                sent.append(effect)
    return sent


def _message(sent: Sequence[Effect]) -> Report:
    """The report with the only message that is sent."""
    for effect in sent:
        if isinstance(effect, SendJoin | SendAnswer):
            return Report({WORDS: words_of(effect.content)}, examples=1)
    raise PublicError("secure sums: nothing to send")
