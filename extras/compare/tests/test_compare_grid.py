"""The grid of a comparison: its cells, the scenario of each cell, and errors in the section."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from covey.extras.compare.grid import chosen, grid
from covey.extras.compare.tests.comparisons import DIGITS, scenario, written
from covey.shared.errors import UserError
from covey.shared.scenario.describe import dump
from covey.shared.scenario.load import load


def test_the_grid_has_every_method_on_every_seed_seed_by_seed() -> None:
    cells = grid(scenario())
    assert [cell.name for cell in cells] == [
        "fedavg/4",
        "fedclust/4",
        "four/4",
        "fedavg/5",
        "fedclust/5",
        "four/5",
    ]
    assert [cell.scenario.strategy.name for cell in cells[:3]] == ["fedavg", "fedclust", "ifca"]
    assert [cell.scenario.seed for cell in cells] == [4, 4, 4, 5, 5, 5]
    assert cells[2].folder == Path("four/seed-4")


def test_a_methods_training_overrides_the_scenarios() -> None:
    first, second, *_ = grid(scenario())
    assert (first.scenario.training.momentum, second.scenario.training.momentum) == (0.9, 0.0)
    assert first.scenario.training.lr == second.scenario.training.lr == 0.1


def test_all_methods_are_fine_tuned_alike() -> None:
    training = {**DIGITS["training"], "momentum": 0.5}
    methods = [
        {"name": "fedavg", "training": {"momentum": 0.9}},
        {"name": "fedsgd", "training": {"lr": 1.0, "epochs": 3}},
    ]
    methods.append({"name": "fedprox"})
    compare = {"methods": methods, "published": {}, "seeds": [4]}
    cells = grid(scenario(training=training, compare=compare))
    assert [cell.scenario.training.momentum for cell in cells] == [0.9, 0.5, 0.5]
    wanted = {"epochs": 1, "batch": 10, "lr": 0.1, "momentum": 0.5, "weight_decay": 0.0}
    assert [cell.scenario.fine_tuning for cell in cells] == [wanted] * 3
    laid = grid(
        scenario(training=training, compare=compare, evaluation={"tune": {"momentum": 0.0}})
    )
    assert [cell.scenario.fine_tuning for cell in laid] == [{**wanted, "momentum": 0.0}] * 3


def test_a_cell_with_the_scenarios_training_keeps_its_digest() -> None:
    """So folders of earlier comparisons are resumed; only another tuning gives another digest."""
    cells = grid(scenario())
    assert [cell.scenario.evaluation.model_dump()["tune"] for cell in cells[:3]] == [
        {"momentum": 0.0},
        {},
        {},
    ]


def test_a_cell_can_be_written_and_read_again(tmp_path: Path) -> None:
    first = grid(scenario())[0].scenario
    path = tmp_path / "cell.yaml"
    path.write_text(dump(first))
    assert load(path) == first


def test_a_methods_model_options_override_the_tasks() -> None:
    methods = [{"name": "fedavg"}, {"name": "fuzzy", "model_options": {"head": 2}}]
    first, second = grid(scenario(compare={"methods": methods, "seeds": [4], "published": {}}))
    assert first.scenario.task.model.options == {"hidden": 16}
    assert second.scenario.task.model.options == {"hidden": 16, "head": 2}
    assert first.scenario.task.features == second.scenario.task.features


def test_a_method_can_remove_the_models_head() -> None:
    task = {**DIGITS["task"], "model": {"options": {"hidden": 16, "head": 2}}}
    methods = [{"name": "fedavg", "model_options": {"head": None}}, {"name": "fuzzy"}]
    first, second = grid(
        scenario(task=task, compare={"methods": methods, "published": {}, "seeds": [4]})
    )
    assert first.scenario.task.model.options == {"hidden": 16, "head": None}
    assert second.scenario.task.model.options["head"] == 2


def test_a_cell_is_a_scenario_without_a_compare_section() -> None:
    assert all(cell.scenario.compare is None for cell in grid(scenario()))


def test_a_cell_on_devices_publishes_no_model() -> None:
    assert {one.scenario.rounds.publish for one in grid(scenario(fleet=None))} == {"never"}
    assert {one.scenario.rounds.publish for one in grid(scenario())} == {"end"}


def test_cells_are_chosen_by_name_or_by_method() -> None:
    cells = grid(scenario())
    assert [cell.name for cell in chosen(cells, ["fedavg/5,four"])] == [
        "four/4",
        "fedavg/5",
        "four/5",
    ]
    assert chosen(cells, []) == cells
    with pytest.raises(
        UserError, match="--cells fedprox: there is no such cell; expected some of fedavg/4"
    ):
        chosen(cells, ["fedprox"])


def test_a_scenario_without_the_section_is_refused_with_advice() -> None:
    with pytest.raises(UserError, match="small has no section compare; add one"):
        grid(scenario().model_copy(update={"compare": None}))


def test_a_dumped_comparison_loads_unchanged(tmp_path: Path) -> None:
    loaded = load(written(tmp_path, DIGITS))
    (tmp_path / "again.yaml").write_text(dump(loaded))
    assert load(tmp_path / "again.yaml") == loaded


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"methods": [{"name": "fedavg"}, {"name": "fedavg"}]}, "occur more than once"),
        ({"published": {"fedprox": 1.0}}, r"published names \['fedprox'\]"),
        ({"methods": [], "published": {}}, "at least one method"),
        ({"seeds": [1, 1]}, "list each seed once"),
        (
            {"methods": [{"name": "fedavg", "training": {"momentun": 1}}], "published": {}},
            "training.momentun: unknown key; did you mean momentum",
        ),
        (
            {"methods": [{"name": "fedclust", "n_clustr": 4}], "published": {}},
            "methods.0.n_clustr: unknown key, line .*; did you mean n_clusters",
        ),
        ({"methods": [{"name": "fedclus"}], "published": {}}, "methods.0.name: .*did you mean fedclust"),
        ({"published": {}, "partitions": [{"name": "iid"}, {"name": "iid"}]}, "need labels of their own"),
        ({"partitions": [{"name": "iid"}]}, "apply to one partition"),
        ({"published": {}, "partitions": [{"name": "label_skew", "shar": 0.2}]}, "partitions.0.shar: .*share"),
        ({"published": {}, "partitions": [{"name": "iid", "published": {"x": 1}}]}, r"published names \['x'\]"),
        (
            {"methods": [{"name": "fuzzy", "model_options": {"head": 3}}], "published": {}},
            r"method fuzzy: the model needs a projection head for 2 groups; set .*model_options\.head to 2",
        ),
        ({"methods": [{"name": "fuzzy"}], "published": {}}, "method fuzzy: the model needs a projection head"),
        ({"methods": [{"label": "../x", "name": "fedavg"}], "published": {}}, "methods.0.label"),
    ],
)  # fmt: skip
def test_an_error_in_the_section_is_named(
    tmp_path: Path, section: dict[str, Any], said: str
) -> None:
    data = {**DIGITS, "compare": {**DIGITS["compare"], **section}}
    with pytest.raises(UserError, match=said):
        load(written(tmp_path, data))
