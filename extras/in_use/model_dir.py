"""The folder of `agent start --model-dir`: one file per model, and `in_use.json`, which names the model in use.

A reader sees the old state or the new one, never a part: each file is replaced as a whole, a model is on disk before
`in_use.json` names it, and it leaves the disk after `in_use.json` has forgotten it. The agent alone writes here. An idle
agent imports this module, so it needs neither numpy nor torch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from covey.extras.in_use.kept_versions import Figure, Version, is_better
from covey.shared.errors import UserError
from covey.shared.storage import json_text
from covey.shared.storage.files import SUFFIX, discard, private_folder, write_atomically
from covey.shared.wire.documents import IN_USE

INDEX = "in_use.json"
FORMAT = 1  # of the index
DEFAULT_RUNS = 3  # whose best models stay


@dataclass(frozen=True)
class Kept:
    """A model on disk."""

    version: Version
    since: str  # when it was taken over, UTC, ISO 8601
    why: str = ""  # the reason, with figures on the device's test part
    figure: Figure | None = None  # on the device's test part, when it was taken over

    def to_json(self) -> dict[str, Any]:
        content = self.version.to_json()
        figure = None if self.figure is None else list(self.figure)
        return {
            "file": self.version.file,
            **content,
            "since": self.since,
            "why": self.why,
            "figure": figure,
        }


@dataclass(frozen=True)
class Index:
    """The content of `in_use.json`."""

    in_use: Kept | None = None
    previous: tuple[Kept, ...] = ()  # newest first
    # what a person accepted last: a new model may be worse than it by the margin. Until a person has promoted one, it is
    # the first model of the device
    accepted: Kept | None = None
    rejected: int = 0  # models that the local check kept out, in all
    last_rejected: Version | None = None
    hook_failures: int = 0  # of `--on-model`, in all
    serial: int = 0  # of the newest publication that was settled; 0 for none
    # an operator chose the model in use: models of orders do not replace it
    pinned: bool = False
    note: str = ""  # the newest decision, for people; without figures, because others may read it
    why: str = ""  # its reason, with figures on the device's test part
    # reports may have the figures and weights of these models, and so may the status
    tells: bool = False
    data: str = ""  # that the device trains on: a path

    def to_json(self) -> dict[str, Any]:
        in_use = self.in_use.to_json() if self.in_use is not None else None
        rejected = self.last_rejected.to_json() if self.last_rejected is not None else None
        return {
            "format": FORMAT,
            "in_use": in_use,
            "previous": [kept.to_json() for kept in self.previous],
            "accepted": self.accepted.to_json() if self.accepted is not None else None,
            "rejected": self.rejected,
            "last_rejected": rejected,
            "hook_failures": self.hook_failures,
            "serial": self.serial,
            "pinned": self.pinned,
            "note": self.note,
            "why": self.why,
            "tells": self.tells,
            "data": self.data,
        }


@dataclass
class ModelDir:
    """The models that a device keeps.

    Attributes:
        folder: created if it does not exist.
        runs: of how many runs, the newest ones, the best model stays on disk.
        durable: whether the files survive a power cut.
        data: that the device trains on, for the index; "": as it is there.
        damage: why the index could not be read, for a person; empty if it could. The folder then counts as empty.
    """

    folder: Path
    runs: int = DEFAULT_RUNS
    durable: bool = True
    data: str = ""
    damage: str = field(default="", init=False)
    index: Index = field(default_factory=Index, init=False)

    def __post_init__(self) -> None:
        private_folder(self.folder, durable=self.durable)
        try:
            self.index = read_index(self.folder)
        except UserError as error:
            self.damage = str(error)

    def path(self, version: Version) -> Path:
        return self.folder / version.file

    @property
    def in_use(self) -> Version | None:
        """The model in use; None if there is none, or its file is gone."""
        return self._on_disk(self.index.in_use)

    @property
    def accepted(self) -> Version | None:
        """The model that a person accepted last; None if there is none, or its file is gone."""
        return self._on_disk(self.index.accepted)

    def _on_disk(self, kept: Kept | None) -> Version | None:
        if kept is None or not self.path(kept.version).is_file():
            return None
        return kept.version

    def take(
        self, version: Version, why: str, figure: Figure | None = None, *, is_first: bool = False
    ) -> Path:
        """Use a model whose file is on disk.

        Args:
            version: of the model.
            why: the reason.
            figure: on the device's test part.
            is_first: it cannot be compared with the model that a person accepted last, and takes its place.

        Returns:
            The path of the file.
        """
        before = self.index
        kept = Kept(version, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), why, figure)
        others = [] if before.in_use is None else [before.in_use]
        others += before.previous
        earlier = [one for one in others if one.version.file != version.file]
        self._write(
            replace(
                before,
                in_use=kept,
                previous=_staying(kept, earlier, self.runs),
                accepted=kept if is_first or before.accepted is None else before.accepted,
                note=f"{IN_USE}{version.title}",
                why=why,
            )
        )
        self._sweep()
        return self.path(version)

    def reject(self, version: Version, why: str) -> None:
        """Note that the local check kept a model out."""
        before = self.index
        note = f"rejected: {version.title}"
        count = before.rejected + 1
        self._write(replace(before, rejected=count, last_rejected=version, note=note, why=why))
        self._sweep()

    def settle(self, serial: int, *, pinned: bool, published: Version | None = None) -> None:
        """Note that a publication was dealt with. If `pinned`, an operator chose the model that is in use now.

        The publication names its version; the order that gave this device the same model did not.
        """
        before = self.index
        in_use, note = before.in_use, before.note
        if in_use is not None and published is not None and published.is_same_model(in_use.version):
            named = replace(in_use.version, name=published.name)
            if note == f"{IN_USE}{in_use.version.title}":
                note = f"{IN_USE}{named.title}"
            in_use = replace(in_use, version=named)
        accepted = in_use if pinned else before.accepted
        self._write(
            replace(
                before, in_use=in_use, serial=serial, pinned=pinned, accepted=accepted, note=note
            )
        )
        self._sweep()

    def note_telling(self, *, tells: bool) -> None:
        """Note whether others may know the figures of the models here."""
        self._write(replace(self.index, tells=tells))

    def note_measured(self, note: str) -> None:
        """Note what the model in use is on data that have changed."""
        self._write(replace(self.index, note=note))

    def count_hook_failure(self) -> None:
        self._write(replace(self.index, hook_failures=self.index.hook_failures + 1))

    def _write(self, index: Index) -> None:
        index = replace(index, data=self.data or index.data)
        text = json_text.dumps(index.to_json(), indent=1)
        write_atomically(self.folder / INDEX, f"{text}\n".encode(), durable=self.durable)
        self.index = index

    def _sweep(self) -> None:
        """Remove the files of models that the index does not name."""
        index = self.index
        kept = (index.in_use, index.accepted, *index.previous)
        named = {one.version.file for one in kept if one is not None}
        for path in self.folder.glob(f"*{SUFFIX}"):
            if path.name not in named:
                discard(path)


def _staying(in_use: Kept, earlier: Sequence[Kept], runs: int) -> tuple[Kept, ...]:
    """Of the earlier models, newest first, those that stay: the one before, the best of each of the newest runs, and its
    last, to which a rollback goes."""
    best: dict[str, Kept] = {}
    last: dict[str, Kept] = {}
    for one in (in_use, *earlier):
        run = one.version.run
        last.setdefault(run, one)
        if run not in best or is_better(one.figure, best[run].figure):
            best[run] = one
    staying = [*earlier[:1], *list(best.values())[:runs], *list(last.values())[:runs]]
    return tuple(one for one in earlier if any(one is other for other in staying))


def read_index(folder: Path) -> Index:
    """The index of a folder; an empty one if it has none.

    Raises:
        UserError: the index is damaged.
    """
    path = folder / INDEX
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Index()
    try:
        return _index_of(json_text.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path}: the list of models is damaged ({error}); remove the file, and the agent keeps the next model "
            "that it gets"
        ) from None


def _index_of(data: Any) -> Index:
    if data["format"] != FORMAT:
        raise ValueError(f"format {data['format']}, expected {FORMAT}")
    in_use = data["in_use"]
    rejected = data["last_rejected"]
    accepted = data["accepted"]
    previous = [_kept_of(one) for one in data["previous"]]
    return Index(
        in_use=_kept_of(in_use) if in_use is not None else None,
        previous=tuple(previous),
        accepted=_kept_of(accepted) if accepted is not None else None,
        rejected=int(data["rejected"]),
        last_rejected=Version.from_json(rejected) if rejected is not None else None,
        hook_failures=int(data["hook_failures"]),
        serial=int(data["serial"]),
        pinned=bool(data["pinned"]),
        note=str(data["note"]),
        why=str(data["why"]),
        tells=data["tells"] is True,
        data=str(data.get("data", "")),
    )


def _kept_of(data: Any) -> Kept:
    """One entry. Its file's name follows from its version: an index cannot name files elsewhere."""
    figure = data.get("figure")
    measured = (str(figure[0]), float(figure[1])) if figure is not None else None
    return Kept(Version.from_json(data), str(data["since"]), str(data["why"]), measured)
