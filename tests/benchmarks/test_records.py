"""Laboratory books show the figures of their records, and a tiny run of a benchmark has what its record has."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import (
    boards,
    broker_clusters,
    card_costs,
    card_leakage,
    choosing_k,
    companion,
    false_cuts,
    first_steps,
    kept_layers,
    next_to,
    outliers,
    poisoning,
    privacy,
    secure_steady,
    tried,
    vote_liars,
)
from benchmarks.torch_runs import TIMES, bent
from covey.extras.private.private_sums import epsilon
from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import generator
from tests.bowl import flat

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
LAYERS = dict.fromkeys(("mlp", "cnn4", "lenet", "cifar", "writers"), (1, 2, 3)) | {"fashion": (1,)}
STEADY = json.loads((RESULTS / "secure_steady.json").read_text())


def read(record: Path | str) -> Any:
    return json.loads((RESULTS / Path(record).name).read_text())


def cells(record: Path | str) -> Any:
    return read(record)["cells"]


def of_poisoning() -> Iterable[str]:
    found = cells("poisoning.json")
    assert all(one["finite"] for one in found.values())
    seeds = sorted({int(key.rpartition(" ")[2]) for key in found})
    return [poisoning.table(found, mode, seeds) for mode in ("server", "tuned")]


BOOKS: dict[str, Callable[[], Iterable[str]]] = {
    "companion.md": lambda: companion.tables(cells(companion.OUT), (1, 2, 3)).values(),
    "boards.md": lambda: [boards.table(cells(boards.OUT))],
    "performance.md": lambda: [next_to.table(cells(next_to.OUT))],
    "brokers.md": lambda: [broker_clusters.table(cells(broker_clusters.OUT))],
    "first_steps.md": lambda: [first_steps.table(ways) for ways in first_steps.read()],
    "kin.md": lambda: [card_costs.table(cells(card_costs.OUT))],
    "privacy.md": lambda: [
        card_leakage.table(cells(card_leakage.OUT)),
        privacy.tables(list(read("privacy.json").values())).strip(),
    ],
    "choosing_k.md": lambda: [
        outliers.table(cells(outliers.OUT)),
        *(choosing_k.table(first, found) for first, found in read(choosing_k.OUT).items()),
    ],
    "judged.md": lambda: [
        vote_liars.table(cells(vote_liars.OUT)),
        false_cuts.table(cells(false_cuts.OUT)),
    ],
    "tried.md": lambda: [tried.page(cells(tried.OUT))],
    "kept_layers.md": lambda: [
        kept_layers.table(cells(kept_layers.OUT), model, seeds) for model, seeds in LAYERS.items()
    ],
    "hostile_agents.md": of_poisoning,
}


@pytest.mark.parametrize("book", BOOKS)
def test_a_book_shows_the_figures_of_its_records(book: str) -> None:
    text = (RESULTS / book).read_text("utf-8")
    for table in BOOKS[book]():
        assert table.count("\n") > 1
        assert table in text


def test_a_mixed_fleet_has_an_agent_of_both_kinds_for_each_group_of_labels() -> None:
    held = [frozenset(np.unique(labels)) for _, labels in boards.divided()]
    assert held[::2] == held[1::2] == [frozenset(group) for group in boards.GROUPS]
    lines = (ROOT / "docs" / "devices.md").read_text("utf-8").splitlines()
    assert set(boards.INSTALL) <= set(lines), "the page has the commands"


def test_a_small_fleet_costs_a_card_of_five_kilobytes() -> None:
    row = card_costs.measured(20)
    assert 5000 < row["bytes"] < 6000
    assert row["ari"] > 0.3


def test_outliers_divide_no_loose_group_unless_groups_have_any_size() -> None:
    counts = outliers.measured(20, 1, 2, [1])
    assert counts.keys() == cells(outliers.OUT)[outliers.key_of(20, 1, 2)].keys()
    assert counts["complete, any size"] == counts["average, any size"] == 1
    assert counts["complete, three or more"] == counts["average, three or more"] == 0


def test_a_bent_report_goes_ten_times_as_far_as_the_honest_one() -> None:
    base, honest = flat(1.0, 1.0, 1.0), flat(1.0, 2.0, 1.0)
    draw = generator(1, "test")
    assert bent(honest, base, "scaled", draw).tolist() == [1.0, 11.0, 1.0]
    assert bent(honest, base, "sign_flip", draw).tolist() == [1.0, -9.0, 1.0]
    random = bent(honest, base, "random", draw)
    assert float(np.linalg.norm(random - base)) == pytest.approx(TIMES, rel=1e-5)
    assert random.tolist() != [1.0, 11.0, 1.0]


def test_a_cell_of_privacy_repeats_and_its_epsilon_is_that_of_the_account(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {cell.key for data in privacy.TASKS for cell in privacy.cells(data, [1, 2, 3])}
    assert read("privacy.json").keys() <= known
    small = {key: replace(one, agents=12, rounds=2) for key, one in privacy.SETTINGS.items()}
    monkeypatch.setattr(privacy, "SETTINGS", small)
    privacy.fleet_of.cache_clear()
    cell = privacy.Cell("digits", "client", "fedclust", 2.0, 1, 0.1)
    one, other = privacy.measured(cell, None), privacy.measured(cell, None)
    assert one["accuracy"] == other["accuracy"]
    assert one["epsilon"] == epsilon([(2.0, 2), (0.1, 1)], privacy.DELTA)


def test_the_page_has_the_bytes_of_a_secure_round_with_everything_that_is_sent() -> None:
    found = cells("secure_rounds.json")
    plain, secure = (
        found[f"100 agents, 0.1 s, {sums}"]["bytes_of_agent"] for sums in ("plain", "secure")
    )
    models = 2 * 4 * 44_426  # LeNet-5 down and up
    ratio = (models + secure) / (models + plain)
    assert ratio < 1.2
    expected = f"{(secure - plain) / 1000:.0f} kB more in such a round: {ratio:.2f} times"
    assert expected in (RESULTS / "secure_sums.md").read_text("utf-8")


def test_the_page_has_rows_of_steady_members_for_both_forms() -> None:
    page = (RESULTS / "secure_sums.md").read_text("utf-8").splitlines()
    shown = [line for line in secure_steady.table(STEADY["cells"]) if line in page]
    for rule in (secure_steady.NO_RULE, secure_steady.THRESHOLD, "batches of 5"):
        assert sum(f"| {rule} |" in line for line in shown) == 4


@pytest.mark.parametrize("form", [secure_steady.HONEST, "batches of 5"])
def test_a_cell_of_steady_members_repeats(form: str) -> None:
    cell = secure_steady.Cell(10, 0.1, "all", form)
    found = secure_steady.measured(cell, STEADY["settings"]["seeds"])
    assert found == STEADY["cells"][cell.key]


def test_the_scenarios_of_all_stored_comparisons_can_be_read() -> None:
    """So that `coordinator compare --known` takes their rows."""
    stored = [json.loads(file.read_text()) for file in RESULTS.glob("*.json")]
    scenarios = [one["scenario"] for one in stored if isinstance(one, dict) and "scenario" in one]
    assert len(scenarios) > 20
    for scenario in scenarios:
        Scenario.model_validate(scenario)
