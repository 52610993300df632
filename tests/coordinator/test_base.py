"""A base: agents take what does not travel from a file on their own disk, and fetch it once if they have none."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from covey.agent.device.model_store import Bases, ModelStore
from covey.agent.policy import OwnersRules, Policy, PolicyError
from covey.coordinator.cli.program import app
from covey.coordinator.engine.events import Joined
from covey.coordinator.run.effects import SendOrder
from covey.coordinator.run.run import Run
from covey.shared.errors import PublicError, UserError
from covey.shared.own_code.consent import NO_CODE
from covey.shared.scenario.base import Base, check_size, digest_of_base, entry_of
from covey.shared.scenario.load import load
from covey.shared.scenario.scenario import Scenario
from covey.shared.wire.messages import digest
from tests.kit import small_run
from tests.kit.small_fleet import over_the_wire
from tests.kit.small_run import clients, fingerprint, samples_of

SPLIT = {"share": ["fc2", "out"], "keep": ["out.bias"]}  # fc1 is frozen
Arrays = Mapping[str, Any]


def named(scene: Scenario) -> dict[str, Any]:
    """The first initial model by the names of its tensors."""
    starts, layout = small_run.starts(scene)
    return {name: np.ascontiguousarray(array) for name, array in layout.named(starts[0]).items()}


def scene_of(path: Path | None = None, method: str = "fedavg", **sections: Any) -> Scenario:
    task: dict[str, Any] = {"model": {"name": "mlp"}, **SPLIT}
    if path is not None:
        task["base"] = {"file": str(path), "digest": digest_of_base(path)}
    return small_run.scenario(method, task=task, **sections)


def written(folder: Path, arrays: Arrays) -> Path:
    path = folder / "backbone.safetensors"
    save_file(dict(arrays), path)
    return path


def frozen(folder: Path) -> Path:
    """A base with the frozen layer alone."""
    arrays = named(scene_of())
    return written(folder, {name: arrays[name] for name in arrays if name.startswith("fc1")})


def ended(folder: Path, scene: Scenario) -> Run:
    return small_run.driver(folder, scene).complete(samples_of(clients(scene=scene)))


@pytest.mark.parametrize("method", ["fedavg", "ifca"])
def test_a_run_on_a_base_has_the_bytes_of_one_that_sends_the_same_values(
    tmp_path: Path, method: str
) -> None:
    path = frozen(tmp_path)
    plain, on_base = (
        ended(tmp_path / name, scene)
        for name, scene in {
            "plain": scene_of(method=method),
            "base": scene_of(path, method),
        }.items()
    )
    assert fingerprint(on_base) == fingerprint(plain)
    assert on_base.members.evaluation == plain.members.evaluation


def test_in_buffered_rounds_each_agent_gets_the_base_with_its_first_order(tmp_path: Path) -> None:
    task = scene_of(frozen(tmp_path)).task.model_dump(mode="json")
    on_base = ended(tmp_path / "base", small_run.buffered("fedavg", task=task))
    plain = ended(tmp_path / "plain", small_run.buffered("fedavg", task={**task, "base": None}))
    assert fingerprint(on_base) == fingerprint(plain)


def test_over_a_broker_each_agent_keeps_the_base_and_a_second_run_does_not_fetch_it(
    tmp_path: Path,
) -> None:
    path = frozen(tmp_path)
    scene = scene_of(path, wire={"part_bytes": 1024}, rounds={"participation": 1.0})
    wired = over_the_wire(tmp_path / "wire", scene, duplicate=0.2, reorder=0.2)
    assert fingerprint(wired) == fingerprint(ended(tmp_path / "calm", scene))
    kept = sorted((tmp_path / "wire").glob("agents/*/bases/*"))
    assert [one.name for one in kept] == [f"{digest_of_base(path)}.safetensors"] * 8
    store = ModelStore(tmp_path / "later", bases=Bases(kept[0].parent, None))
    assert store.has_base(bytes.fromhex(digest_of_base(path)))
    assert store.digests == [bytes.fromhex(digest_of_base(path))]
    assert kept[0].samefile(store.path(store.digests[0]))


def test_a_damaged_base_is_fetched_again(tmp_path: Path) -> None:
    name = digest(b"content")
    bases = Bases(tmp_path, None)
    (tmp_path / f"{name.hex()}.safetensors").write_bytes(b"damaged")
    assert not bases.give(name, tmp_path / "target")
    assert not list(tmp_path.glob("*.safetensors"))


def test_bases_that_were_used_last_are_kept_as_far_as_there_is_room(tmp_path: Path) -> None:
    bases = Bases(tmp_path / "bases", room_bytes=25)
    for number in range(3):
        content = bytes([number]) * 10
        (tmp_path / "content").unlink(missing_ok=True)
        (tmp_path / "content").write_bytes(content)
        bases.add(digest(content), tmp_path / "content")
        os.utime(tmp_path / "bases" / f"{digest(content).hex()}.safetensors", (number, number))
    found = {bases.give(digest(bytes([number]) * 10), tmp_path / str(number)) for number in (1, 2)}
    assert found == {True}
    assert not bases.give(digest(bytes(10)), tmp_path / "0")


def test_an_owner_bounds_the_size_of_a_base(tmp_path: Path) -> None:
    scene = scene_of(frozen(tmp_path), rounds={"participation": 1.0})
    run = small_run.begun(tmp_path / "run", scene)
    run.members.note_samples(samples_of(clients(scene=scene)))
    effects = [
        effect for client in run.members.samples for effect in run.handle(Joined(client), 0.0)
    ]
    [order, *_] = [effect.order for effect in effects if isinstance(effect, SendOrder)]
    assert OwnersRules(Policy(), NO_CODE).refuses(order, "agent-0") is None
    assert order.work is not None
    small = Policy().model_copy(update={"max_base_mb": 0})
    with pytest.raises(PolicyError, match=r"max_base_mb: a base of .* MB, at most 0 .*--max-base"):
        OwnersRules(small, NO_CODE)._check_models(order.work, "agent-0")


# -- bad input ---------------------------------------------------------------------------------------------------------


def refused(folder: Path, arrays: Arrays, **changes: Any) -> str:
    """The message about a base."""
    path = written(folder, arrays)
    scene = scene_of(path)
    assert scene.task.base is not None
    task = scene.task.model_copy(update={"base": scene.task.base.model_copy(update=changes)})
    with pytest.raises((UserError, PublicError)) as caught:
        small_run.setup(scene.model_copy(update={"task": task}))
    return str(caught.value)


def test_another_file_than_the_one_that_was_meant_is_refused(tmp_path: Path) -> None:
    message = refused(tmp_path, named(scene_of()), digest="0" * 32)
    assert "has the digest" in message
    assert "coordinator lab base" in message


def test_foreign_tensors_other_shapes_and_nan_are_listed(tmp_path: Path) -> None:
    arrays = named(scene_of())
    fc1 = arrays["fc1.weight"]
    foreign = refused(tmp_path, {"backbone.weight": fc1})
    assert "not in the model: backbone.weight" in foreign
    assert "of another shape: fc1.weight" in refused(tmp_path, {"fc1.weight": fc1.T.copy()[:, :2]})
    assert "not finite: fc1.weight" in refused(tmp_path, {"fc1.weight": fc1 * np.nan})


def test_a_file_of_three_gigabytes_is_not_read(tmp_path: Path) -> None:
    layout = small_run.starts(scene_of())[1]
    with pytest.raises(PublicError, match=r"the file has 3000\.0 MB"):
        check_size(3_000_000_000, layout)


def test_a_pickle_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    pickle = tmp_path / "weights.pt"
    pickle.write_bytes(b"PK\x03\x04 a file of torch.save")
    with pytest.raises(UserError, match="can run code"):
        entry_of(pickle)
    base = Base(file=str(tmp_path / "missing"), digest="0" * 32)
    with pytest.raises(UserError, match="cannot be read: No such file"):
        base.content()
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(
        "name: s\ntask: {features: [2], classes: 2, base: {file: no.safetensors, digest: "
        + "0" * 32
        + "}}\nstrategy: {name: fedavg}\n"
    )
    with pytest.raises(UserError, match=r"task\.base\.file: 'no\.safetensors'.*there is no file"):
        load(scenario)


def test_the_entry_of_a_base_is_printed_as_a_line_of_yaml(tmp_path: Path) -> None:
    path = frozen(tmp_path)
    shown = CliRunner().invoke(app, ["lab", "base", str(path)])
    assert f'base: {{file: "{path}", digest: {digest_of_base(path)}}}' in shown.output
    assert "tensors" in shown.output
