"""What devices show of themselves alone under secure sums: counted by the device, shortened, and the same for the same order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.agent.worker.worker import answer
from covey.extras.secure.agent import FIRST_CHOICES
from covey.extras.secure.locks import LOCK
from covey.extras.secure.owners_policy import OwnersPolicy
from covey.extras.secure.secure_folder import SecureFolder
from covey.extras.secure.tests.live import LAYOUT, TASK, Devices
from covey.shared.privacy.settings import Privacy, SecureSettings
from covey.shared.scenario.task import Task
from covey.shared.strategies.base import Expected, Strategy
from covey.shared.strategies.bases.losses import comparable
from covey.shared.strategies.clear_phases import rounded, told
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.facts import MOST_COMPARED
from covey.shared.strategies.phase_names import CARD
from covey.shared.strategies.registry import BUILT_IN
from covey.shared.wire.codec import Codec, encode_model
from covey.shared.wire.jobs import DeviceData, Perform
from covey.shared.wire.messages import ModelRef, ReportContent, digest
from tests.attacks.rogue import order
from tests.bowl import softmax_client
from tests.kit.small_run import GROUPS, in_process, scenario

AGENT = "a3"
PRIVACY = Privacy.model_validate({"secure": {"clip": 10.0, "cap": 1000}}).for_agents(10)
OPTIONS: dict[str, dict[str, Any]] = {"fedclust": {"vote": "auto"}, "pacfl": {"vote": "auto"}}
SMALL = {"training": {"epochs": 1, "batch": 8, "lr": 0.05}}


def clear_phases(*kinds: str) -> list[tuple[str, str]]:
    """Each method and phase that shows something of one agent, by the methods' facts."""
    return [
        (name, phase)
        for name, method in BUILT_IN.items()
        if method.facts.sealed is not None
        for phase, what in method.facts.sealed.clear.items()
        if not kinds or what in kinds
    ]


def strategy_of(method: str) -> Strategy[Any]:
    return BUILT_IN[method].model_validate({"name": method, **OPTIONS.get(method, {})})


def numbers_of(method: str, phase: str) -> dict[str, Any]:
    """Those that an order of this phase may have, as small as they may be."""

    def smallest(form: Expected) -> Any:
        return [0.0, 0.0] if form.length else 1

    declared = BUILT_IN[method].facts.numbers_of(phase)
    return {name: smallest(form) for name, form in declared.items() if name != "prior"}


def ask(
    devices: Devices,
    method: str,
    phase: str,
    *,
    models: int = 2,
    value: float = 0.1,
    **changes: Any,
) -> ReportContent:
    """What a device answers to somebody who may speak as its coordinator."""
    place, paths, refs = devices.folder / AGENT, [], []
    for number in range(models):
        model = np.full(LAYOUT.size, value + number, np.float32)
        content = encode_model(model, LAYOUT.digest, Codec("float32"), np.random.default_rng(0))
        paths.append(place / f"{digest(content).hex()}.model")
        paths[-1].write_bytes(content)
        refs.append(ModelRef(key=str(number), digest=digest(content), parts=1, size=len(content)))
    fields = {
        "round": 0,
        "task": Task.model_validate(TASK).for_agents(),
        "layout": LAYOUT.to_wire(),
        "models": refs,
        "strategy": strategy_of(method).model_dump(mode="json"),
        "numbers": numbers_of(method, phase),
        "privacy": PRIVACY,
        **SMALL,
    }
    (place / "report").unlink(missing_ok=True)
    asked = order(phase=phase, **{**fields, **changes})
    answer(
        Perform(
            order=asked.to_bytes(),
            models=paths,
            client=AGENT,
            source=DeviceData(data=str(place / "data.csv"), label="y"),
            report_out=place / "report",
            memory_out=place / "memory",
            durable=False,
            secure=place / "secure",
            rules=devices.rules,
        )
    )
    return ReportContent.from_bytes((place / "report").read_bytes(), verified=True)


def shown(report: ReportContent) -> str:
    """All that is in a report of the data."""
    vectors = {name: one.data.hex() for name, one in report.vectors.items()}
    return json.dumps([vectors, dict(report.numbers)])


@pytest.fixture
def devices(tmp_path: Path) -> Devices:
    return Devices(tmp_path, "privacy={secure_least: 4, secure_clear: true}")


@pytest.mark.parametrize(("method", "phase"), clear_phases("signature", "vote"))
def test_a_device_shows_one_signature_and_one_vote_whatever_the_method_round_and_model(
    devices: Devices, method: str, phase: str
) -> None:
    first = ask(devices, method, phase)
    assert not first.failure
    sealed = BUILT_IN[method].facts.sealed
    assert sealed is not None
    secrets = devices.folder / AGENT / "secure"
    entry, fleet = ((secrets / name).read_bytes() for name in ("entry", "fleet.pub"))
    for other, its_phase in clear_phases(sealed.clear[phase]):
        SecureFolder.take_entry(secrets, entry, fleet)  # enrolled again
        again = ask(devices, other, its_phase, value=0.2, round=7)
        assert "shown before" in (again.failure or "")
        assert not again.vectors
        assert not again.numbers


@pytest.mark.parametrize(("method", "phase"), clear_phases())
def test_the_same_order_gets_the_same_bytes_though_the_data_have_changed(
    devices: Devices, method: str, phase: str
) -> None:
    first = ask(devices, method, phase)
    data = devices.folder / AGENT / "data.csv"
    data.write_text(data.read_text().replace(data.read_text().splitlines()[1], "9,9,9,9"))
    again = ask(devices, method, phase)
    assert not again.failure
    assert shown(again) == shown(first)


@pytest.mark.parametrize(("method", "phase"), clear_phases())
def test_a_coordinator_with_an_older_folder_gets_the_same_bytes_after_work_for_a_sum(
    devices: Devices, method: str, phase: str
) -> None:
    first = ask(devices, method, phase)
    device = SecureFolder.of_device(devices.folder / AGENT / "secure", OwnersPolicy(least=4))
    assert device is not None
    device.keep_work(b"sum", {"a": np.arange(3)})
    again = ask(devices, method, phase)
    assert not again.failure
    assert shown(again) == shown(first)


@pytest.mark.parametrize(("method", "phase"), clear_phases("signature"))
def test_noise_on_a_signature_is_not_drawn_again(devices: Devices, method: str, phase: str) -> None:
    if phase not in BUILT_IN[method].facts.signatures:
        pytest.skip("without noise")
    noise = {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5}
    noised: dict[str, Any] = {
        "privacy": {**PRIVACY, "signatures": noise},
        "strategy": _without_vote(method),
    }
    numbers = {k: v for k, v in numbers_of(method, phase).items() if k not in (CARD, "squares")}
    assert not ask(devices, method, phase, numbers=numbers, **noised).failure
    again = ask(devices, method, phase, numbers=numbers, **noised)
    assert "shown before" in (again.failure or "")


def _without_vote(method: str) -> dict[str, Any]:
    return BUILT_IN[method].model_validate({"name": method}).model_dump(mode="json")


@pytest.mark.parametrize(("method", "phase"), clear_phases("choice"))
def test_a_device_chooses_twice_as_often_as_it_has_answered_sums_and_a_few_times_before(
    devices: Devices, method: str, phase: str
) -> None:
    def choices(first: int) -> Iterator[bool]:
        for number in range(first, first + 10):
            yield not ask(devices, method, phase, round=number).failure

    assert sum(choices(0)) == FIRST_CHOICES
    keys = SecureFolder.of_device(devices.folder / AGENT / "secure", OwnersPolicy())
    assert keys is not None
    lock = LOCK.pack(b"start", b"order", b"members", b"content")
    keys.save(keys.state().changed(locks=lock + lock))  # two models of one sum
    assert sum(choices(10)) == 2


@pytest.mark.parametrize(("method", "phase"), clear_phases("choice"))
def test_a_choice_among_many_models_is_refused_before_the_data_are_read(
    devices: Devices, method: str, phase: str
) -> None:
    report = ask(devices, method, phase, models=MOST_COMPARED + 1)
    assert f"a choice among {MOST_COMPARED + 1} models" in (report.failure or "")
    assert not ask(devices, method, phase, models=MOST_COMPARED).failure
    many = BUILT_IN[method].model_validate({"name": method, "n_clusters": MOST_COMPARED + 1})
    assert "at most" in many.refuses(SecureSettings(clip=1.0))


@pytest.mark.parametrize(("method", "phase"), clear_phases("choice", "vote"))
def test_losses_leave_with_two_digits(devices: Devices, method: str, phase: str) -> None:
    report = ask(devices, method, phase)
    seen = [value for one in report.numbers.values() for value in _values(one)]
    assert seen
    assert all(value == float(f"{value:.1e}") for value in seen)


def _values(number: Any) -> list[float]:
    return [float(one) for one in number] if isinstance(number, list) else [float(number)]


@pytest.mark.parametrize("signature", ["final_layer", "update"])
def test_no_signature_is_a_model_or_an_image_of_one_from_which_it_follows(
    devices: Devices, signature: str
) -> None:
    asked = (
        BUILT_IN["fedclust"]
        .model_validate({"name": "fedclust", "signature": signature})
        .model_dump(mode="json")
    )
    report = ask(devices, "fedclust", "signature", strategy=asked)
    if signature == "final_layer":
        assert "a final layer is a part of the update" in (report.failure or "")
    else:
        assert report.vectors["signature"].length == LAYOUT.size // 4


@pytest.mark.parametrize("broken", ["keep_work", "save"])
def test_nothing_leaves_before_it_is_on_the_disk_and_counted(
    devices: Devices, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(SecureFolder, broken, full)
        with pytest.raises(FileNotFoundError):  # there is no report
            ask(devices, "flux", "signature")
    assert not ask(devices, "flux", "signature", round=1).failure


@pytest.mark.parametrize(("method", "phase"), clear_phases())
def test_without_consent_nothing_is_shown(tmp_path: Path, method: str, phase: str) -> None:
    report = ask(Devices(tmp_path), method, phase)
    assert "privacy.secure_clear" in (report.failure or "")
    assert not report.vectors
    assert not report.numbers


@pytest.mark.parametrize(("orders", "percent"), [(2, 29), (4, 1.8), (24, 0.7)])
def test_the_page_has_what_a_lying_coordinator_computes_from_losses(
    orders: int, percent: float
) -> None:
    """Least squares from chosen models: the update of a linear model of four values in two epochs of one batch."""
    rng, upper = np.random.default_rng(0), np.triu_indices(4)
    rows = np.c_[rng.normal(size=(40, 3)), np.ones(40)]
    targets = rows @ [1.0, -2.0, 0.5, 3.0]

    def update(form: Any, slope: Any) -> Any:
        model = start = np.array([0.3, -1.0, 0.2, 0.7])
        for _ in range(2):
            model = model - 0.1 * (form @ model + slope)
        return model - start

    true, errors = update(rows.T @ rows / 40, -rows.T @ targets / 40), []
    for _ in range(20):
        models = rng.normal(size=(MOST_COMPARED * orders, 4))
        models *= 10 ** rng.uniform(-0.5, 1.5, size=(len(models), 1))
        losses = ((models @ rows.T - targets) ** 2).mean(axis=1).tolist()
        report = told(Report({}, 40, {"losses": losses}), "choice", LAYOUT, None)
        found = np.array(report.numbers["losses"])
        pairs = models[:, upper[0]] * models[:, upper[1]] * np.where(upper[0] == upper[1], 1, 2)
        unknown = np.c_[pairs, 2 * models, np.ones(len(models))] / found[:, None]
        solved = np.linalg.lstsq(unknown, np.ones(len(models)), rcond=None)[0]
        form = np.zeros((4, 4))
        form[upper] = solved[:10]
        form += np.triu(form, 1).T
        errors.append(np.linalg.norm(update(form, solved[10:14]) - true) / np.linalg.norm(true))
    print(f"{orders} orders: {100 * np.median(errors):.2g} %")
    assert 100 * np.median(errors) == pytest.approx(percent, rel=0.1)
    assert f"{percent} %" in Path("docs/secure-sums.md").read_text()


def test_two_digits_leave_clove_the_groups_that_it_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight fleets of twelve agents in two groups, after two rounds."""
    found: list[list[Mapping[str, int]]] = []
    for kind in ("all digits", "two digits"):
        if kind == "two digits":
            monkeypatch.setattr(
                "covey.extras.papers.clove.comparable",
                lambda losses: np.array(rounded(comparable(losses).tolist())),
            )
        found.append([])
        for seed in range(8):
            scene = scenario(
                "clove", seed=seed, rounds={"count": 2, "participation": 1.0, "start_agents": 12}
            )
            people = {
                f"agent-{i}": softmax_client(GROUPS[i % 2], seed=100 * seed + i) for i in range(12)
            }
            run = in_process(tmp_path / kind / str(seed), scene, people)
            found[-1].append(run.strategy.assignment(run.state))
    assert found[0] == found[1]
