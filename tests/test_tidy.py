"""The house in numbers: what STYLE.md says and a machine can count."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("storage", "cleaner", "connector", "bridge")
MODULES = sorted(p for f in FOLDERS for p in (ROOT / f).rglob("*.py") if not p.is_symlink())
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
MODULE_LINES_MAX = 900
FUNCTION_LINES_MAX = 80
LINE_CHARACTERS_MAX = 100


def broken(paths, rule):
    """What a rule yields as wrong, by file."""
    found = {str(path.relative_to(ROOT)): list(rule(path, path.read_text())) for path in paths}
    return {path: wrong for path, wrong in found.items() if wrong}


@cache
def parsed(path):
    return ast.parse(path.read_text())


def test_there_is_something_to_check():
    """A wrong root would let every other test here pass."""
    assert len(MODULES) > 10
    assert ROOT / "pyproject.toml" in TEXTS


def test_modules_stay_in_bounds():
    """Modules of 900 lines, functions of 80, lines of 100 at most."""

    def rule(path, text):
        lines = text.splitlines()
        if len(lines) > MODULE_LINES_MAX:
            yield f"{len(lines)} lines"
        for number, line in enumerate(lines, 1):
            if len(line) > LINE_CHARACTERS_MAX:
                yield f"line {number} has {len(line)} characters"
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = node.end_lineno - node.lineno + 1
                if length > FUNCTION_LINES_MAX:
                    yield f"{node.name} in line {node.lineno} has {length} lines"

    assert not broken(MODULES, rule)


DOCSTRING_LINES_MAX = 25


def test_the_docstring_of_a_module_is_no_essay():
    """It has at most 25 lines, beside a drawing; the rest stands where it says."""

    def rule(path, text):
        docstring = ast.get_docstring(parsed(path)) or ""
        drawn = re.sub(r"::\n\n(    .*\n)+", "", docstring)
        if (lines := len(drawn.splitlines())) > DOCSTRING_LINES_MAX:
            yield f"{lines} lines"

    assert not broken(MODULES, rule)


@cache
def names_of_ours():
    """Modules, packages, and whatever is defined, assigned, taken or imported in one."""
    found = {name for path in MODULES for name in path.relative_to(ROOT).with_suffix("").parts}
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            match node:
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name):
                    found.add(name)
                case ast.arg(arg=name):
                    found.add(name)
                case ast.Attribute(attr=name, value=ast.Name(id="self")):
                    found.add(name)
                case ast.alias(name=name):
                    found.add(name.rpartition(".")[2])
    return found


def test_names_in_docstrings_exist():
    """What stands in single backticks is a name of ours, so none is left behind by a move."""

    def rule(path, text):
        texts = [
            node.value.value
            for node in ast.walk(parsed(path))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ]
        named = re.findall(r"(?<!`)`([A-Za-z_][\w.]*)(?:\(\))?`(?!`)", "\n".join(map(str, texts)))
        return {name for name in named if {*name.split(".")} - names_of_ours()}

    assert not broken(MODULES, rule)


def test_each_source_root_has_the_same_package():
    """Whichever is found first, by Python or by a type checker, it is the one of storage."""
    own = ROOT / "storage/clog/__init__.py"
    assert not own.is_symlink()
    for folder in FOLDERS[1:]:
        assert (ROOT / folder / "clog/__init__.py").readlink() == Path("../..", *own.parts[-3:])


def test_every_package_is_typed():
    """PEP 561, for the users' type checkers."""
    for package in FOLDERS:
        assert (ROOT / package / "clog" / package / "py.typed").is_file()
        assert (ROOT / package / "clog" / package / "__init__.py").is_file()


def test_no_file_knows_the_machine_it_was_written_on():
    """No absolute path of somebody's home or work tree."""
    home = re.compile(r"(?<![\w:/.])/(?:home|root|Users|work|workspace)/\S*")
    assert not broken([*MODULES, *PROGRAMS, *TEXTS], lambda path, text: home.findall(text))


def test_bugs_of_others_are_kept_out_by_tests_that_exist():
    """The table of tests/README.md names no test that is gone."""
    named = re.findall(r"`([a-z_/0-9]+\.py)::(\w+)`", (ROOT / "tests/README.md").read_text())
    assert len(named) > 20
    for path, name in named:
        assert f"def {name}(" in (ROOT / "tests" / path).read_text(), f"{path}::{name}"


def test_where_a_change_goes_exists():
    """Each row of CONTRIBUTING.md's table names files that are there, from the root or beside the
    first one.
    """
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where does a change go?")[2]
    rows = [row.split("|")[3:5] for row in table.splitlines() if row.startswith("| ")][1:]
    assert rows
    for begin, then in rows:
        first, *others = re.findall(r"`([\w/]+(?:\.(?:py|md)|/\w+))`", begin + then)
        assert (ROOT / first).exists(), first
        base = (ROOT / first) if (ROOT / first).is_dir() else (ROOT / first).parent
        for other in others:
            beside = [base, ROOT, *((ROOT / o).parent for o in others)]
            assert any((folder / other).exists() for folder in beside), other


@cache
def said_in_tests():
    """The words of each file of tests, with the dashes of options."""
    files = (ROOT / "tests").rglob("*.py")
    return [set(re.findall(r"[\w.-]+", path.read_text().lower())) for path in files]


def test_each_option_of_a_command_is_in_a_test():
    """In a file that has the command, too; those that all commands share in any."""
    from clog.cli.app import COMMANDS, app
    from clog.cli.options import SHARED

    shared = {"--config", *(spelled for parameter in SHARED for spelled in parameter.opts)}
    options = [
        (name, parameter.opts)
        for rows in COMMANDS.values()
        for name in rows
        for parameter in app.commands[name].params
        if parameter.opts[0].startswith("-")
    ]
    options += [("clog", parameter.opts) for parameter in SHARED]
    assert len(options) > 100
    for name, spelled in options:
        words = {spelled[0]} & shared or {name}
        found = [words <= said and not said.isdisjoint(spelled) for said in said_in_tests()]
        assert any(found), f"clog {name}: {spelled}"


def test_each_setting_is_in_a_test():
    """Options of Spark, configs of logs and of the daemon, variables of the environment."""
    from clog.cleaner.daemon.broker_config import SETTINGS
    from clog.connector.options import DEFINITIONS as OPTIONS
    from clog.storage.config.log_config import DEFINITIONS as CONFIGS

    variables = {
        name for path in MODULES for name in re.findall(r"\"(CLOG_[A-Z_]+)\"", path.read_text())
    }
    assert variables
    names = {*CONFIGS, *SETTINGS, *variables, *(o.name for o in OPTIONS if "<" not in o.name)}
    assert not {name.lower() for name in names} - set().union(*said_in_tests())
