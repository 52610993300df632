"""The folder of a run: made, held against other coordinators, and checked before a run is resumed in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.disk.versions import START
from covey.coordinator.record import records
from covey.coordinator.run.options import RunOptions
from covey.shared.errors import UserError
from covey.shared.programs.version import version
from covey.shared.scenario.describe import differences, dump
from covey.shared.scenario.load import load
from covey.shared.scenario.scenario import Scenario
from covey.shared.storage.files import folder_lock, private_folder, write_atomically

MAX_KEYS = 5  # that a message names
IN_PROCESS = "in-process"  # names a run without a broker, where others have a name of their own


@contextmanager
def prepared(
    scenario: Scenario, options: RunOptions, *, in_process: bool = False
) -> Iterator[bool]:
    """`prepare`, with the folder held for as long as the block lasts."""
    with ExitStack() as stack:
        if not options.resume or options.folder.is_dir():
            stack.enter_context(alone_in(options.folder))
        yield prepare(scenario, options, in_process=in_process)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a folder, made where it is not there, against other coordinators: UserError where one is at work in it."""
    if not folder.is_dir():
        private_folder(folder)
    with folder_lock(
        folder,
        f"{folder}: another coordinator is at work in it; wait for it or stop it, or choose another --out",
    ):
        yield


def prepare(scenario: Scenario, options: RunOptions, *, in_process: bool = False) -> bool:
    """Make the run's folder, or check that it can be resumed: True if it has a checkpoint to resume.

    A run that was stopped before its first checkpoint begins again. No run is ever overwritten.
    """
    folder = options.folder
    checkpoint = Checkpoint(folder / "checkpoint")
    begun = folder / "scenario.yaml"
    if options.resume and (checkpoint.exists() or not begun.exists()):
        saved = checkpoint.facts()
        checkpoint.must_be_of_this_format()
        _must_be(saved["scenario"], scenario, begun)
        began_in_process = saved["run"]["run"] == IN_PROCESS
        _must_run_as_it_began(folder, began_in_process, in_process)
        private_folder(folder)
        return True
    if options.resume:
        _must_be(_digest_of(begun), scenario, begun)
    else:
        _must_be_free(folder)
    private_folder(folder)
    (folder / START).unlink(missing_ok=True)  # perhaps only a part of it was written
    write_atomically(begun, dump(scenario).encode())
    return False


def _must_run_as_it_began(folder: Path, began_in_process: bool, in_process: bool) -> None:
    """Agents in process remember elsewhere, and in another form: UserError if the ways differ."""
    if began_in_process == in_process:
        return
    began = "without a broker" if began_in_process else "over a broker"
    way = "with" if began_in_process else "without"
    raise UserError(
        f"{folder}: this run began {began}; resume it {way} --in-process, or choose another --out"
    )


def _must_be_free(folder: Path) -> None:
    """UserError if the folder holds a run, or other files."""
    is_empty = not folder.exists() or not any(folder.iterdir())
    if is_empty or _never_began(folder):
        return
    can_continue = Checkpoint(folder / "checkpoint").exists()
    is_finished = (folder / "result.json").exists()
    if can_continue:
        what = "a run folder is already there"
        advice = ", or continue it with --resume"
    elif is_finished:
        what = "a run folder is already there"
        advice = ", or remove it yourself"
    else:
        what = "it contains files that do not belong to a run"
        advice = ""
    raise UserError(f"{folder}: {what}; choose another with --out{advice}")


def _never_began(folder: Path) -> bool:
    """Whether the folder holds an attempt that ended before its first checkpoint. Its scenario is as we write it, not a user's."""
    file = folder / "scenario.yaml"
    if (
        Checkpoint(folder / "checkpoint").exists()
        or (folder / "result.json").exists()
        or not file.is_file()
    ):
        return False
    try:
        return dump(load(file)) == file.read_text()
    except (UserError, ValueError):
        return False


def _digest_of(begun: Path) -> str:
    """The digest of the scenario that a run began with; empty where this version cannot read it."""
    try:
        return records.scenario_digest(load(begun))
    except UserError:
        return ""


def _must_be(digest: str, scenario: Scenario, begun: Path) -> None:
    """UserError, with the keys that differ, unless the scenario is the one that the run began with."""
    if digest == records.scenario_digest(scenario):
        return
    try:
        keys = differences(load(begun), scenario)
    except UserError:  # another version wrote it, or it is gone: the digest is all that is known
        keys = []
    if not keys and begun.exists():  # the same file means something else to this version
        raise UserError(
            f"{begun.parent}: this run was begun with another version of Covey, which reads {begun.name} in another way; "
            f"this is Covey {version()}. Nothing was changed. Continue it with that version, or begin again in another "
            "folder (--out)"
        )
    shown = "; ".join(keys[:MAX_KEYS])
    more = f"; and {len(keys) - MAX_KEYS} more keys" if len(keys) > MAX_KEYS else ""
    what = f"differs: {shown}{more}" if keys else f"differs from {begun}, which is gone"
    raise UserError(
        f"{begun.parent}: what is there belongs to another scenario; yours {what}. Nothing was changed. Resume with "
        "the same file and --set options, or choose another --out"
    )
