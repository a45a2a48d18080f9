"""The picture of the shutdown: the committed one is what the code draws now."""

import runpy
from pathlib import Path
from xml.etree import ElementTree

DRAWS = Path(__file__).parents[2] / "docs" / "pictures" / "make_timeline.py"


def test_the_committed_picture_is_what_the_script_draws_now() -> None:
    made = runpy.run_path(str(DRAWS))
    committed = made["PICTURE"].read_text(encoding="utf-8")
    assert committed == made["picture"](), "run: python docs/pictures/make_timeline.py"
    assert "prefers-color-scheme: dark" in committed


def test_nothing_in_it_stands_outside_of_it() -> None:
    made = runpy.run_path(str(DRAWS))
    root = ElementTree.fromstring(made["picture"]())
    _, _, width, height = (float(number) for number in root.attrib["viewBox"].split())
    drawn = 0
    for shape in root.iter():
        at = shape.attrib
        if "x" in at and "y" in at:
            # A letter is seven wide, more or less.
            long = float(at["width"]) if "width" in at else 6.6 * len(shape.text or "")
            left = float(at["x"]) - (long if at.get("text-anchor") == "end" else 0)
            assert left >= 0, shape.text
            assert left + long <= width, shape.text
            assert float(at["y"]) <= height
            drawn += 1
    assert drawn > 20
