"""The run on disk: one manifest, replaced atomically, and one file per array that it names.

    checkpoint/manifest.json        everything but arrays; its own digest comes first, then the format and who wrote it
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

from covey.coordinator.disk.array_files import Array, array_digest, open_arrays, save_arrays
from covey.coordinator.disk.space import Room
from covey.shared.errors import UserError
from covey.shared.programs.version import version
from covey.shared.storage import json_text
from covey.shared.storage.files import discard, make_folder, obstacle, write_atomically
from covey.shared.wire.format import FORMAT, NONE, begun_with_other

S = TypeVar("S")
Arrays = Mapping[str, Array]  # by name
Names = Mapping[int, str]  # of arrays that have files, by the array's id()
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
        # names of files that this process has written, or compared with their names
        self._sound: set[str] = set()

    def exists(self) -> bool:
        return self._manifest.exists()

    def save(self, facts: Mapping[str, Any], state: S) -> S:
        """Write `facts` (JSON-able) and the state; return the state with mapped arrays."""
        self._room.write(lambda: make_folder(self._arrays))
        tree = self._packed(state)
        content = _manifest_of(facts, tree)
        self._room.write(lambda: write_atomically(self._manifest, content))
        before = self._mapped
        self._mapped = {}
        mapped = self._unpacked(state, tree, before)
        self._sweep()
        return mapped

    def facts(self) -> dict[str, Any]:
        """The facts of the newest checkpoint. Raises UserError where it is cut short or missing."""
        facts: dict[str, Any] = self._read()["facts"]
        return facts

    def to_continue(self, like: object = None) -> dict[str, Any]:
        """The facts, of a run that this version continues. UserError if a program of another format wrote them.

        `like`: a state of this run, if there is one; a key that it does not have is another version's.
        """
        facts: dict[str, Any] = self._of_this_format(like)["facts"]
        return facts

    def _of_this_format(self, like: object) -> dict[str, Any]:
        manifest = self._read()
        is_known = like is None or _has_keys_of(like, manifest["state"])
        if manifest.get("format", NONE) != FORMAT or not is_known:
            raise self.of_another_format()
        return manifest

    def of_another_format(self) -> UserError:
        """The checkpoint is whole, and this version cannot continue it."""
        manifest = self._read()
        number = manifest.get("format", NONE)
        begun = begun_with_other(
            f"{self.folder.parent}: this run", number, manifest.get("covey", "")
        )
        return UserError(
            f"{begun}. Continue it with that version, or begin again in another folder (--out)"
        )

    def state(self, like: S) -> S:
        """The state of the newest checkpoint, of the kind of this one. Raises UserError where another format wrote it."""
        return self._unpacked(like, self._of_this_format(like)["state"], {})

    def exported(self, state: Any) -> tuple[bytes, dict[str, bytes]]:
        """A state as another process can import it: a manifest, and the files of the arrays that it names."""
        tree = self._packed(state)
        files = {name: self._file_of(name).read_bytes() for name in sorted(_array_names(tree))}
        return _manifest_of({}, tree), files

    def import_state(self, manifest: bytes, files: Mapping[str, bytes]) -> None:
        """Write what `exported` gave, in an empty folder. `state` compares the digests."""
        make_folder(self._arrays, durable=False)
        for name, content in files.items():
            path = self._file_of(name)
            write_atomically(path, content, durable=False)
        write_atomically(self._manifest, manifest, durable=False)

    def _read(self) -> dict[str, Any]:
        try:
            digest, body = self._manifest.read_text().split("\n", 1)
        except FileNotFoundError:
            raise UserError(
                f"{self.folder}: no checkpoint is here; start the run without --resume"
            ) from None
        except ValueError:
            digest = body = ""
        body = body.removesuffix("\n")
        if _digest_of(body) != digest:
            raise UserError(
                f"{self._manifest}: the checkpoint is cut short or was changed; nothing was overwritten. "
                "Restore the file from a copy, or start again in another folder with --out"
            )
        manifest: dict[str, Any] = _with_infinity(json_text.loads(body))
        return manifest

    def _packed(self, state: Any) -> dict[str, Any]:
        """The state as JSON can hold it: a name in place of each array, whose file is written."""
        known = {id(array): name for name, array in self._mapped.items()}
        return self._pack_fields(state, known)

    def _pack_fields(self, state: Any, names: Names) -> dict[str, Any]:
        return {
            field.name: self._pack(getattr(state, field.name), names)
            for field in fields(_dataclass(state))
        }

    def _pack(self, value: Any, names: Names) -> Any:
        match value:
            case np.ndarray():
                name = names.get(id(value))
                if name is None:
                    name = self._write(value)
                return {_ARRAY: name}
            case dict():
                packed: dict[Any, Any] = {}
                for key, item in value.items():
                    packed[key] = self._pack(item, names)
                return packed
            case tuple() | list():
                return [self._pack(item, names) for item in value]
            case np.generic():
                return value.item()
            case None | bool() | int() | float() | str():
                return value
        if is_dataclass(value):
            return self._pack_fields(value, names)
        raise TypeError(f"a strategy's state may not hold a {type(value).__name__}")

    def _write(self, array: Array) -> str:
        name = array_digest(array)
        path = self._file_of(name)
        if name not in self._sound:  # a file that another process has left may be damaged
            self._room.write(lambda: save_arrays(path, {"array": array}))
            self._sound.add(name)
        return name

    def _file_of(self, name: str) -> Path:
        return self._arrays / f"{name}.safetensors"

    def _unpacked(self, like: S, tree: Mapping[str, Any], before: Arrays) -> S:
        """A state of the kind of this one, and in it states of the kinds of those in this one."""
        values: dict[str, Any] = {}
        for name, item in tree.items():
            inner = getattr(like, name)
            is_state = is_dataclass(inner) and isinstance(item, Mapping)
            values[name] = (
                self._unpacked(inner, item, before) if is_state else self._unpack(item, before)
            )
        return type(like)(**values)

    def _unpack(self, item: Any, before: Arrays) -> Any:
        match item:
            case {"$array": str(name)}:
                return self._array(name, before)
            case dict():
                unpacked: dict[Any, Any] = {}
                for key, value in item.items():
                    unpacked[key] = self._unpack(value, before)
                return unpacked
            case list():
                return tuple(self._unpack(value, before) for value in item)
        return item

    def _array(self, name: str, before: Arrays) -> Array:
        """The mapped array of this name: handed out already, or before the newest `save`, or opened now."""
        array = self._mapped.get(name)
        if array is None:
            array = before.get(name)
        if array is None:
            array = self._open(name)
        self._mapped[name] = array
        return array

    def _open(self, name: str) -> Array:
        """The array of this name. Its content is compared with the name once in the life of a process."""
        path = self._file_of(name)
        try:
            arrays, _ = self._room.write(lambda: open_arrays(path))
            array = arrays["array"]
            if name not in self._sound and array_digest(array) != name:
                raise ValueError("its content does not match its name")
        except (OSError, ValueError, KeyError) as error:
            if isinstance(error, OSError) and obstacle(error, self._room.folder):
                raise
            raise UserError(
                f"{path}: this array of the checkpoint is missing or damaged ({error}); nothing was changed. "
                "Restore the file from a copy, or start again in another folder with --out"
            ) from None
        self._sound.add(name)
        return array

    def _sweep(self) -> None:
        for path in self._arrays.glob("*.safetensors"):
            if path.stem not in self._mapped:
                discard(path)
                self._sound.discard(path.stem)


def _array_names(tree: Any) -> set[str]:
    """The names of all arrays in a packed state."""
    names: set[str] = set()
    match tree:
        case {"$array": str(name)}:
            names.add(name)
        case dict():
            for item in tree.values():
                names |= _array_names(item)
        case list():
            for item in tree:
                names |= _array_names(item)
    return names


def _manifest_of(facts: Mapping[str, Any], tree: Mapping[str, Any]) -> bytes:
    content = {"format": FORMAT, "covey": version(), "facts": facts, "state": tree}
    try:
        body = json_text.dumps(content)
    except (
        ValueError
    ):  # infinity is somewhere in it: hardly ever, and a look at every leaf takes time
        body = json_text.dumps(_without_infinity(content))
    return f"{_digest_of(body)}\n{body}\n".encode()


def _digest_of(body: str) -> str:
    return hashlib.blake2b(body.encode(), digest_size=16).hexdigest()


def _has_keys_of(like: object, tree: Mapping[str, Any]) -> bool:
    """Whether a packed state, and those in it, have no other keys than a state."""
    inside = {field.name: getattr(like, field.name) for field in fields(_dataclass(like))}
    return tree.keys() <= inside.keys() and all(
        _has_keys_of(inside[name], item)
        for name, item in tree.items()
        if is_dataclass(inside[name]) and isinstance(item, Mapping)
    )


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
            finite: dict[Any, Any] = {}
            for key, item in tree.items():
                finite[key] = _without_infinity(item)
            return finite
        case list() | tuple():
            return [_without_infinity(item) for item in tree]
    return tree


def _with_infinity(tree: Any) -> Any:
    """The other way round."""
    match tree:
        case {"$float": str(text)}:
            return float(text)
        case dict():
            restored: dict[Any, Any] = {}
            for key, item in tree.items():
                restored[key] = _with_infinity(item)
            return restored
        case list():
            return [_with_infinity(item) for item in tree]
    return tree
