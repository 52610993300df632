"""Prometheus gets the figures of the record."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from covey.coordinator.odd import Odd
from covey.coordinator.record.notices import Notice
from covey.coordinator.serve.service import Service
from covey.extras.outlets.prometheus import PrometheusCollector, address, serving
from covey.shared.errors import UserError
from covey.shared.wire.topics import Topics
from tests import clock
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import Fleet
from tests.kit.small_run import clients, rules, scenario
from tests.processes import free_port

Sample = tuple[str, frozenset[tuple[str, str]]]


def samples(text: str) -> dict[Sample, float]:
    """Value by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scraped(service: Service) -> dict[Sample, float]:
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(service))
    return samples(generate_latest(registry).decode())


def sample(name: str, /, **labels: str) -> Sample:
    """With the labels that every metric of the small run has."""
    return name, frozenset({"federation": "default", "run": "r1", **labels}.items())


async def watched(
    folder: Path,
) -> tuple[Fleet, list[tuple[Mapping[str, Any], dict[Sample, float]]]]:
    """A run to its end, and at each line of its record what a scrape at the next moment finds."""
    scene, broker = scenario("fedclust", evaluation={"every": 1}), MemoryBroker()
    found: list[tuple[Mapping[str, Any], dict[Sample, float]]] = []

    async def disturb(service: Service) -> None:
        async with broker.link("noise") as link:
            await link.publish(Topics(service.scenario.federation).report("agent-0", 0), b"rubbish")

    async with (
        Fleet(folder, scene, rules(scene), broker, clients()) as fleet,
        asyncio.TaskGroup() as group,
    ):

        def observe(notice: Notice) -> None:
            service = fleet.service
            assert service is not None
            if not found:
                group.create_task(disturb(service))

            def scrape() -> None:
                found.append((notice.to_json(), scraped(service)))

            asyncio.get_running_loop().call_soon(scrape)

        await fleet.serve(observer=observe)
        await asyncio.sleep(0)
    return fleet, found


def test_each_odd_thing_is_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = Odd(("gw-7",), "silent", "is silent", "look at its log")
    monkeypatch.setattr(Service, "odd", property(lambda _: [silent]))
    _, found = clock.run(watched(tmp_path))
    assert found[-1][1][sample("covey_odd", device="gw-7", kind="silent", urgent="false")] == 1


def test_a_scrape_shows_the_round_the_clusters_and_the_newest_evaluation(tmp_path: Path) -> None:
    fleet, found = clock.run(watched(tmp_path))
    assert fleet.service is not None
    phases = [(row, seen) for row, seen in found if row["event"] == "phase"]
    assert len(phases) > 4
    for row, seen in phases:
        assert seen[sample("covey_rounds_done")] == row["round"] + row["ends_round"]
        for cluster, size in row["cluster_sizes"].items():
            assert seen[sample("covey_cluster_agents", cluster=cluster)] == size
        if "loss" in row:
            assert seen[sample("covey_train_loss")] == row["loss"]
        for mode, one in row.get("evaluation", {}).items():
            assert seen[sample("covey_accuracy", mode=mode)] == one["accuracy"]["macro"]
    last = scraped(fleet.service)
    about = {"name": fleet.scene.name, "method": "fedclust", "state": "finished"}
    assert last[sample("covey_run", **about)] == 1
    assert (
        last[sample("covey_agents", what="known")]
        == last[sample("covey_agents", what="takes_part")]
        == 8
    )
    assert last[sample("covey_agents", what="in_quarantine")] == 0
    assert last[sample("covey_void_attempts")] == 0
    assert last[sample("covey_disk_free_bytes")] > 1e6
    (refused,) = fleet.service.roster.refusals.items()
    assert last[sample("covey_refused_messages_total", reason=refused[0])] == refused[1] == 1
    assert (
        last[sample("covey_wire_bytes_total", direction="up")]
        == fleet.service.run.traffic["wire_up"]
        > 0
    )


def test_every_sample_names_its_federation_and_its_run(tmp_path: Path) -> None:
    _, found = clock.run(watched(tmp_path))
    for _, seen in found:
        assert all({("federation", "default"), ("run", "r1")} <= labels for _, labels in seen)


def test_a_regression_has_its_own_measures(tmp_path: Path) -> None:
    fleet, _ = clock.run(watched(tmp_path))
    service = fleet.service
    assert service is not None
    service.last_evaluation = {"server": {"rmse": {"macro": 2.5}, "r2": {"macro": 0.5}}}
    seen = scraped(service)
    assert seen[sample("covey_rmse", mode="server")] == 2.5
    assert seen[sample("covey_r2", mode="server")] == 0.5
    assert "covey_accuracy" not in {name for name, _ in seen}


def test_a_scrape_shows_all_but_the_free_disk_where_the_folder_was_moved_away(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    fleet, _ = clock.run(watched(folder))
    folder.rename(tmp_path / "elsewhere")
    assert fleet.service is not None
    seen = scraped(fleet.service)
    assert seen[sample("covey_rounds_done")] == fleet.scene.rounds.count
    assert sample("covey_disk_free_bytes") not in seen


def test_it_is_served_over_http_and_a_port_in_use_is_named(tmp_path: Path) -> None:
    fleet, _ = clock.run(watched(tmp_path))
    assert fleet.service is not None
    where = ("127.0.0.1", free_port())
    with serving(where, fleet.service):
        with urlopen(f"http://127.0.0.1:{where[1]}/metrics", timeout=10) as answer:
            assert (
                samples(answer.read().decode())[sample("covey_rounds_done")]
                == fleet.scene.rounds.count
            )
        with (
            pytest.raises(
                UserError, match=f"--metrics 127.0.0.1:{where[1]}: .* choose another port"
            ),
            serving(where, fleet.service),
        ):
            pass
    with pytest.raises(OSError):  # refused, or reset by a program that has the port now
        urlopen(f"http://127.0.0.1:{where[1]}/metrics", timeout=10)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("9464", ("127.0.0.1", 9464)),
        ("10.0.0.1:9464", ("10.0.0.1", 9464)),
        ("[::1]:80", ("::1", 80)),
        ("::1:80", ("::1", 80)),
    ],
)
def test_without_a_host_only_this_machine_is_answered(text: str, wanted: tuple[str, int]) -> None:
    assert address(text) == wanted


@pytest.mark.parametrize("text", ["", "host", "host:", "0", "70000", ":9464"])
def test_an_address_without_a_port_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"expected \[HOST:\]PORT"):
        address(text)
