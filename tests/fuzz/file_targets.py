"""What lies on a disk: scenarios, credentials, data of every format, models, checkpoints, spools and records."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import shutil
import struct
import warnings
import wave
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from covey.agent.data import arrays as array_files
from covey.agent.data import load as load_data
from covey.agent.device.outbox import Outbox
from covey.broker.access import passwords
from covey.coordinator.disk.array_files import open_arrays, save_arrays
from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.record import records
from covey.extras.audit import check as audit_check
from covey.extras.joining import codes as joining
from covey.extras.proposals.proposal import propose
from covey.extras.proposals.proposal_data import describe
from covey.shared.errors import DecodeError, UserError
from covey.shared.mqtt import credentials
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.scenario.load import load as load_scenario
from covey.shared.storage import audit
from covey.shared.wire.documents import RosterMessage
from tests.fuzz.mutate import as_json, mutated, mutated_tree
from tests.fuzz.target import Target
from tests.processes import ROOT

Take = Callable[[Any], str]
Ready = Callable[[Path], Take]


def file_target(
    name: str,
    samples: Callable[[], Sequence[bytes]],
    read: Callable[[Path], Any],
    file: str,
    allowed: tuple[type[Exception], ...] = (UserError,),
    share: float = 1.0,
    make: Callable[[Random, Sequence[bytes]], bytes] = mutated,
) -> Target:
    """A file of this name, made of the samples, and read with `read`."""
    kept = lru_cache(maxsize=1)(samples)

    def ready(folder: Path) -> Take:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        warnings.simplefilter("ignore")

        def take(data: bytes) -> str:
            path.write_bytes(data)
            told = read(path)
            return told if isinstance(told, str) else ""

        return take

    return Target(name, lambda rng: make(rng, kept()), ready, allowed, share)


def made(write: Callable[[io.BytesIO], Any]) -> bytes:
    write(buffer := io.BytesIO())
    return buffer.getvalue()


# -- text --------------------------------------------------------------------------------------------------------------

MAX_YAML = 16_000  # bytes: PyYAML reads some 100 000 in a second
ALIASES = b"name: a\nseed: &s 1\ntask: &t {features: [2], classes: 2}\ntraining: {<<: {epochs: 1}, batch: 2}\n"


def scenarios() -> list[bytes]:
    files = [path.read_bytes() for path in sorted((ROOT / "scenarios").glob("*.yaml"))]
    plain = [b"\n".join(line.partition(b" #")[0] for line in text.splitlines()) for text in files]
    return [ALIASES, *sorted(plain, key=len)[:6]]


@lru_cache(maxsize=16)
def tree_of(text: bytes) -> Any:
    import yaml

    return yaml.safe_load(text)


def scenario_text(rng: Random, samples: Sequence[bytes]) -> bytes:
    """Changed text, or the changed tree of a scenario as YAML that a machine wrote."""
    if rng.random() < 0.5:
        return mutated(rng, samples)
    return as_json(mutated_tree(rng, tree_of(rng.choice(samples))))[
        :MAX_YAML
    ]  # almost all JSON is YAML


AUTHORITY = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


def credential_files() -> list[bytes]:
    url = BrokerUrl.parse("mqtts://pi-7:secret@broker.example:8883")
    return [credentials.render("pi-7", url, AUTHORITY).encode()]


CODE = str(joining.JoinCode("broker.example", 8884, bytes(16), bytes(range(16)))).encode()
URLS = [
    b"mqtt://localhost:1883",
    b"mqtts://user:pa%20ss@[::1]:8883",
    b"mqtt://user@host",
    b"mqtt://10.0.0.1",
]


def take_url(data: bytes) -> str:
    url = BrokerUrl.parse(data.decode(errors="replace"))
    if BrokerUrl.parse(url.with_password()) != url:
        raise AssertionError(f"{url.with_password()!r} reads otherwise when it is written again")
    return ""


def join_code(rng: Random) -> bytes:
    """A changed code; of most the checksum fits, so that they reach the code behind it."""
    body = base64.urlsafe_b64decode(CODE + b"=" * (-len(CODE) % 4))[: -joining.CHECK_BYTES]
    if rng.random() < 0.2:
        return mutated(rng, [CODE])
    changed = joining.FIRST + mutated(rng, [body[1:]])
    check = hashlib.sha256(changed).digest()[: joining.CHECK_BYTES]
    return base64.urlsafe_b64encode(changed + check).rstrip(b"=")


def take_join_code(data: bytes) -> str:
    code = joining.JoinCode.parse(data.decode(errors="replace"))
    if joining.JoinCode.parse(str(code)) != code:
        raise AssertionError(f"{code} reads otherwise when it is written again")
    return ""


def audit_log() -> list[bytes]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        log = audit.AuditLog(Path(folder) / "audit.jsonl", "run-1", now=lambda: 1.0)
        for number in range(4):
            log.append("accept", agent=f"pi-{number}", step=number)
        return [log.path.read_bytes()]


AUDIT = [json.loads(line) for line in audit_log()[0].splitlines()]


def audit_text(rng: Random, samples: Sequence[bytes]) -> bytes:
    """Any change breaks the chain, so some logs stay whole."""
    return mutated(rng, samples) if rng.random() < 0.95 else samples[0]


def read_audit(path: Path) -> str:
    """A whole log has lines of the sample, from the first one on, whatever spaces stand between their words."""
    if not audit_check.verify(path).whole:
        return "broken"
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    if lines != AUDIT[: len(lines)]:
        raise AssertionError("a log was taken for whole in which a line was changed")
    return ""


# -- data --------------------------------------------------------------------------------------------------------------


def load_finite(path: Path) -> None:
    """Data whose numbers are finite, or the refusal of the reader."""
    data = load_data(path)
    for array in (data.features, data.targets, data.test_features, data.test_targets):
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise AssertionError("data was taken with a number that is not finite")


def csv() -> list[bytes]:
    return [
        b"a,b,label\n1,2,cat\n3,4.5,dog\n5,6,cat\n",
        b"a;b;y\n1;2;0.5\n3;4;1\n",
        b'"a","b","class"\n1,"2",0\n3,4,1\n',
    ]


def tables() -> list[bytes]:
    """As tables come from devices: with times, decimal commas, other encodings and separators."""
    german = "zeit;Größe;kWh\n31.12.2025 10:00;1,5;2,25\n31.12.2025 11:00;1.002,5;3,0\n"
    return [
        b"time,temp,place,label\n2025-01-01 00:00,1.5,a,cat\n2025-01-01 01:00,2,b,dog\n",
        german.encode("cp1252"),
        b"\xef\xbb\xbfa\tb\ty\n1\t2\t3\n4\t5\t6\n",
        "a,b,y\n1,2,0\n".encode("utf-16"),
    ]


def read_proposed(path: Path) -> None:
    """What `coordinator init` proposes for a device with this table, and for two."""
    described = [describe(str(path))]
    propose(described).to_yaml()
    for number, content in enumerate(tables()):
        second = path.with_name(f"{number}.csv")
        second.write_bytes(content)
        with contextlib.suppress(UserError):  # most tables do not go together
            propose([*described, describe(str(second))]).to_yaml()


def parquet() -> list[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"a": [1.0, 2.0, 3.0], "b": [1, 2, 3], "label": ["cat", "dog", "cat"]})
    words = pa.table({"a": [1.0, 2.0], "b": ["1", "2"], "label": [0, 1]})
    tables = [(table, "snappy"), (table, "gzip"), (table, "none"), (words, "zstd")]
    return [made(lambda file, t=t, c=c: pq.write_table(t, file, compression=c)) for t, c in tables]  # type: ignore[misc]


def npz() -> list[bytes]:
    x, y = np.arange(8, dtype=np.float32).reshape(4, 2), np.array([0, 1, 0, 1])
    names = np.array(["cat", "dog"])
    plain: dict[str, Any] = {"x": x, "y": y}
    return [
        made(lambda file: np.savez(file, **plain)),
        made(
            lambda file: np.savez_compressed(file, **plain, x_test=x, y_test=y, label_names=names)
        ),
        made(lambda file: np.savez(file, x=np.asfortranarray(x.astype(np.uint8)), y=names[y])),
    ]


def images() -> list[bytes]:
    from PIL import Image

    image = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    kinds = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
    return [made(lambda file, kind=kind: image.save(file, kind)) for kind in kinds]  # type: ignore[misc]


def read_images(path: Path) -> None:
    second = path.with_name("2.png")
    if not second.exists():
        second.write_bytes(images()[0])
    load_data(path.parent.parent)


def sounds() -> list[bytes]:
    """Short sounds of 1 to 4 bytes a sample, with one channel and with two."""
    found = []
    for width, channels, rate in ((1, 1, 8000), (2, 2, 16000), (3, 1, 44100), (4, 2, 48000)):
        buffer = io.BytesIO()
        with wave.open(buffer, "wb") as file:
            file.setnchannels(channels)
            file.setsampwidth(width)
            file.setframerate(rate)
            file.writeframes(bytes(range(24 * width * channels % 256)) * 4)
        found.append(buffer.getvalue())
    return found


def read_sounds(path: Path) -> None:
    second = path.parent.parent / "dog" / "2.wav"
    if not second.exists():
        second.parent.mkdir()
        second.write_bytes(sounds()[1])
    load_finite(path.parent.parent)


def partition() -> list[bytes]:
    index, ends = np.arange(4), np.array([0, 2, 4])
    parts: dict[str, Any] = {
        "train_idx": index,
        "train_ptr": ends,
        "test_idx": index[:2],
        "test_ptr": np.array([0, 1, 2]),
    }
    return [made(lambda file: np.savez(file, **parts, truth=np.array([0, 1])))]


def read_partition(path: Path) -> None:
    from covey.agent.data.dataset import dataset
    from covey.agent.data.partition import load_split

    data = dataset(np.ones((6, 2), np.float32), np.arange(6), source="here")
    load_split(path, data, 2)


# -- models, checkpoints, records --------------------------------------------------------------------------------------


def tensors() -> list[bytes]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.safetensors"
        save_arrays(
            path,
            {"fc.weight": np.ones((2, 3), np.float32), "fc.bias": np.zeros(2, np.float32)},
            {"task": {"a": 1}},
        )
        return [path.read_bytes()]


def tensor_file(rng: Random, samples: Sequence[bytes]) -> bytes:
    """The header is JSON behind its length: half of the inputs change its tree."""
    data = samples[0]
    if rng.random() < 0.5:
        return mutated(rng, samples)
    length = int.from_bytes(data[:8], "little")
    header = as_json(mutated_tree(rng, json.loads(data[8 : 8 + length])))
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def read_tensors(path: Path) -> None:
    arrays, _ = open_arrays(path)
    for array in arrays.values():
        array.sum() if array.dtype.kind in "iuf" else None  # the pages are read


def read_arrays(path: Path) -> None:
    array_files.read_members(path, 1 << 20)


class State:
    """A strategy's state stands for all of them."""


def checkpoint_target() -> Target:
    from dataclasses import dataclass

    @dataclass
    class Small:
        models: tuple[Any, ...]
        assignment: dict[str, int]

    def ready(folder: Path) -> Take:
        checkpoint = Checkpoint(folder / "checkpoint")
        state = Small((np.ones(4, np.float32), np.zeros(4, np.float32)), {"pi-7": 1})
        checkpoint.save({"run": {"run": "r"}, "engine": {"step": None}}, state)
        files = sorted(path for path in (folder / "checkpoint").rglob("*") if path.is_file())
        kept = {path: path.read_bytes() for path in files}

        def take(seed: int) -> str:
            rng = Random(seed)
            path = rng.choice(files)
            path.write_bytes(mutated(rng, [kept[path]]))
            try:
                again = Checkpoint(folder / "checkpoint")
                facts, found = again.facts(), again.state(state)
                # now, because the arrays are views of the file
                same = all(map(np.array_equal, found.models, state.models))
            finally:
                path.write_bytes(kept[path])
            if not same or found.assignment != state.assignment or facts["run"] != {"run": "r"}:
                raise AssertionError("a damaged checkpoint was taken")
            return ""

        return take

    return Target("disk.checkpoint", lambda rng: rng.randrange(1 << 60), ready, (UserError,), 1)


def outbox_state() -> list[bytes]:
    return [
        b'{"run": "r", "accepted": 3, "memory": "", "step": 4, "report": "", "digest": "", "size": 1}'
    ]


def read_outbox(path: Path) -> str:
    for left in path.parent.iterdir():
        if left != path:
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    with Outbox(path.parent, durable=False) as outbox:
        known = outbox.outboxed.run
        _ = (outbox.memory, outbox.report)
        outbox.commit(1)
    return "" if known == "r" else "forgotten"


def roster_file() -> list[bytes]:
    return [RosterMessage(run="r", agents={"pi-7": {"online": True}}).to_bytes()]


def rounds_file() -> list[bytes]:
    return [b'{"event": "phase", "round": 1, "loss": 0.5}\n{"event": "void", "round": 1}\n']


def result_file() -> list[bytes]:
    return [json.dumps(dict.fromkeys(records.RESULT, 1)).encode()]


def file_targets() -> list[Target]:
    npz_error = (array_files.ArrayFileError, OSError)
    folder = "data/"
    return [
        file_target(
            "scenario.yaml", scenarios, load_scenario, "s.yaml", share=1.2, make=scenario_text
        ),
        file_target("credentials", credential_files, credentials.read, "pi-7.pem", share=3),
        Target("broker.url", lambda rng: mutated(rng, URLS), lambda _: take_url, (UserError,), 4),
        Target("join.code", join_code, lambda _: take_join_code, (UserError,), 2),
        file_target(
            "covey.broker.access.passwords",
            lambda: [b"pi-7:$7$101$c2FsdA==$aGFzaA==\n"],
            passwords.read,
            "passwords",
            share=2,
        ),
        file_target("audit.log", audit_log, read_audit, "audit.jsonl", make=audit_text),
        file_target("data.csv", csv, load_finite, "d.csv", share=4),
        file_target("data.proposal", tables, read_proposed, "d.csv", share=0.5),
        file_target("data.parquet", parquet, load_finite, "d.parquet", share=1),
        file_target("data.npz", npz, load_finite, "d.npz", share=2),
        file_target("data.images", images, read_images, folder + "cat/1.png", share=2),
        file_target("data.wav", sounds, read_sounds, folder + "cat/1.wav", share=2),
        file_target("fleet.partition", partition, read_partition, "p.npz", share=1),
        file_target(
            "model.safetensors",
            tensors,
            read_tensors,
            "m.safetensors",
            (ValueError,),
            2,
            tensor_file,
        ),
        file_target("model.npz", npz, read_arrays, "m.npz", npz_error, 1),
        checkpoint_target(),
        file_target("disk.outbox", outbox_state, read_outbox, "outbox/state.json", share=1),
        file_target(
            "disk.roster",
            roster_file,
            lambda p: RosterMessage.from_bytes(p.read_bytes()),
            "r",
            (DecodeError,),
            2,
        ),
        file_target(
            "disk.rounds",
            rounds_file,
            lambda p: records.lines(p.parent),
            "run/rounds.jsonl",
            share=1,
        ),
        file_target(
            "disk.result",
            result_file,
            lambda p: records.finished(p.parent),
            "run/result.json",
            share=1,
        ),
    ]
