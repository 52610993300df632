"""What a finished run leaves in its folder."""

from __future__ import annotations

from pathlib import Path

from covey.coordinator.odd import Odd
from covey.coordinator.processes.finish import finish
from covey.coordinator.record.records import finished
from tests.kit.small_run import in_process, scenario


def test_a_run_that_is_resumed_after_its_end_keeps_the_list_of_what_was_odd(tmp_path: Path) -> None:
    """Before: the list was empty then, for no agent reports again."""
    run = in_process(tmp_path, scenario("fedavg", rounds={"count": 1}))
    copy = Odd(("gw-1", "gw-2"), "copy", "they hold the same rows", "`broker expel` one of them")
    first = finish(run, [copy])
    assert first["odd"] == [copy.to_json()]
    assert finish(run, [])["odd"] == finished(tmp_path)["odd"] == first["odd"]
    (tmp_path / "result.json").write_text("{")
    assert "odd" not in finish(run, []), "a torn one is made again"
