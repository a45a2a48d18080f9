"""Prose and code say the same: metrics, flags, budget, links, names."""

import argparse
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import quiesce
from quiesce.cli.flags import variable
from quiesce.cli.main import parser
from quiesce.lifecycle.budget import Budget
from quiesce.lifecycle.report import ExitCode
from quiesce.metrics import PrometheusMetrics

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def test_every_metric_stands_in_the_table_with_its_type_and_labels_and_no_other() -> None:
    registry = CollectorRegistry()
    PrometheusMetrics(registry)
    documented = {
        name: (kind.strip(), labels.replace("`", "").replace(" ", ""))
        for name, kind, labels in re.findall(
            r"^\| `(\w+)` \| (\w+) \| ([^|]*)\|", page("reference/metrics.md"), re.MULTILINE
        )
    }
    real = {}
    for collector in set(registry._collector_to_names):
        described = next(iter(collector.describe()))  # type: ignore[attr-defined]  # every collector of the client has it
        suffix = "_total" if described.type == "counter" else ""
        real[described.name + suffix] = (described.type, ",".join(collector._labelnames))  # type: ignore[attr-defined]
    assert documented == real


def test_what_the_page_of_imports_says_can_be_imported() -> None:
    lines = re.findall(r"^\| `(from [^`]+)` \|", page("reference/imports.md"), re.MULTILINE)
    assert len(lines) > 8
    for line in lines:
        exec(line, {})


def _flags(root: argparse.ArgumentParser, path: str = "quiesce") -> Iterator[tuple[str, argparse.Action]]:
    for action in root._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield from _flags(sub, f"{path} {name}")
        elif action.option_strings and action.dest not in ("help", "version"):
            yield path, action


def test_every_flag_has_an_environment_twin_and_stands_in_the_reference() -> None:
    text = "".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*command*.md"))
    found = 0
    for command, action in _flags(parser()):
        flag = action.option_strings[-1]
        assert f"[{variable(flag)}" in (action.help or ""), f"{command} {flag} says nothing of its twin"
        section = re.search(rf"^## `{re.escape(command)}.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        assert section is not None, f"{command} has no section"
        assert f"`{flag}`" in section.group(), f"{command} {flag} is not documented"
        found += 1
    assert found > 5


def test_the_budget_page_has_every_setting_with_its_default() -> None:
    documented = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", page("reference/budget.md"), re.MULTILINE))
    assert {name: float(value) for name, value in documented.items()} == {
        field.name: field.default for field in fields(Budget)
    }


def test_every_exit_code_is_documented() -> None:
    for text in (page("reference/report.md"), (ROOT / "README.md").read_text()):
        documented = set(re.findall(r"^\| (\d+) \|", text, re.MULTILINE))
        assert documented == {str(int(code)) for code in ExitCode}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_within_the_project_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_every_page_is_reachable_from_the_index() -> None:
    index = page("README.md")
    for path in (ROOT / "docs").rglob("*.md"):
        relative = str(path.relative_to(ROOT / "docs"))
        assert relative == "README.md" or f"({relative})" in index, relative


def test_public_names_are_words_of_the_glossary_or_of_python() -> None:
    text = page("glossary.md")
    plain = {"running", "service"}  # the decorator and the context manager
    for name in quiesce.__all__:
        assert name in plain or f"`{name}`" in text or name in ("Stop", "Part"), name


def test_classifiers_and_requirement_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = [c.rpartition(" ")[2] for c in project["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert versions[0] == project["requires-python"].removeprefix(">=")


def test_the_project_pins_versions_and_names_no_host() -> None:
    lines = (ROOT / "constraints.txt").read_text().split()
    assert all(re.fullmatch(r"[\w.\-]+==[\w.]+", line) for line in lines)
