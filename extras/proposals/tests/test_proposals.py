"""Scenarios that are proposed for data of people's own. A run of one is in test_own_data_runs.py."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.agent.data.check import load_local
from covey.extras.in_use.unlabelled import load_unlabelled
from covey.extras.proposals.choices import Proposal
from covey.extras.proposals.description import ColumnFacts, DataDescription, read_description
from covey.extras.proposals.fleet_columns import FleetColumn
from covey.extras.proposals.proposal import checked, propose, scenario_name
from covey.extras.proposals.proposal_data import describe
from covey.extras.proposals.targets import classes_of
from covey.shared import extras
from covey.shared.errors import UserError
from covey.shared.scenario.load import load
from covey.shared.scenario.scenario import Scenario


def table(folder: Path, name: str, header: str, *rows: str) -> str:
    path = folder / name
    path.write_text("\n".join([header, *rows]) + "\n", "utf-8")
    return str(path)


def proposed(*sources: str, **options: Any) -> Proposal:
    return propose([describe(source) for source in sources], **options)


def task_of(proposal: Proposal) -> dict[str, Any]:
    task: dict[str, Any] = proposal.content()["task"]
    return task


def numbers(count: int, *, step: float = 1) -> list[float]:
    return [step * index for index in range(count)]


def target(values: list[Any]) -> FleetColumn:
    """A target column on one device."""
    is_word = isinstance(values[0], str)
    different = sorted({str(value) for value in values})
    facts = ColumnFacts(
        name="y",
        cells=len(values),
        numbers=0 if is_word else len(values),
        kind="word" if is_word else "number",
        whole=not is_word and all(float(value).is_integer() for value in values),
        distinct=len(different),
        values=tuple(different) if len(different) <= 50 else None,
    )
    return FleetColumn("y", (facts,), ("pi",), ())


# -- classes or values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "classes", "reason"),
    [
        ([0, 1, 2] * 10, 3, "3 different whole numbers: classes"),
        ([3, 5, 7] * 10, ("3", "5", "7"), "3 different whole numbers: classes"),
        ([-1, 1] * 10, ("-1", "1"), "classes"),
        (list(range(126)) * 3, None, "126 different whole numbers, more than 20: a regression"),
        (list(range(8)), None, "8 different whole numbers in 8 rows"),
        ([0.5, 1.0, 2.0] * 10, None, "fractions: a regression"),
        (["ok", "worn"] * 10, ("ok", "worn"), "the words"),
    ],
)
def test_a_target_holds_classes_or_values(values: list[Any], classes: Any, reason: str) -> None:
    found, why = classes_of(target(values))
    assert found == classes
    assert reason in why


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([1] * 10, "fewer than two different values"),
        ([f"word {index}" for index in range(30)], "30 different words in 30 rows"),
    ],
)
def test_an_unsuited_target_is_refused(values: list[Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        classes_of(target(values))


# -- columns of one device -----------------------------------------------------------------------------------


def odd_table(folder: Path) -> str:
    rows: list[str] = []
    for number in range(1, 31):
        town = ("Oslo", "Rome")[number % 2]
        age = "" if number == 2 else 20 + number * 0.5
        rows.append(f"{number},{age},{town},2024-01-{number:02},,1,note {number},{number % 3}")
    return table(folder, "odd.csv", "id,age,town,day,empty,const,note,score", *rows)


def test_columns_of_every_kind(tmp_path: Path) -> None:
    proposal = proposed(odd_table(tmp_path))
    task = task_of(proposal)
    assert task["columns"] == ("age", "town", "day")
    assert task["features"] == (8,)
    assert (task["times"], task["test"]) == (("day",), "latest")
    assert task["categories"] == {"town": ("Oslo", "Rome")}
    assert task["ignore"] == ("id", "empty", "const", "note")
    assert (task["target"], task["classes"]) == ("score", 3)
    assert (task["impute"], task["standardise"]) == ("mean", "federated")
    assert task["model"] == {"name": "linear"}
    reasons = proposal.sections["task"]["ignore"].why
    for reason in ("id (counts the rows", "empty (empty)", "const (has one value"):
        assert reason in reasons


def test_the_text_has_a_reason_for_each_choice_and_loads(tmp_path: Path) -> None:
    proposal = proposed(odd_table(tmp_path))
    text = proposal.to_yaml()
    path = tmp_path / "scenario.yaml"
    path.write_text(text, "utf-8")
    assert load(path) == checked(proposal)
    for section in proposal.sections.values():
        assert all(choice.why for choice in section.values())
    assert max(len(line) for line in text.splitlines() if str(tmp_path) not in line) <= 80


def test_a_proposal_compares_nothing_where_nothing_can_be_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "has", lambda extra: extra != "compare")
    proposal = proposed(odd_table(tmp_path))
    assert "compare" not in proposal.sections
    assert checked(proposal).compare is None


def test_names_that_yaml_could_misread_stay_names(tmp_path: Path) -> None:
    rows = [f"{index},{index * 0.5},{index * 0.2},{index % 2}" for index in range(25)]
    source = table(tmp_path, "odd.csv", "no,a: b # c,{d},y", *rows)
    proposal = proposed(source)
    path = tmp_path / "scenario.yaml"
    path.write_text(proposal.to_yaml(), "utf-8")
    assert load(path).task.columns == ("a: b # c", "{d}")


def test_a_long_list_of_short_names_fills_lines(tmp_path: Path) -> None:
    names = [f"p{number}" for number in range(60)] + ["a, b", "no"]
    rows = [",".join(str(index * column % 7) for column in range(63)) for index in range(1, 20)]
    header = ",".join(f'"{name}"' for name in names)
    proposal = proposed(table(tmp_path, "wide.csv", f"{header},y", *rows))
    text = proposal.to_yaml()
    assert len(text.splitlines()) < 60
    path = tmp_path / "scenario.yaml"
    path.write_text(text, "utf-8")
    assert load(path).task.columns == task_of(proposal)["columns"]
    assert {"a, b", "no"} <= set(load(path).task.columns)


def test_a_long_list_of_long_names_fills_lines_too(tmp_path: Path) -> None:
    names = [f"body acceleration, axis {number}" for number in range(300)]
    rows = [",".join(str(index * column % 7) for column in range(301)) for index in range(1, 20)]
    header = ",".join(f'"{name}"' for name in names)
    text = proposed(table(tmp_path, "wide.csv", f"{header},y", *rows)).to_yaml()
    assert len(text.splitlines()) < 240
    assert max(len(line) for line in text.splitlines() if str(tmp_path) not in line) <= 80
    path = tmp_path / "scenario.yaml"
    path.write_text(text, "utf-8")
    assert len({*load(path).task.columns} & {*names}) > 200


def test_a_column_without_a_name_is_left_out(tmp_path: Path) -> None:
    rows = [f"{index},{index * 0.5},{index % 2}" for index in range(20)]
    proposal = proposed(table(tmp_path, "pandas.csv", ",a,y", *rows))
    assert task_of(proposal)["columns"] == ("a",)
    assert "ignore" not in task_of(proposal)
    assert "1 column without a name, not read" in "".join(proposal.remarks())


def test_many_rows_get_a_hidden_layer(tmp_path: Path) -> None:
    rows = [f"{index * 0.5},{index % 2}" for index in range(40)]
    task = task_of(proposed(table(tmp_path, "large.csv", "a,y", *rows)))
    assert task["model"] == {"name": "mlp", "options": {"hidden": 32}}


def test_cells_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    rows = [f"{'x' if index == 3 else index * 0.5},{index % 2}" for index in range(20)]
    proposal = proposed(table(tmp_path, "faulty.csv", "a,y", *rows))
    assert task_of(proposal)["columns"] == ("a",)
    (warning,) = proposal.warnings
    assert "1 cell of 'a' without a number ('x')" in warning


def test_a_usual_name_is_the_target_and_two_are_ambiguous(tmp_path: Path) -> None:
    rows = [f"{index % 2},{index * 0.5},{index % 3}" for index in range(20)]
    one = table(tmp_path, "one.csv", "label,a,b", *rows)
    assert task_of(proposed(one))["target"] == "label"
    two = table(tmp_path, "two.csv", "label,a,target", *rows)
    with pytest.raises(UserError, match="label, target; choose one with --target"):
        proposed(two)
    assert task_of(proposed(two, target="target"))["columns"] == ("label", "a")
    with pytest.raises(UserError, match="no column 'colour' for --target"):
        proposed(two, target="colour")


# -- several devices -----------------------------------------------------------------------------------------


def test_devices_that_differ_are_named_and_share_what_they_have(tmp_path: Path) -> None:
    halves = numbers(20, step=0.5)
    first = table(
        tmp_path, "a.csv", "x,w,z,y", *(f"{v},{v},{v},ok" for v in halves[:-1]), "9,9,9,worn"
    )
    other = table(tmp_path, "b.csv", "z,x,w,y", *(f"{v},{v},low,ok" for v in halves))
    third = table(
        tmp_path, "c.csv", "x,w,y", *(f"{v},{v},{'ok' if v < 3 else 'bad'}" for v in halves)
    )
    proposal = proposed(first, other, third)
    task = task_of(proposal)
    assert (task["columns"], task["ignore"]) == (("x", "z"), ("w",))
    assert (task["optional"], task["flags"], task["impute"]) == (("z",), ("z",), "mean")
    assert task["features"] == (3,)
    assert task["classes"] == ("bad", "ok", "worn")
    differences = "\n".join(proposal.differences)
    assert f"{third}: no column 'z'" in differences
    where = f"words on {other}; numbers on {first}, {third}"
    assert f"'w' is not used: {where}; to use it, write numbers without units" in differences
    assert f"{other}: columns in another order" in differences
    assert f"{other}: no rows of class bad, worn" in differences
    in_one_line = re.sub(r"\n# +", " ", proposal.to_yaml())  # where they were broken
    assert all(f" - {line[:20]}" in in_one_line for line in proposal.differences)


def test_the_device_that_differs_comes_first_with_what_it_wrote(tmp_path: Path) -> None:
    """Nine devices write numbers and ISO dates, the fifth two units and dates in an order that it does not show."""
    sources: list[str] = []
    for number in range(10):
        rows = [
            f"2025-12-{day:02} 00:00;{day * 0.5};{day % 7};{day + number}.5"
            if number != 4
            else f"{day % 12 + 1}/{day % 12 + 1}/2025;{day * 0.5};{day % 7};{day},5 {'%' if day % 2 else '€'}"
            for day in range(1, 25)
        ]
        sources.append(table(tmp_path, f"gw-{number:02}.csv", "time;a;b;PM2.5", *rows))
    odd = sources[4]
    with pytest.raises(UserError) as refused:
        proposed(*sources)
    assert f"words on {odd} ('9,9 %'); numbers on 9 others; write numbers without units" in str(
        refused.value
    )
    proposal = proposed(*sources, target="a")
    differences = "\n".join(proposal.differences)
    assert f"words on {odd} ('9/9/9999'); times on 9 others; to use it, write times" in differences
    assert "and 6 more" not in f"{differences}{refused.value}"


def test_an_absence_names_the_fewer_devices(tmp_path: Path) -> None:
    rows = [f"{index * 0.5},{index * 0.25},{index % 2}" for index in range(20)]
    sources = [table(tmp_path, f"{i}.csv", "a,b,y" if i else "a,c,y", *rows) for i in range(4)]
    first = sources[0]
    absent, present = proposed(*sources).differences
    both = f"{absent}\n{present}"
    assert f"{first}: a column 'c', which 3 other devices lack" in both
    assert f"{first}: no column 'b', which 3 other devices have" in both


def test_classes_are_counted_and_a_rare_one_is_worth_a_warning(tmp_path: Path) -> None:
    def device(name: str, *targets: str) -> str:
        return table(tmp_path, name, "a,y", *(f"{n * 0.5},{y}" for n, y in enumerate(targets)))

    proposal = proposed(device("1.csv", *["ok"] * 60), device("2.csv", *["ok"] * 38, "bad", "bad"))
    assert "rows: bad 2, ok 98" in proposal.to_yaml() or "rows: ok 98, bad 2" in proposal.to_yaml()
    [warning] = proposal.warnings
    assert warning.startswith("class 'bad' has 2 of 100 rows")
    assert "up to 98.0 %. Set task.measure: recall" in warning
    even = proposed(device("3.csv", *["0", "1", "1.0", "0.0"] * 10))
    assert "rows: 0 20, 1 20" in even.to_yaml()
    assert not even.warnings


SKY = {0.0: "blue", 0.5: "red"}


def test_a_sensor_without_values_on_a_device_gets_a_flag_and_that_device_fits(
    tmp_path: Path,
) -> None:
    """The first device has the column and no value in it, the second one not even the column; words need no flag."""
    values = numbers(20, step=0.5)
    sources = [
        table(tmp_path, "0.csv", "a,rain,sky,y", *(f"{v},NA,{SKY[v % 1]},{v * 2}" for v in values)),
        table(tmp_path, "1.csv", "a,y", *(f"{v},{v * 2 + 0.25}" for v in values)),
        table(
            tmp_path,
            "2.csv",
            "a,rain,sky,y",
            *(f"{v},{v / 2},{SKY[v % 1]},{v * 2}" for v in values),
        ),
        table(
            tmp_path,
            "3.csv",
            "a,rain,sky,y",
            *(f"{v},{v / 4},{SKY[v % 1]},{v * 2}" for v in values),
        ),
    ]
    proposal = proposed(*sources)
    task = task_of(proposal)
    assert (task["columns"], task["optional"]) == (("a", "rain", "sky"), ("rain", "sky"))
    assert task["flags"] == ("rain",)
    scene = checked(proposal)
    for source in sources:
        assert load_local(source, None, scene.task).features.shape == (16, 3)
    lacks = load_unlabelled(Path(sources[1]), scene.task)
    assert np.isnan(lacks.data.features[:, 1]).all()


def test_columns_that_name_the_device_are_no_inputs_and_are_named(tmp_path: Path) -> None:
    def device(number: int, *, same: bool = False) -> str:
        place = 7 if same else number
        rows = [f"{index * 0.5},{place},site-{place},{index % 2}" for index in range(20)]
        return table(tmp_path, f"{number}.csv", "a,age,site,y", *rows)

    proposal = proposed(*(device(number) for number in range(60)))
    assert task_of(proposal)["columns"] == ("a",)
    assert task_of(proposal)["ignore"] == ("age", "site")
    remarks = "\n".join(proposal.remarks())
    assert "'age' is not used: it has one value on each device" in remarks
    assert "'site' is not used" in remarks
    alike = proposed(device(1), device(2, same=True), device(3, same=True))
    assert task_of(alike)["columns"] == ("a",)


def test_the_default_target_holds_no_times(tmp_path: Path) -> None:
    rows = [f"{i},{i * 0.5},{i % 3},2025-12-{i:02}" for i in range(1, 25)]
    source = table(tmp_path, "wide.csv", "id,a,state,day", *rows)
    proposal = proposed(source)
    task = task_of(proposal)
    assert (task["target"], task["classes"], task["times"]) == ("state", 3, ("day",))
    why = proposal.sections["task"]["target"].why
    assert "'day' holds times; --target chooses another one: a" in why
    with pytest.raises(UserError, match=r"'day' holds times; choose .* it could be state, a$"):
        proposed(source, target="day")


def test_devices_whose_last_columns_differ_need_a_target(tmp_path: Path) -> None:
    rows = [f"{index * 0.5},{index % 2}" for index in range(20)]
    sources = [
        table(tmp_path, f"{i}.csv", header, *rows) for i, header in enumerate(("a,b", "b,a"))
    ]
    with pytest.raises(UserError, match="the last ones are b, a"):
        proposed(*sources)


def test_a_target_that_a_device_lacks_is_refused(tmp_path: Path) -> None:
    rows = [f"{index * 0.5},{index % 2}" for index in range(20)]
    sources = [
        table(tmp_path, f"{i}.csv", header, *rows) for i, header in enumerate(("a,y", "a,b"))
    ]
    with pytest.raises(UserError, match=r"the target 'y' is not a column of .*1\.csv"):
        proposed(*sources)


def test_a_proposal_compares_groups_with_one_model_and_with_none(tmp_path: Path) -> None:
    rows = ["1,2,a", "2,3,b"] * 10
    tables = [table(tmp_path, f"{k}.csv", "x,z,y", *rows) for k in range(4)]
    for count, methods in (
        (3, ["local", "fedavg", "ditto"]),
        (4, ["local", "fedavg", "ditto", "fedclust"]),
    ):
        section = Scenario.model_validate(proposed(*tables[:count]).content()).compare
        assert section is not None
        assert [method.strategy.name for method in section.methods] == methods


def test_the_rounds_fit_the_number_of_devices(tmp_path: Path) -> None:
    rows = [f"{index * 0.5},{index % 2}" for index in range(20)]
    source = table(tmp_path, "pi.csv", "a,y", *rows)
    alone = proposed(source).content()
    fleet = proposed(source, agents=9).content()
    assert (alone["strategy"]["name"], fleet["strategy"]["name"]) == ("fedavg", "fedclust")
    assert (fleet["rounds"]["start_agents"], fleet["rounds"]["quorum"]) == (9, 5)


@pytest.mark.parametrize(
    ("sources", "name"),
    [
        (["wine/device-1", "wine/device-2"], "wine"),
        (["a/north.csv", "a/south.csv"], "a"),
        (["pi 7.csv"], "pi-7"),
        (["device-1.csv"], "device-1"),
        (["1.csv", "2.csv"], "my-data"),
    ],
)
def test_the_name_of_a_proposal(sources: list[str], name: str) -> None:
    described = [DataDescription(source=source, kind="table", samples=2) for source in sources]
    assert scenario_name(described) == name


# -- arrays and images ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "dtype", "features", "model"),
    [
        ((9, 128), "float32", (9, 128), "cnn1d"),
        ((28, 28), "uint8", (1, 28, 28), "lenet5"),
        ((1, 8, 8), "uint8", (1, 8, 8), "mlp"),
        ((3, 32, 32), "uint8", (3, 32, 32), "resnet9"),
        ((5,), "float32", (5,), "linear"),
    ],
)
def test_a_model_for_arrays_of_every_shape(
    tmp_path: Path, shape: tuple[int, ...], dtype: str, features: tuple[int, ...], model: str
) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.ones((8, *shape), dtype), y=np.arange(8) % 4)
    task = task_of(proposed(str(path)))
    assert (task["features"], task["model"]["name"], task["classes"]) == (features, model, 4)
    assert ("scale" in task) == (dtype == "uint8")


def test_channels_last_are_refused_and_time_first_is_doubted(tmp_path: Path) -> None:
    images = DataDescription(
        source="x.npz", kind="arrays", samples=8, shape=(32, 32, 3), dtype="uint8"
    )
    facts = target([0, 1] * 4).facts[0]
    with pytest.raises(UserError, match="channels last"):
        propose([images.model_copy(update={"target": facts})])
    windows = images.model_copy(update={"target": facts, "shape": (128, 9), "dtype": "float32"})
    assert "channels first" in propose([windows]).warnings[0]
    with pytest.raises(UserError, match=r"have shape \[128, 9\]"):
        propose([windows, images])


def test_an_image_folder(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        folder = tmp_path / "pets" / name
        folder.mkdir(parents=True)
        for number in range(2):
            image.new("RGB", (32, 32)).save(folder / f"{number}.png")
    task = task_of(proposed(str(tmp_path / "pets")))
    assert (task["classes"], task["features"]) == (("cat", "dog"), (3, 32, 32))


def test_a_description_travels_as_json(tmp_path: Path) -> None:
    description = describe(odd_table(tmp_path))
    path = tmp_path / "pi.json"
    path.write_text(description.model_dump_json(), "utf-8")
    assert read_description(path) == description
    path.write_text('{"users": []}')
    with pytest.raises(UserError, match="not a description of data"):
        read_description(path)


# -- series --------------------------------------------------------------------------------------------------


def pump_log(folder: Path, name: str, *, minutes: int, pumps: int = 2, run: int = 40) -> str:
    """Rows in the order of their times, the pumps in turn; each pump's state stays for `run` of its own rows."""
    rows: list[str] = []
    for reading in range(160):
        for pump in range(pumps):
            moment = datetime(2026, 1, 1) + timedelta(minutes=minutes * reading)
            state = ("ok", "worn")[reading // run % 2]
            rows.append(f"{moment},{pump},{reading * 0.5 % 7},{reading * 0.3 % 5},{state}")
    return table(folder, name, "time,pump,vibration,heat,state", *rows)


def test_series_of_several_machines_get_windows(tmp_path: Path) -> None:
    sources = [pump_log(tmp_path, f"{name}.csv", minutes=1) for name in ("a", "b")]
    proposal = proposed(*sources)
    task = task_of(proposal)
    assert task["window"] == {"rows": 16, "stride": 8, "group": "pump"}
    assert (task["columns"], task["features"]) == (("vibration", "heat"), (2, 16))
    assert (task["ignore"], task["model"]) == (("time",), {"name": "cnn1d"})
    scenario = checked(proposal)
    data = load_local(sources[0], task=scenario.task)
    assert data.shape == (2, 16)
    assert len(data.targets) + len(data.test_targets) > 30


def test_a_series_of_days_has_the_hour_as_an_input(tmp_path: Path) -> None:
    source = pump_log(tmp_path, "a.csv", minutes=60, pumps=1)
    task = task_of(proposed(source))
    assert task["window"] == {"rows": 16, "stride": 8}
    assert (task["times"], task["features"]) == (("time",), (6, 16))
    assert "ignore" not in task or task["ignore"] == ("pump",)


@pytest.mark.parametrize("keys", [{"run": 3}, {"run": 40, "pumps": 50}])
def test_rows_in_no_series_stay_samples_of_their_own(tmp_path: Path, keys: dict[str, int]) -> None:
    source = pump_log(tmp_path, "a.csv", minutes=1, **keys)
    if keys["run"] == 40:  # the same rows in another order
        path = Path(source)
        header, *rows = path.read_text().splitlines()
        path.write_text("\n".join([header, *sorted(rows, key=lambda row: row[::-1])]) + "\n")
    assert "window" not in task_of(proposed(source))


# -- unusual rows, labels, forecasts and seasons -------------------------------------------------------------


def pump_rows(*states: str) -> list[str]:
    return [f"{0.5 + index % 7},{1.5 * index},{state}" for index, state in enumerate(states)]


def test_unusual_rows_are_sought_with_the_most_frequent_class_as_usual_one(tmp_path: Path) -> None:
    rows = pump_rows(*["ok"] * 40, *["broken"] * 3)
    path = table(tmp_path, "pump.csv", "a,b,state", *rows)
    task = task_of(proposed(path, target="state", anomalies=True))
    assert (task["target"], task["classes"]) == ("state", ("ok", "broken"))
    assert task["model"] == {"name": "autoencoder", "options": {"hidden": [4, 1, 4]}}
    assert task["anomalies"] == {"quantile": 0.99}
    values = table(tmp_path, "values.csv", "a,b", *[f"{index + 0.5},{index}" for index in range(9)])
    with pytest.raises(UserError, match="'a' holds values; expected classes, one of them usual"):
        proposed(values, target="a", anomalies=True)


def test_without_a_label_all_rows_count_as_usual(tmp_path: Path) -> None:
    path = table(
        tmp_path, "pump.csv", "a,b", *[f"{index % 7},{index + 0.5}" for index in range(40)]
    )
    task = task_of(proposed(path, anomalies=True))
    assert task["columns"] == ("a", "b")
    assert not {"target", "classes", "target_scale"} & {*task}


def test_several_targets_are_labels(tmp_path: Path) -> None:
    rows = [f"{index % 2},{index + 0.5},{str(index > 9).lower()}" for index in range(20)]
    path = table(tmp_path, "site.csv", "rash,dose,fever", *rows)
    task = task_of(proposed(path, target=("fever", "rash")))
    assert task["target"] == ("fever", "rash")
    assert task["columns"] == ("dose",)
    with pytest.raises(UserError, match=r"--target dose: expected 0 and 1, or false and true"):
        proposed(path, target=("rash", "dose"))


def hourly(folder: Path, hours: int, *others: str) -> str:
    rows = []
    for hour in range(hours):
        moment = datetime(2025, 1, 1) + timedelta(hours=hour)
        rows.append(",".join([f"{moment:%Y-%m-%d %H:%M},{hour % 24}.5", *others]))
    header = ",".join(["time,power", *(f"other{place}" for place in range(len(others)))])
    return table(folder, "house.csv", header, *rows)


def test_a_series_of_one_value_is_forecast_from_itself(tmp_path: Path) -> None:
    task = task_of(proposed(hourly(tmp_path, 400)))
    assert task["columns"] == ("time", "power")
    assert task["target"] == "power"
    assert task["window"] == {"rows": 32, "stride": 4, "horizon": 8}
    assert task["features"] == (5, 32)
    assert "seasons" not in task


def test_a_forecast_of_a_series_with_other_values_is_made_where_it_is_asked_for(
    tmp_path: Path,
) -> None:
    path = hourly(tmp_path, 400, "{}")
    rows = Path(path).read_text().splitlines()
    Path(path).write_text(
        "\n".join(
            [rows[0], *(row.replace("{}", f"{place}.25") for place, row in enumerate(rows[1:]))]
        )
    )
    assert "window" not in task_of(proposed(path, target="power"))
    task = task_of(proposed(path, target="power", horizon=24))
    assert task["columns"] == ("time", "power", "other0")
    assert task["window"]["horizon"] == 24
    for sources, horizon in (([path], 300), ([pump(tmp_path)], 4)):
        with pytest.raises(UserError, match="a forecast needs values as target, rows in the order"):
            proposed(*sources, horizon=horizon)


def pump(folder: Path) -> str:
    return table(folder, "pump.csv", "a,b,state", *pump_rows(*["ok", "worn"] * 20))


def test_rows_of_most_of_a_year_have_seasons(tmp_path: Path) -> None:
    rows = []
    for day in range(330):
        moment = datetime(2025, 1, 1) + timedelta(days=day)
        rows.append(f"{moment:%Y-%m-%d %H:%M},{day % 9}.5,{day % 5}")
    path = table(tmp_path, "house.csv", "time,heat,power", *rows)
    proposal = proposed(path, target="heat")
    task = task_of(proposal)
    assert task["seasons"] == ("time",)
    assert task["features"] == (7,)
    assert "for the season" in proposal.to_yaml()


@pytest.mark.parametrize("options", [{"anomalies": True}, {"horizon": 3}, {"target": ("a", "b")}])
def test_data_that_is_no_table_has_no_such_task(tmp_path: Path, options: dict[str, Any]) -> None:
    np.savez(tmp_path / "data.npz", x=np.ones((6, 3)), y=np.arange(6) % 2)
    with pytest.raises(UserError, match="are for tables"):
        proposed(str(tmp_path / "data.npz"), **options)
