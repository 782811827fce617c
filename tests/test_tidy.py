"""The house in numbers: what STYLE.md says and a machine can count."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("storage", "cleaner", "connector")
MODULES = sorted(p for f in FOLDERS for p in (ROOT / f).rglob("*.py"))
PROGRAMS = [
    path
    for folder in ("tests", "benchmarks", "examples")
    for path in (ROOT / folder).rglob("*.py")
    if ".environments" not in path.parts  # of the benchmarks' peers
]
TEXTS = sorted(
    p
    for pattern in ("*.md", "*.toml", "*.sh", "test", "demo", ".ci/*")
    for p in ROOT.glob(pattern)
    if p.is_file()
) + sorted(p for f in FOLDERS for p in (ROOT / f).rglob("*.md"))
MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 50
LINE_CHARACTERS_MAX = 100


def names(paths):
    return [str(p.relative_to(ROOT)) for p in paths]


def test_there_is_something_to_check():
    """A wrong root would let every other test here pass."""
    assert len(MODULES) > 10
    assert ROOT / "pyproject.toml" in TEXTS


@pytest.mark.parametrize("path", MODULES, ids=names(MODULES))
def test_a_module_stays_small(path):
    """Modules of 400 lines, functions of 50, lines of 100 at most."""
    text = path.read_text()
    lines = text.splitlines()
    assert len(lines) <= MODULE_LINES_MAX
    too_long = {i: len(x) for i, x in enumerate(lines, 1) if len(x) > LINE_CHARACTERS_MAX}
    assert not too_long
    functions = {
        f"{node.name} in line {node.lineno}": node.end_lineno - node.lineno + 1
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert not {name: n for name, n in functions.items() if n > FUNCTION_LINES_MAX}


@pytest.mark.parametrize("path", MODULES, ids=names(MODULES))
def test_a_module_says_what_it_is(path):
    """Its docstring opens with one sentence; nothing unfinished is left in it."""
    text = path.read_text()
    docstring = ast.get_docstring(ast.parse(text))
    assert docstring
    assert docstring.split("\n\n")[0].rstrip().endswith((".", ":", ";")), docstring
    assert not re.search(r"\b(TODO|FIXME|XXX|HACK)\b", text)


def test_the_namespace_package_has_no_init():
    """PEP 420: one `clog/__init__.py` would hide the other two folders."""
    assert not [p for p in MODULES if p.parent.name == "clog" and p.name == "__init__.py"]


@pytest.mark.parametrize("package", ["storage", "cleaner", "connector"])
def test_every_package_is_typed(package):
    """PEP 561, for the users' type checkers."""
    assert (ROOT / package / "clog" / package / "py.typed").is_file()
    assert (ROOT / package / "clog" / package / "__init__.py").is_file()


@pytest.mark.parametrize(
    "path", [*MODULES, *PROGRAMS, *TEXTS], ids=names([*MODULES, *PROGRAMS, *TEXTS])
)
def test_no_file_knows_the_machine_it_was_written_on(path):
    """No absolute path of somebody's home or work tree."""
    found = re.findall(r"(?<![\w:/.])/(?:home|root|Users|work|workspace)/\S*", path.read_text())
    assert not found


def test_bugs_of_others_are_kept_out_by_tests_that_exist():
    """The table of tests/README.md names no test that is gone."""
    named = re.findall(r"`([a-z_/0-9]+\.py)::(\w+)`", (ROOT / "tests/README.md").read_text())
    assert len(named) > 20
    for path, name in named:
        assert f"def {name}(" in (ROOT / "tests" / path).read_text(), f"{path}::{name}"
