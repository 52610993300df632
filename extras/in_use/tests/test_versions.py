"""The versions of a run's models: what can be published, and what a rollback goes back to."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from covey.coordinator.disk.versions import (
    BEST,
    best_version,
    last_version,
    round_name,
    save_version,
    version_of_round,
)
from covey.coordinator.record.audit_trail import FILE, Trail
from covey.coordinator.run.result import write_all, write_models
from covey.extras.in_use import promote
from covey.extras.in_use.registry import (
    Act,
    DeploymentOutcome,
    Publication,
    Registry,
    RegistryEntry,
    note,
    note_outcome,
    operator,
    publications,
    registry,
)
from covey.shared.errors import UserError
from tests.kit import small_run


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """The folder of a finished run with two clusters."""
    scene = small_run.scenario("ifca", rounds={"count": 2})
    setup = small_run.setup(scene)
    folder = tmp_path / "run"
    folder.mkdir()
    np.savez(
        folder / "start.npz",
        starts=np.stack(setup.starts),
        layout=np.array(small_run.layout_text(scene)),
    )
    run = small_run.in_process(folder, scene)
    write_models(run)
    write_all(run, None)
    return folder


def test_the_last_the_best_and_a_kept_round_are_found(finished: Path) -> None:
    last = last_version(finished)
    assert (last.round, len(last.models)) == (2, 2)
    assert set(last.assignment.values()) <= {0, 1}
    assert last.task["features"] == [5]
    assert best_version(finished).round == 2, "without evaluations between rounds it is the last"
    better = replace(last, round=1, figure={"metric": "accuracy", "value": 0.9})
    save_version(finished, BEST, better)
    assert best_version(finished).figure == {"metric": "accuracy", "value": 0.9}
    assert version_of_round(finished, 1).round == 1
    assert np.array_equal(version_of_round(finished, 2).models[1], last.models[1])
    with pytest.raises(UserError, match="round 7 were not kept; there are those of: 1, 2"):
        version_of_round(finished, 7)


def test_versions_that_cannot_be_published_are_refused_with_a_reason(finished: Path) -> None:
    nothing = Registry(finished.parent, ())
    with pytest.raises(UserError, match="expected RUN@ROUND"):
        promote.chosen(f"{finished}@last", nothing)
    with pytest.raises(UserError, match="no run or version of this name"):
        promote.chosen("candidate", nothing)
    with pytest.raises(UserError, match="not finished"):
        promote.chosen(str(finished / "models"), nothing)
    last = last_version(finished)
    save_version(finished, round_name(9), replace(last, round=9, models=last.models[:1]))
    with pytest.raises(UserError, match="a group that has no model"):
        version_of_round(finished, 9)
    infinite = tuple(np.full_like(model, np.inf) for model in last.models)
    save_version(finished, round_name(9), replace(last, round=9, models=infinite))
    with pytest.raises(UserError, match="diverged"):
        version_of_round(finished, 9)
    for text in ('{"rounds": 2', '{"rounds": 2}', "[]"):
        (finished / "result.json").write_text(text)
        with pytest.raises(UserError, match="damaged"):
            last_version(finished)


def test_a_person_names_a_run_by_its_folder_its_name_or_its_id(finished: Path) -> None:
    (finished / "scenario.yaml").touch()
    known = Registry(finished.parent, ())
    run = last_version(finished).run
    for name in (str(finished), finished.name, run):
        assert promote.chosen(name, known).version.round == 2
        assert promote.chosen(f"{name}@best", known).folder == finished
        with pytest.raises(UserError, match="round 7 were not kept"):
            promote.chosen(f"{name}@7", known)


Line = tuple[
    Act, str, int
]  # what was done, and the version; a name that ends with ! is a candidate


def known(*lines: Line, folder: Path = Path("runs")) -> Registry:
    """A registry with these publications."""
    entries = []
    for serial, (act, run, number) in enumerate(lines, start=1):
        devices = ("pi-1",) if run.endswith("!") else ()
        name = run.removesuffix("!")
        line = Publication(act, number, serial, name, "default", devices=devices)
        entries.append(RegistryEntry(line, folder / name, name))
    return Registry(folder, tuple(entries))


@pytest.mark.parametrize(
    ("lines", "champion", "before"),
    [
        ([("publish", "a", 3), ("promote", "a", 7)], "a@7", "a@3"),
        ([("publish", "a", 3), ("promote", "a", 7), ("rollback", "a", 3)], "a@3", None),
        ([("publish", "a", 3), ("publish", "b", 3)], "b@3", "a@3"),
        ([("publish", "a", 3), ("publish", "b", 3), ("promote", "b", 1)], "b@1", "b@3"),
        (
            [("publish", "a", 3), ("publish", "b", 3), ("promote", "b", 1), ("rollback", "b", 3)],
            "b@3",
            "a@3",
        ),
        ([("publish", "a", 3), ("publish", "a", 3), ("promote", "a", 3)], "a@3", None),
        ([("rollback", "a", 3)], "a@3", None),
        ([("publish", "a", 3), ("promote", "b!", 9)], "a@3", "a@3"),
        ([("publish", "a", 3), ("promote", "b!", 9), ("rollback", "a", 3)], "a@3", None),
        ([("publish", "a", 3), ("promote", "b!", 9), ("promote", "b", 9)], "b@9", "a@3"),
        ([("promote", "b!", 9)], None, None),
    ],
)
def test_a_rollback_takes_back_the_newest_publication_of_any_run(
    lines: Sequence[Line], champion: str | None, before: str | None
) -> None:
    of = known(*lines)
    assert (None if of.champion is None else str(of.champion)) == champion
    if before is None:
        with pytest.raises(UserError, match="nothing to go back to"):
            of.before()
    else:
        assert str(of.before()) == before


def test_a_version_that_some_devices_try_is_the_candidate_until_the_next_publication_to_all() -> (
    None
):
    trial = [("publish", "a", 3), ("promote", "b!", 9)]
    assert str(known(*trial).candidate) == "b@9"  # type: ignore[arg-type]
    assert known(*trial).names() == {("a", 3): ["champion"], ("b", 9): ["candidate"]}  # type: ignore[arg-type]
    for act in ("promote", "publish", "rollback"):
        assert known(*trial, (act, "a", 3)).candidate is None  # type: ignore[arg-type]


def test_the_registry_has_the_publications_of_all_runs_of_a_federation_by_their_serials(
    tmp_path: Path,
) -> None:
    for serial, (name, federation) in enumerate(
        [("a", "north"), ("b", "south"), ("all/b/seed-1", "north"), ("a", "north")], start=1
    ):
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "scenario.yaml").touch()
        alias = "mine" if serial == 3 else ""
        line = Publication("promote", serial, serial, name, federation, who=operator(), alias=alias)
        note(Trail(folder, name), line)
    (tmp_path / "notes").mkdir()
    of = registry(tmp_path, "north")
    assert list(map(str, of.entries)) == ["a@1", "all/b/seed-1@3", "a@4"]
    assert str(of.named("mine")) == "all/b/seed-1@3"
    assert of.named("yours") is None
    assert "@" in publications(tmp_path / "a")[0].who
    assert registry(tmp_path / "nowhere", "north").champion is None
    log = tmp_path / "a" / FILE
    log.write_text(log.read_text().replace('"serial":1', '"serial": 1'))
    assert list(registry(tmp_path, "north").faults) == [tmp_path / "a"]


def test_a_copy_of_a_runs_folder_publishes_nothing_again(tmp_path: Path) -> None:
    """A backup that was made before the devices had answered: what they refused was in force again."""
    for serial, name in enumerate(("a", "b"), start=1):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "scenario.yaml").touch()
        before = "a" if name == "b" else ""
        note(Trail(folder, name), Publication("publish", 5, serial, name, "north", before_run=before))  # fmt: skip
    shutil.copytree(tmp_path / "b", tmp_path / "a-backup")
    assert [one.publication.serial for one in registry(tmp_path, "north").entries] == [1, 2]
    note_outcome(Trail(tmp_path / "b", "b"), 2, DeploymentOutcome(rejected={"m01": "worse"}))
    of = registry(tmp_path, "north")
    assert [str(one) for one in of.entries] == ["a@5", "b@5"]
    assert str(of.champion) == "a@5"


def test_a_run_whose_folder_is_gone_is_named_by_a_rollback() -> None:
    line = Publication("publish", 3, 9, "b", "default", before_run="a", before_round=20)
    of = Registry(Path("runs"), (RegistryEntry(line, Path("runs/b"), "b"),))
    with pytest.raises(UserError, match="before b@3 is not in runs: round 20 of run a"):
        of.before()
