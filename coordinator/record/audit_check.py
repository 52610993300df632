"""The audit log of a run that is checked, or that gets further lines when no coordinator has the run open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.record.audit_trail import FILE, Trail, head_of
from covey.shared.audit import Head, is_keyed
from covey.shared.audit_check import Verdict, verify
from covey.shared.errors import UserError
from covey.shared.files import folder_lock

PUBLICATIONS = ("publish", "promote", "rollback")  # events: models were published for use


@dataclass(frozen=True)
class Checked:
    """The verdict on a run's log. `anchored`: the run's checkpoint, or the user, knows a head that was compared."""

    verdict: Verdict
    anchored: bool


def check(folder: Path, *, key: bytes | None = None, head: Head | None = None) -> Checked:
    """Check the audit log of a run's folder, also against what its checkpoint knows. Raises UserError without a log."""
    path = folder / FILE
    owner, known = _of_checkpoint(folder)
    expected = head or known
    verdict = verify(path, key=key, owner=owner, head=expected, keep=PUBLICATIONS)
    are_two = head is not None and known is not None
    if are_two and verdict.whole:
        verdict = verify(path, key=key, owner=owner, head=known, keep=PUBLICATIONS)
    return Checked(verdict, anchored=expected is not None)


def summary(checked: Checked) -> dict[str, Any]:
    """The verdict as `coordinator lab audit --json` prints it."""
    verdict = checked.verdict
    broken = verdict.broken
    head = verdict.head
    return {
        "whole": verdict.whole,
        "run": verdict.owner,
        "lines": verdict.lines,
        "head": f"{head.sequence}:{head.hash}" if head is not None else None,
        "broken_line": broken.line if broken is not None else None,
        "why": broken.why if broken is not None else None,
        "first_time": verdict.first_time,
        "last_time": verdict.last_time,
        "keyed": verdict.keyed,
        "anchored": checked.anchored,
        "events": dict(sorted(verdict.events.items())),
        "notes": list(verdict.notes),
        "publications": [_publication(line) for line in verdict.kept],
    }


def _publication(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line about models that were published."""
    return {"time": line["time"], "event": line["event"], **line["fields"]}


@contextmanager
def trail_of_finished(folder: Path, key: bytes | None) -> Iterator[Trail]:
    """The audit log of a run that no coordinator has open, to add lines to it.

    Args:
        folder: the run's folder. It is held against other coordinators for the block.
        key: signs the lines if the log is signed; unused otherwise.

    Raises:
        UserError: a coordinator is at work in the folder, the log is signed and there is no key, or the folder has no
            checkpoint.
    """
    path = folder / FILE
    is_signed = is_keyed(path)
    if is_signed and key is None:
        raise UserError(
            f"{path}: this audit log is signed, so that each publication needs the key; give its file with --audit-key"
        )
    facts = Checkpoint(folder / "checkpoint").facts()["run"]
    busy = f"{folder}: a coordinator is at work in it and writes its audit log; wait for the end of the run, or stop it"
    with folder_lock(folder, busy):
        head = head_of(facts.get("audit"))
        trail = Trail(folder, facts["run"], key=key if is_signed else None, head=head)
        yield trail
        trail.sync()


def _of_checkpoint(folder: Path) -> tuple[str | None, Head | None]:
    """The run's id and the head that its checkpoint holds; None where there is no readable checkpoint."""
    checkpoint = Checkpoint(folder / "checkpoint")
    try:
        facts = checkpoint.facts()
    except UserError:
        return None, None
    run = facts["run"]
    return run["run"], head_of(run.get("audit"))


def parse_head(text: str) -> Head:
    """`NUMBER:HASH`, as `coordinator lab audit` prints it. Raises UserError for anything else."""
    number, _, hash_ = text.partition(":")
    is_number = number.isdecimal() and int(number) >= 1
    if not is_number or not hash_:
        raise UserError(
            f"--head {text}: expected NUMBER:HASH, as an earlier `coordinator lab audit` printed it"
        )
    return Head(int(number), hash_)
