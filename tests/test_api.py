"""The public Python API: what a notebook uses."""

from __future__ import annotations

import asyncio
import doctest
import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import covey
from covey.coordinator.record.notices import Notice
from covey.shared.errors import UserError
from tests.processes import ROOT

pytestmark = pytest.mark.usefixtures("numpy_learner")

DIGITS = {
    "name": "digits",
    "seed": 1,
    "task": {
        "features": [1, 8, 8],
        "classes": 10,
        "scale": 0.0625,
        "model": {"name": "mlp", "options": {"hidden": 16}},
    },
    "training": {"epochs": 1, "batch": 20, "lr": 0.1},
    "strategy": {"name": "fedclust", "n_clusters": 2},
    "rounds": {"count": 2},
    "fleet": {
        "agents": 4,
        "data": "digits",
        "limit": 400,
        "partition": {"name": "grouped_labels", "groups": 2},
        "workers": 1,
    },
}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory, numpy_learner: None) -> covey.Result:
    return covey.run(DIGITS, tmp_path_factory.mktemp("api") / "run")


def test_importing_covey_imports_neither_numpy_nor_torch() -> None:
    code = "import sys, covey; print(sorted({'numpy', 'torch', 'pydantic'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", covey.__all__)
def test_everything_public_is_there_and_documented(name: str) -> None:
    thing = getattr(covey, name)
    assert name in dir(covey)
    documentation = inspect.getdoc(thing) or ""
    assert len(documentation) > 30
    if inspect.isfunction(thing):
        sections = ("Args:", "Returns:", "Raises:", "Example:")
        assert [section for section in sections if section not in documentation] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        covey.nothing  # noqa: B018


@pytest.mark.whole
def test_a_run_gives_typed_figures(result: covey.Result) -> None:
    assert (result.method, result.clusters, result.ari) == ("fedclust", 2, 1.0)
    assert set(result.assignment) == {f"agent-{i}" for i in range(4)}
    server, tuned = result.accuracy(), result.accuracy("tuned", "micro")
    assert server is not None
    assert tuned is not None
    assert 0 < server <= 1
    assert result.accuracy("best") is None  # nothing was tracked
    assert repr(result).startswith("<Result fedclust: 2 groups, accuracy in use ")


@pytest.mark.whole
def test_rows_have_plain_columns(result: covey.Result) -> None:
    history = result.history()
    assert [row["phase"] for row in history][:1] == ["cluster"] or history[0]["phase"]
    assert not [
        value for row in history for value in row.values() if isinstance(value, dict | list)
    ]
    agents = result.agents()
    assert [row["agent"] for row in agents] == sorted(result.assignment)


@pytest.mark.whole
def test_models_are_arrays_by_parameter(result: covey.Result) -> None:
    models = result.models()
    assert len(models) == 2
    assert all(array.dtype == "float32" for model in models for array in model.values())


@pytest.mark.whole
def test_a_finished_run_is_read_again(result: covey.Result) -> None:
    again = covey.Result.read(result.folder)
    assert again == result


@pytest.mark.whole
def test_it_runs_under_the_event_loop_of_a_notebook(result: covey.Result) -> None:
    events: list[Notice] = []
    reached: list[covey.RoundEnded | covey.Evaluated | covey.RunEnded] = []

    async def cell() -> covey.Result:
        return covey.run(DIGITS, observe=events.append, callbacks=[reached.append])

    inside = asyncio.run(cell())
    assert inside.assignment == result.assignment
    assert inside.summary["accuracy"] == result.summary["accuracy"]
    assert inside._repr_html_().count("<table>") == 1
    shown = inside._repr_html_()
    assert shown.startswith("<p>fedclust, 2 groups: accuracy in use ")
    assert shown.count("<img ") == 1
    assert "<style" not in shown  # of a chart: it would reach the whole notebook
    assert "phase" in {event.to_json()["event"] for event in events}
    rounds = [event for event in reached if isinstance(event, covey.RoundEnded)]
    assert [event.round for event in rounds] == list(range(1, inside.summary["rounds"] + 1))
    assert rounds[-1].loss == [line["loss"] for line in inside.history() if "loss" in line][-1]
    *before, evaluated = [event for event in reached if isinstance(event, covey.Evaluated)]
    assert len(before) == 2  # devices weigh twice again, with the fleet's weights
    assert evaluated.figure("server", "accuracy") == inside.accuracy("server")
    assert evaluated.figure("server", "accuracy", "micro") == inside.accuracy("server", "micro")
    assert reached[-1] == covey.RunEnded(inside)


@pytest.mark.whole
def test_a_comparison_gives_rows_per_cell_and_per_method(tmp_path: Path) -> None:
    methods = [{"name": "fedavg"}, {"name": "local"}]
    scenario = DIGITS | {"compare": {"methods": methods, "seeds": [1, 2]}}
    comparison = covey.compare(scenario, tmp_path / "out", cells=["fedavg", "local/1"])
    cells = [(row["method"], row["seed"]) for row in comparison.cells]
    assert cells == [("fedavg", 1), ("local", 1), ("fedavg", 2)]
    assert [row["method"] for row in comparison.methods] == ["fedavg", "local"]
    assert [row["seeds"] for row in comparison.methods] == [2, 1]
    fedavg = comparison.methods[0]
    of_seeds = [
        row["server_accuracy_macro"] for row in comparison.cells if row["method"] == "fedavg"
    ]
    assert fedavg["server_accuracy_macro"] == pytest.approx(sum(of_seeds) / 2)
    assert fedavg["server_accuracy_macro_std"] == pytest.approx(
        abs(of_seeds[0] - of_seeds[1]) / 2**0.5
    )
    assert (tmp_path / "out" / "compare.csv").exists()
    again = covey.compare(scenario, tmp_path / "out", cells=["fedavg", "local/1"])
    assert again.cells == comparison.cells
    standing = comparison.tables[-1]
    assert {line[0] for line in standing.rows} == {"local", "fedavg", "constant"}
    assert comparison.to_latex().count(r"\begin{tabular}") == len(comparison.tables)
    shown = comparison._repr_html_()
    assert shown.count("<table>") == len(comparison.tables)
    # neither method finds clusters
    assert [verdict.split(":")[0] for verdict in comparison.verdicts] == ["fedavg"]
    assert "**Standings" in (tmp_path / "out" / "compare.md").read_text()


@pytest.mark.whole
def test_a_comparison_of_one_seed_shows_the_one_table_of_the_terminal(tmp_path: Path) -> None:
    scenario = DIGITS | {"compare": {"methods": [{"name": "local"}], "seeds": [1]}}
    comparison = covey.compare(scenario, tmp_path / "out")
    assert [table.headers for table in comparison.tables] == [["method", "in use", "models"]]


@pytest.mark.whole
def test_a_notebook_sees_each_round_in_one_line_that_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []

    def display(data: dict[str, str], **options: Any) -> Any:
        lines.append(data["text/plain"])
        return SimpleNamespace(update=display)

    monkeypatch.setitem(sys.modules, "ipykernel", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    rounds = covey.run(DIGITS).summary["rounds"]
    assert [line.split(",")[0] for line in lines] == [
        f"round {done} of {rounds}" for done in range(rounds + 1)
    ]


def test_a_notebook_shows_a_mistake_without_a_traceback() -> None:
    assert UserError("no such file")._render_traceback_() == ["UserError: no such file"]


def test_a_comparison_is_a_frame_where_pandas_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison = covey.Comparison(tmp_path, [{"method": "fedavg", "seed": 1}], [])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="pip install pandas"):
        comparison.to_frame()
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    assert comparison.to_frame() == [{"method": "fedavg", "seed": 1}]


@pytest.mark.whole
def test_mistakes_are_user_errors(result: covey.Result, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"strategy\.name"):
        covey.run(DIGITS | {"strategy": {"name": "fedclustt"}})
    with pytest.raises(UserError, match="fedclust"):
        covey.load(ROOT / "scenarios" / "digits.yaml", "strategy.name=fedclustt")
    with pytest.raises(UserError):
        covey.Result.read(tmp_path)
    with pytest.raises(UserError, match="a run folder is already there"):
        covey.run(DIGITS, result.folder)


@pytest.mark.whole
def test_messages_name_arguments_and_a_mapping_has_no_lines(
    result: covey.Result, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="choose another with out, or continue it with resume=True"):
        covey.run(DIGITS, result.folder)
    with pytest.raises(UserError, match=r'track=\["nowhere"\]: expected one of'):
        covey.run(DIGITS, tmp_path / "run", track=["nowhere"])
    with pytest.raises(UserError) as refused:
        covey.run(DIGITS | {"task": {"features": [64], "clases": 10}})
    assert "task.clases: unknown key; did you mean classes?" in str(refused.value)
    with pytest.raises(covey.ConsentError, match=r'allow it with allow=\["mine"\]'):
        covey.run(DIGITS | {"task": {"features": [64], "model": "mine:net"}})


def test_only_public_names_are_offered_for_completion() -> None:
    offered = {name for name in dir(covey) if not name.startswith("__")}
    assert offered == {*covey.__all__}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory, numpy_learner: None) -> Path:
    """A folder with `scenarios`, of which smoke takes one worker, and `run`, a run of smoke that the examples read."""
    folder = tmp_path_factory.mktemp("smoke")
    shutil.copytree(ROOT / "scenarios", folder / "scenarios")
    scenario = folder / "scenarios" / "smoke.yaml"
    with scenario.open("a", encoding="utf-8") as file:
        file.write("  workers: 1\n")  # the section `fleet` is the last one
    covey.run(scenario, folder / "run")
    return folder


@pytest.mark.whole
@pytest.mark.parametrize("name", covey.__all__)
def test_the_examples_in_the_docstrings_run(
    name: str, smoke: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scenarios").symlink_to(smoke / "scenarios")
    if name in ("Result", "RunEnded"):
        (tmp_path / "runs").mkdir()
        (tmp_path / "runs" / "smoke").symlink_to(smoke / "run")
    monkeypatch.chdir(tmp_path)
    found = doctest.DocTestFinder(recurse=True).find(getattr(covey, name), name, module=False)
    examples = [one for one in found if one.examples]
    assert examples or name == "Comparison", "each public name has an example"
    runner = doctest.DocTestRunner()
    for example in examples:
        example.globs = {"covey": covey, "np": np}
        output: list[str] = []
        runner.run(example, out=output.append)
        assert runner.failures == 0, "".join(output)


@pytest.mark.night
@pytest.mark.whole
@pytest.mark.processes
def test_the_example_for_notebooks_runs_as_it_is_printed() -> None:
    example = ROOT / "docs" / "examples" / "compare_methods.py"
    own = {**os.environ, "COVEY_LEARNER": "numpy"}  # no import of torch, in none of its seven runs
    done = subprocess.run(
        [sys.executable, example], env=own, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("<Result fedclust: 2 groups, accuracy in use ")
    assert [line.split()[0] for line in lines[-3:]] == ["fedavg", "ifca", "fedclust"]


def test_a_result_of_a_regression_has_errors_and_no_accuracy() -> None:
    rmse = {"agents": 6, "rmse": {"micro": 2.5, "macro": 2.25}}
    summary = {"method": "fedavg", "clusters": 1, "accuracy": {"server": rmse}}
    result = covey.Result(Path("runs/x"), summary)
    assert (result.accuracy(), result.figure(), result.figure("tuned")) == (None, 2.25, None)
    assert result.figure("server", "rmse", "micro") == 2.5
    assert "RMSE served 2.25" in repr(result)
