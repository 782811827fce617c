"""The rules of docs/semantics.md and the tests that name them."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def test_every_rule_is_named_by_a_test():
    """A rule that no test's docstring names could break unseen; so could one named by mistake."""
    text = (ROOT / "docs" / "semantics.md").read_text()
    rules = set(re.findall(r"^- (S\d+) ", text, re.MULTILINE))
    assert rules
    named = {
        rule
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, FUNCTIONS) and node.name.startswith("test_")
        for rule in re.findall(r"\bS\d+\b", ast.get_docstring(node) or "")
    }
    assert rules - named == set()
    assert named <= rules
