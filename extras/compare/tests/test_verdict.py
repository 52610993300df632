"""Whether a federation was worth it: gains over one model, training alone, the constant and trees, and the sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from covey.coordinator.view.table import Table, columns_of
from covey.extras.compare.gain_pictures import gains_by_agent, of_field
from covey.extras.compare.rows import ComparisonRow, averages_by_mode
from covey.extras.compare.tests.comparisons import scenario
from covey.extras.compare.verdict import (
    Verdict,
    deciding,
    fields,
    gain_of,
    standings,
    verdict_table,
    verdicts,
)
from covey.shared.numerics.measures import ACCURACY, RMSE
from covey.shared.scenario.scenario import Scenario

KEY = "last_accuracy_macro"
SEEDS = (4, 5)


def scene(**changes: Any) -> Scenario:
    methods = [
        {"name": "fedavg"},
        {"name": "local"},
        {"name": "fedclust", "n_clusters": 2},
        {"label": "four", "name": "ifca", "n_clusters": 4},
    ]
    return scenario(compare={"methods": methods, "metric": "last", "published": {}}, **changes)


def row(
    method: str, seed: int, agents: Sequence[float], clusters: int | None = None, key: str = KEY
) -> ComparisonRow:
    mean = sum(agents) / len(agents)
    by_agent = {f"agent-{i}": figure for i, figure in enumerate(agents)}
    return ComparisonRow("", method, seed, {key: mean, "clusters": clusters}, by_agent)


def rows(**figures: Mapping[int, Sequence[float]]) -> list[ComparisonRow]:
    clusters = {"fedclust": 2, "four": 4}
    return [
        row(method, seed, agents, clusters.get(method))
        for method, by_seed in figures.items()
        for seed, agents in by_seed.items()
    ]


def only(found: Sequence[Verdict]) -> Verdict:
    [one] = found
    return one


def test_an_interval_over_agents_is_students_of_their_paired_differences() -> None:
    """By hand: gains .1, .2, .3 have the mean .2, the variance .01 and t(2, .975) = 4.303."""
    pair = (row("fedclust", 4, [0.5, 0.7, 0.9]), row("fedavg", 4, [0.4, 0.5, 0.6]))
    gain = gain_of([pair], KEY, ACCURACY)
    assert (gain.agents, gain.seeds) == (3, 1)
    assert gain.mean == pytest.approx(0.2)
    assert gain.half == pytest.approx(4.3027 * (0.01 / 3) ** 0.5, rel=1e-4)


def test_the_interval_over_seeds_counts_where_it_is_wider() -> None:
    """By hand: the seeds' means 0 and .2 have the variance .02 and t(1, .975) = 12.706."""
    pairs = [
        (row("fedclust", 4, [0.5, 0.5]), row("fedavg", 4, [0.5, 0.5])),
        (row("fedclust", 5, [0.7, 0.7]), row("fedavg", 5, [0.5, 0.5])),
    ]
    gain = gain_of(pairs, KEY, ACCURACY)
    assert gain.half == pytest.approx(12.706 * (0.02 / 2) ** 0.5, rel=1e-4)


def test_agents_with_hard_data_do_not_widen_the_interval() -> None:
    """Agents differ by far more than methods do."""
    own = {4: [0.2, 0.5, 0.9], 5: [0.3, 0.6, 0.8]}
    other = {seed: [figure - 0.05 for figure in agents] for seed, agents in own.items()}
    one = only(verdicts(scene(), rows(fedavg=other, fedclust=own)))
    assert one.references[0].gain.half == pytest.approx(0, abs=1e-9)
    assert one.outcome == "worth it"


def test_a_lower_error_is_a_gain() -> None:
    key = "last_rmse_macro"
    pair = (row("fedclust", 4, [3.0, 2.0], key=key), row("fedavg", 4, [4.0, 3.0], key=key))
    assert gain_of([pair], key, RMSE).mean == pytest.approx(1.0)


def test_the_better_reference_counts() -> None:
    found = verdicts(
        scene(),
        rows(
            fedavg={s: [0.5, 0.5] for s in SEEDS},
            local={s: [0.8, 0.8] for s in SEEDS},
            fedclust={s: [0.9, 0.9] for s in SEEDS},
            four={s: [0.7, 0.7] for s in SEEDS},
        ),
    )
    assert [one.sentence for one in found] == [
        "fedavg: accuracy own last 50.00 against 80.00 alone (local): "
        "30.00 points worse (95 %: 30.00 to 30.00); agents alone are better",
        "fedclust, 2 groups: accuracy own last 90.00 against 50.00 with one model (fedavg) and 80.00 alone (local): "
        "10.00 points better than alone (95 %: 10.00 to 10.00); worth 2 models",
        "four, 4 groups: accuracy own last 70.00 against 50.00 with one model (fedavg) and 80.00 alone (local): "
        "10.00 points worse than alone (95 %: 10.00 to 10.00); agents alone are better",
    ]


@pytest.mark.parametrize(
    ("own", "outcome", "conclusion"),
    [
        ([0.90, 0.92], "worth it", "worth 2 models"),
        ([0.804, 0.805], "not worth it", "not worth 2 models"),
        ([0.70, 0.95], "not shown", "no difference is shown"),
        ([0.60, 0.61], "worse", "one model is better"),
    ],
)
def test_clusters_are_worth_it_if_the_whole_interval_is_a_gain_and_its_mean_a_point(
    own: list[float], outcome: str, conclusion: str
) -> None:
    both = dict.fromkeys(SEEDS, own)
    one = only(verdicts(scene(), rows(fedavg={s: [0.8, 0.8] for s in SEEDS}, fedclust=both)))
    assert one.outcome == outcome
    assert one.sentence.endswith(conclusion)


def test_a_worse_method_has_the_ends_of_its_interval_in_ascending_order() -> None:
    one = only(
        verdicts(scene(), rows(fedavg={4: [0.8, 0.8, 0.8]}, fedclust={4: [0.7, 0.71, 0.72]}))
    )
    assert "9.00 points worse (95 %: 6.52 to 11.48)" in one.sentence


def test_one_seed_without_figures_of_agents_has_no_interval() -> None:
    bare = [
        ComparisonRow(r.partition, r.method, r.seed, r.columns)
        for r in rows(fedavg={4: [0.5]}, fedclust={4: [0.9]})
    ]
    one = only(verdicts(scene(), bare))
    assert (one.outcome, one.references[0].gain.half) == ("not shown", None)
    assert one.sentence.endswith("40.00 points better; more seeds would tell")
    json.dumps(one.to_json(), allow_nan=False)


def test_only_seeds_of_both_methods_count() -> None:
    one = only(
        verdicts(
            scene(),
            rows(
                fedavg={4: [0.5, 0.5]},
                local={5: [0.9, 0.9]},
                fedclust={4: [0.6, 0.6], 6: [0.1, 0.1]},
            ),
        )
    )
    assert [reference.method for reference in one.references] == ["fedavg"]
    assert one.references[0].gain.mean == pytest.approx(0.1)
    single = [row("fedavg", 4, [0.5]), row("fedclust", 4, [0.6], clusters=1)]
    assert only(verdicts(scene(), single)).sentence.startswith("fedclust: accuracy own last 60.00")
    assert verdicts(scene(), rows(fedclust={4: [0.6]})) == []


def of_runs(method: str, agents: Sequence[float], **alone: list[float]) -> ComparisonRow:
    """A row with what its devices have without a federation, by mode."""
    one = row(method, 4, agents, {"fedavg": 1, "fedclust": 2}.get(method))
    means = {f"{mode}_accuracy_macro": sum(own) / len(own) for mode, own in alone.items()}
    of_each = {mode: dict(zip(one.agents, own, strict=True)) for mode, own in alone.items()}
    return replace(one, columns={**one.columns, **means}, alone=of_each)


def test_every_method_is_set_against_the_constant_and_trees_too() -> None:
    alone = {"baseline": [0.1, 0.3], "trees": [0.7, 0.8]}
    compared = [
        of_runs("fedavg", [0.5, 0.6], **alone),
        of_runs("local", [0.4, 0.4], **alone),
        of_runs("fedclust", [0.8, 0.9], **alone),
    ]
    assert [one.sentence for one in verdicts(scene(), compared)] == [
        "fedavg: accuracy own last 55.00 against 40.00 alone (local), 20.00 by the constant and 75.00 by trees: "
        "20.00 points worse than trees (95 %: 20.00 to 20.00); trees are better",
        "fedclust, 2 groups: accuracy own last 85.00 against 55.00 with one model (fedavg), 40.00 alone (local), "
        "20.00 by the constant and 75.00 by trees: "
        "10.00 points better than trees (95 %: 10.00 to 10.00); worth 2 models",
    ]
    [table] = standings(scene(), compared)
    assert [line[0] for line in table.rows] == ["fedclust", "trees", "fedavg", "local", "constant"]
    assert table.headers[-3:-1] == ["gain over constant", "gain over trees"]


def test_a_federation_that_is_no_better_than_the_constant_is_not_worth_it() -> None:
    alone = of_runs("fedavg", [0.5, 0.6], baseline=[0.5, 0.6])
    assert only(verdicts(scene(), [alone])).sentence == (
        "fedavg: accuracy own last 55.00 against 55.00 by the constant: "
        "0.00 points better (95 %: 0.00 to 0.00); not worth it"
    )


def test_what_only_some_devices_have_alone_is_no_reference() -> None:
    averages = {"server": {"agents": 8}, "baseline": {"agents": 8}, "trees": {"agents": 7}}
    assert averages_by_mode({"accuracy": averages}).keys() == {"delivered", "server", "baseline"}


# -- standings -------------------------------------------------------------------------------------


def test_standings_have_the_best_first_with_ranks_over_seeds_and_paired_gains() -> None:
    """By hand: ranks of local 1 and 2, of fedclust 2 and 1, of fedavg 3 and 3; gains of fedclust .1 and .3 over fedavg."""
    figures = {
        "fedavg": {4: [0.4, 0.6], 5: [0.3, 0.5]},
        "local": {4: [0.9, 0.9], 5: [0.6, 0.6]},
        "fedclust": {4: [0.5, 0.7], 5: [0.6, 0.8]},
    }
    [table] = standings(scene(), rows(**figures))
    assert table.headers == [
        "method",
        "own last",
        "gain over fedavg",
        "gain over local",
        "mean rank",
    ]
    by_method = {line[0]: line[1:] for line in table.rows}
    assert [line[0] for line in table.rows] == ["local", "fedclust", "fedavg"]
    assert [by_method[name][-1] for name in by_method] == ["1.5", "1.5", "3.0"]
    assert by_method["fedclust"][0] == "65.00"
    gain = gain_of(
        [(row("a", s, figures["fedclust"][s]), row("b", s, figures["fedavg"][s])) for s in SEEDS],
        KEY,
        ACCURACY,
    )
    assert by_method["fedclust"][1] == f"+20.00 ({100 * gain.low:.2f} to {100 * gain.high:.2f})"
    assert by_method["fedavg"][1] == by_method["local"][2] == "–"


def test_a_lower_error_is_better_in_standings_and_equal_figures_share_a_rank() -> None:
    key = "last_rmse_macro"
    task = {"features": [3], "classes": None, "model": {"name": "linear"}}
    methods = [{"name": "fedavg"}, {"name": "local"}, {"name": "ditto"}]
    regression = scenario(
        task=task,
        fleet=None,
        compare={"methods": methods, "metric": "last", "published": {}, "seeds": [4]},
    )
    found = {"fedavg": [2.0, 2.0], "local": [1.0, 3.0], "ditto": [1.0, 1.5]}
    [table] = standings(regression, [row(m, 4, own, key=key) for m, own in found.items()])
    assert [(line[0], line[-1]) for line in table.rows] == [
        ("ditto", "1.0"),
        ("fedavg", "2.5"),
        ("local", "2.5"),
    ]
    assert table.rows[0][2].startswith("+0.75 (")


def test_a_table_is_written_for_latex_and_for_html() -> None:
    table = Table("a & b", columns_of(["method_1", "in %"]), [["<x>", "1.0±0.2"], ["y", "–"]])
    assert table.latex().splitlines() == [
        "% a & b",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"method\_1 & in \% \\",
        r"\midrule",
        r"<x> & 1.0$\pm$0.2 \\",
        r"y & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    assert '<caption style="text-align: left">a &amp; b</caption>' in table.html()
    assert (
        '<td style="white-space: nowrap; text-align: left">&lt;x&gt;</td>'
        '<td style="white-space: nowrap;">1.0±0.2</td>'
    ) in table.html()


def test_one_method_has_no_standings() -> None:
    assert standings(scene(), rows(fedavg={4: [0.5, 0.5]})) == []


def test_a_comparison_of_one_seed_shows_the_compared_figure_alone() -> None:
    scene_of_one = scene_with({"seeds": [4]})
    found = deciding(scene_of_one, rows(fedavg={4: [0.5, 0.6]}, fedclust={4: [0.7, 0.8]}))
    assert found is not None
    assert found.headers == ["method", "own last", "models"]
    assert [list(line) for line in found.rows] == [
        ["fedavg", "55.00", "–"],
        ["fedclust", "75.00", "2"],
    ]


@pytest.mark.parametrize(
    "more", [{"seeds": [4, 5]}, {"target": 0.9}, {"published": {"fedavg": 90.0}}]
)
def test_a_comparison_for_a_paper_shows_all_tables(more: Mapping[str, Any]) -> None:
    whole = scene_with({"seeds": [4], **more})
    assert deciding(whole, rows(fedavg={4: [0.5, 0.6]})) is None


def scene_with(changes: Mapping[str, Any]) -> Scenario:
    compare: dict[str, Any] = {
        "methods": [{"name": "fedavg"}, {"name": "fedclust"}],
        "published": {},
        "metric": "last",
    }
    compare |= changes
    return scenario(compare=compare)


def test_the_gain_of_an_agent_is_its_own_difference_in_the_mean_over_seeds() -> None:
    rows = [
        row("local", 4, [0.5, 0.8]),
        row("fedavg", 4, [0.7, 0.7]),
        row("local", 5, [0.5, 0.8]),
        row("fedavg", 5, [0.9, 0.7]),
    ]
    [field] = fields(scene(), rows)
    gains = gains_by_agent(field, "fedavg", "local")
    assert {agent: round(gain, 6) for agent, gain in gains.items()} == {
        "agent-0": 0.3,
        "agent-1": -0.1,
    }
    shown = [picture.caption for picture in of_field(field) if picture.name == "gains"]
    assert shown == ["Worse off: with fedavg 1 agent of 2: agent-1."]


def test_the_table_of_verdicts_has_a_line_for_each_method() -> None:
    rows = [row("fedavg", 4, [0.5, 0.6]), row("fedclust", 4, [0.9, 0.9], clusters=2)]
    table = verdict_table(verdicts(scene(), rows))
    assert table.headers == ["method", "verdict", "accuracy own last", "gain", "95 %", "over"]
    assert [line[0] for line in table.rows] == ["fedclust"]
    assert (table.rows[0][3], table.rows[0][5]) == ("+35.00", "fedavg 55.00")
