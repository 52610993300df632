"""A scenario file can exhaust neither the coordinator nor the agent, and both refuse it with the same words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from covey.shared.errors import UserError
from covey.shared.scenario.load import load, load_without_files
from covey.shared.scenario.yaml_source import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_KEYS,
    MAX_SCALAR,
    YamlError,
    parse,
)
from tests.processes import ROOT

LAUGHS = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 10)
)
OPTIONS = """\
name: x
strategy: {name: fedavg}
task:
  features: [2]
  classes: 2
  model:
    name: mlp
    options:
      a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]
""" + "".join(f"      a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 8))
BOMBS = {
    "a billion laughs in options": (OPTIONS, "keys, where aliases count as often as they are used"),
    "a billion laughs": (LAUGHS, "keys, where aliases count as often as they are used"),
    "an alias to itself": ("a: &a\n  b: *a\n", f"nested deeper than {MAX_DEPTH} levels, line 1"),
    "merges of merges": (
        "a0: &a0 {k: 1}\n"
        + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 10)),
        "keys, where aliases count as often as they are used",
    ),
    "a hundred levels": ("[" * 100 + "]" * 100, "nested deeper than"),
    "a hundred thousand levels": ("[" * 100_000, "nested too deeply"),
    "a number that takes minutes to read": (
        "a: " + "1:" * (MAX_SCALAR // 2) + "1",
        "at most 20000 are accepted, line 1",
    ),
    "a long file": ("# " + "x" * MAX_BYTES, f"longer than {MAX_BYTES} bytes"),
    "a key twice": ("name: a\nname: b\n", "name: given twice, line 1 and line 2"),
    "a month of 13": ("name: 2001-13-01\n", "a value cannot be read as timestamp, line 1"),
    "a word as a number": ("seed: !!int seven\n", "a value cannot be read as int, line 1"),
    "half of a character": ('name: "\\ud800"\n', "half of a character (a lone surrogate), line 1"),
    "an escape that is no character": (
        'name: "\\UFFFFFFFF"\n',
        "an escape in quotes does not name a character",
    ),
    "code": ("a: !!python/object/apply:os.system [echo]\n", "could not determine a constructor"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_coordinator_and_agent_refuse_a_bomb_with_the_same_words(name: str, tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    text, words = BOMBS[name]
    path.write_text(text)
    said = []
    for read in (load, load_without_files):
        with pytest.raises(UserError) as caught:
            read(path)
        said.append(str(caught.value))
    assert words in said[0]
    assert said[0] == said[1]


def test_as_many_keys_as_are_allowed_are_read() -> None:
    level = MAX_KEYS // 1000
    block = "[" + ", ".join(["1"] * 1000) + "]"
    assert (
        len(parse(f"a: &a {block}\nb: [{', '.join(['*a'] * (level - 3))}]").data["b"]) == level - 3
    )
    with pytest.raises(YamlError):
        parse(f"a: &a {block}\nb: [{', '.join(['*a'] * level)}]")


@pytest.mark.whole
@pytest.mark.processes
def test_the_agents_command_ends_at_a_billion_laughs_with_one_message(tmp_path: Path) -> None:
    """566 bytes. Before, the agent took them, and writing the task out once took 35 s and 880 MB."""
    path = tmp_path / "scenario.yaml"
    path.write_text(OPTIONS)
    (tmp_path / "data.csv").write_text("a,label\n1,0\n2,1\n")
    data = str(tmp_path / "data.csv")
    command = [
        sys.executable,
        "-m",
        "covey.agent.cli",
        "check",
        "--data",
        data,
        "--scenario",
        str(path),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "aliases count as often as they are used" in done.stderr
    assert "Traceback" not in done.stderr
