from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from covey.shared.errors import UserError
from covey.shared.scenario.describe import dump, methods, schema
from covey.shared.scenario.introspection import fields, members
from covey.shared.scenario.load import load
from covey.shared.scenario.partition import Dirichlet, Iid, LabelSkew
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.fedavg import FedAvg
from covey.shared.strategies.fedclust import FedClust
from covey.shared.strategies.registry import BUILT_IN
from covey.shared.written import is_first
from tests.methods import METHODS
from tests.night import examples

WHOLE = """\
name: lenet
task:
  features: [1, 28, 28]
  classes: 10
strategy:
  name: fedclust
  n_clusters: 2
rounds:
  count: 3
fleet:
  agents: 4
  partition: {name: dirichlet, alpha: 0.5}
  timeline:
    - {agents: [1], joins: 2}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "scenario.yaml", WHOLE)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def errors(path: Path, *overrides: str) -> list[str]:
    """The errors of a file, without its name and without their count."""
    with pytest.raises(UserError) as error:
        load(path, overrides)
    first, *rest = str(error.value).split("\n  ")
    assert first.startswith(f"{path}: ")
    return rest or [first.removeprefix(f"{path}: ")]


def changed(path: Path, old: str, new: str) -> Path:
    assert old in WHOLE
    return write(path, WHOLE.replace(old, new))


def test_a_scenario_is_read(file: Path) -> None:
    scenario = load(file)
    assert (scenario.name, scenario.strategy.name, scenario.rounds.count) == (
        "lenet",
        "fedclust",
        3,
    )
    assert scenario.fleet is not None
    assert scenario.fleet.partition == Dirichlet(alpha=0.5)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "n_clusters",
            "cluster",
            "strategy.cluster: unknown key, line 7; did you mean n_clusters?",
        ),
        ("alpha", "alhpa", "fleet.partition.alhpa: unknown key, line 12; did you mean alpha?"),
        ("joins", "joined", "fleet.timeline.0.joined: unknown key, line 14; did you mean joins?"),
        ("  classes", "  klasses", "task.klasses: unknown key, line 4; did you mean classes?"),
        ("count: 3", "count: many", "rounds.count: 'many', line 9; expected a whole number"),
        ("count: 3", "count: 0", "rounds.count: 0, line 9; expected at least 1"),
        ("alpha: 0.5", "alpha: -1", "fleet.partition.alpha: -1, line 12; expected more than 0"),
        ("fedclust", "fedclst", "strategy.name: 'fedclst', line 6; did you mean fedclust?"),
        (
            "dirichlet",
            "dirichle",
            "fleet.partition.name: 'dirichle', line 12; did you mean dirichlet?",
        ),
        (
            "  agents: 4",
            "  workers: 4",
            "fleet.agents: missing, line 10; this key is required: Number of simulated agents, newcomers included.",
        ),
        (
            "  features: [1, 28, 28]\n",
            "",
            "task.features: missing, line 2; this key is required: Shape of one example, channels first: [1, 28, 28] for a grey image, [9, 128] for a window of nine sensors, [12] for a row of a table.",
        ),
        (
            "joins: 2",
            "joins: 2, leaves: 1",
            "fleet.timeline.0: line 14; joins, leaves, returns must be ascending rounds, not [2, 1]",
        ),
        (
            "  count: 3",
            "  agents: 2\n  quorum: 3",
            "rounds: line 8; quorum is 3, but a round has 2 agents; lower quorum or raise agents",
        ),
    ],
)
def test_an_error_names_the_key_the_line_the_value_and_the_expectation(
    file: Path, old: str, new: str, said: str
) -> None:
    assert errors(changed(file, old, new)) == [said]


@pytest.mark.parametrize(
    ("key", "value", "at", "said"),
    [
        ("task.scale", ".inf", "", "inf, OVERRIDE; expected a finite number"),
        ("training.lr", ".inf", "", "inf, OVERRIDE; expected a finite number"),
        ("training.lr_steps", "[[0.5, .inf]]", ".0.1", "inf, OVERRIDE; expected a finite number"),
        ("strategy.lambda", ".nan", "", "nan, OVERRIDE; expected a finite number"),
        ("rounds.deadline_s", ".inf", "", "inf, OVERRIDE; expected a finite number"),
        (
            "task.standardise",
            "{mean: [.nan], std: [1]}",
            ".mean.0",
            "nan, OVERRIDE; expected a finite number",
        ),
        (
            "task.standardise",
            "{mean: [0.5], std: [0]}",
            ".std.0",
            "0, OVERRIDE; expected more than 0",
        ),
        (
            "task.standardise",
            "{mean: [0.5, 0.1], std: [1]}",
            "",
            "OVERRIDE; 2 means and 1 standard deviations; expected one of each per channel, 1 for features [1, 28, 28]",
        ),
        (
            "task.classes",
            "0",
            "",
            "OVERRIDE; 0 classes; expected at least 2, or null for regression",
        ),
        (
            "task.classes",
            "[]",
            "",
            "OVERRIDE; 0 classes; expected at least 2, or null for regression",
        ),
        (
            "task.classes",
            "[a, b, a]",
            "",
            "OVERRIDE; ['a'] occur more than once; list each class once",
        ),
        ("task.features", "[-1, 8, 8]", ".0", "-1, OVERRIDE; expected at least 1"),
    ],
)
def test_an_impossible_number_is_refused_with_its_key(
    file: Path, key: str, value: str, at: str, said: str
) -> None:
    override = f"{key}={value}"
    assert errors(file, override) == [
        f"{key}{at}: {said.replace('OVERRIDE', f'override {override}')}"
    ]


@pytest.mark.parametrize(
    ("tune", "said"),
    [
        (
            "{momentom: 0.5}",
            "evaluation.tune.momentom: unknown key, line 8; did you mean momentum?",
        ),
        ("{lr: -1}", "evaluation.tune.lr: -1, line 8; expected more than 0"),
        ("{momentum: 1}", "evaluation.tune.momentum: 1, line 8; expected less than 1"),
        ("{batch: 0}", "evaluation.tune.batch: 0, line 8; expected at least 1"),
        (
            "{epochs: 5}",
            "evaluation.tune: line 8; epochs is no key of this section; set evaluation.tune_epochs instead",
        ),
        (
            "{lr_steps: [[0.5, 0.1]]}",
            "evaluation.tune: line 8; lr_steps counts rounds, and fine-tuning has no rounds; set the learning rate lr instead",
        ),
    ],
)
def test_a_wrong_setting_of_fine_tuning_is_reported_with_its_line(
    file: Path, tune: str, said: str
) -> None:
    assert errors(changed(file, "rounds:\n", f"evaluation: {{tune: {tune}}}\nrounds:\n")) == [said]


def test_fine_tuning_uses_the_training_section_and_its_own_differences(file: Path) -> None:
    plain = load(file, ["training.momentum=0.9", "training.epochs=7"])
    assert plain.fine_tuning == {
        "epochs": 1,
        "batch": 10,
        "lr": 0.01,
        "momentum": 0.9,
        "weight_decay": 0.0,
    }
    tuned = load(
        file,
        [
            "training.momentum=0.9",
            "evaluation.tune={momentum: 0.0, lr: 0.5}",
            "evaluation.tune_epochs=2",
        ],
    )
    assert tuned.fine_tuning == {
        "epochs": 2,
        "batch": 10,
        "lr": 0.5,
        "momentum": 0.0,
        "weight_decay": 0.0,
    }
    assert tuned.evaluation.model_dump()["tune"] == {
        "lr": 0.5,
        "momentum": 0.0,
    }  # spelled out: what differs
    assert load(file, ["evaluation.tune_epochs=0"]).fine_tuning is None


@pytest.mark.whole
def test_a_schedule_of_rounds_is_refused_for_a_method_without_rounds(file: Path) -> None:
    (said,) = errors(file, "training.lr_steps=[[0.5, 0.1]]", "strategy.name=local")
    why = "training.lr_steps is not for local: it counts rounds, and here every agent trains once, for its whole budget"
    assert said.endswith(f"{why}; leave it out")
    compared = "compare={methods: [{name: fedavg}, {name: local}], seeds: [1]}"
    (said,) = errors(file, "training.lr_steps=[[0.5, 0.1]]", compared)
    assert said.endswith(
        f"compare, method local: {why}; give the method training: {{lr_steps: []}}"
    )
    laid = (
        "compare={methods: [{name: fedavg}, {name: local, training: {lr_steps: []}}], seeds: [1]}"
    )
    assert load(file, ["training.lr_steps=[[0.5, 0.1]]", laid]).compare is not None


def test_the_schema_shows_the_settings_of_fine_tuning(file: Path) -> None:
    data = yaml.safe_load(WHOLE) | {"evaluation": {"tune": {"momentum": 0.5}}}
    validator = Draft202012Validator(schema())
    assert validator.is_valid(data)
    for wrong in ({"momentum": 1}, {"epochs": 2}, {"momentom": 0.5}):
        assert not validator.is_valid(data | {"evaluation": {"tune": wrong}})


def test_a_task_without_features_is_refused(file: Path) -> None:
    (said,) = errors(file, "task.features=[]")
    assert said.startswith("task.features: [], override task.features=[]; ")
    assert "at least 1 item" in said


def test_a_key_that_resembles_no_other_is_answered_with_all_known_keys(file: Path) -> None:
    assert errors(changed(file, "count", "zzz")) == [
        "rounds.zzz: unknown key, line 9; known: "
        + ", ".join(sorted(type(load(write(file, WHOLE)).rounds).model_fields))
    ]


@pytest.mark.parametrize(
    ("override", "key", "known"),
    [
        ("strategy={name: fedclust, n_clusters: 2, mu: 0.1}", "strategy.mu", FedClust),
        ("strategy={name: fedavg, n_clusters: 2}", "strategy.n_clusters", FedAvg),
        ("fleet.partition={name: iid, alpha: 0.1}", "fleet.partition.alpha", Iid),
        ("strategy.foo=1", "strategy.foo", FedClust),
    ],
)
def test_an_unknown_key_is_answered_with_the_keys_of_the_chosen_method_or_rule(
    file: Path, override: str, key: str, known: type[BaseModel]
) -> None:
    assert errors(file, override) == [
        f"{key}: unknown key, override {override}; known: {', '.join(sorted(fields(known)))}"
    ]


def test_a_union_without_a_name_lists_its_members(file: Path) -> None:
    (said,) = errors(changed(file, "  name: fedclust\n", ""))
    assert said.startswith("strategy.name: missing, line 5; known: ")
    assert {"fedavg", "fedclust"} <= set(said.partition("known: ")[2].split(", "))


def test_bare_yes_and_no_as_class_names_are_explained(file: Path) -> None:
    first, second = errors(changed(file, "classes: 10", "classes: [no, yes]"))
    assert first.startswith("task.classes.0: False, line 4; expected text")
    assert second.endswith("put it in quotes")


def test_all_errors_are_reported_at_once(file: Path) -> None:
    write(
        file,
        WHOLE.replace("n_clusters", "cluster")
        .replace("count: 3", "count: 0")
        .replace("alpha", "beta"),
    )
    assert [said.partition(":")[0] for said in errors(file)] == [
        "strategy.cluster",
        "rounds.count",
        "fleet.partition.beta",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: a\nseed: 1\nname: b\n", "name: given twice, line 1 and line 3"),
        (
            "task: {}\nfleet:\n  agents: 1\n  agents: 2\n",
            "fleet.agents: given twice, line 3 and line 4",
        ),
        ("name: [a\ntask: 1\n", "line 2"),
        ("name: !!python/object/apply:os.system [true]\n", "line 1"),
        ("", "the file is empty"),
        ("- a\n- b\n", "holds a list"),
        ("? [a, b]\n: c\n", "a key must be a plain word, line 1"),
        ("seed: 1\nname: \x00\n", "is not allowed in YAML, line 2"),
        ("a: " + "[" * 1_000, "nested too deeply"),
    ],
)
def test_a_text_that_is_not_a_scenario_is_refused_with_its_line(
    file: Path, text: str, said: str
) -> None:
    assert said in errors(write(file, text))[0]


def test_aliases_cannot_make_a_small_file_grow_without_end(file: Path) -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    assert "more than 100000 keys" in errors(write(file, "\n".join(lines)))[0]
    assert "nested deeper than 64 levels, line 1" in errors(write(file, "a: &a\n  b: *a\n"))[0]


def test_a_missing_or_binary_file_is_named(tmp_path: Path) -> None:
    assert errors(tmp_path / "none.yaml") == [
        "this file does not exist; expected the YAML file of a scenario; `coordinator init` writes one for your data"
    ]
    (tmp_path / "image.yaml").write_bytes(b"\xff\xfe\x00")
    assert errors(tmp_path / "image.yaml")[0].startswith("cannot be read as text")


# -- overrides ---------------------------------------------------------------------------------------------------------


def test_an_override_replaces_the_file_and_the_defaults(file: Path) -> None:
    scenario = load(
        file,
        [
            "rounds.count=5",
            "training.lr=1e-3",
            "wire.codec=int8",
            "fleet.timeline.0.joins=3",
            "broker=null",
        ],
    )
    assert (scenario.rounds.count, scenario.training.lr, scenario.wire.codec, scenario.broker) == (
        5,
        0.001,
        "int8",
        None,
    )
    assert scenario.fleet is not None
    assert scenario.fleet.timeline[0].joins == 3


def test_another_name_in_a_union_removes_the_old_members_keys(file: Path) -> None:
    scenario = load(file, ["strategy.name=fedavg", "fleet.partition.name=label_skew"])
    assert scenario.strategy.name == "fedavg"
    assert scenario.fleet is not None
    assert scenario.fleet.partition == LabelSkew()


def test_the_same_name_keeps_the_keys(file: Path) -> None:
    assert load(file, ["strategy.name=fedclust"]).strategy == load(file).strategy


def test_the_order_of_overrides_does_not_matter_for_a_union(file: Path) -> None:
    one, two = "strategy.name=fesem", "strategy.mu=0.25"
    assert load(file, [one, two]).strategy == load(file, [two, one]).strategy
    assert load(file, [two, one]).strategy.model_dump()["mu"] == 0.25


def test_the_name_of_a_section_outside_a_union_removes_nothing(file: Path) -> None:
    changed(file, "  classes: 10", "  classes: 10\n  model: {name: mlp, options: {hidden: 9}}")
    assert load(file, ["task.model.name=linear"]).task.model.options == {"hidden": 9}


def test_an_override_may_be_a_whole_list_or_section(file: Path) -> None:
    scenario = load(file, ["task.classes=[a, b]", "fleet.partition={name: iid}"])
    assert scenario.task.classes == ("a", "b")
    assert scenario.fleet is not None
    assert scenario.fleet.partition == Iid()


def test_an_error_in_an_override_names_the_override_instead_of_a_line(file: Path) -> None:
    assert errors(file, "rounds.cuont=5") == [
        "rounds.cuont: unknown key, override rounds.cuont=5; did you mean count?"
    ]
    assert errors(file, "rounds.count=x")[0].startswith(
        "rounds.count: 'x', override rounds.count=x; "
    )


@pytest.mark.parametrize(
    "override",
    [
        "rounds.count",
        "=5",
        "rounds..count=5",
        "a=[1",
        "fleet.timeline.7.joins=1",
        "fleet.timeline.x=1",
    ],
)
def test_an_unreadable_override_is_quoted(file: Path, override: str) -> None:
    with pytest.raises(UserError, match="override"):
        load(file, [override])


# -- files -------------------------------------------------------------------------------------------------------------


def test_relative_paths_start_at_the_scenarios_folder(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file.parent / "theta.npz").touch()
    (file.parent / "elsewhere").mkdir()
    monkeypatch.chdir(file.parent / "elsewhere")
    scenario = load(
        Path("../scenario.yaml"),
        ["task.init=theta.npz", "fleet.partition=./theta.npz", "rounds.participants=theta.npz"],
    )
    theta = str(file.parent.resolve() / "theta.npz")
    assert scenario.fleet is not None
    assert (scenario.task.init, scenario.fleet.partition, scenario.rounds.participants) == (
        theta,
        theta,
        theta,
    )


def test_an_absolute_path_stays(file: Path, tmp_path: Path) -> None:
    theta = write(tmp_path.resolve() / "theta.npz", "")
    assert load(file, [f"task.init={theta}"]).task.init == str(theta)


def test_a_missing_file_is_reported_with_the_other_errors(file: Path) -> None:
    changed(file, "classes: 10", "classes: 10\n  init: none.npz\n  scale: -1")
    scale, init = errors(file)
    assert scale.startswith("task.scale: -1, line 6")
    assert (
        init
        == f"task.init: 'none.npz', line 5; there is no file {file.parent.resolve() / 'none.npz'}"
    )


def test_a_misspelled_rule_is_not_only_a_missing_file(file: Path) -> None:
    assert errors(changed(file, "{name: dirichlet, alpha: 0.5}", "dirichlett"))[0].endswith(
        ", and no such rule; did you mean dirichlet?"
    )


@pytest.mark.whole
def test_a_section_may_be_written_as_its_name_alone(file: Path) -> None:
    names = ["strategy=fedclust", "task.model=linear", "fleet.partition=dirichlet"]
    compared = (
        "compare={methods: [fedavg, {name: ifca, n_clusters: 2}], partitions: [iid], seeds: [1]}"
    )
    scenario = load(file, [*names, compared])
    written_out = ["strategy={name: fedclust}", "task.model={name: linear}"]
    same = load(file, [*written_out, "fleet.partition={name: dirichlet}", compared])
    assert scenario == same
    assert load(write(file, dump(scenario))) == scenario
    assert scenario.compare is not None
    assert [method.label for method in scenario.compare.methods] == ["fedavg", "ifca"]
    assert [split.label for split in scenario.compare.partitions] == ["iid"]


def test_an_override_of_one_key_keeps_a_name_that_was_written_alone(file: Path) -> None:
    scenario = load(file, ["strategy=fedclust", "strategy.n_clusters=3"])
    assert (scenario.strategy.name, scenario.strategy.model_dump()["n_clusters"]) == ("fedclust", 3)
    assert load(file, ["task.model=linear", "task.model.options={}"]).task.model.name == "linear"


def test_a_misspelled_name_alone_is_answered_as_in_a_section(file: Path) -> None:
    (said,) = errors(file, "strategy=fedclus")
    assert said.startswith("strategy.name: 'fedclus'")
    assert said.endswith("did you mean fedclust?")


def test_the_schema_accepts_names_alone(validator: Draft202012Validator) -> None:
    data = yaml.safe_load(WHOLE) | {"strategy": "fedclust"}
    data["task"] = {**data["task"], "model": "linear"}
    data["compare"] = {"methods": ["fedavg"], "partitions": ["iid"]}
    assert validator.is_valid(data)


# -- writing -----------------------------------------------------------------------------------------------------------


def test_a_dump_contains_every_default_and_first_what_most_scenarios_set(file: Path) -> None:
    scenario = load(file)
    text = dump(scenario)
    data = yaml.safe_load(text)
    for section, keys in ((scenario, data), (scenario.rounds, data["rounds"])):
        known = fields(type(section))
        of_first = [key for key in known if is_first(key, known[key])]
        assert list(keys) == of_first + [key for key in known if key not in of_first]
    assert data["strategy"]["linkage"] == "average"
    assert "lambda" in data["strategy"]
    rounds = text.partition("\nrounds:\n")[2].partition("\n\n")[0]
    above, _, below = rounds.partition("  # seldom set\n")
    assert "  count: 3\n" in above
    assert "  timing:\n    first_work_s: 60.0\n" in below
    assert "#" not in below


def test_a_dump_is_readable(file: Path) -> None:
    text = dump(load(file))
    assert "  features: [1, 28, 28]\n" in text
    assert "\n\ntask:\n" in text
    assert "\n\n\n" not in text
    assert "    - agents: [1]\n      joins: 2\n" in text


def test_a_dump_loads_back_to_an_equal_scenario(file: Path) -> None:
    changed(
        file,
        "classes: 10",
        'classes: ["no", "1", "null"]\n  standardise: {mean: [0.5], std: [1.0e-8]}',
    )
    scenario = load(file, ["strategy.n_clusters=null", "strategy.lambda=1e300"])
    assert load(write(file, dump(scenario))) == scenario


def tried(kind: Any) -> Any:
    """A method of a class, with the options that it needs."""
    return kind.model_validate(METHODS[kind.model_fields["name"].default])


@settings(
    max_examples=examples(13),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    text=st.text(max_size=8),
    number=st.floats(allow_nan=False, allow_infinity=False),
    kind=st.sampled_from(list(BUILT_IN.values())),
)
@example(text="\x85", number=0.0, kind=BUILT_IN["cfl"])
def test_any_options_and_any_method_survive_a_dump(
    file: Path, text: str, number: float, kind: Any
) -> None:
    options = {"text": text, "number": number, "many": [[1, 2], [], {}], text: {"": None}}
    scenario = load(write(file, WHOLE)).model_copy(update={"strategy": tried(kind)})
    task = scenario.task.model_copy(
        update={"model": scenario.task.model.model_copy(update={"options": options})}
    )
    scenario = scenario.model_copy(update={"task": task})
    assert load(write(file, dump(scenario))) == scenario


# -- methods and schema ------------------------------------------------------------------------------------------------


def test_every_method_is_listed_with_its_parameters() -> None:
    listed = {method["name"]: method for method in methods()}
    assert set(listed) == set(BUILT_IN)
    assert all(method["summary"] and method["source"] for method in listed.values())
    parameters = {one["name"]: one for one in listed["fedclust"]["parameters"]}
    assert parameters["lambda"]["type"] == "float | null"
    assert (parameters["linkage"]["type"], parameters["linkage"]["default"]) == (
        "average | single | complete | weighted | ward",
        "complete",
    )
    assert parameters["n_clusters"]["description"]
    json.dumps(methods())


def test_every_parameter_has_a_description() -> None:
    assert [
        (m["name"], p["name"]) for m in methods() for p in m["parameters"] if not p["description"]
    ] == []


@pytest.mark.whole
def test_the_listed_names_work_in_a_file(file: Path) -> None:
    for method in methods():
        own = METHODS[method["name"]]
        given = {
            one["name"]: own[one["name"]] if one["required"] else one["default"]
            for one in method["parameters"]
        }
        loaded = load(file, [f"strategy={json.dumps({'name': method['name'], **given})}"])
        assert loaded.strategy.name == method["name"]


def test_a_registry_of_a_single_method_has_one_member() -> None:
    assert members(Iid) == [Iid]


def test_the_schema_describes_a_scenario() -> None:
    made = schema()
    assert set(made["required"]) == {"name", "task", "strategy"}
    assert "lambda" in made["$defs"]["FedClust"]["properties"]
    json.dumps(made)


SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios").glob("*.yaml"))


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    return Draft202012Validator(schema())


@pytest.mark.whole
@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_scenario_of_ours_comes_back_from_its_dump_and_the_schema_accepts_both(
    path: Path, tmp_path: Path, validator: Draft202012Validator
) -> None:
    loaded = load(path)
    assert loaded.name == path.stem
    again = write(tmp_path / "again.yaml", dump(loaded))
    assert load(again) == loaded
    for one in (path, again):
        validator.validate(yaml.load(one.read_text(), yaml.CSafeLoader))


@pytest.mark.parametrize(
    "compare",
    [
        {"methods": [{"name": "fedclust", "clusters": 2}]},
        {"methods": [{"name": "fedclust", "n_clusters": 0}]},
        {"methods": [{"name": "no_such_method"}]},
        {"methods": [{"n_clusters": 2}]},
        {"methods": [{"label": "fedavg"}]},
        {"methods": [{"name": "fedavg"}], "partitions": [{"name": "rotation", "groups": 3}]},
    ],
)
def test_the_schema_refuses_what_a_comparison_refuses(
    compare: dict[str, Any], validator: Draft202012Validator
) -> None:
    data = yaml.safe_load(WHOLE)
    right = {"methods": [{"name": "fedclust", "n_clusters": 2}]}
    assert validator.is_valid({**data, "compare": right})
    assert not validator.is_valid({**data, "compare": compare})
    with pytest.raises(ValueError):
        Scenario.model_validate({**data, "compare": compare})


@pytest.mark.whole
def test_changed_images_need_images_and_no_dp_sgd(file: Path) -> None:
    shift = "training.augment=shift"
    (said,) = errors(file, shift, "task.features=[12]")
    assert "training.augment needs images, and task.features is [12]" in said
    (said,) = errors(file, shift, "privacy.local={noise_multiplier: 1}")
    assert "DP-SGD trains on images unchanged" in said
    method = "compare={methods: [{name: fedavg, training: {augment: shift}}], seeds: [1]}"
    (said,) = errors(file, method, "task.features=[12]")
    assert "training.augment needs images" in said


def test_balanced_weights_need_classes_and_no_dp_sgd(file: Path) -> None:
    balanced = "training.weights=balanced"
    assert load(file, [balanced]).training.model_dump()["weights"] == "balanced"
    (said,) = errors(file, balanced, "task.classes=null")
    assert "training.weights: balanced is for classes" in said
    (said,) = errors(file, balanced, "privacy.local={noise_multiplier: 1}")
    assert "DP-SGD bounds what each example adds" in said


def test_fine_tuning_uses_images_unchanged(file: Path) -> None:
    scenario = load(file, ["training.augment=shift_flip", "training.epochs=3"])
    assert scenario.tuning.augment == "none"
    assert scenario.tuning.epochs == 3
    assert scenario.training.model_dump()["augment"] == "shift_flip"


def test_a_rule_of_several_sections_begins_with_the_key_it_is_about(file: Path) -> None:
    overrides = ("strategy.name=fedavg", "rounds.mode=buffered", "rounds.quorum=2")
    [error] = errors(file, *overrides)
    assert error.startswith("rounds.mode buffered: rounds.quorum is about")
