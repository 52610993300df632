"""The witness gives the same digests twice, and another one where a byte, a figure or an option is another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import witness
from tests.kit.small_run import in_process, scenario
from tests.methods import METHODS


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("witness") / "run"
    in_process(folder, scenario("fedclust"))
    return folder


def test_the_same_tree_gives_the_same_digests_twice(tmp_path: Path) -> None:
    """Over the wire every method repeats the bytes of a run in process: tests/conformance."""
    methods = ("fedclust", "ifca", "fedem")
    first = witness.in_process(tmp_path / "first", methods)
    assert first == witness.in_process(tmp_path / "second", methods)
    assert {name.split("/")[0] for name in first} == set(methods)


def test_a_changed_byte_of_a_model_changes_the_digest(run: Path, tmp_path: Path) -> None:
    before = witness.models(run, tmp_path)
    file = next(run.glob("checkpoint/arrays/*.safetensors"))
    content = file.read_bytes()
    last_byte = content[-1] ^ 1
    file.write_bytes(content[:-1] + bytes([last_byte]))
    changed = witness.models(run, tmp_path)
    file.write_bytes(content)
    assert witness.digest(changed) != witness.digest(before)
    assert witness.models(run, tmp_path) == before


def test_a_changed_figure_changes_the_records_and_a_changed_duration_does_not(run: Path) -> None:
    before = witness.rounds(run)
    file = run / "rounds.jsonl"
    text = file.read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    rows[0]["seconds"] += 1.0
    file.write_text("\n".join(map(json.dumps, rows)))
    assert witness.rounds(run) == before
    rows[0]["loss"] += 1e-15
    file.write_text("\n".join(map(json.dumps, rows)))
    assert witness.digest(witness.rounds(run)) != witness.digest(before)
    file.write_text(text)


def test_the_command_ends_with_1_and_names_what_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    digests = {"fedavg/models": "aa", "fedavg/records": "bb"}
    monkeypatch.setattr(
        witness,
        "PARTS",
        {"run": lambda folder: digests, "other": lambda folder: {"x/models": "cc"}},
    )
    file = tmp_path / "digests.json"
    assert witness.main(["--json", str(file)]) == 0
    assert witness.main(["--against", str(file)]) == 0
    assert witness.main(["--against", str(file), "--only", "run"]) == 0
    capsys.readouterr()
    digests["fedavg/models"] = "dd"
    assert witness.main(["--against", str(file)]) == 1
    assert "run/fedavg/models differs: expected aa, found dd" in capsys.readouterr().out
    assert witness.main(["--against", str(file), "--only", "other"]) == 0


@pytest.mark.whole
def test_the_stored_digests_are_of_every_part_and_method() -> None:
    stored = json.loads(Path(witness.__file__).with_suffix(".json").read_text())
    assert {name.split("/")[0] for name in stored["digests"]} == witness.PARTS.keys()
    for part in ("in-process", "wire"):
        names = [name.split("/") for name in stored["digests"] if name.startswith(f"{part}/")]
        assert {method for _, method, _ in names} == METHODS.keys()
    assert stored["whole"] == witness.digest(stored["digests"])
