"""The folder of a run: made, held against other coordinators, and checked before a run is resumed in it.

The finished run that a new run continues (`coordinator run --from`): its models and clusters, checked against the scenario.

The new run has a name, rounds and an audit log of its own. It takes over the state of the method, and the statistics that
the fleet found. Devices begin with empty memories: a method that keeps a part of its models there cannot be continued.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from covey.shared.strategies.base import Setup, Strategy

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
        saved = checkpoint.to_continue()
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


@dataclass(frozen=True)
class Origin:
    """A finished run."""

    folder: Path
    run: str
    round: int  # complete rounds
    scaling: dict[str, Any] | None  # what the fleet found before round 0

    def to_json(self) -> dict[str, Any]:
        """The run and its rounds, for the result of the new run."""
        return {"run": self.run, "round": self.round}

    def state(self, scenario: Scenario, setup: Setup) -> Any:
        """The method's state at the start of the new run.

        Raises:
            UserError: the method cannot be continued.
        """
        strategy: Strategy[Any] = scenario.method
        if setup.split is not None and setup.split.keeps:
            raise UserError(
                f"--from {self.folder}: {scenario.strategy.name} keeps a part of its models on the devices, where a new run "
                "starts from nothing; begin without --from"
            )
        fresh = strategy.init(setup)
        state = Checkpoint(self.folder / "checkpoint").state(fresh)
        try:
            return strategy.continued(state, fresh)
        except ValueError as error:
            raise UserError(f"--from {self.folder}: {error}") from None


def origin_of(folder: Path, scenario: Scenario) -> Origin:
    """The finished run in a folder, if a run of this scenario can continue it.

    Raises:
        UserError: the run is not finished, or has another task, model or method; the message names the keys.
    """
    if not (folder / "result.json").is_file():
        raise UserError(
            f"--from {folder}: expected the folder of a finished run; finish that run with --resume first"
        )
    _check(folder, load(folder / "scenario.yaml"), scenario)
    saved = Checkpoint(folder / "checkpoint").facts()
    facts = saved["run"]
    return Origin(folder, facts["run"], saved["engine"]["round"], facts["scaling"])


def copy_start(origin: Origin, folder: Path) -> None:
    """Give the new run the initial models of the old one: their layout is that of its models."""
    shutil.copyfile(origin.folder / START, folder / START)


def _check(folder: Path, before: Scenario, now: Scenario) -> None:
    keys = _differences(before.task.for_agents(), now.task.for_agents(), "task")
    if before.strategy.name != now.strategy.name:
        keys.append("strategy.name")
    if getattr(before.strategy, "n_clusters", None) != getattr(now.strategy, "n_clusters", None):
        keys.append("strategy.n_clusters")
    if keys:
        names = ", ".join(keys)
        raise UserError(
            f"--from {folder}: that run has other values of {names}, and its models do not fit; use its values, or start "
            f"from single models with task.init, such as {folder / 'models' / 'cluster-0.safetensors'}"
        )
    if before.privacy is not None or now.privacy is not None:
        raise UserError(
            f"--from {folder}: with a section privacy each run has an account of its own, and the two together would spend "
            "more than either shows; give one run more rounds instead"
        )


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], section: str) -> list[str]:
    names = sorted(before.keys() | now.keys())
    return [f"{section}.{name}" for name in names if before.get(name) != now.get(name)]
