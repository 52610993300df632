"""The HTML report: its figures come from a run's record, and it is one file that needs no other."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from covey.coordinator.odd import Odd
from covey.coordinator.record.records import finished
from covey.coordinator.report.tables import results
from covey.extras.dashboard import svg as theme
from covey.extras.dashboard.html_report import classes_table, drawn, page, write_pictures
from covey.extras.dashboard.plots import Strip, horizontal_axis, strips
from covey.extras.dashboard.run_facts import facts_of
from covey.extras.dashboard.svg import Axis, document, rounds_axis
from covey.extras.dashboard.tests.pages import (
    HOSTILE,
    PLANTED,
    as_regression,
    page_of,
    read,
    rename,
    run,
)
from covey.shared.errors import UserError
from covey.shared.numerics.clustering import agglomerative
from covey.shared.numerics.measures import MEASURES, plain
from covey.shared.scenario.describe import dump
from covey.shared.scenario.task import Task
from tests.kit.small_run import clients, scenario


def names(*folders: Path) -> list[str]:
    return [picture.name for picture in drawn(read(*folders))]


def test_curves_show_the_figures_of_the_record(tmp_path: Path) -> None:
    (one,) = read(run(tmp_path / "one", "fedclust"))
    result = finished(tmp_path / "one")
    assert (one.label, one.figure) == ("fedclust", "accuracy")
    assert [x for x, _ in one.loss] == [1, 2, 3]  # the one-shot clustering before them is no round
    assert [x for x, _ in one.over_rounds("server")] == [1, 2, 3]
    assert one.over_rounds("server")[-1][1] == result["accuracy"]["server"]["accuracy"]["macro"]
    assert one.over_traffic("server")[-1][0] == pytest.approx(result["mbit_per_agent"])
    assert one.sizes[-1] == (3, {"0": 4, "1": 4})
    assert sum(one.by_truth().values()) == 8
    assert len(one.by_truth()) == 2  # every group in a cluster of its own


def test_the_agent_that_a_round_waited_for_is_named_round_by_round(tmp_path: Path) -> None:
    folder = run(tmp_path / "one", "fedclust")
    assert "waits" not in names(folder), "nothing takes any time in process"
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    who: list[str] = []
    for line in lines:
        if line.get("ends_round"):
            again = who and who[-1] in line["reported"]
            who.append(who[-1] if again and len(who) < 2 else line["reported"][0])
            line["took"] = [6.5 if one == who[-1] else 0.5 for one in line["reported"]]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    [found] = [one for one in drawn(read(folder)) if one.name == "waits"]
    hints = re.findall(r"<title>(last: [^<]*)</title>", document(found.drawing))
    assert hints == [f"last: {agent}: 6 at {place}" for place, agent in enumerate(who, 1)]
    often = max(who, key=who.count)
    said = f"The last one of most rounds: {often}, in {who.count(often)} of 3."
    assert found.caption == said


def test_classes_are_counted_from_the_cards(tmp_path: Path) -> None:
    folder = run(tmp_path / "one", "kin")
    table = classes_table(facts_of(folder), finished(folder))
    assert table is not None
    of_agents = [client.targets("train") for client in clients().values()]
    everybody = np.concatenate(of_agents)
    for row, name in zip(table.rows, range(4), strict=True):
        samples = int((everybody == name).sum())
        holders = sum(name in targets for targets in of_agents)
        share = f"{100 * samples / len(everybody):.1f} %"
        assert row == [str(name), str(samples), share, str(holders)]
    plain = run(tmp_path / "two", "fedavg")
    assert classes_table(facts_of(plain), finished(plain)) is None


def test_runs_are_named_by_method_or_by_the_differing_parts_of_their_paths(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = (
        run(tmp_path / "a" / "seed-1", "fedavg"),
        run(tmp_path / "b" / "seed-1", "fedavg"),
    )
    assert [one.label for one in read(first, second)] == ["a/seed-1", "b/seed-1"]
    third = run(tmp_path / "c", "ifca")
    assert [one.label for one in read(first, third)] == ["fedavg", "ifca"]


def test_a_page_is_one_file_and_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    folders = [
        run(tmp_path / "<b>", "fedclust"),
        run(tmp_path / "two", "fedavg"),
        run(tmp_path / "three", "fedavg"),
    ]
    table = results([finished(folder) for folder in folders], modes=True)
    made = page_of(*folders)
    assert made == page_of(*folders)
    assert "src=" not in made
    assert "http" not in made.replace("http-equiv", "")
    assert "<b>" not in made  # a folder's name is never read as HTML
    drawings = re.findall("<svg.*?</svg>", made)
    assert len(drawings) == made.count("<svg") > 8
    for drawing in drawings:
        ElementTree.fromstring(drawing)  # noqa: S314 - our own
    for word in (*table.headers, "fedclust", "Agents per group over rounds"):
        assert word in made


def test_a_page_of_one_run_has_figures_units_origin_and_the_command(tmp_path: Path) -> None:
    folder = run(tmp_path / "one", "fedclust")
    made = page_of(folder)
    for words in (
        "accuracy in %",
        "the served model",
        "adjusted Rand index",
        "<h2>Groups</h2>",
        "<h2>Agents</h2>",
        "<h2>Traffic</h2>",
        "<h2>Faults and refusals</h2>",
        "agent-7",
        f"coordinator run {folder}/scenario.yaml --out runs/one-again --in-process",
        "Scenario, with all defaults",
        f"numpy {np.__version__}",
    ):
        assert words in made


def test_a_page_begins_with_the_sentence_the_deciding_figure_and_what_is_odd(
    tmp_path: Path,
) -> None:
    folder = run(tmp_path / "run", "fedclust", evaluation={"deliver": {}})
    first, _, rest = page_of(folder).partition('<div class="pictures">')
    result = finished(folder)
    figure = MEASURES["accuracy"].text(result["accuracy"]["delivered"]["accuracy"]["macro"])
    assert f"accuracy in use {figure} %" in first.split('class="lead">')[1]
    assert first.count(' decides"><b>') == 1
    assert f' decides"><b>{figure}</b><span>in use' in first
    assert "<table" not in first
    assert "fine-tuned" not in first
    assert "Results" in rest

    odd = [one.to_json() for one in (Odd(("agent-3",), "scale", "too large", "look there"),)]
    (folder / "result.json").write_text(json.dumps({**result, "odd": odd}))
    first = page_of(folder).partition('<div class="pictures">')[0]
    assert "<b>agent-3</b> too large." in first


def test_agents_of_runs_with_other_data_are_not_compared_one_by_one(tmp_path: Path) -> None:
    folders = [run(tmp_path / name, name) for name in ("fedavg", "fedclust")]
    for number, folder in enumerate(folders):
        path = folder / "result.json"
        result = {**json.loads(path.read_text()), "partition": str(number)}
        path.write_text(json.dumps(result))
    made = page_of(*folders)
    assert "hold other data, so they are not compared one by one" in made
    assert "Who gains" not in made


def test_a_page_of_two_runs_begins_with_the_difference_agent_by_agent(tmp_path: Path) -> None:
    runs = [run(tmp_path / "one", "fedavg"), run(tmp_path / "two", "fedclust", seed=2)]
    made = unescape(page_of(*runs))
    first, *figures = (finished(folder)["accuracy"]["server"]["accuracy"] for folder in runs)
    gain = 100 * (figures[0]["macro"] - first["macro"])
    is_better = "better" if gain >= 0 else "worse"
    assert (
        f"fedclust is {plain(abs(gain))} points {is_better} than fedavg in what is in use" in made
    )
    assert "It is one run of each" in made
    keys = re.findall("<td>([a-z_.]+)</td>", made.split("What differs in the scenarios")[1])
    assert {"seed", "strategy.name"} <= set(keys)
    assert "strategy.linkage" not in keys
    assert "Who gains, and who loses" in made
    three = page_of(*runs, run(tmp_path / "three", "fedavg"))
    assert "Who gains" not in three


def test_clusters_and_methods_share_no_colour(tmp_path: Path) -> None:
    methods = [run(tmp_path / name, name) for name in ("fedclust", "fedavg")]
    found = {picture.name: picture for picture in drawn(read(*methods))}

    def colours(name: str) -> set[str]:
        return set(re.findall(r'"(?:line )?[fs](\d)"', str(found[name].drawing)))

    assert colours("clusters") >= {"0", "1"}
    assert not colours("clusters") & (colours("accuracy") | colours("loss"))


def test_a_page_shows_which_rows_of_a_device_test(tmp_path: Path) -> None:
    folder = run(tmp_path / "one", "fedavg")
    assert "random samples of each device, unless" in unescape(page_of(folder))
    task = {"features": [5], "columns": ["when", "x"], "times": ["when"]}
    for given, words in ({}, "the latest rows"), ({"test": "random"}, "random samples"):
        scene = scenario("fedavg").model_copy(update={"task": Task(**task, **given)})
        (folder / "scenario.yaml").write_text(dump(scene))
        assert facts_of(folder).tested_on.startswith(words)


def test_names_of_agents_are_never_read_as_html(tmp_path: Path) -> None:
    folder = run(tmp_path / "one", "fedclust")
    rename(folder, "agent-3", HOSTILE)
    made = page_of(folder)
    assert "&lt;/td&gt;&lt;script&gt;hacked = &#39;&amp;&#34;&#39;" in made
    assert made.count("<script>") == 1
    svg = document(drawn(read(folder))[0].drawing)
    ElementTree.fromstring(svg.encode())  # noqa: S314 - our own


def test_the_policy_allows_the_pages_own_script_and_style_alone(tmp_path: Path) -> None:
    made = page_of(run(tmp_path / "one", "fedavg"))
    (policy,) = re.findall('Content-Security-Policy" content="(.*?)"', made)
    (script,) = re.findall("<script>(.*?)</script>", made, re.DOTALL)
    (style,) = re.findall("<style>(.*?)</style>", made, re.DOTALL)
    allowed = unescape(policy)
    assert allowed.startswith("default-src 'none'; ")
    assert f"script-src {theme.source_hash(script)};" in allowed
    assert f"style-src {theme.source_hash(style)};" in allowed
    assert "unsafe" not in allowed
    assert " style=" not in made  # the policy would drop it
    assert " onclick=" not in made


def test_a_regression_has_its_own_units_and_no_percentages(tmp_path: Path) -> None:
    folder = run(tmp_path / "one", "fedclust")
    as_regression(folder)
    (one,) = read(folder)
    assert one.measure.name == "rmse"
    made = page_of(folder)
    for words in (
        "Results, mean over agents",
        "MSE in squared units of the target",
        "RMSE over rounds, mean over agents",
        "RMSE in units of the target; lower is better",
        "served, RMSE in units of the target: mean",
    ):
        assert words in made
    assert "accuracy in %" not in made
    figure = finished(folder)["accuracy"]["server"]["rmse"]["macro"]
    assert f"<b>{figure:.4g}</b>" in made  # as it is stored: no share, no percentage


def test_a_single_evaluation_makes_bars_from_zero(tmp_path: Path) -> None:
    folder = run(tmp_path / "one", "fedavg", evaluation={"every": 0})
    (one,) = read(folder)
    assert [x for x, _ in one.over_rounds("server")] == [3]
    (first, *_) = drawn([one])
    assert first.title == "Accuracy after round 3, mean over agents"
    drawing = document(first.drawing)
    figure = 100 * one.over_rounds("server")[0][1]
    for words in ("served", "own last", f">{figure:.2f}<", ">0<", ">100<"):
        assert words in drawing


def test_two_evaluations_make_lines_from_round_zero_in_whole_rounds(tmp_path: Path) -> None:
    folder = run(tmp_path / "one", "fedavg", evaluation={"every": 2})
    (one,) = read(folder)
    assert [x for x, _ in one.over_rounds("server")] == [2, 3]
    axis = rounds_axis([2, 3])
    assert (axis.low, axis.high) == (0, 3)
    assert [axis.words(tick) for tick in axis.ticks] == ["0", "1", "2", "3"]
    assert drawn([one])[0].title == "Accuracy over rounds, mean over agents"


def test_a_run_that_is_not_finished_has_no_page(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no result\.json"):
        read(tmp_path)


def test_the_page_of_fesem_shows_agents_models_over_rounds(tmp_path: Path) -> None:
    folder = run(tmp_path / "one", "fesem")
    (one,) = read(folder)
    assert [models.rounds for models in one.models] == [0, 1, 2, 3]
    made = page([one], [folder])
    for words in (
        "Agents&#39; models over rounds",
        "warmup",
        "round 3",
        "PC 1 (",
        "group 1",
        "group 0",
    ):
        assert words in made
    assert made == page_of(folder)
    assert names(folder)[-1] == "models"


def test_the_page_of_fedclust_shows_the_distances_that_it_clustered(tmp_path: Path) -> None:
    folder = run(tmp_path / "one", "fedclust")
    (one,) = read(folder)
    near = one.proximity
    assert near is not None
    assert near.clients == tuple(sorted(PLANTED))
    tree = agglomerative(near.distances, near.linkage, threshold=near.cut)  # the cut of this run
    assert dict(zip(near.clients, tree.labels.tolist(), strict=True)) == one.result["assignment"]
    made = page([one], [folder])
    assert "Distances between agents, and their merge tree" in made
    assert "data:image/png;base64" in made  # the page contains the heat map
    assert names(folder)[-1] == "proximity"


@pytest.mark.parametrize("method", ["pacfl", "fedclust"])
def test_the_merge_tree_has_the_heights_that_the_run_noted(method: str, tmp_path: Path) -> None:
    (one,) = read(run(tmp_path / "one", method))
    assert one.proximity is not None
    tree = agglomerative(one.proximity.distances, one.proximity.linkage)
    assert tree.heights == pytest.approx(one.result["notes"]["merge_heights"], rel=1e-6)


def test_a_page_without_a_checkpoint_has_no_distances(tmp_path: Path) -> None:
    folder = run(tmp_path / "one", "fedclust")
    (folder / "checkpoint" / "manifest.json").unlink()
    assert "proximity" not in names(folder)


def test_runs_cut_at_different_quantiles_make_a_curve(tmp_path: Path) -> None:
    cut = [
        run(tmp_path / f"q{q}", "fedclust", strategy={"n_clusters": None, "lambda_quantile": q})
        for q in (0, 0.5, 1)
    ]
    other = run(tmp_path / "fedavg", "fedavg")
    assert "cut" in names(*cut, other)
    assert "cut" not in names(*cut[:2], other)
    found = [(one.cut.quantile, one.cut.clusters) for one in read(*cut) if one.cut is not None]
    assert [quantile for quantile, _ in found] == [0.0, 0.5, 1.0]
    assert found[0][1] > found[-1][1] == 1


def test_samples_per_cluster_are_the_sum_over_its_agents(tmp_path: Path) -> None:
    folder = run(tmp_path / "one", "fedclust")
    (one,) = read(folder)
    assert sorted(one.samples) == [0, 1]
    assert sum(one.samples.values()) == 8 * 24
    assert "samples" in names(folder)


def test_a_picture_is_written_to_a_file_of_its_own(tmp_path: Path) -> None:
    runs = read(run(tmp_path / "one", "fesem"))
    file = tmp_path / "models.svg"
    write_pictures(runs, [f"models={file}", f"accuracy={tmp_path / 'a.svg'}"])
    assert ElementTree.parse(file).getroot().tag.endswith("svg")  # noqa: S314 - our own
    assert (tmp_path / "a.svg").exists()
    with pytest.raises(
        UserError, match=r"no picture 'model'; they have accuracy, traffic, loss, .*models"
    ):
        write_pictures(runs, ["model=x.svg"])
    with pytest.raises(UserError, match="expected NAME=FILE"):
        write_pictures(runs, ["models"])


def test_pictures_of_single_runs_are_named_by_the_run_if_there_are_several(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    found = names(run(tmp_path / "a" / "seed-1", "fesem"), run(tmp_path / "b" / "seed-1", "fesem"))
    assert {"models-a/seed-1", "models-b/seed-1"} <= set(found)


def test_a_tick_at_the_left_edge_of_a_drawing_is_not_cut_off() -> None:
    axis = Axis("merge height", 0.8, 0.0, [0.8, 0.4, 0.0])  # from right to left, as trees have it
    drawing = horizontal_axis(axis, left=4, right=96, bottom=100)
    assert 'x="0" y="117" class="tick" text-anchor="start">0.8<' in drawing
    assert 'x="50" y="117" class="tick" text-anchor="middle">0.4<' in drawing


def test_a_label_of_wide_letters_has_room() -> None:
    axis = Axis("accuracy in %", 0.0, 100.0, [0.0, 100.0])
    panel = strips("accuracy", [Strip("mmmmm", [(50.0, "agent-1")], 0)], axis)
    end = re.search(r'<text x="(\d+)"[^>]*>mmmmm<', panel.body)
    assert end is not None
    assert float(end[1]) >= 5 * 11.7  # an m of 12 pixels in the widest of the usual fonts
