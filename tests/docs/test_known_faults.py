"""The page of known faults and the tests that play them say the same."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "known-faults.md").read_text()

NUMBER = re.compile(r"_([SOK]\d+)(?=_|$)", re.IGNORECASE)


def every_test() -> Iterator[tuple[str, str]]:
    """File and name of every test, those of the published contracts too."""
    for folder in (ROOT / "tests", ROOT / "src" / "quiesce" / "testing" / "contracts"):
        for path in sorted(folder.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                    yield str(path.relative_to(ROOT)), node.name


def rows() -> dict[str, list[str]]:
    """Number and cells."""
    found = re.findall(r"^\| ([SOK]\d+) \| (.*) \|$", PAGE, re.MULTILINE)
    assert len(found) == len({number for number, _ in found}), "a number has two rows"
    return {number: cells.split(" | ") for number, cells in found}


def test_every_number_in_the_name_of_a_test_stands_in_the_page() -> None:
    used = defaultdict(list)
    for path, name in every_test():
        for number in NUMBER.findall(name):
            used[number.upper()].append(f"{path}::{name}")
    assert len(used) > 40
    documented = rows()
    unknown = {number: where for number, where in used.items() if number not in documented}
    assert not unknown, "add a row to docs/reference/known-faults.md"


def test_every_row_names_a_test_of_its_number_that_exists() -> None:
    there = {f"{path}::{name}" for path, name in every_test()}
    for number, cells in rows().items():
        source, wrong, here, named = cells
        assert source, number
        assert wrong, number
        assert here, number
        for test in re.findall(r"`([^`]+)`", named):
            assert test in there, f"{number} names {test}"
            assert number in [one.upper() for one in NUMBER.findall(test)], f"{number} names {test}"


def test_the_numbers_stand_in_order() -> None:
    numbers = [(number[0], int(number[1:])) for number in rows()]
    assert numbers == sorted(numbers, key=lambda number: ("SOK".index(number[0]), number[1]))
