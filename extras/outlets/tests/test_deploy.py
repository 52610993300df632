"""The files of `deploy`: what needs `outlets`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from covey.extras.outlets.tests.test_scrape import watched
from tests import clock
from tests.test_deploy import DEPLOY, compose
from tests.test_docs import mistake

DASHBOARD = DEPLOY / "grafana" / "dashboards" / "covey.json"
ALERTS = DEPLOY / "alerts.yml"
OF_REGRESSION = "covey_rmse"  # exported by runs of a regression
OF_SOME_RUNS = {  # with something odd, with several brokers, and with TLS
    "covey_odd",
    "covey_shard_up",
    "covey_certificate_expires_seconds",
}


def test_every_metric_of_the_dashboard_is_exported(tmp_path: Path) -> None:
    _, found = clock.run(watched(tmp_path))
    exported = {name for _, samples in found for name, _ in samples}
    panels = json.loads(DASHBOARD.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    shown = set(re.findall(r"\bcovey_\w+", " ".join(expressions)))
    assert shown - {OF_REGRESSION} <= exported
    assert len(shown) >= 11
    assert all(expression.count("$run") == 1 for expression in expressions)
    labels = {label for _, samples in found for _, pairs in samples for label, _ in pairs}
    legends = " ".join(target["legendFormat"] for panel in panels for target in panel["targets"])
    assert set(re.findall(r"{{(\w+)}}", legends)) <= labels
    (source,) = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text()
    )["datasources"]
    assert {panel["datasource"]["uid"] for panel in panels} == {source["uid"]}


def test_every_alert_is_about_exported_metrics_and_names_what_to_do(tmp_path: Path) -> None:
    _, found = clock.run(watched(tmp_path))
    exported = {name for _, samples in found for name, _ in samples} | OF_SOME_RUNS
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    assert len(group["rules"]) == 5
    for rule in group["rules"]:
        metrics = set(re.findall(r"\b(?:covey_\w+|up)\b", rule["expr"]))
        assert metrics <= exported | {"up"}, rule["alert"]
        assert metrics
        agents = set(re.findall(r'what="(\w+)"', rule["expr"]))
        assert agents <= {
            dict(labels)["what"]
            for _, samples in found
            for name, labels in samples
            if name == "covey_agents"
        }
        action = rule["annotations"]["action"]
        for command in re.findall(r"`(\w+ [a-z]+)", action):
            assert (
                mistake(command.replace("release", "release a").replace("forget", "forget a")) == ""
            )
    (loaded,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["rule_files"]
    assert f"./alerts.yml:{loaded}:ro" in compose()["services"]["prometheus"]["volumes"]
