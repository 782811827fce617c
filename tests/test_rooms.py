"""The READMEs show the rooms as they are: those of the import contracts, in their order."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]
ORDERS = {
    contract["containers"][0].removeprefix("clog."): contract["layers"]
    for contract in CONTRACTS
    if "containers" in contract
}
ROOTS = ("storage", "cleaner", "connector", "bridge")
WHERE = {
    "bridge.capturing": ("bridge/README.md", "## What captures share\n"),
    "bridge.postgres": ("bridge/README.md", "## Rooms of the bridge to PostgreSQL\n"),
    "cli": ("cleaner/README.md", "## Rooms of the command line\n"),
}
"""Where the table of a package is that has no README of its own."""


def test_the_readmes_name_the_rooms_in_their_order():
    """Each row of the table under "Rooms" is one layer of the contract, from the top down."""
    assert ORDERS
    for package, order in ORDERS.items():
        readme, heading = WHERE.get(package, (f"{package}/README.md", "## Rooms\n"))
        text = (ROOT / readme).read_text().split(heading)[1].split("\n## ")[0]
        rows = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]
        shown = [re.findall(r"`([a-z_]+)/?`", row) for row in rows]
        assert shown == [layer.split(" | ") for layer in order], package


def test_a_folder_is_no_heap():
    """A folder holds at most 22 modules: what is more belongs in rooms."""
    folders = [p for root in ROOTS for p in (ROOT / root / "clog").rglob("*") if p.is_dir()]
    counts = {str(f.relative_to(ROOT)): len(list(f.glob("*.py"))) for f in folders}
    assert counts
    assert not {folder: n for folder, n in counts.items() if n > 22}


def test_unit_tests_stand_where_their_modules_do():
    """A folder of tests is a package, or a room of one."""
    tests = ROOT / "tests/unit"
    found = [p.relative_to(tests) for p in tests.rglob("*") if p.is_dir()]
    folders = [f for f in found if "__pycache__" not in f.parts]
    assert folders
    assert not [str(f) for f in folders if not any((ROOT / r / "clog" / f).is_dir() for r in ROOTS)]
