"""The run on disk: one manifest, replaced atomically, and one file per array that it names.

    checkpoint/manifest.json        everything but arrays; its own digest comes first
    checkpoint/arrays/<digest>.safetensors

An array is written once and stays until no manifest names it, so a checkpoint costs what has changed.
`save` hands the state back with its arrays mapped from these files: a state of N stored models needs
no memory, and a run that was never interrupted reads the very bytes that a resumed one does.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from covey.coordinator.run.array_files import Array, array_digest, open_arrays, save_arrays
from covey.coordinator.run.disk_space import Room
from covey.shared import json_text
from covey.shared.errors import UserError
from covey.shared.files import make_folder, write_atomically

S = TypeVar("S")
_ARRAY = "$array"
_FLOAT = "$float"  # infinity and NaN, which JSON does not have


class Checkpoint:
    """Where a run is saved. The folder is made by the first `save`."""

    def __init__(self, folder: Path, room: Room | None = None) -> None:
        self.folder = folder
        self._room = room or Room(folder)
        self._arrays = folder / "arrays"
        self._manifest = folder / "manifest.json"
        self._mapped: dict[str, Array] = {}  # arrays handed out, by name: these need no writing
        self._sound: set[str] = (
            set()
        )  # names of files that this process has written, or compared with their names

    def exists(self) -> bool:
        return self._manifest.exists()

    def save(self, facts: Mapping[str, Any], state: S) -> S:
        """Write `facts` (JSON-able) and the state; return the state with mapped arrays."""
        self._room.write(lambda: make_folder(self._arrays))
        names = {id(array): name for name, array in self._mapped.items()}
        tree = {
            field.name: self._pack(getattr(state, field.name), names)
            for field in fields(_dataclass(state))
        }
        body = json_text.dumps(_without_infinity({"facts": facts, "state": tree}))
        digest = hashlib.blake2b(body.encode(), digest_size=16).hexdigest()
        self._room.write(lambda: write_atomically(self._manifest, f"{digest}\n{body}\n".encode()))
        before, self._mapped = self._mapped, {}
        mapped = self._unpacked(type(state), tree, before)
        self._sweep()
        return mapped

    def facts(self) -> dict[str, Any]:
        """The facts of the newest checkpoint. Raises UserError where it is cut short or missing."""
        facts: dict[str, Any] = self._read()["facts"]
        return facts

    def state(self, kind: type[S]) -> S:
        """The state of the newest checkpoint, as a `kind`."""
        return self._unpacked(kind, self._read()["state"], {})

    def _read(self) -> dict[str, Any]:
        try:
            digest, body = self._manifest.read_text().split("\n", 1)
        except FileNotFoundError:
            raise UserError(
                f"{self.folder}: no checkpoint is here; start the run without --resume"
            ) from None
        except ValueError:
            digest, body = "", ""
        if hashlib.blake2b(body.removesuffix("\n").encode(), digest_size=16).hexdigest() != digest:
            raise UserError(
                f"{self._manifest}: the checkpoint is cut short or was changed; nothing was overwritten. "
                "Restore the file from a copy, or start again in another folder with --out"
            )
        tree: dict[str, Any] = _with_infinity(json_text.loads(body))
        return tree

    def _pack(self, value: Any, names: Mapping[int, str]) -> Any:
        match value:
            case np.ndarray():
                return {_ARRAY: names[id(value)] if id(value) in names else self._write(value)}
            case dict():
                return {key: self._pack(item, names) for key, item in value.items()}
            case tuple() | list():
                return [self._pack(item, names) for item in value]
            case np.generic():
                return value.item()
            case None | bool() | int() | float() | str():
                return value
        raise TypeError(f"a strategy's state may not hold a {type(value).__name__}")

    def _write(self, array: Array) -> str:
        name = array_digest(array)
        path = self._arrays / f"{name}.safetensors"
        if name not in self._sound:  # a file that another process has left may be damaged
            self._room.write(lambda: save_arrays(path, {"array": array}))
            self._sound.add(name)
        return name

    def _unpacked(self, kind: type[S], tree: Mapping[str, Any], before: Mapping[str, Array]) -> S:
        return kind(**{name: self._unpack(item, before) for name, item in tree.items()})

    def _unpack(self, item: Any, before: Mapping[str, Array]) -> Any:
        match item:
            case {"$array": str(name)}:
                if name not in self._mapped:
                    self._mapped[name] = before[name] if name in before else self._open(name)
                return self._mapped[name]
            case dict():
                return {key: self._unpack(value, before) for key, value in item.items()}
            case list():
                return tuple(self._unpack(value, before) for value in item)
        return item

    def _open(self, name: str) -> Array:
        """The array of this name. Its content is compared with the name once in the life of a process."""
        path = self._arrays / f"{name}.safetensors"
        try:
            arrays, _ = open_arrays(path)
            array = arrays["array"]
            if name not in self._sound and array_digest(array) != name:
                raise ValueError("its content does not match its name")
        except (OSError, ValueError, KeyError) as error:
            raise UserError(
                f"{path}: this array of the checkpoint is missing or damaged ({error}); nothing was changed. "
                "Restore the file from a copy, or start again in another folder with --out"
            ) from None
        self._sound.add(name)
        return array

    def _sweep(self) -> None:
        for path in self._arrays.glob("*.safetensors"):
            if path.stem not in self._mapped:
                path.unlink()
                self._sound.discard(path.stem)


def _dataclass(state: Any) -> Any:
    if not is_dataclass(state):
        raise TypeError(f"a strategy's state must be a dataclass, not a {type(state).__name__}")
    return state


def _without_infinity(tree: Any) -> Any:
    """The same tree as JSON can hold it."""
    match tree:
        case float() if not math.isfinite(tree):
            return {_FLOAT: repr(tree)}
        case Mapping():
            return {key: _without_infinity(item) for key, item in tree.items()}
        case list() | tuple():
            return [_without_infinity(item) for item in tree]
    return tree


def _with_infinity(tree: Any) -> Any:
    """The other way round."""
    match tree:
        case {"$float": str(text)}:
            return float(text)
        case dict():
            return {key: _with_infinity(item) for key, item in tree.items()}
        case list():
            return [_with_infinity(item) for item in tree]
    return tree
