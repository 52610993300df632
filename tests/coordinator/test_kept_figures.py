"""Runs whose devices keep figures back: rounds continue, and the result gives the reason for what it lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from covey.coordinator.report.tables import none_evaluated, results, unevaluated
from covey.coordinator.run.result import write_all
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.virtual_clock import Driver
from covey.shared.disclosures import Promise, cleared
from covey.shared.wire.messages import OrderMessage, ReportContent
from tests.kit import small_run
from tests.kit.local_clients import LocalClients
from tests.kit.small_run import clients, fingerprint, in_process, local_for, samples_of, scenario

LOCAL = {"local": {"noise_multiplier": 1.0}}
CLIENT = {"client": {"clip": 1.0, "noise_multiplier": 1.0}}


class Owned(LocalClients):
    """Clients of which some have owners who demand sums or noise."""

    def __init__(self, owned: tuple[str, ...]) -> None:
        super().__init__(local_for(clients()))
        self._owned = owned

    def work(self, run: Run, client: str, order: OrderMessage) -> ReportContent:
        report = super().work(run, client, order)
        assert order.work is not None
        promises = [Promise.KEPT] if client in self._owned else []
        return cleared(report, order.work.phase, promises)


def finished(folder: Path, owned: tuple[str, ...]) -> Run:
    """A whole run that evaluates after each round."""
    this = scenario("fedavg", evaluation={"every": 1})
    run = Run.start(
        folder, this, small_run.setup(this), rules=small_run.rules(this), run="in-process", now=0.0
    )
    return Driver(run, Owned(owned)).complete(samples_of(clients()))


def test_a_device_that_keeps_its_figures_is_in_no_average_and_the_result_names_it(
    tmp_path: Path,
) -> None:
    run = finished(tmp_path / "run", ("agent-2", "agent-5"))
    result = write_all(run, None)
    assert result["kept_back"] == ["agent-2", "agent-5"]
    assert result["accuracy"]["server"]["agents"] == 6
    assert "2 of 8 agents keep their figures: the owners of these devices" in unevaluated(result)
    assert "6 of 8" in str(results([result]))
    plain = in_process(tmp_path / "plain", scenario("fedavg", evaluation={"every": 1}))
    assert fingerprint(run) == fingerprint(plain)


def test_a_run_whose_devices_all_keep_their_figures_is_complete_and_has_none(
    tmp_path: Path,
) -> None:
    run = finished(tmp_path, tuple(clients()))
    result = write_all(run, None)
    assert (result["rounds"], len(result["kept_back"])) == (3, 8)
    assert "no agent was evaluated" in none_evaluated(result)
    assert "8 of 8 agents keep their figures" in unevaluated(result)


def test_under_dp_sgd_fine_tuning_is_off_and_the_result_names_what_it_lacks(tmp_path: Path) -> None:
    this = scenario("fedavg", privacy=LOCAL)
    assert this.evaluation.tune_epochs == 0
    assert this.modes_left_out == ("tuned", "baseline")
    said = unevaluated({"agents": 8, "left_out": this.modes_left_out, "accuracy": {}})
    assert said.startswith("not under privacy.local")
    assert "fine-tuned" in said


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (LOCAL, {"evaluation": {"tune_epochs": 1}}, r"privacy\.local: evaluation\.tune_epochs"),
    (LOCAL, {"evaluation": {"track": True}}, r"privacy\.local: evaluation\.track"),
    (LOCAL, {"task": {"label_prior": "on"}}, r"privacy\.local: task\.label_prior"),
    (CLIENT, {"evaluation": {"every": 1}}, r"privacy\.client: evaluation\.every .* to 0"),
    (CLIENT, {"evaluation": {"track": True}}, r"privacy\.client: evaluation\.track"),
    (CLIENT, {"rounds": {"publish": "best"}}, r"privacy\.client: rounds\.publish: best"),
    (
        CLIENT,
        {"rounds": {"stop": {"target": 0.9}}, "evaluation": {"every": 1}},
        r"privacy\.client: rounds\.stop",
    ),
]


@pytest.mark.parametrize(("privacy", "sections", "said"), REFUSED)
def test_a_figure_that_chooses_what_is_released_or_reads_training_samples_is_refused_by_key(
    privacy: dict[str, Any], sections: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        scenario("fedavg", privacy=privacy, **sections)


@pytest.mark.whole
def test_a_comparison_by_fine_tuned_models_is_refused_under_dp_sgd() -> None:
    compare = {"methods": [{"name": "fedavg", "metric": "tuned"}]}
    with pytest.raises(ValidationError, match=r"privacy\.local: compare, method fedavg"):
        scenario("fedavg", privacy=LOCAL, compare=compare)
