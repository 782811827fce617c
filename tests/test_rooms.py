"""The READMEs show the rooms as they are: those of the import contracts, in their order."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]
ORDERS = {
    contract["containers"][0].removeprefix("clog."): contract["layers"]
    for contract in CONTRACTS
    if "containers" in contract
}
WHERE = {"cli": ("cleaner/README.md", "## Rooms of the command line\n")}
"""Where the table of a package is that has no README of its own."""


@pytest.mark.parametrize("package", sorted(ORDERS))
def test_the_readme_names_the_rooms_in_their_order(package):
    """Each row of the table under "Rooms" is one layer of the contract, from the top down."""
    readme, heading = WHERE.get(package, (f"{package}/README.md", "## Rooms\n"))
    text = (ROOT / readme).read_text().split(heading)[1].split("\n## ")[0]
    rows = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]
    shown = [re.findall(r"`([a-z_]+)/?`", row) for row in rows]
    assert shown == [layer.split(" | ") for layer in ORDERS[package]]


@pytest.mark.parametrize("package", ["storage", "cleaner", "connector"])
def test_a_folder_is_no_heap(package):
    """A folder holds at most 22 modules: what is more belongs in rooms."""
    folders = [p for p in (ROOT / package / "clog").rglob("*") if p.is_dir()]
    counts = {str(f.relative_to(ROOT)): len(list(f.glob("*.py"))) for f in folders}
    assert counts
    assert not {folder: n for folder, n in counts.items() if n > 22}


@pytest.mark.parametrize("kind", ["storage", "cleaner", "connector"])
def test_unit_tests_stand_where_their_modules_do(kind):
    """A folder of tests is a folder of the package."""
    tests = ROOT / "tests/unit" / kind
    folders = [p.relative_to(tests) for p in tests.rglob("*") if p.is_dir()]
    folders = [f for f in folders if "__pycache__" not in f.parts]
    assert folders
    assert [f for f in folders if not (ROOT / kind / "clog" / kind / f).is_dir()] == []
