"""Comparisons: the grid, the figures of a cell, the tables, and the runs that they are made from."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from coordinator import command
from coordinator.compare import Cell, chosen, grid, row_of, summaries
from coordinator.compare_command import NONE_KNOWN, Known, known_rows, run_cells, write_tables
from coordinator.compare_tables import markdown, tables
from coordinator.scenario_file import dump, load
from coordinator.simulate import alone, simulate
from coordinator.workers import Crew
from shared.errors import UserError
from shared.frames import Job
from shared.scenario import Compare, Scenario
from tests.e2e.conftest import finish
from tests.processes import Program, model_bytes

DIGITS: dict[str, Any] = {
    "name": "small",
    "seed": 1,
    "task": {"features": [1, 8, 8], "classes": 10, "scale": 0.0625, "model": {"options": {"hidden": 16}}},
    "training": {"epochs": 1, "batch": 10, "lr": 0.1},
    "strategy": {"name": "fedavg"},
    "rounds": {"count": 2, "participation": 0.5},
    "fleet": {"agents": 6, "data": "digits", "limit": 300, "partition": {"name": "grouped_labels"}, "workers": 2},
    "compare": {
        "methods": [
            {"name": "fedavg", "training": {"momentum": 0.9}, "metric": "global"},
            {"name": "fedclust", "n_clusters": 2},
            {"label": "four", "name": "ifca", "n_clusters": 4},
        ],
        "seeds": [4, 5],
        "published": {"fedclust": 95.5},
    },
}


def scenario(**changes: Any) -> Scenario:
    compare = {**DIGITS["compare"], **changes.pop("compare", {})}
    return Scenario.model_validate({**DIGITS, "compare": compare, **changes})


def written(folder: Path, data: Mapping[str, Any]) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(dict(data)))
    return path


def compared(scene: Scenario) -> Compare:
    assert scene.compare is not None
    return scene.compare


# -- the grid ----------------------------------------------------------------------------------------------------------


def test_the_grid_is_every_method_on_every_seed_one_seed_after_the_other() -> None:
    cells = grid(scenario())
    assert [cell.name for cell in cells] == ["fedavg/4", "fedclust/4", "four/4", "fedavg/5", "fedclust/5", "four/5"]
    assert [cell.scenario.strategy.name for cell in cells[:3]] == ["fedavg", "fedclust", "ifca"]
    assert [cell.scenario.seed for cell in cells] == [4, 4, 4, 5, 5, 5]
    assert cells[2].folder == Path("four/seed-4")


def test_a_method_lays_its_training_over_the_scenarios() -> None:
    first, second, *_ = grid(scenario())
    assert (first.scenario.training.momentum, second.scenario.training.momentum) == (0.9, 0.0)
    assert first.scenario.training.lr == second.scenario.training.lr == 0.1


def test_a_method_lays_its_model_options_over_the_tasks() -> None:
    methods = [{"name": "fedavg"}, {"name": "fuzzy", "model_options": {"head": 2}}]
    first, second = grid(scenario(compare={"methods": methods, "seeds": [4], "published": {}}))
    assert first.scenario.task.model.options == {"hidden": 16}
    assert second.scenario.task.model.options == {"hidden": 16, "head": 2}
    assert first.scenario.task.features == second.scenario.task.features


def test_a_method_may_take_the_head_away_that_others_have() -> None:
    task = {**DIGITS["task"], "model": {"options": {"hidden": 16, "head": 2}}}
    methods = [{"name": "fedavg", "model_options": {"head": None}}, {"name": "fuzzy"}]
    first, second = grid(scenario(task=task, compare={"methods": methods, "published": {}, "seeds": [4]}))
    assert first.scenario.task.model.options == {"hidden": 16, "head": None}
    assert second.scenario.task.model.options["head"] == 2


def test_a_cell_is_a_scenario_that_compares_nothing() -> None:
    assert all(cell.scenario.compare is None for cell in grid(scenario()))


def test_cells_are_chosen_by_name_or_by_method() -> None:
    cells = grid(scenario())
    assert [cell.name for cell in chosen(cells, ["fedavg/5,four"])] == ["four/4", "fedavg/5", "four/5"]
    assert chosen(cells, []) == cells
    with pytest.raises(UserError, match="--cells fedprox: there is no such cell; there are fedavg/4"):
        chosen(cells, ["fedprox"])


def test_a_scenario_without_the_section_says_what_is_wanted() -> None:
    with pytest.raises(UserError, match="small has no section compare; wanted is"):
        grid(scenario().model_copy(update={"compare": None}))


def test_a_comparison_comes_back_from_its_dump(tmp_path: Path) -> None:
    loaded = load(written(tmp_path, DIGITS))
    (tmp_path / "again.yaml").write_text(dump(loaded))
    assert load(tmp_path / "again.yaml") == loaded


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"methods": [{"name": "fedavg"}, {"name": "fedavg"}]}, "stand there twice"),
        ({"published": {"fedprox": 1.0}}, r"published names \['fedprox'\]"),
        ({"methods": [], "published": {}}, "at least one method"),
        ({"seeds": [1, 1]}, "each is wanted once"),
        ({"methods": [{"name": "fedavg", "training": {"momentun": 1}}], "published": {}}, "training.momentun: Extra"),
        (
            {"methods": [{"name": "fedclust", "n_clustr": 4}], "published": {}},
            "methods.0.n_clustr: unknown key, line .*; did you mean n_clusters",
        ),
        ({"methods": [{"name": "fedclus"}], "published": {}}, "methods.0.name: .*did you mean fedclust"),
        ({"published": {}, "partitions": [{"name": "iid"}, {"name": "iid"}]}, "give each a label of its own"),
        ({"partitions": [{"name": "iid"}]}, "are said for each of the partitions"),
        ({"published": {}, "partitions": [{"name": "label_skew", "shar": 0.2}]}, "partitions.0.shar: .*share"),
        ({"published": {}, "partitions": [{"name": "iid", "published": {"x": 1}}]}, r"published names \['x'\]"),
        (
            {"methods": [{"name": "fuzzy", "model_options": {"head": 3}}], "published": {}},
            r"method fuzzy: the model needs a projection head for 2 clusters; set .*model_options\.head to 2",
        ),
        ({"methods": [{"name": "fuzzy"}], "published": {}}, "method fuzzy: the model needs a projection head"),
        ({"methods": [{"label": "../x", "name": "fedavg"}], "published": {}}, "methods.0.label"),
    ],
)
def test_a_mistake_in_the_section_is_named(tmp_path: Path, section: dict[str, Any], said: str) -> None:
    data = {**DIGITS, "compare": {**DIGITS["compare"], **section}}
    with pytest.raises(UserError, match=said):
        load(written(tmp_path, data))


# -- figures and tables ------------------------------------------------------------------------------------------------


def figures(**modes: tuple[float, float]) -> dict[str, Any]:
    """Accuracies (micro, macro) by mode."""
    return {mode: {"agents": 6, "accuracy": {"micro": a, "macro": b}} for mode, (a, b) in modes.items()}


def result(last: float, **changes: Any) -> dict[str, Any]:
    base = {
        "accuracy": figures(last=(0.1, last), server=(0.2, 0.3)),
        **{"clusters": 2, "ari": 1.0, "nmi": 1.0, "purity": 1.0, "rounds": 2, "agents": 6},
        "notes": {"J": 0.5},
        **{"mbit_per_agent": 3.0, "seconds": 1.0, "bytes": {"wire_down": 2_000_000, "wire_up": 1_000_000}},
    }
    return {**base, **changes}


def line(round_: int, **more: Any) -> dict[str, Any]:
    return {"event": "phase", "round": round_, "traffic": {"down_vectors": 9e6, "up_vectors": 9e6 * round_}, **more}


def cell(label: str, seed: int = 4) -> Cell:
    return next(cell for cell in grid(scenario()) if (cell.label, cell.seed) == (label, seed))


def tracked(**reached: float) -> dict[str, Any]:
    """A round of training, and what its participants reached in it."""
    return {"phase": "train", "tracked": {"by_agent": reached}}


def test_rounds_to_target_count_from_one_on_what_all_agents_hold_and_a_guess_for_those_who_never_trained() -> None:
    compare = compared(scenario(compare={"target": 0.75}))
    guess = 0.1  # ten classes
    lines = [
        line(0, **tracked(a=1.0, b=1.0, c=1.0)),
        line(0, phase="train", evaluation=figures(last=(1.0, 1.0))),  # an evaluation is no training
        line(1, **tracked(a=0.95, d=1.0)),
        line(2, **tracked(e=0.5)),
        line(3, **tracked(e=0.0, f=0.9)),
    ]
    row = row_of(cell("fedclust"), compare, result(0.8), lines)
    assert (0.95 + 1 + 1 + 1 + 2 * guess) / 6 < 0.75 <= (0.95 + 1 + 1 + 1 + 0.5 + guess) / 6
    assert (row["target_on"], row["rounds_to_target"]) == ("last, tracked", 3)
    assert row["mbit_to_target"] == 32 * 27 / 6  # megabits of down and up vectors, an average agent's share
    assert row["mb_wire_to_target"] is None  # nothing went over a wire


def test_traffic_to_target_is_also_counted_in_bytes_on_the_wire() -> None:
    compare = compared(scenario(compare={"target": 0.75}))
    everybody = line(0, **tracked(a=1.0, b=1.0, c=1.0, d=1.0, e=1.0, f=1.0))
    everybody["traffic"] |= {"wire_down": 250_000, "down_models": 850_000, "wire_up": 1_000_000}
    everybody["traffic"] |= {"evaluation_vectors": 3e6, "evaluation_models": 100_000}  # neither count has these
    row = row_of(cell("fedclust"), compare, result(0.8), [everybody])
    assert (row["mb_wire_to_target"], row["mbit_to_target"]) == (2.0, 32 * 6 / 6)


def test_single_models_and_untracked_runs_count_rounds_where_everybody_was_evaluated() -> None:
    compare = compared(scenario(compare={"target": 0.75}))
    low, high = figures(last=(0.9, 0.7), server=(0.7, 0.9)), figures(last=(0.0, 0.8), server=(0.76, 0.0))
    lines = [line(0), line(5, evaluation=low), line(10, evaluation=high)]
    for label, metric, more in (("fedclust", "last", []), ("fedavg", "global", [line(1, **tracked(a=1.0))])):
        row = row_of(cell(label), compare, result(0.8), [*more, *lines])
        assert (row["target_on"], row["rounds_to_target"]) == (metric, 10)


def test_a_target_that_was_never_reached_has_no_rounds() -> None:
    row = row_of(cell("four"), compared(scenario(compare={"target": 0.75})), result(0.8), [line(0, **tracked(a=0.74))])
    assert (row["rounds_to_target"], row["mbit_to_target"], row["mb_wire_to_target"]) == (None, None, None)


def test_newcomers_have_columns_of_their_own() -> None:
    compare = compared(scenario(compare={"metric": "newcomers", "published": {"four": 97.0}}))
    late = {"agents": ["x"], "accuracy": figures(server=(0.5, 0.4), tuned=(0.9, 0.8))}
    rows = [row_of(cell("four"), compare, result(0.8, newcomers=late), [])]
    assert rows[0]["figure"] == rows[0]["newcomers_tuned_accuracy_macro"] == 0.8
    (shown,) = tables(scenario(), summaries(scenario(), rows))
    assert {"newcomers, as served", "newcomers, tuned"} <= set(shown.headers)
    (without,) = tables(scenario(), summaries(scenario(), [row_of(cell("four"), compare, result(0.8), [])]))
    assert "newcomers, tuned" not in without.headers


PARTITIONS = {
    "published": {},
    "partitions": [
        {"label": "even", "name": "iid", "published": {"fedavg": 90.0}, "target": 0.5},
        {"name": "label_skew", "share": 0.2},
    ],
}


def test_a_grid_goes_over_partitions_too_and_each_has_a_table_target_and_published_figures_of_its_own() -> None:
    scene = scenario(compare=PARTITIONS)
    cells = grid(scene)
    assert [cell.name for cell in cells[:4]] == [
        "even/fedavg/4",
        "even/fedclust/4",
        "even/four/4",
        "label_skew/fedavg/4",
    ]
    assert (cells[3].folder, len(cells)) == (Path("label_skew/fedavg/seed-4"), 12)
    placed = [cell.scenario.fleet.partition.name for cell in (cells[0], cells[3]) if cell.scenario.fleet]  # type: ignore[union-attr]
    assert placed == ["iid", "label_skew"]
    assert [cell.name for cell in chosen(cells, ["even/four,label_skew/5"])][:2] == ["even/four/4", "even/four/5"]
    lines = [line(5, evaluation=figures(server=(0.6, 0.6)))]
    rows = [row_of(one, compared(scene), result(0.8), lines) for one in (cells[0], cells[3])]
    assert rows[0]["rounds_to_target"] == 5
    assert "rounds_to_target" not in rows[1]
    even, skewed = tables(scene, summaries(scene, rows))
    assert (even.title[:12], skewed.title[:18]) == ("small, even:", "small, label_skew:")
    assert ("published (ours)" in even.headers, "published (ours)" in skewed.headers) == (True, False)


def test_bytes_on_the_wire_are_unknown_where_there_was_no_wire() -> None:
    compare = compared(scenario())
    assert row_of(cell("four"), compare, result(0.8), [])["mb_wire"] == 3.0
    silent = result(0.8, bytes={"wire_down": 2_000_000, "wire_up": 0})
    assert row_of(cell("four"), compare, silent, [])["mb_wire"] is None


def test_a_method_is_summed_up_by_mean_and_population_deviation() -> None:
    compare = compared(scenario())
    rows = [row_of(cell("fedclust", seed), compare, result(last), []) for seed, last in ((4, 0.7), (5, 0.9))]
    [found] = summaries(scenario(), rows)
    assert found["last_accuracy_macro"] == {"mean": pytest.approx(0.8), "std": pytest.approx(0.1), "n": 2}
    assert found["figure"]["mean"] == pytest.approx(0.8)
    assert (found["published"], found["seeds"]) == (95.5, [4, 5])


def test_the_metric_of_a_single_model_is_its_micro_average() -> None:
    assert row_of(cell("fedavg"), compared(scenario()), result(0.8), [])["figure"] == 0.2


def test_the_table_stands_as_it_should() -> None:
    scene = scenario(compare={"target": 0.75})
    compare = compared(scene)
    everybody = dict.fromkeys("abcdef", 0.8)
    reached = [[line(1, **tracked(**everybody), evaluation=figures(server=(0.8, 0.8)))], [line(1, **tracked(a=0.9))]]
    rows = [
        row_of(cell(label, seed), compare, result(last), lines)
        for label in ("fedavg", "fedclust")
        for seed, last, lines in zip((4, 5), (0.7, 0.9), reached, strict=True)
    ]
    found = summaries(scene, rows)
    (words,) = tables(scene, found)
    assert dict(zip(words.headers, words.lines[1], strict=True)) == {
        "method": "fedclust",
        "seeds": "2",
        "E-last": "80.00±10.00",
        "E-server": "30.00±0.00",
        "published (ours)": "95.50 (last 80.00)",
        "J": "0.5000",
        "ARI": "1.00±0.00",
        "clusters": "2",
        "rounds to 75 %": "2, –",
        "Mbit to it": "96.00 (1 of 2)",
        "Mbit per agent": "3.00",
        "MB on the wire": "3.0",
    }
    text = markdown(scene, found)
    mixed = [{**found[0], "membership_mse": {"mean": 0.02, "std": 0.01, "n": 2}}, found[1]]
    (soft,) = tables(scene, mixed)
    assert [line[soft.headers.index("membership MSE")] for line in soft.lines] == ["0.0200±0.0100", "–"]
    silent = [{key: value for key, value in one.items() if key not in ("ari", "mb_wire")} for one in found]
    assert set(words.headers) - set(tables(scene, silent)[0].headers) == {"ARI", "MB on the wire"}  # no empty columns
    assert "| fedavg | 2 | 80.00±10.00 | 30.00±0.00 | – |" in text
    assert "| fedavg | 2 | 10.00±0.00 | 20.00±0.00 | – |" in text


def test_the_layout_of_averages_has_both_of_accuracy_and_f1_in_the_metrics_mode() -> None:
    scene = scenario(compare={"layout": "averages", "metric": "server"})
    told = result(0.8)
    told["accuracy"]["server"]["f1"] = {"micro": 0.4, "macro": 0.5}
    found = summaries(scene, [row_of(cell("fedclust"), compared(scene), told, [])])
    (words,) = tables(scene, found)
    shown = dict(zip(words.headers, words.lines[0], strict=True))
    assert [shown[title] for title in ("Micro-Acc", "Micro-F1", "Macro-Acc", "Macro-F1")] == [
        "20.00",
        "40.00",
        "30.00",
        "50.00",
    ]
    assert "E-last" not in shown
    assert markdown(scene, found).count("| :--") == 1


# -- runs --------------------------------------------------------------------------------------------------------------


class Watching:
    """Which cells were run."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def __call__(self, cell: Cell) -> Any:
        self.ran.append(cell.name)
        return nullcontext(lambda row: None)


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """Two workers; torch is imported once for all tests."""
    with Crew(2, tmp_path_factory.mktemp("crew") / "workers.log") as crew:
        yield crew


def compare_in_process(scene: Scenario, out: Path, *cells: str, known: Known = NONE_KNOWN) -> list[str]:
    watching = Watching()
    assert run_cells(scene, command.Options(out), cells, watching, in_process=True, known=known)
    return watching.ran


@pytest.mark.processes
def test_a_comparison_shares_partition_start_and_draws_and_runs_nothing_twice(tmp_path: Path) -> None:
    scene = scenario()
    assert compare_in_process(scene, tmp_path, "fedavg/4") == ["fedavg/4"]
    assert compare_in_process(scene, tmp_path, "fedavg,fedclust/4,four/4") == ["fedclust/4", "four/4", "fedavg/5"]
    folders = {label: tmp_path / label / "seed-4" for label in ("fedavg", "fedclust", "four")}
    assert len({(folder / "partition.npz").read_bytes() for folder in folders.values()}) == 1
    starts = {label: np.load(folder / "start.npz")["starts"] for label, folder in folders.items()}
    assert [len(starts[label]) for label in folders] == [1, 1, 4]
    assert len({start[0].tobytes() for start in starts.values()}) == 1
    other = np.load(tmp_path / "fedavg" / "seed-5" / "start.npz")["starts"]
    assert other[0].tobytes() != starts["fedavg"][0].tobytes()
    draws = {label: invited(folder) for label, folder in folders.items()}
    assert draws["fedavg"] == draws["fedclust"] == draws["four"] != []

    found = write_tables(scene, tmp_path)
    assert [(one["method"], one["seeds"]) for one in found] == [("fedavg", [4, 5]), ("fedclust", [4]), ("four", [4])]
    rows = list(csv.DictReader((tmp_path / "compare.csv").open()))
    assert [f"{row['method']}/{row['seed']}" for row in rows] == ["fedavg/4", "fedclust/4", "four/4", "fedavg/5"]
    assert json.loads((tmp_path / "compare.json").read_text())["methods"] == found
    assert (tmp_path / "compare.parquet").stat().st_size > 0

    with pytest.raises(UserError, match="was run from another scenario"):
        compare_in_process(scenario(rounds={"count": 3}), tmp_path)

    elsewhere = tmp_path / "elsewhere"
    known = known_rows(scene, [tmp_path / "compare.json"])
    assert compare_in_process(scene, elsewhere, "4", "fedclust", known=known) == ["fedclust/5"]
    again = write_tables(scene, elsewhere, known)
    assert [(one["method"], one["seeds"]) for one in again] == [("fedavg", [4, 5]), ("fedclust", [4, 5]), ("four", [4])]
    assert again[0] == found[0]
    assert again[2] == found[2]


def recorded(path: Path, **changes: Any) -> tuple[Scenario, Path]:
    """A comparison with one row, as its compare.json has it."""
    scene = scenario(**changes)
    row = {
        "partition": "",
        "method": "fedavg",
        "seed": 4,
        "metric": "global",
        "figure": 0.5,
        "last_accuracy_macro": 0.9,
    }
    path.write_text(json.dumps({"scenario": scene.model_dump(mode="json"), "cells": [row]}))
    return scene, path


def test_a_cell_is_known_from_elsewhere_only_where_its_scenario_and_its_target_are_the_same(tmp_path: Path) -> None:
    scene, file = recorded(tmp_path / "compare.json")
    assert list(known_rows(scene, [file])) == ["fedavg/4"]
    assert known_rows(scenario(rounds={"count": 3}), [file]) == {}
    assert known_rows(scenario(compare={"target": 0.5}), [file]) == {}
    more = [*DIGITS["compare"]["methods"], {"name": "fedprox"}]
    assert list(known_rows(scenario(compare={"methods": more}), [file])) == ["fedavg/4"]


def test_a_known_row_is_judged_by_this_comparisons_metric(tmp_path: Path) -> None:
    _, file = recorded(tmp_path / "compare.json")
    methods = [{**DIGITS["compare"]["methods"][0], "metric": "last"}, *DIGITS["compare"]["methods"][1:]]
    row = known_rows(scenario(compare={"methods": methods}), [file])["fedavg/4"]
    assert (row["metric"], row["figure"]) == ("last", 0.9)


@pytest.mark.parametrize("text", [None, "no json", "[]", "{}", '{"scenario": {}, "cells": []}'])
def test_a_file_that_no_comparison_wrote_is_named(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "other.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError, match=r"--known .*other\.json: "):
        known_rows(scenario(), [file])


def invited(folder: Path) -> list[list[str]]:
    lines = [json.loads(text) for text in (folder / "rounds.jsonl").read_text().splitlines()]
    return [line["invited"] for line in lines if line["phase"] == "train"]


@pytest.mark.processes
def test_a_run_without_a_broker_makes_the_bytes_of_a_run_over_one(tmp_path: Path) -> None:
    wire = {"codec": "int8", "delta": True}
    data = {key: value for key, value in DIGITS.items() if key != "compare"} | {"wire": wire}
    fleet = {**data["fleet"], "newcomers": 1}
    path = written(tmp_path, {**data, "fleet": fleet, "strategy": {"name": "fedclust", "n_clusters": 2}})
    arguments = ["coordinator.cli", "run", str(path), "--out", str(tmp_path / "wire"), "--embedded", "--json"]
    finish(Program(arguments, tmp_path / "log"))
    here = alone(load(path), command.Options(tmp_path / "here"), lambda row: None)
    assert here is not None
    there = json.loads((tmp_path / "wire" / "result.json").read_text())
    assert model_bytes(tmp_path / "here") == model_bytes(tmp_path / "wire")
    assert len(model_bytes(tmp_path / "here")) == 2
    for key in ("accuracy", "assignment", "took_part", "mbit_per_agent", "ari", "newcomers"):
        assert here[key] == there[key]


class Tired(Crew):
    """Another crew that gives up after so many reports."""

    def __init__(self, crew: Crew, reports: int) -> None:
        self._crew, self._left = crew, reports

    def ask(self, job: Job) -> Job:
        return self._crew.ask(job)

    def each(self, jobs: Iterable[Job]) -> Iterator[Job]:
        for answer in self._crew.each(jobs):
            if "digest" in answer:
                self._left -= 1
                if self._left < 0:
                    raise KeyboardInterrupt
            yield answer


@pytest.mark.processes
def test_an_interrupted_run_goes_on_to_the_same_bytes(tmp_path: Path, crew: Crew) -> None:
    scene = grid(scenario())[1].scenario
    whole = simulate(scene, command.Options(tmp_path / "whole"), crew, lambda row: None)
    tired = Tired(crew, 6 + 3 + 2)  # signatures, the first round, all but one of the second
    with pytest.raises(KeyboardInterrupt):
        simulate(scene, command.Options(tmp_path / "cut"), tired, lambda row: None)
    assert not (tmp_path / "cut" / "result.json").exists()
    again = simulate(scene, command.Options(tmp_path / "cut", resume=True), crew, lambda row: None)
    assert model_bytes(tmp_path / "cut") == model_bytes(tmp_path / "whole")
    assert again["accuracy"] == whole["accuracy"]  # E-last is measured with the agents' memories


def test_faults_need_a_broker(tmp_path: Path) -> None:
    fleet = {**DIGITS["fleet"], "faults": {"die": 0.1}}
    with pytest.raises(UserError, match="need a broker"):
        simulate(scenario(fleet=fleet), command.Options(tmp_path / "x"), Crew(1, tmp_path / "log"), lambda row: None)
    assert not (tmp_path / "x").exists()


@pytest.mark.processes
def test_a_worker_that_ends_in_mid_job_is_told_of(tmp_path: Path) -> None:
    dies = (sys.executable, "-c", "import sys; sys.stdin.buffer.read(4)")
    with Crew(1, tmp_path / "log", dies) as crew, pytest.raises(UserError, match="ended in the middle of a job"):
        crew.ask({"job": "inspect"})
