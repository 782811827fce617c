"""docs/promises.md: each promise of the README has its row, and each reference leads somewhere."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXTS = {
    path: (ROOT / path).read_text()
    for path in ("README.md", "docs/promises.md", "docs/semantics.md", "storage/COMMIT.md")
}
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXTS["docs/promises.md"].splitlines()
    if line.startswith("| ") and not line.startswith("| promise")
]


def test_each_promise_of_the_readme_has_a_row():
    """In the README's order, under its name."""
    guarantees = TEXTS["README.md"].split("## What it guarantees")[1].split("\n## ")[0]
    promised = re.findall(r"^- \*\*(.+?)\.\*\*", guarantees, re.MULTILINE)
    assert promised
    assert [row[0] for row in ROWS][: len(promised)] == promised


def test_each_rule_and_step_exists():
    """Rules in the semantics, steps in the commit protocol or in the code of their row."""
    rules = set(re.findall(r"^- (S\d+) ", TEXTS["docs/semantics.md"], re.MULTILINE))
    assert {rule for row in ROWS for rule in re.findall(r"S\d+", row[1])} <= rules
    for promise, _, steps, code, *_ in ROWS:
        specified = TEXTS["storage/COMMIT.md"] + (ROOT / code.strip("`")).read_text()
        for step in re.findall(r"[A-Z]\d+", steps):
            assert re.search(rf"\b{step}\b", specified), f"{promise}: {step}"


def test_each_code_names_what_it_holds():
    """One of its rules or steps at least; else a reader of the code would not learn of it."""
    for promise, rules, steps, code, *_ in ROWS:
        names = re.findall(r"[A-Z]\d+", f"{rules} {steps}")
        text = (ROOT / code.strip("`")).read_text()
        assert not names or re.search(rf"\b({'|'.join(names)})\b", text), f"{promise}: {code}"


def test_each_place_exists():
    """Files, and the functions after `::`; no promise is without code and test."""
    for promise, _, _, *cells in ROWS:
        assert cells[0], promise
        assert cells[1], promise
        for path, _, name in re.findall(r"`([\w/]+\.py)(::(\w+))?`", " ".join(cells)):
            text = (ROOT / path).read_text()
            found = {node.name for node in ast.walk(ast.parse(text)) if hasattr(node, "name")}
            assert not name or name in found, f"{promise}: {path}::{name}"
