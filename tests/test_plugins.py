"""Another installed package adds a method, a model and a data source, and each machine's owner decides about them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from inspect import isfunction
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import covey
from covey.agent.data.load import load as load_data
from covey.coordinator.cli.program import app
from covey.shared.errors import UserError
from covey.shared.own_code import plugins
from covey.shared.own_code.consent import NO_CODE, AllowedCode, ConsentError, consented
from covey.shared.scenario.describe import dump, methods, methods_to_allow
from covey.shared.strategies.registry import TO_WRITE, installed_method
from covey.shared.work.order_settings import settings_of
from tests.agent.orders import work
from tests.kit.scenes import Scenes
from tests.processes import ROOT, free_port, program, until

EXAMPLE = ROOT / "tests" / "example_package"
NAMES = ("half_step", "two_layers", "blobs")
ALLOWED = AllowedCode(frozenset(NAMES))


def install(site: Path) -> Path:
    """The example package as an installer leaves it: its modules, and metadata with its entry points."""
    import tomllib

    shutil.copytree(EXAMPLE / "covey_example", site / "covey_example")
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    metadata = site / "covey_example-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: covey-example\nVersion: 1.0\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines.append(f"[{group}]")
        lines += [f"{name} = {value}" for name, value in points.items()]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    return site


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The example package is on the path of this process and of its children."""
    site = install(tmp_path / "site")
    monkeypatch.syspath_prepend(site)
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(site), inherited])))
    yield site
    for name in [name for name in sys.modules if name.startswith("covey_example")]:
        del sys.modules[name]


scenes = Scenes.of(
    "plugged",
    {"features": [2], "classes": 4, "model": {"name": "two_layers", "options": {"width": 6}}},
    training={"epochs": 1, "batch": 16, "lr": 0.1},
    strategy={"name": "half_step", "step": 0.75},
    rounds={"count": 3},
    evaluation={"deliver": "served"},
    fleet={"agents": 4, "data": "blobs", "workers": 1},
)


def test_the_names_of_installed_packages_are_listed_without_importing_them(installed: Path) -> None:
    assert plugins.installed(plugins.STRATEGIES) == ["half_step"]
    assert plugins.installed(plugins.DATA) == ["blobs"]
    assert "covey_example.method" not in sys.modules


def test_a_method_that_no_package_adds_is_an_unknown_name() -> None:
    with pytest.raises(UserError, match="half_step"):
        covey.run(scenes.document(task={"features": [2], "classes": 4}), allow=NAMES)


def test_a_method_that_the_owner_has_not_allowed_is_not_imported(installed: Path) -> None:
    with pytest.raises(ConsentError, match=r'allow=\["half_step"\]'):
        covey.run(scenes.document())
    assert "covey_example" not in sys.modules
    assert "covey_example.method" not in sys.modules


def test_an_order_for_a_method_that_the_device_has_not_allowed_is_refused(installed: Path) -> None:
    named = work(strategy={"name": "half_step"})
    with pytest.raises(ConsentError, match="--allow half_step"):
        settings_of(named)
    with consented(ALLOWED):
        method, _ = settings_of(named)
    assert type(method).__name__ == "HalfStep"


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("covey_example.data:blobs", "expected a subclass of covey.Strategy"),
        ("covey.shared.strategies.fedavg:FedAvg", "must have the field `name"),
        ("covey.shared.strategies.bases.single:SingleModel", "its class must write init, which"),
        ("covey_example.nothing:HalfStep", "cannot be imported"),
    ],
)
def test_an_entry_point_that_is_no_method_is_refused(
    installed: Path, target: str, why: str
) -> None:
    points = installed / "covey_example-1.0.dist-info" / "entry_points.txt"
    points.write_text(f"[covey.strategies]\nhalf_step = {target}\n")
    with consented(ALLOWED), pytest.raises(UserError, match=why):
        installed_method("half_step")


def test_what_a_method_must_write_is_what_its_interface_leaves_open() -> None:
    functions = {name: one for name, one in vars(covey.Strategy).items() if isfunction(one)}
    left_open = {
        name for name, one in functions.items() if "NotImplementedError" in one.__code__.co_names
    }
    assert left_open == {*TO_WRITE}


def test_two_packages_that_add_the_same_name_are_refused(installed: Path) -> None:
    other = installed / "covey_other-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: covey-other\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text("[covey.strategies]\nhalf_step = other:Method\n")
    with pytest.raises(UserError, match="several installed packages add 'half_step'"):
        plugins.load(plugins.STRATEGIES, "half_step", ALLOWED)


def test_a_scenario_with_an_installed_method_is_written_with_all_of_its_options(
    installed: Path,
) -> None:
    with consented(ALLOWED):
        loaded = covey.Scenario.model_validate(scenes.document())
    assert yaml.safe_load(dump(loaded))["strategy"]["step"] == 0.75


def test_consent_for_one_group_allows_nothing_of_another(installed: Path) -> None:
    only_data = AllowedCode.for_data("blobs")
    assert load_data("blobs", allowed=only_data).features.shape == (400, 2)
    with consented(only_data), pytest.raises(ConsentError):
        installed_method("half_step")
    with pytest.raises(ConsentError, match="--allow blobs"):
        load_data("blobs", allowed=NO_CODE)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what these tests make once."""
    return tmp_path_factory.mktemp("once")


@pytest.fixture
def trained(installed: Path, once: Path, tmp_path: Path) -> Path:
    """The folder of a run of the package's method, model and data."""
    if not (once / "run").exists():
        covey.run(scenes.document(), once / "run", allow=NAMES)
    return Path(shutil.copytree(once / "run", tmp_path / "run"))


@pytest.mark.whole
def test_method_model_and_data_of_a_package_train_in_process(trained: Path) -> None:
    result = covey.Result.read(trained)
    assert result.method == "half_step"
    assert {name: array.shape for name, array in result.models()[0].items()} == {
        "1.weight": (6, 2),
        "1.bias": (6,),
        "3.weight": (4, 6),
        "3.bias": (4,),
    }
    accuracy = result.accuracy()
    assert accuracy is not None
    assert accuracy > 0.5  # four centres: chance is 0.25


def test_a_check_finds_that_allowed_code_is_not_installed(installed: Path, tmp_path: Path) -> None:
    """No process of a run looks into the working directory."""
    (tmp_path / "split.py").write_text("def mine(path): ...")
    file = tmp_path / "scenario.yaml"
    method = {"name": "fedavg"}
    fleet = {"agents": 4, "data": "split:mine:data.npz"}
    file.write_text(json.dumps(scenes.document(method, fleet=fleet, task={"model": {}})))
    words = ["validate", str(file)]
    assert CliRunner().invoke(app, words).exit_code == 0  # it may be installed elsewhere
    refused = CliRunner().invoke(app, [*words, "--allow", "split"])
    assert refused.exit_code == 2
    assert "no module 'split' is installed here" in refused.stderr
    fleet["data"] = "covey_example.method:mine"
    file.write_text(json.dumps(scenes.document(method, fleet=fleet, task={"model": {}})))
    assert CliRunner().invoke(app, [*words, "--allow", "covey_example.method"]).exit_code == 0


def test_the_list_of_methods_names_an_installed_one_and_describes_it_once_it_is_allowed(
    installed: Path,
) -> None:
    assert methods_to_allow() == ["half_step"]
    assert "half_step" not in [row["name"] for row in methods()]
    with consented(ALLOWED):
        (row,) = [row for row in methods() if row["name"] == "half_step"]
        assert methods_to_allow() == []
    assert {"step", "server"} <= {parameter["name"] for parameter in row["parameters"]}


@pytest.mark.whole
def test_a_run_of_an_installed_method_has_a_report(trained: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ["report", str(trained), "--html", str(page)]
    refused = CliRunner().invoke(app, words)
    assert (refused.exit_code, "--allow half_step" in refused.output) == (2, True)
    shown = CliRunner().invoke(app, [*words, "--allow", "half_step"])
    assert (shown.exit_code, page.exists()) == (0, True), shown.output


@pytest.mark.whole
@pytest.mark.processes
def test_method_model_and_data_of_a_package_take_part_in_a_run_over_mqtt(
    installed: Path, tmp_path: Path
) -> None:
    """An agent in its own process that allows the package trains; one that does not gives the reason and stays out."""
    port = free_port()
    url = f"mqtt://127.0.0.1:{port}"
    file = tmp_path / "scenario.yaml"
    content = scenes.document(rounds={"count": 2, "start_agents": 1, "quorum": 1, "deadline_s": 60})
    del content["fleet"]
    file.write_text(yaml.safe_dump(content))
    allow = [word for name in NAMES[:2] for word in ("--allow", name)]
    broker = program(
        "covey.broker.cli", "up", "--port", str(port), "--embedded", log=tmp_path / "broker.log"
    )
    start = ("covey.agent.cli", "start", "--data", "blobs", "--broker", url)
    with broker:
        run = program(
            "covey.coordinator.cli", "run", str(file), "--broker", url, "--out", str(tmp_path / "run"), *allow, "--json",
            log=tmp_path / "run.log",
        )  # fmt: skip
        own = program(
            *start, "--id", "pi-1", "--state", str(tmp_path / "pi-1"), *allow,
            log=tmp_path / "pi-1.log",
        )  # fmt: skip
        stranger = program(
            *start, "--id", "pi-3", "--state", str(tmp_path / "pi-3"), log=tmp_path / "pi-3.log"
        )
        with own, stranger as refused, run as coordinator:
            until(lambda: coordinator.process.poll() is not None, 180, coordinator)
            assert coordinator.process.returncode == 0, coordinator.output[-3000:]
            assert "--allow" in refused.output, refused.output
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["method"], result["rounds"], result["took_part"]) == ("half_step", 2, ["pi-1"])
