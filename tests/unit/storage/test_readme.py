"""storage/README.md tells the truth: its layers are those of the imports."""

import ast
import re
from pathlib import Path

import pytest

STORAGE = Path(__file__).parents[3] / "storage"
TEXT = (STORAGE / "README.md").read_text()
MODULES = STORAGE / "clog" / "storage"


def layers() -> dict[str, int]:
    """The layer of each module, 0 on top."""
    rows = [line for line in TEXT.split("## Layers")[1].splitlines() if line.startswith("| ")]
    return {
        name: number
        for number, row in enumerate(rows)
        for name in re.findall(r"`([a-z_]+)/?`", row.split("|")[2])
    }


def imports_of(path: Path) -> set[str]:
    """Modules of storage that a module imports, by their first name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("clog.storage"):
            parts = (node.module or "").split(".")[2:]
            found.update(parts[:1] or [alias.name for alias in node.names])
    return found


def test_every_module_has_a_layer():
    """And no layer a module that is gone."""
    modules = {path.stem for path in MODULES.glob("*.py") if path.stem != "__init__"}
    assert set(layers()) == modules | {"store", "state"}


@pytest.mark.parametrize("name", sorted(layers()))
def test_a_module_imports_nothing_from_above(name):
    """Its own line, and those below."""
    layer = layers()
    path = MODULES / f"{name}.py"
    imported = imports_of(path) if path.exists() else set()
    assert not {other for other in imported if layer.get(other, 99) < layer[name]}
