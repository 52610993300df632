"""The rules of a device: what is refused, with which words, and how a policy is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from covey.agent.cli.program import app
from covey.agent.policy import (
    DAY_S,
    SIGNATURES,
    UNLIMITED,
    OwnersRules,
    Policy,
    PolicyError,
    TasksOfDay,
    values_of,
)
from covey.shared.errors import UserError
from covey.shared.own_code.consent import AllowedCode
from covey.shared.strategies.registry import BUILT_IN
from covey.shared.wire.jobs import HEAD_BYTES, JobRules, pack, unpack
from tests.agent.orders import LAYOUT, TASK, order, ref, rest

DEVICE = "pi-7"


def policy(**changes: Any) -> OwnersRules:
    return OwnersRules(Policy(**changes))


def test_an_ordinary_order_is_not_refused() -> None:
    assert OwnersRules().refuses(order(1, ref(), ref("@pi-7")), DEVICE) is None
    assert OwnersRules().refuses(rest(), DEVICE) is None
    assert OwnersRules().refuses_task(TASK.for_agents()) is None


def test_a_device_that_hides_its_words_takes_part_in_tasks_that_list_them() -> None:
    listed = {
        **TASK.for_agents(),
        "categories": {"town": ["Oslo"], "size": {"values": [], "room": 3}},
    }
    assert policy(words="hidden").refuses_task(listed) is None
    asking = {**TASK.for_agents(), "categories": {"town": 8}}
    assert OwnersRules().refuses_task(asking) is None
    assert "words" in (policy(words="hidden").refuses_task(asking) or "")


def model(**options: Any) -> dict[str, Any]:
    return {**TASK.for_agents(), "model": {"name": "mlp", "options": options}}


DEMANDING = policy(privacy={"local_epsilon": 8})
SIGNING = policy(privacy={"signatures": 0.1})

REFUSED: list[tuple[OwnersRules, dict[str, Any], str]] = [
    (policy(methods=["fedclust", "ifca"]), {}, "methods: fedavg is not among fedclust, ifca"),
    (
        policy(refuse_phases=["signature"]),
        {"phase": "signature"},
        "refuse_phases: the phase signature is refused",
    ),
    (
        policy(max_epochs=3),
        {"training": {"epochs": 4}},
        "max_epochs: training.epochs is 4, at most 3 are allowed",
    ),
    (
        policy(words="hidden"),
        {"task": {**TASK.for_agents(), "categories": {"town": 8, "name": "9", "size": ["s", "m"]}}},
        "words: the task asks for the words of 2 columns",
    ),
    (DEMANDING, {}, "privacy.local_epsilon: the order trains without privacy.local"),
    (
        DEMANDING,
        {"privacy": {"local": {"target_epsilon": 9.0}}},
        "privacy.local_epsilon: privacy.local.target_epsilon is 9, at most 8 is allowed",
    ),
    (DEMANDING, {"privacy": {"local": {"target_epsilon": "8"}}}, "target_epsilon is nan"),
    (DEMANDING, {"privacy": {"local": True}}, "trains without privacy.local"),
    (DEMANDING, {"phase": "moments"}, "privacy.local_epsilon: statistics of the data"),
    (SIGNING, {"phase": "signature"}, "privacy.signatures: .* noise of 0 x clip, at least 0.1"),
    (
        SIGNING,
        {"phase": "warmup", "privacy": {"signatures": {"noise_multiplier": 0.05}}},
        "privacy.signatures: .* noise of 0.05 x clip",
    ),
    (
        SIGNING,
        {"phase": "entry", "privacy": {"signatures": {"noise_multiplier": "9"}}},
        "privacy.signatures",
    ),
    (
        policy(privacy={"min_cell": 6}),
        {"numbers": {"card": 5}},
        "privacy.min_cell: .* the sums of 5 samples of a class, at least 6 are demanded",
    ),
    (
        policy(privacy={"min_cell": 5}),
        {"numbers": {"card": 1}},
        "privacy.min_cell: .* of 1 samples",
    ),
    (policy(max_epochs=3), {"numbers": {"epochs": 9}}, "max_epochs: numbers.epochs is 9"),
    (policy(max_steps=3), {"numbers": {"steps": 9}}, "max_steps: the order takes 9 steps or more"),
    (OwnersRules(), {"numbers": {"steps": "many"}}, "numbers.steps: expected a whole number"),
    (
        policy(max_epochs=3),
        {"evaluation": {"tune_epochs": 5}},
        "max_epochs: evaluation.tune_epochs is 5",
    ),
    (
        policy(max_model_values=9),
        {},
        "max_model_values: the model has 10 values, at most 9 are allowed",
    ),
    (OwnersRules(), {"training": {"epochs": "many"}}, "training.epochs: expected a whole number"),
    (
        OwnersRules(),
        {"layout": {"tensors": 3, "trainable": 1}},
        "layout: expected a list of tensors",
    ),
    (
        OwnersRules(),
        {"task": {**TASK.for_agents(), "init": "/etc/shadow"}},
        "task.init names a file on this device",
    ),
    (
        OwnersRules(),
        {"task": {**TASK.for_agents(), "model": {"name": "os:system"}}},
        "os:system; .* --allow os",
    ),
    (policy(samples="hidden"), {"phase": "moments"}, "samples: statistics count the rows"),
    (OwnersRules(), {"task": {**TASK.for_agents(), "model": []}}, "task.model: expected a mapping"),
    (OwnersRules(), {"task": model(hidden=10**9)}, "task.model.options: at most"),
    (OwnersRules(), {"task": model(hidden=[[1]] * 300)}, "task.model.options: at most"),
]


@pytest.mark.parametrize(("rules", "changes", "why"), REFUSED, ids=lambda value: str(value)[:40])
def test_an_order_that_breaks_a_rule_is_refused_with_its_name(
    rules: OwnersRules, changes: dict[str, Any], why: str
) -> None:
    refusal = rules.refuses(order(1, ref(), **changes), DEVICE)
    assert refusal is not None
    with pytest.raises(PolicyError, match=why):
        raise PolicyError(refusal)
    again = OwnersRules.of_job(
        unpack(pack(rules.for_job())[HEAD_BYTES:])
    )  # the worker holds the order against the same rules
    assert again.refuses(order(1, ref(), **changes), DEVICE) == refusal


@pytest.mark.parametrize(
    ("rules", "changes"),
    [
        (DEMANDING, {"phase": "evaluate"}),
        (DEMANDING, {"privacy": {"local": {"target_epsilon": 8.0}}}),
        (DEMANDING, {"privacy": {"local": {"noise_multiplier": 1.0}}}),
        (SIGNING, {}),
        (policy(privacy={"min_cell": 5}), {"numbers": {"card": 5}}),
        (SIGNING, {"phase": "entry", "privacy": {"signatures": {"noise_multiplier": 0.1}}}),
    ],
)
def test_an_order_with_the_noise_that_the_owner_demands_is_accepted(
    rules: OwnersRules, changes: dict[str, Any]
) -> None:
    assert rules.refuses(order(1, ref(), **changes), DEVICE) is None


CHOOSING = {
    "read": ({"read": {"missing": ["61", "\x1b[31m"]}}, r"counts cells that read \['61', '.x1b"),
    "read of numbers": ({"read": {"decimal": ","}}, "reads cells in its own way: decimal ','"),
    "a read of no kind": ({"read": [1]}, "reads cells in its own way"),
    "impute": ({"impute": "drop"}, "leaves out rows with a missing cell"),
    "drop_unlabelled": ({"drop_unlabelled": 1}, "leaves out rows without a target"),
}


@pytest.mark.parametrize(("changes", "does"), CHOOSING.values(), ids=CHOOSING)
def test_a_task_that_chooses_rows_needs_consent_where_its_owner_demands_anything(
    changes: dict[str, Any], does: str
) -> None:
    asked = {**TASK.for_agents(), **changes}
    assert policy().refuses_task(asked) is None
    refusal = policy(samples="hidden").refuses_task(asked)
    assert refusal is not None
    with pytest.raises(PolicyError, match=f"policy of this device: task: .*{does}"):
        raise PolicyError(refusal)
    [key] = changes
    assert policy(samples="hidden", task=[key]).refuses_task(asked) is None


def test_different_tasks_of_a_day_are_counted_where_anything_is_demanded() -> None:
    demanding = Policy.model_validate({"labels": "hidden", "max_tasks": 2})
    tasks = TasksOfDay(demanding)
    assert [tasks.refuses({"target": str(n % 2)}, float(n)) for n in range(4)] == [None] * 4
    refusal = tasks.refuses({"target": "2"}, 4.0)
    assert refusal == "policy of this device: max_tasks: 2 different tasks within a day are allowed"
    assert tasks.refuses({"target": "2"}, DAY_S) is None
    assert tasks.refuses({"target": "1"}, DAY_S) is None
    free = TasksOfDay(Policy(max_tasks=1))
    assert [free.refuses({"target": n}, 0.0) for n in range(3)] == [None] * 3


def test_the_policy_knows_the_phases_in_which_methods_send_signatures() -> None:
    phases = {phase for method in BUILT_IN.values() for phase in method.facts.signatures}
    assert phases == set(SIGNATURES)


def test_the_demands_on_privacy_are_printed_and_a_wrong_key_gets_the_right_one() -> None:
    shown = CliRunner().invoke(
        app, ["lab", "policy", "--limit", "privacy={local_epsilon: 8, signatures: 0.1}"]
    )
    assert '"local_epsilon":8.0' in shown.stdout.replace(" ", "")
    assert '"signatures":0.1' in shown.stdout.replace(" ", "")
    with pytest.raises(
        UserError, match=r"privacy.local_epsilo: unknown key; did you mean local_epsilon"
    ):
        Policy.of({"privacy": {"local_epsilo": 8}}, "policy.yaml")


def test_models_are_counted_and_those_of_other_agents_are_refused() -> None:
    assert "max_models: 2 models, at most 1" in str(
        policy(max_models=1).refuses(order(1, ref(), ref("1")), DEVICE)
    )
    assert (
        OwnersRules().refuses(order(1, ref("@pi-8")), DEVICE)
        == "models: @pi-8 is another agent's own model"
    )
    large = ref(content=b"x" * 100_000)
    assert "a model of 100000 bytes, at most 65616" in str(
        policy(max_model_values=10).refuses(order(1, large), DEVICE)
    )


def test_steps_are_counted_over_all_trainings_of_an_order() -> None:
    rules = policy(max_steps=10)
    rules.check_steps(10)
    with pytest.raises(
        PolicyError, match="max_steps: the order takes 11 steps or more, at most 10"
    ):
        rules.check_steps(11)
    OwnersRules(UNLIMITED).check_steps(10**15)


def test_a_task_with_allowed_code_is_not_refused() -> None:
    own = {**TASK.for_agents(), "model": {"name": "my_pkg:net"}}
    assert OwnersRules(allowed=AllowedCode.parse(["my_pkg"])).refuses_task(own) is None
    assert OwnersRules.of_job(JobRules(allow=["my_pkg"])).refuses_task(own) is None
    assert "--allow my_pkg" in str(OwnersRules.of_job(JobRules()).refuses_task(own))


@pytest.mark.parametrize(
    "tensors",
    [[["w"]], [["w", [-1]]], [["w", [True]]], [["w", [1.0]]], [[1, [1]]], [["w", [1] * 9]]],
)
def test_a_malformed_layout_is_refused(tensors: Any) -> None:
    assert values_of(LAYOUT.to_wire()) == LAYOUT.size
    with pytest.raises(PolicyError, match="layout: expected"):
        values_of({"tensors": tensors, "trainable": 1})


def test_a_policy_comes_from_a_file_and_single_keys_from_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("methods: [fedavg]\nmax_seconds: 600\nmax_models: null\n")
    options = [
        "lab",
        "policy",
        "--policy",
        str(file),
        "--limit",
        "max_epochs=5",
        "--limit",
        "labels=hidden",
    ]
    shown = json.loads(CliRunner().invoke(app, [*options, "--json"]).output)
    assert shown["methods"] == ["fedavg"]
    assert (shown["max_seconds"], shown["max_models"], shown["max_epochs"], shown["labels"]) == (
        600,
        None,
        5,
        "hidden",
    )
    text = CliRunner().invoke(app, options).output
    assert "max_epochs: 5  # epochs of one training" in text


@pytest.mark.parametrize(
    ("text", "limits", "why"),
    [
        ("max_epoch: 5", [], "max_epoch: unknown key; did you mean max_epochs"),
        ("max_epochs: 0", [], "max_epochs: expected at least 1"),
        ("methods: [fedavgg]", [], "methods.0: .*unknown method 'fedavgg'"),
        ("labels: no", [], "labels: expected"),
        ("- 3", [], "the file: expected keys with values"),
        ("a: [", [], "not YAML"),
        ("", ["max_epochs"], "expected KEY=VALUE"),
        ("", ["max_seconds=soon"], "--limit: max_seconds"),
        ("", ["max_seconds=["], "not YAML"),
    ],
)
def test_an_error_in_a_policy_is_named(
    text: str, limits: list[str], why: str, tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=why):
        Policy.load(file).with_limits(limits)


def test_the_systemd_unit_contains_the_policy_and_the_allowed_code(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").touch()
    options = [
        "--data",
        str(tmp_path),
        "--policy",
        str(tmp_path / "policy.yaml"),
        "--limit",
        "max_epochs=5",
    ]
    more = ["--limit", "max_seconds=60", "--allow", "my_pkg.models", "--allow", "other"]
    unit = CliRunner().invoke(app, ["lab", "service", *options, *more]).output
    for words in (
        f"--policy {tmp_path}/policy.yaml",
        "--limit max_epochs=5",
        "--limit max_seconds=60",
    ):
        assert words in unit
    assert "--allow my_pkg.models --allow other" in unit


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("max_epoch=5", r"^--limit: max_epoch: unknown key; did you mean max_epochs\?$"),
        ("zzz=5", "zzz: unknown key; expected methods, refuse_phases, labels"),
        (
            "only_when=[noon]",
            r"^--limit: only_when\.0: unknown condition 'noon'; expected charging",
        ),
        ("memory_limit_mb=99999999999999999999", "memory_limit_mb: expected at most"),
    ],
)
def test_a_wrong_key_of_the_policy_is_answered_with_what_was_expected(
    limit: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        Policy().with_limits([limit])
