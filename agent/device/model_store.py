"""The models on an agent's disk: one file per content, named by its digest, and the parts of incomplete ones."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Collection
from pathlib import Path

from covey.agent.device.received_models import (
    BROKER,
    MAX_MODEL_BYTES,
    ReceivedModels,
    link_or_copy,
    model_assembler,
)
from covey.shared.storage.files import SUFFIX, atomic_replace, make_folder
from covey.shared.wire.messages import Part, digest_of_file
from covey.shared.wire.parts import FileSink


class ModelStore:
    """The models in a folder. Parts that an earlier process left are removed, complete models are kept.

    Args:
        folder: created if it does not exist.
        largest_bytes: larger models are refused.
        durable: whether complete models survive a power cut.
        received: what other agents of this process receive, too; None for an agent by itself.
        bases: keeps bases for later runs; None: nothing is kept.

    Attributes:
        damaged: models whose file did not have the content that its name promises, in sentences for a person. Their
            files were removed when the store was opened; the session fetches them again if it needs them.
    """

    def __init__(
        self,
        folder: Path,
        largest_bytes: int = MAX_MODEL_BYTES,
        *,
        durable: bool = True,
        received: ReceivedModels | None = None,
        bases: Bases | None = None,
    ) -> None:
        self._bases = bases
        self._folder = folder
        self._received = received
        self._durable = durable
        self.damaged: list[str] = []
        make_folder(folder, durable=durable)
        for path in folder.glob("*.part"):
            path.unlink()
        for path in sorted(folder.glob("*.model")):
            if not _matches_its_name(path):
                path.unlink()
                self.damaged.append(
                    f"{path}: the model is damaged; it is fetched again if it is still needed"
                )
        self._numbers = itertools.count()
        self._parts = model_assembler(self._sink, largest_bytes)

    def __repr__(self) -> str:
        return f"<ModelStore {self._folder}: {len(self.digests)} models>"

    @property
    def digests(self) -> list[bytes]:
        """The digests of all complete models."""
        return [bytes.fromhex(path.stem) for path in sorted(self._folder.glob("*.model"))]

    def path(self, digest: bytes) -> Path:
        return self._folder / f"{digest.hex()}.model"

    def decode(self, payload: bytes) -> Part:
        """The part in a payload. Raises DecodeError if it is damaged."""
        if self._received is not None:
            return self._received.decode(payload)
        return Part.from_bytes(payload)

    def feed(self, part: Part, now: float) -> bool | None:
        """Take one part of a model.

        Returns:
            True if the model is complete now, False if not, None if it was complete before.

        Raises:
            DecodeError: the part cannot be right.
            OSError: the disk is full, for instance.
        """
        if self.path(part.digest).exists():
            return None
        if self._received is not None:
            return self._take(self._received, part, now)
        sink = self._parts.feed(BROKER, part, now)
        if sink is None:
            return False
        assert isinstance(sink, FileSink)  # noqa: S101 - that is what the assembler was given
        try:
            with atomic_replace(self.path(part.digest), durable=self._durable) as beside:
                sink.path.replace(beside)
        except OSError:  # a full disk: let the parts come again
            self._parts.forget(BROKER, part.digest)
            raise
        return True

    def has_base(self, digest: bytes) -> bool:
        """Whether a base is here that was not, because an earlier run or the owner has left it."""
        path = self.path(digest)
        if self._bases is None or path.exists():
            return False
        return self._bases.give(digest, path)

    def keep_base(self, digest: bytes) -> None:
        """Keep a complete base for later runs."""
        if self._bases is not None:
            self._bases.add(digest, self.path(digest))

    def _take(self, received: ReceivedModels, part: Part, now: float) -> bool:
        """Take one part of a model that other agents receive, too. True if the model is complete now."""
        if not received.feed(self._folder, part, now):
            return False
        with atomic_replace(self.path(part.digest), durable=self._durable) as beside:
            received.give(part.digest, beside)
        return True

    def remove(self, digest: bytes) -> str:
        """Remove a model whose file is damaged. Returns a sentence about it."""
        self.path(digest).unlink(missing_ok=True)
        self._parts.forget(BROKER, digest)
        if self._received is not None:
            self._received.damaged(digest)
        return f"{self.path(digest)}: the model is damaged; it is fetched again"

    def keep(self, digests: Collection[bytes], now: float) -> None:
        """Remove all other complete models, and incomplete ones that are too old."""
        for digest in self.digests:
            if digest not in digests:
                self.path(digest).unlink(missing_ok=True)
                self._parts.forget(BROKER, digest)  # a later order may name it again
        self._parts.expire(now)
        if self._received is not None:
            self._received.keep(self._folder, digests, now)

    def _sink(self, sender: str, part: Part) -> FileSink:
        return FileSink(self._folder / f"{next(self._numbers)}.part", part.size)


class Bases:
    """Bases on a device's disk, by their digest: those that runs have used last, as far as there is room.

    The owner may put a base there, too, under its digest and `.safetensors`.

    Args:
        folder: agents of one machine can share it.
        room_bytes: of all bases together; None: no bound.
    """

    def __init__(self, folder: Path, room_bytes: int | None) -> None:
        self._folder = folder
        self._room_bytes = room_bytes

    def __repr__(self) -> str:
        return f"<Bases {self._folder}>"

    def give(self, digest: bytes, target: Path) -> bool:
        """Put a base to a place, as a second name of one file where that is possible. False if it is not here, or damaged."""
        path = self._path(digest)
        if not path.exists():
            return False
        if not _matches_its_name(path):
            path.unlink(missing_ok=True)
            return False
        path.touch()
        link_or_copy(path, target)
        return True

    def add(self, digest: bytes, content: Path) -> None:
        """Keep a base, and remove those that were used longest ago as far as they need the room."""
        path = self._path(digest)
        make_folder(self._folder, durable=False)
        if not path.exists():
            with atomic_replace(path, durable=False, mark=str(os.getpid())) as beside:
                link_or_copy(content, beside)
        path.touch()
        room = math.inf if self._room_bytes is None else self._room_bytes
        for other in sorted(self._folder.glob(f"*{SUFFIX}"), key=_last_use, reverse=True):
            room -= other.stat().st_size
            if room < 0:
                other.unlink(missing_ok=True)

    def _path(self, digest: bytes) -> Path:
        return self._folder / f"{digest.hex()}{SUFFIX}"


def _last_use(path: Path) -> float:
    return path.stat().st_mtime


def _matches_its_name(path: Path) -> bool:
    return digest_of_file(path).hex() == path.stem
