"""Deployments as transactions: a command names its target, repeats it, and takes the word of devices for what is in force."""

from __future__ import annotations

import importlib
import json
import shlex
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from covey.coordinator.disk.versions import last_version, round_name, save_version
from covey.extras.in_use import promote
from covey.extras.in_use.registry import publications, registry
from covey.extras.in_use.tests.test_promote import deployed, finish, in_use, typed
from covey.extras.in_use.versions import deployments, listed
from covey.shared.storage.files import folder_lock
from covey.shared.wire.documents import ModelInUse
from covey.shared.wire.topics import Topics
from tests.kit.memory_broker import MemoryBroker

GATEWAYS = ("gw-1", "gw-2", "gw-3")
LATER = 2**50  # the serial of a device that has judged whatever is published
Command = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a finished run that kept its rounds 1 and 2."""
    return finish(tmp_path / "run", key=None)


@pytest.fixture
def command(run: Path) -> Command:
    """A command of the coordinator that knows the runs."""

    def typed_there(*words: object, wait: float = 0.2) -> Result:
        return typed(*words, "--runs", run.parent, "--wait", wait)

    return typed_there


def uses(broker: MemoryBroker, run: Path, *numbers: int, serial: int = LATER) -> None:
    """Each gateway states that it uses this round."""
    for gateway, number in zip(GATEWAYS, numbers, strict=True):
        model = ModelInUse(run=last_version(run).run, round=number, serial=serial)
        in_use(broker, gateway, model)


def kept(run: Path, *numbers: int) -> None:
    last = last_version(run)
    for number in numbers:
        save_version(run, round_name(number), replace(last, round=number))


def published(broker: MemoryBroker, run: Path, command: Command, *numbers: int) -> None:
    """These rounds were published one after the other, and all gateways took each of them."""
    kept(run, *numbers)
    for number in numbers:
        uses(broker, run, *[number] * len(GATEWAYS))
        done = command("promote", f"run@{number}")
        assert done.exit_code == 0, done.stderr


def advised(done: Result) -> list[str]:
    """The command in backquotes of a message."""
    [_, text, _] = " ".join(done.stdout.split()).split("`")
    return shlex.split(text)[1:]


@pytest.mark.parametrize("takers", [0, 2])
def test_force_after_a_refused_rollback_goes_to_the_same_version(
    broker: MemoryBroker, run: Path, command: Command, takers: int
) -> None:
    """Before: one version further back, which was the ruined one, and by force."""
    published(broker, run, command, 3, 4, 5)
    uses(broker, run, *[4] * takers, *[5] * (3 - takers))
    refused = command("rollback")
    assert (refused.exit_code, deployed(broker).round) == (1, 4)
    for words in (("rollback",), ("rollback", "--force"), advised(refused)):
        assert command(*words).exit_code == 1
        assert deployed(broker).round == 4, words
    assert deployed(broker).force
    uses(broker, run, 4, 4, 4)
    assert command("rollback", "--force").exit_code == 1
    assert deployed(broker).round == 3, "all devices had gone back"


def test_force_after_a_rollback_that_an_absent_device_has_not_seen_goes_to_the_same_version(
    broker: MemoryBroker, run: Path, command: Command
) -> None:
    published(broker, run, command, 3, 4, 5)
    uses(broker, run, 4, 4, 5)
    in_use(broker, GATEWAYS[2], None, online=False)
    done = command("rollback")
    assert (done.exit_code, deployed(broker).round) == (3, 4)
    assert "1 is offline (gw-3)" in " ".join(done.stdout.split())
    command("rollback", "--force")
    assert (deployed(broker).round, deployed(broker).force) == (4, True)


def test_force_after_a_candidate_that_is_not_given_back_goes_to_the_champion(
    broker: MemoryBroker, run: Path, command: Command
) -> None:
    published(broker, run, command, 3, 4)
    kept(run, 5)
    uses(broker, run, 5, 4, 4)
    assert command("promote", "run@5", "--on", "gw-1").exit_code == 0
    refused = command("rollback")
    assert (refused.exit_code, deployed(broker).round) == (1, 4)
    assert command(*advised(refused)).exit_code == 1
    assert (deployed(broker).round, deployed(broker).force) == (4, True)


def test_a_version_that_every_device_refused_is_not_in_force(
    broker: MemoryBroker, run: Path, command: Command
) -> None:
    published(broker, run, command, 3, 4)
    kept(run, 5, 6)
    assert command("promote", "run@5").exit_code == 1
    assert roles(run) == {"run@4": ["champion"]}
    assert "run@4 once more" in command("rollback", "--dry-run").stdout, "not to the one before"
    assert command("promote", "run@6", wait=0).exit_code == 0, "nobody waits for the devices"
    assert "run@4 once more on all" in command("rollback", "--dry-run").stdout
    uses(broker, run, 6, 6, 4)
    assert "run@6 -> run@4 on all" in command("rollback", "--dry-run").stdout


def roles(run: Path) -> dict[str, list[str]]:
    listed = json.loads(typed("versions", run.parent, "--json").stdout)["versions"]
    return {one["title"]: one["names"] for one in listed if one["names"]}


def test_a_command_names_its_target_before_it_acts_and_a_dry_run_ends_there(
    broker: MemoryBroker, run: Path, command: Command
) -> None:
    published(broker, run, command, 3)
    kept(run, 4)
    uses(broker, run, 3, 3, 4)
    before = deployed(broker)
    plan = command("promote", "run@4", "--as", "june", "--dry-run")
    assert plan.exit_code == 0
    assert plan.stdout == (
        "promote: run@3 -> june on all devices; in use now: run@3 on 2, june on 1\n"
    )
    assert deployed(broker) == before
    uses(broker, run, 4, 4, 4)
    assert command("promote", "run@4", "--as", "june").exit_code == 0
    assert deployed(broker).name == "june", "devices know it by the same name"
    assert command("rollback", "--dry-run").stdout.startswith("rollback: june -> run@3 on all")
    shown = json.loads(command("rollback", "--dry-run", "--json").stdout)
    assert (shown["before"], shown["target"], shown["serial"]) == ("june", "run@3", 0)


def test_a_rollback_goes_to_a_version_by_its_name_if_that_was_in_force(
    broker: MemoryBroker, run: Path, command: Command
) -> None:
    published(broker, run, command, 3, 4, 5)
    kept(run, 6)
    uses(broker, run, 3, 3, 3)
    never = command("rollback", "--to", "run@6")
    assert never.exit_code == 2
    assert "was never in force here" in never.stderr
    assert command("rollback", "--to", "run@3").exit_code == 0
    assert deployed(broker).round == 3
    assert command("rollback").exit_code == 2, "nothing was before it"


def test_a_name_stays_with_its_version(broker: MemoryBroker, run: Path, command: Command) -> None:
    kept(run, 3, 4)
    assert command("promote", "run@3", "--as", "june").exit_code == 0
    refused = command("promote", "run@4", "--as", "june")
    assert refused.exit_code == 2
    assert "this is the name of run@3 already" in refused.stderr
    assert command("promote", "june", "--as", "june").exit_code == 0


def test_the_log_has_who_when_what_and_the_outcome_on_each_device(
    broker: MemoryBroker, run: Path, command: Command
) -> None:
    published(broker, run, command, 3)
    kept(run, 4)
    uses(broker, run, 4, 3, 4)
    uses_none = ModelInUse(run="x", round=1, serial=0)
    in_use(broker, "gw-3", uses_none)
    in_use(broker, "gw-4", None, online=False)
    assert command("promote", "run@4", "--as", "june").exit_code == 1
    one = publications(run)[-1]
    assert (one.act, one.alias, one.before) == ("promote", "june", (one.run, 3))
    assert one.time.startswith("2")
    assert "@" in one.who
    assert one.serial == deployed(broker).serial
    outcome = one.outcome
    assert outcome is not None
    assert (outcome.taken, list(outcome.rejected)) == (["gw-1"], ["gw-2"])
    assert (outcome.undecided, outcome.offline) == (["gw-3"], ["gw-4"])
    audit = json.loads(typed("lab", "audit", run, "--json").stdout)
    assert audit["whole"]
    assert audit["events"]["outcome"] == 2


def test_a_version_in_force_that_all_devices_use_is_not_published_again(
    broker: MemoryBroker, run: Path, command: Command
) -> None:
    published(broker, run, command, 3, 4)
    before = deployed(broker)
    for words in (("rollback", "--to", "run@4"), ("promote", "run@4")):
        done = command(*words)
        assert done.exit_code == 0
        assert done.stdout == (
            f"{words[0]}: run@4 is in force already, nothing to do; in use now: run@4 on 3\n"
        )
        assert deployed(broker) == before
    uses(broker, run, 4, 4, 3)
    assert command("promote", "run@4").stdout.startswith("promote: run@4 once more on all devices")
    uses(broker, run, 4, 4, 4)
    for words in (("run@4", "--force"), ("run@4", "--as", "june"), ("run@3", "--on", "gw-1")):
        assert "nothing to do" not in command("promote", *words).stdout, words
    assert "june once more" in command("promote", "june").stdout, "this ends the trial"
    broker.retained.keep(Topics("default").deployment, b"")
    assert "june once more" in command("promote", "june").stdout, "the broker has lost it"


def test_the_newest_deployments_are_listed_with_what_devices_made_of_them(
    broker: MemoryBroker, run: Path, command: Command
) -> None:
    published(broker, run, command, 3)
    kept(run, 4)
    uses(broker, run, 4, 3, 4)
    assert command("promote", "run@4", "--as", "june", "--on", "gw-1", "--on", "gw-2").exit_code
    assert command("promote", "june", "--force", wait=0).exit_code == 0
    known = registry(run.parent, "default")
    table = deployments(listed(known, {}))
    assert [row[2:] for row in table.rows] == [
        ["promote: run@3 -> june, forced", "nobody waited"],
        ["promote: run@3 -> june, on gw-1, gw-2", "1 took it over, 1 rejected it (gw-2)"],
        ["promote: no model -> run@3", "3 took it over, 0 rejected it"],
    ]
    assert table.title == "3 of 3 deployments, newest first"
    assert table.title in typed("versions", run.parent).stdout
    assert deployments(listed(registry(run.parent, "x"), {})).rows == []


def test_a_second_operator_of_this_machine_is_sent_away(
    broker: MemoryBroker, run: Path, command: Command
) -> None:
    (run.parent / promote.AT_WORK).write_text("kim@desk since 03:12")
    with folder_lock(run.parent / promote.AT_WORK, "unused"):
        for words in (("promote", "run@1"), ("rollback", "--to", "run@1")):
            refused = command(*words)
            assert refused.exit_code == 2
            assert "`rollback` is at work with it, of kim@desk since 03:12;" in refused.stderr
    assert len(broker.retained) == 0


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_a_second_operator_on_another_machine_is_named(
    broker: MemoryBroker, run: Path, command: Command, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The other one publishes after our look at the broker: before our models, before our deployment, or in our wait."""
    published(broker, run, command, 3)
    kept(run, 4)
    place = {"before": "survey", "between": "publish", "after": "follow"}[when]
    of = "covey.extras.in_use.promote"
    original = getattr(importlib.import_module(of), place)

    async def overtaken(*words: Any, **options: Any) -> Any:
        found = await original(*words, **options) if when == "before" else None
        link, topics = words[0], Topics("default")
        theirs = deployed(broker).model_copy(
            update={"serial": int(time.time() * 1000) + 60_000, "name": "may"}
        )
        await link.publish(topics.deployment, theirs.to_bytes(), retain=True)
        return found if when == "before" else await original(*words, **options)

    monkeypatch.setattr(f"{of}.{place}", overtaken)
    second = command("promote", "run@4")
    assert second.exit_code == 2
    assert "another operator published may" in second.stderr
    assert deployed(broker).name == "may"
