"""The house in numbers: what STYLE.md says and a machine can count."""

import ast
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("storage", "cleaner", "connector", "bridge")
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
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "[!.]*/**/*.md")
    for path in ROOT.glob(pattern)
    if ".environments" not in path.parts
)
PLURALS = {
    *("Batches", "Bitmaps", "Bounds", "Bytes", "Chunks", "Columns", "Documents", "Edits", "Files"),
    *("Findings", "Hashes", "Heads", "Its", "Keys", "Lines", "Messages", "Numbers"),
    *("Objects", "Offsets", "Options", "Pages", "Partitions", "Paths", "Pieces", "Ranges"),
    *("Records", "Requests", "Rows", "Segments", "Settings", "Sizes", "Snapshots", "Steps"),
    *("This", "Tombstones", "Values", "Versions", "Windows", "Words"),
}
"""Words that end as a verb in the third person does, and in our docstrings are none."""
LIST_ITEM = re.compile(r"\s*([-*+]|\d+\.)\s+")
SENTENCE_START = re.compile(rf"({LIST_ITEM.pattern})?(\*{{1,2}}[^*]+\*{{1,2}} )?")
SENTENCE_END = re.compile(r"(?<!e\.g)(?<!i\.e)[.?!][)\"*_]*\s")
MODULE_LINES_MAX = 900
FUNCTION_LINES_MAX = 80
LINE_CHARACTERS_MAX = 100
INNER_DOCSTRINGS_MAX = 43


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


def test_modules_say_what_they_are():
    """A docstring opens with one sentence; nothing unfinished is left in a module."""

    def rule(path, text):
        docstring = ast.get_docstring(parsed(path)) or ""
        if not docstring.split("\n\n")[0].rstrip().endswith((".", ":", ";")):
            yield f"opens with {docstring[:60]!r}"
        yield from re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b", text)

    assert not broken(MODULES, rule)


def begins_with_a_verb(docstring):
    """Whether the first word is a verb in the third person, as far as its form and the next word
    tell.
    """
    first, *rest = docstring.split(maxsplit=2)[:2]
    return (
        re.fullmatch(r"[A-Z][a-z]+s[.,:;]?", first) is not None
        and first.rstrip(".,:;") not in PLURALS
        and rest[:1] != ["of"]
    )


def is_a_thing(function):
    """Properties are named as what they are, and so are their docstrings; tests state a fact."""
    decorators = [ast.unparse(d) for d in function.decorator_list]
    return function.name.startswith("test_") or any("property" in d for d in decorators)


@cache
def commands():
    """The module and name of each command: its docstring is its help, in the imperative."""
    from clog.cli.app import COMMANDS

    rows = (row for rows in COMMANDS.values() for row in rows.items())
    return {(module.split(".")[-1], name.replace("-", "_")) for name, module in rows}


def test_docstrings_of_functions_begin_with_a_verb():
    """Third person: "Returns …", "Returns whether …", "Raises if …", also of private functions."""

    def rule(path, text):
        for node in ast.walk(parsed(path)):
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and (docstring := ast.get_docstring(node))
                and not is_a_thing(node)
                and not begins_with_a_verb(docstring)
                and not (
                    (path.stem, node.name) in commands() and {"cli", "bridge_cli"} & set(path.parts)
                )
            ):
                yield f"{node.name} in line {node.lineno}: {docstring.splitlines()[0]}"

    assert not broken(MODULES, rule)


def test_docstrings_of_inner_functions_are_one_line():
    """But for some that say what they cost, or why they are safe; these become no more."""
    longer = [
        f"{path.stem}.{node.name}"
        for path in MODULES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef)
        and re.match("_[^_]", node.name)
        and "\n" in (ast.get_docstring(node) or "")
    ]
    too_many = f"{len(longer)} of at most {INNER_DOCSTRINGS_MAX}: shorten the new one, of {longer}"
    assert len(longer) <= INNER_DOCSTRINGS_MAX, too_many


def test_verbs_are_told_from_nouns():
    for docstring, good in [
        ("Returns the offset.", True),
        ("Yields (path, message) of each.", True),
        ("Stops, and waits.", True),
        ("Waits.", True),
        ("The offset.", False),
        ("Whether it is there.", False),
        ("Return the offset.", False),
        ("Records of the clean part.", False),
        ("Counts of one pass.", False),
        ("This returns the offset.", False),
        ("``room``: rows.", False),
    ]:
        assert begins_with_a_verb(docstring) is good, docstring


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


def test_messages_speak_in_words():
    """No text of a program cites a rule by its number; docstrings and comments may."""

    def rule(path, text):
        tree = parsed(path)
        docstrings = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        texts = [
            n for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in docstrings
        ]
        for text in (node.value for node in texts if isinstance(node.value, str)):
            if re.search(r"\bS(?!3\b)\d+\b", text):
                yield text

    assert not broken(MODULES, rule)


def test_the_namespace_package_has_no_init():
    """PEP 420: one `clog/__init__.py` would hide the other two folders."""
    assert not [p for p in MODULES if p.parent.name == "clog" and p.name == "__init__.py"]


def test_every_package_is_typed():
    """PEP 561, for the users' type checkers."""
    for package in FOLDERS:
        assert (ROOT / package / "clog" / package / "py.typed").is_file()
        assert (ROOT / package / "clog" / package / "__init__.py").is_file()


def test_no_file_knows_the_machine_it_was_written_on():
    """No absolute path of somebody's home or work tree."""
    home = re.compile(r"(?<![\w:/.])/(?:home|root|Users|work|workspace)/\S*")
    assert not broken([*MODULES, *PROGRAMS, *TEXTS], lambda path, text: home.findall(text))


def prose(text):
    """Yields each line of a paragraph, its code and link targets replaced by x, and whether it
    is the last one. Tables, headings, blocks of code, pictures and comments are no prose.
    """
    text = re.sub(r"^( *```).*?^\1", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`\n]*`|(?<=\])\([^)\n]*\)", "x", text)
    lines = ["" if re.match(r"\s*([|#<]|!\[)", line) else line for line in text.split("\n")]
    for line, after in pairwise([*lines, ""]):
        if line.strip():
            yield line.rstrip(), not after.strip() or bool(LIST_ITEM.match(after))


def test_documents_have_one_sentence_a_line():
    """So a change of one sentence shows as a change of one line. Only a bold or italic run-in
    heading may share the line of a sentence.
    """

    def rule(path, text):
        for line, last in prose(text):
            start = SENTENCE_START.match(line).end()
            if SENTENCE_END.search(line, start):
                yield f"two sentences in one line: {line}"
            if not (last or SENTENCE_END.search(f"{line} ")):
                yield f"wrapped: {line}"

    assert not broken(DOCUMENTS, rule)


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
    assert len(rows) == 18
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
