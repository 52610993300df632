"""The format number: what has another one is kept apart from what is damaged, and a changed meaning has a new number."""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import msgpack
import pytest
from pydantic import BaseModel

import covey.shared.scenario
import covey.shared.wire
from covey.agent.device.outbox import State
from covey.coordinator.engine.members import Member
from covey.coordinator.run.run_state import RunState
from covey.shared.errors import DecodeError
from covey.shared.programs import version as versions
from covey.shared.programs.version import RELEASE
from covey.shared.wire.aggregates import AggregatorStatus
from covey.shared.wire.documents import AgentStatus, CoordinatorStatus
from covey.shared.wire.format import FORMAT, NONE
from covey.shared.wire.framing import VERSION, Document, Message, Packed, check_key, checksum_of
from covey.shared.wire.messages import OrderMessage, ReportContent
from tests.kit.small_run import scenario, setup
from tests.methods import METHODS
from tests.shared.samples import SAMPLES

SCHEMA = (
    1,
    "5a0d28a98bfa10a9",
)  # the format number, and the digest of the fields that it stands for


def models(package: ModuleType) -> Iterator[type[BaseModel]]:
    """All pydantic models of a package. Messages that only inform may get further fields: they are left out."""
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        for kind in vars(importlib.import_module(module.name)).values():
            is_own = isinstance(kind, type) and kind.__module__ == module.name
            if (
                is_own
                and issubclass(kind, BaseModel)
                and kind.model_config.get("extra") != "ignore"
            ):
                yield kind


def states() -> Iterator[type[Any]]:
    """The dataclasses of checkpoints and of an agent's folder, those of every method included."""
    yield from (State, RunState, Member)
    for method in METHODS:
        scene = scenario(method)
        yield type(scene.method.init(setup(scene)))


def schema() -> str:
    """A digest of the fields of all that travels, lies in a run's folder or in an agent's, with types as they are written."""
    found: dict[str, dict[str, str]] = {}
    for kind in (*models(covey.shared.wire), *models(covey.shared.scenario), *states()):
        names = kind.model_fields if issubclass(kind, BaseModel) else kind.__dataclass_fields__
        written: dict[str, Any] = {}
        for one in reversed(kind.__mro__):
            written |= vars(one).get("__annotations__", {})
        found[f"{kind.__module__}.{kind.__name__}"] = {name: str(written[name]) for name in names}
    text = json.dumps(found, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@pytest.mark.whole
def test_what_messages_and_files_mean_changes_only_with_the_format_number() -> None:
    found = (FORMAT, schema())
    assert found == SCHEMA, (
        "a message or a file has other fields: raise FORMAT (covey.shared.wire.format) if the present number was in any "
        f"state that others have, and store {found!r} as SCHEMA here"
    )


def without_format(message: Message) -> bytes:
    """The message as a program from before the number sends it."""
    tree = message.model_dump(mode="json" if isinstance(message, Document) else "python")
    del tree["format"]
    if isinstance(message, Document):
        body = json.dumps(tree).encode()
        return body[:-1] + check_key(body)
    packed: bytes = msgpack.packb(tree, use_bin_type=True)
    return framed(type(message), packed)


def framed(kind: type[Any], body: bytes) -> bytes:
    """A report has no checksum: its digest was compared."""
    return bytes([VERSION]) + (b"" if kind is ReportContent else checksum_of(body)) + body


NUMBERED = sorted(name for name, one in SAMPLES.items() if "format" in type(one).model_fields)


def test_statuses_orders_and_reports_have_the_number() -> None:
    named = {type(SAMPLES[name]) for name in NUMBERED}
    assert named == {AgentStatus, AggregatorStatus, CoordinatorStatus, OrderMessage, ReportContent}
    assert all(getattr(SAMPLES[name], "format") == FORMAT for name in NUMBERED)  # noqa: B009


@pytest.mark.parametrize("name", [n for n in NUMBERED if isinstance(SAMPLES[n], Document)])
def test_a_status_without_a_number_is_read_and_has_none(name: str) -> None:
    read = type(SAMPLES[name]).from_bytes(without_format(SAMPLES[name]))
    assert getattr(read, "format") == NONE  # noqa: B009


@pytest.mark.parametrize("name", [n for n in NUMBERED if isinstance(SAMPLES[n], Packed)])
def test_orders_and_reports_of_another_number_are_refused_for_it_whatever_their_fields(
    name: str,
) -> None:
    kind = type(SAMPLES[name])
    assert issubclass(kind, Packed)
    tree = {"format": FORMAT + 1, "new": 1}
    for payload in (without_format(SAMPLES[name]), framed(kind, msgpack.packb(tree))):
        with pytest.raises(DecodeError, match="speaks format") as refusal:
            kind.from_bytes(payload, verified=True)
        assert refusal.value.reason == "format"


def test_a_checkout_has_the_version_of_its_commit(tmp_path: Any) -> None:
    git = tmp_path / ".git"
    git.mkdir()
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "packed-refs").write_text("# pack-refs\n0123456789abcdef refs/heads/main\n")
    assert versions._commit(tmp_path) == "0123456789abcdef"
    (git / "HEAD").write_text("abcdef0123456789\n")
    assert versions._commit(tmp_path) == "abcdef0123456789"


def test_without_git_the_version_is_that_of_the_installed_package_or_of_the_release(
    tmp_path: Any,
) -> None:
    assert versions._commit(tmp_path) == ""
    assert versions.version().startswith(RELEASE)
