"""What `state.json` holds of one run of an agent, and how it changes. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

from covey.agent.device.events import Outboxed

LOST = "lost"  # the memory of accepted work is gone
AHEAD = "ahead"  # the memory belongs to work that the coordinator has forgotten


@dataclass(frozen=True)
class State:
    """What `state.json` holds of one run. `memory`, `before`, `report` and `report_memory` are file names, "" for none.

    If `step` equals `accepted`, the report was accepted and is kept in case the coordinator asks for it again:
    `memory` came with it, and `before` is the memory that its work began with. Otherwise the report waits for an answer.
    """

    run: str = ""
    accepted: int = 0  # newest accepted step of the run
    memory: str = ""  # after the newest accepted work
    step: int = 0  # step of the report in hand; 0 for none
    report: str = ""
    report_memory: str = ""  # becomes `memory` if the report is accepted
    digest: str = ""  # hex, of the report
    work: str = ""  # hex, of the work that the report came from
    size: int = 0  # bytes of the report
    part_bytes: int = 0  # size of the parts that the report is sent in
    memory_digest: str = ""  # seal of the file `memory` in hex; "" if unknown
    report_memory_digest: str = ""  # seal of the file `report_memory` in hex
    before: str = ""  # the memory before the accepted report; only while the report is kept
    before_digest: str = ""  # seal of the file `before` in hex
    before_accepted: int = 0  # newest accepted step before that of the kept report
    confirmed: int = 0  # `again` of the order that reported `accepted`
    lost: str = ""  # LOST or AHEAD until two accepted steps mention it; "" for a memory in order
    told: bool = False  # one did, but may be accepted with another report, from before the loss

    @property
    def kept(self) -> bool:
        """Whether the report in hand was accepted."""
        return self.step > 0 and self.step == self.accepted

    @property
    def files(self) -> set[str]:
        """The names of all files that belong to this state."""
        return {self.memory, self.before, self.report, self.report_memory} - {""}

    @property
    def outboxed(self) -> Outboxed:
        """The part of the state that the session has to know."""
        known = Outboxed(self.run, self.accepted, confirmed=self.confirmed)
        if not self.report:
            return known
        known = replace(known, work=bytes.fromhex(self.work))
        if self.kept:
            return replace(known, kept=self.step)
        return replace(known, step=self.step)

    @property
    def without_report(self) -> State:
        """The same state with the memory alone."""
        return State(
            self.run,
            self.accepted,
            self.memory,
            memory_digest=self.memory_digest,
            confirmed=self.confirmed,
            lost=self.lost,
            told=self.told,
        )

    @property
    def without_memory(self) -> State:
        """The same state after its memory was lost."""
        return replace(self, memory="", memory_digest="", lost=LOST, told=False)

    def committed(self, confirmed: int) -> State:
        """The report in hand was accepted: the memory that came with it becomes the memory.

        Args:
            confirmed: `again` of the order that reported it.
        """
        accepted = replace(
            self,
            accepted=self.step,
            confirmed=confirmed,
            before=self.memory,
            before_digest=self.memory_digest,
            before_accepted=self.accepted,
            report_memory="",
            report_memory_digest="",
            lost="" if self.told else self.lost,
            told=self.lost != "" and not self.told,
        )
        if not self.report_memory:
            return accepted
        return replace(accepted, memory=self.report_memory, memory_digest=self.report_memory_digest)

    def went_back(self, accepted: int) -> State:
        """The coordinator lost what it accepted after the step `accepted`.

        A kept report waits again, with the memory from before it. If the coordinator lost more than that, the memory
        belongs to later work, and the next report mentions it.
        """
        state = self._recalled(accepted) if self.kept else self
        if self.kept and accepted >= self.before_accepted:
            return state
        lost = AHEAD if state.memory else state.lost
        return replace(state.without_report, accepted=accepted, lost=lost, told=False)

    def _recalled(self, accepted: int) -> State:
        before = replace(
            self,
            accepted=accepted,
            memory=self.before,
            memory_digest=self.before_digest,
            before="",
            before_digest="",
            before_accepted=0,
            told=False,
        )
        if not self.report:  # its file was damaged: the work is done again
            return replace(before, step=0)
        if self.memory == self.before:  # the work left the memory as it was
            return before
        return replace(before, report_memory=self.memory, report_memory_digest=self.memory_digest)

    def overtaken(self, accepted: int, confirmed: int) -> State:
        """The coordinator accepted work that this state does not know: the memory is older, or lost."""
        state = self.without_report
        return replace(state, accepted=accepted, confirmed=confirmed, lost=LOST, told=False)

    def checked(self, gone: set[str]) -> State:
        """The state after some of its files turned out to be missing or damaged.

        Args:
            gone: their names.
        """
        state = self
        if state.kept and state.report in gone:
            state = replace(state, report="")
        elif state.report in gone or state.report_memory in gone:
            state = state.without_report
        if state.memory and state.memory in gone:
            state = state.without_memory
        if state.before in gone:
            state = replace(state, before="", before_digest="")
        return state

    def to_json(self) -> dict[str, Any]:
        """All fields by name. Their values are numbers and texts, so none has to be copied."""
        return dict(vars(self))

    @classmethod
    def of_json(cls, tree: dict[str, Any]) -> Self:
        """The state in a JSON object. Raises TypeError for an unknown key or a value of another type."""
        state = cls(**tree)
        for field in fields(cls):
            value = getattr(state, field.name)
            if type(value) is not type(field.default):
                raise TypeError(f"{field.name} is {value!r}")
        return state
