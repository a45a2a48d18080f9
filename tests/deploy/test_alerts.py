"""The alert rules are YAML that Prometheus reads, on metrics and labels that exist."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, Histogram

from quiesce.metrics import PrometheusMetrics

FILE = Path(__file__).parents[2] / "deploy" / "prometheus" / "outbox-alerts.yaml"


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(FILE.read_text())["groups"]
    assert set(group) == {"name", "rules"}
    return list(group["rules"])


def labels_of_metrics() -> dict[str, set[str]]:
    registry = CollectorRegistry()
    PrometheusMetrics(registry)
    return {
        name: set(collector._labelnames) | ({"le"} if name.endswith("_bucket") else set())  # type: ignore[attr-defined]  # every collector of the client has it
        for name, collector in registry._names_to_collectors.items()
    }


def edges_of_metrics() -> dict[str, set[str]]:
    """The values of `le` that a histogram's buckets have."""
    registry = CollectorRegistry()
    PrometheusMetrics(registry)
    return {
        f"{name}_bucket": {str(float(edge)) for edge in collector._kwargs["buckets"]}
        for name, collector in registry._names_to_collectors.items()
        if isinstance(collector, Histogram)
    }


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_a_rule_is_whole_and_its_metrics_exist(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"[A-Z]\w+", rule["alert"])
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert set(rule["annotations"]) == {"summary", "description"}
    assert re.fullmatch(r"\d+m", rule.get("for", "0m"))
    expression = str(rule["expr"])
    assert expression.count("(") == expression.count(")")
    known = labels_of_metrics()
    named = re.findall(r"\b(?:outbox|app|consumer)_\w+", expression)
    assert named
    assert set(named) <= known.keys()
    labels = set().union(*(known[name] for name in named))
    for grouped in re.findall(r"(?:by|on) \(([^)]*)\)", expression):
        assert {label.strip() for label in grouped.split(",")} <= labels
    for name, edge in re.findall(r"(\w+)\{le=\"([^\"]+)\"\}", expression):
        assert edge in edges_of_metrics()[name]
    for label in re.findall(r"\$labels\.(\w+)", str(rule["annotations"])):
        assert label in labels


def test_each_alert_has_its_advice_in_the_guide() -> None:
    guide = (FILE.parents[2] / "docs" / "how-to" / "operate-the-outbox.md").read_text()
    for rule in rules():
        assert f"`{rule['alert']}`" in guide, rule["alert"]
