"""The models that an agent holds: one file per content, named by its digest; parts on their way lie beside them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection
from pathlib import Path

from covey.shared.files import atomic_replace, make_folder
from covey.shared.wire.messages import DIGEST_BYTES, Part
from covey.shared.wire.parts import Assembler, FileSink

MAX_MODEL_BYTES = 8 << 30  # bytes
BROKER = "broker"  # all models come from one sender
MAX_PENDING = 64  # contents on their way
MAX_AGE_S = 3600.0


class ModelStore:
    """Models under `folder`. What was half there when the last process ended is gone; whole files are kept.

    A file that does not hold what its name says is removed when the store is opened, and named in `damaged`: the model
    is fetched again. What is `durable` survives a power cut.
    """

    def __init__(
        self, folder: Path, largest_bytes: int = MAX_MODEL_BYTES, *, durable: bool = True
    ) -> None:
        self._folder = folder
        self._durable = durable
        self.damaged: list[str] = []
        make_folder(folder, durable=durable)
        for path in folder.glob("*.part"):
            path.unlink()
        for path in sorted(folder.glob("*.model")):
            if not _holds_what_its_name_says(path):
                path.unlink()
                self.damaged.append(
                    f"{path}: the model is damaged; it is fetched again if it is still needed"
                )
        self._numbers = itertools.count()
        self._parts = Assembler(
            self._sink,
            largest_bytes=min(largest_bytes, MAX_MODEL_BYTES),
            per_sender=MAX_PENDING,
            total_bytes=1 << 50,
            max_age_s=MAX_AGE_S,
        )

    @property
    def digests(self) -> list[bytes]:
        """All that is held whole."""
        return [bytes.fromhex(path.stem) for path in sorted(self._folder.glob("*.model"))]

    def path(self, digest: bytes) -> Path:
        return self._folder / f"{digest.hex()}.model"

    def feed(self, part: Part, now: float) -> bool | None:
        """Take one part: True when its model is whole now, False while it is not, None where it was held
        already. Raises DecodeError for a part that cannot be right."""
        if self.path(part.digest).exists():
            return None
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

    def remove(self, digest: bytes) -> str:
        """Remove a model whose file is damaged; returns what happened, for a person."""
        self.path(digest).unlink(missing_ok=True)
        self._parts.forget(BROKER, digest)
        return f"{self.path(digest)}: the model is damaged; it is fetched again"

    def keep(self, digests: Collection[bytes], now: float) -> None:
        """Remove all other whole models, and parts that nobody completes."""
        for digest in self.digests:
            if digest not in digests:
                self.path(digest).unlink(missing_ok=True)
                self._parts.forget(BROKER, digest)  # a later order may name it again
        self._parts.expire(now)

    def _sink(self, sender: str, part: Part) -> FileSink:
        return FileSink(self._folder / f"{next(self._numbers)}.part", part.size)


def _holds_what_its_name_says(path: Path) -> bool:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES))
    return digest.hexdigest() == path.stem
