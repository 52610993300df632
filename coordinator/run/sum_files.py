"""Partial sums on disk, next to the reports of their step: `<step>/<digest>.sum`, each as its aggregator sent it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from covey.coordinator.run.disk_space import Room
from covey.shared.files import write_atomically
from covey.shared.numerics.vectors import Vector
from covey.shared.wire.messages import digest

SUFFIX = ".sum"


class SummedVectors(Mapping[str, Vector]):
    """The vectors of a report that only an aggregator has seen. Their sum with others is here, and none of them alone."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes  # the lengths by name

    def __getitem__(self, name: str) -> Vector:
        if name not in self.sizes:
            raise KeyError(name)
        why = "an aggregator has added this report up, and the fold needs the report itself"
        raise ValueError(why)

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)


class SumFiles:
    """The partial sums of the steps in a folder, which holds one folder for each step."""

    def __init__(self, folder: Path, room: Room) -> None:
        self._folder = folder
        self._room = room
        self.damaged: list[str] = []  # what `contents` has found, for a person

    def __repr__(self) -> str:
        return f"<SumFiles in {self._folder}>"

    def keep(self, step: int, content: bytes, content_digest: bytes, *, durable: bool) -> None:
        """Write a sum, whose digest this is, into the folder of its step, which exists."""
        path = self._path(step, content_digest)
        self._room.write(lambda: write_atomically(path, content, durable=durable))

    def contents(self, step: int) -> dict[bytes, bytes]:
        """The sums of a step by their digests. One whose content is not what its name stands for is removed."""
        found: dict[bytes, bytes] = {}
        for path in self._paths(step):
            content = path.read_bytes()
            content_digest = digest(content)
            sound = self._path(step, content_digest)
            if path == sound:
                found[content_digest] = content
                continue
            path.unlink()
            self.damaged.append(f"{path}: the partial sum is damaged; its agents are asked again")
        return found

    def drop(self, step: int) -> None:
        """Delete the sums of a step."""
        for path in self._paths(step):
            path.unlink()

    def _paths(self, step: int) -> list[Path]:
        folder = self._folder / str(step)
        pattern = "[!.]*" + SUFFIX
        return sorted(folder.glob(pattern))

    def _path(self, step: int, content_digest: bytes) -> Path:
        name = content_digest.hex() + SUFFIX
        return self._folder / str(step) / name
