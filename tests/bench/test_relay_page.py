"""The page and the picture of the relay's performance say what the bench wrote down, and nothing else."""

import json
import runpy
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

DOCS = Path(__file__).parents[2] / "docs"
FIGURES = DOCS / "reference" / "relay-figures.json"


def made_by(name: str) -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "pictures" / name))


@pytest.fixture
def figures() -> dict[str, Any]:
    told: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8"))
    return told


def test_the_tables_of_the_page_are_those_of_the_figures(figures: dict[str, Any]) -> None:
    made = made_by("make_relay_tables.py")
    page = made["PAGE"].read_text(encoding="utf-8")
    assert page == made["page"](page, figures), "run: python docs/pictures/make_relay_tables.py"
    assert page.count(made["BEGIN"]) == page.count(made["PEERS"]) == 1


def test_the_picture_is_drawn_from_the_figures(figures: dict[str, Any]) -> None:
    made = made_by("make_relay_curves.py")
    committed = made["PICTURE"].read_text(encoding="utf-8")
    assert committed == made["picture"](figures), "run: python docs/pictures/make_relay_curves.py"
    assert "prefers-color-scheme: dark" in committed


def test_nothing_in_the_picture_stands_outside_of_it(figures: dict[str, Any]) -> None:
    root = ElementTree.fromstring(made_by("make_relay_curves.py")["picture"](figures))
    _, _, width, height = (float(number) for number in root.attrib["viewBox"].split())
    drawn = 0
    for shape in root.iter():
        at = shape.attrib
        for across, down in (("x", "y"), ("cx", "cy"), ("x1", "y1"), ("x2", "y2")):
            if across in at and down in at:
                # A letter is seven wide, more or less.
                long = 6.6 * len(shape.text or "") if across == "x" else 0.0
                left = float(at[across]) - long * {"end": 1.0, "middle": 0.5}.get(at.get("text-anchor", ""), 0.0)
                assert left >= 0, shape.text
                assert left + long <= width, shape.text
                assert 0 <= float(at[down]) <= height
                drawn += 1
    assert drawn > 40


def test_a_figure_that_is_not_kept_is_told_as_such_and_one_of_a_loaded_machine_too() -> None:
    figure = {"value": 0.5, "unit": "", "asked": "at least 0.75", "target": 0.75, "passed": False}
    part = {"figures": {"ratio": figure}, "load": {"others": 1.2, "stolen": 0.1, "loaded_by_others": True}}
    row = made_by("make_relay_tables.py")["row"]("log store", "of the bare loop", figure, part)
    assert row == "| log store | of the bare loop | 0.5 | at least 0.75 | **not kept** | **1.30** |"
    quick = made_by("make_relay_tables.py")["row"]("log store", "of the bare loop", figure, {**part, "effort": "quick"})
    assert quick.startswith("| log store (a quick run) | of the bare loop | *0.5* |")


def test_the_tables_do_without_what_was_not_measured() -> None:
    made = made_by("make_relay_tables.py")
    machine = {"servers": "PostgreSQL", "cores": 2}
    plan = {"events": 1, "keys": 1, "payload": 200, "page": 5000, "pages": 4}
    figures = {"machine": machine, "plan": plan, "peers": {"seed": {"missing": "Go is not here"}}}
    text = f"before\n{made['BEGIN']}\nOLD\n{made['END']}\nbetween\n{made['PEERS']}\nOLD PEERS\n{made['END']}\nafter\n"
    told = made["page"](text, figures)
    assert "| seed | not measured: Go is not here |" in told
    assert "OLD" not in told
    assert "log store" not in told
    assert [told.count(word) for word in ("before\n", "between\n", "after\n")] == [1, 1, 1]
    assert "OLD PEERS" in made["page"](text, {**figures, "peers": {}})


def test_every_figure_of_the_bench_has_its_words_on_the_page(figures: dict[str, Any]) -> None:
    made = made_by("make_relay_tables.py")
    assert "failed" not in figures
    for _, place in made["PARTS"]:
        part = made["at"](figures, place)
        assert part is not None, f"{place} is not in {FIGURES.name}: it is measured by quiesce bench relay --full"
        assert all((place[0], key) in made["SAID"] for key in part["figures"])
