"""Keys that scenarios had once are refused with what to use instead."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from covey.shared.errors import UserError
from covey.shared.scenario.explain import NAMED, REMOVED
from covey.shared.scenario.load import load
from covey.shared.scenario.scenario import Scenario

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
WHOLE: dict[str, Any] = {
    "name": "old",
    "task": {"features": [4], "classes": 2},
    "strategy": {"name": "fedavg"},
    "fleet": {"agents": 2},
}
USUAL = {"method": "fedavg", "partition": "iid"}
LISTS = ("methods", "partitions")


def places() -> list[tuple[str, tuple[str, ...], str]]:
    """Every removed key: its name in the table, its path in a file, and the name that chooses its section."""
    found = []
    for name in sorted(REMOVED):
        kind, *rest = name.split(".")
        if kind in USUAL:
            chosen, *keys = rest
            found += [(name, (*at, *keys), chosen) for at, of in NAMED.items() if of == kind]
        else:
            path = (kind, *rest)
            found.append((name, path, USUAL.get(NAMED.get(path[:-1], ""), "")))
    return found


def nested(path: Sequence[str], named: str, at: tuple[str, ...] = ()) -> Any:
    """A section with this key, around it those that lead to it."""
    key, *rest = path
    inner = nested(rest, named, (*at, key)) if rest else 1
    section = {key: [inner] if key in LISTS else inner}
    return {"name": named, **section} if at in NAMED else section


def test_every_removed_key_is_refused_with_its_line_and_its_advice(tmp_path: Path) -> None:
    file = tmp_path / "old.yaml"
    for name, path, named in places():
        old = nested(path, named)
        data = {**WHOLE, **{top: {**WHOLE.get(top, {}), **section} for top, section in old.items()}}
        if "compare" in data:
            data["compare"].setdefault("methods", ["fedavg"])
        file.write_text(yaml.safe_dump(data, sort_keys=False))
        with pytest.raises(UserError) as refused:
            load(file)
        texts = file.read_text().splitlines()
        line = max(i for i, text in enumerate(texts, 1) if f"{path[-1]}: 1" in text)
        assert f".{path[-1]}: no key any more, line {line}; {REMOVED[name]}" in str(refused.value)


def test_a_removed_key_of_the_command_line_is_refused_alike(tmp_path: Path) -> None:
    file = tmp_path / "old.yaml"
    file.write_text(yaml.safe_dump(WHOLE))
    with pytest.raises(UserError) as refused:
        load(file, ["rounds.absence_s=2"])
    assert str(refused.value) == (
        f"{file}: rounds.absence_s: no key any more, override rounds.absence_s=2; moved to rounds.timing.absence_s"
    )


def test_the_scenarios_of_all_stored_comparisons_can_be_read() -> None:
    """So that `coordinator compare --known` still takes their rows."""
    stored = [json.loads(file.read_text()) for file in RESULTS.glob("*.json")]
    scenarios = [one["scenario"] for one in stored if isinstance(one, dict) and "scenario" in one]
    assert len(scenarios) > 20
    for scenario in scenarios:
        Scenario.model_validate(scenario)
