"""The documents tell the truth: their Python runs, in an empty folder each (that of Spark with
Spark's tests), their shell commands exist and take the options that are named.

Not run: commands that need a cloud account, a server or minutes. What docs/cli.md shows is run
in full, with what it prints, by its own test.
"""

import ast
import doctest
import importlib
import inspect
import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from clog.storage import Log

ROOT = Path(__file__).parent.parent
PATTERNS = (
    *("*.md", "*/README.md", "*/*/README.md", "docs/*.md", "docs/guests/*.md"),
    *("cleaner/*.md", "storage/*.md"),
)
DOCUMENTS = sorted(
    {
        str(path.relative_to(ROOT))
        for pattern in PATTERNS
        for path in ROOT.glob(pattern)
        if not any(part.startswith(".") or part == "node_modules" for part in path.parts)
    }
)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
OPTION = re.compile(r"(?<!\S)--?[a-z][a-z-]*")


def blocks(path):
    """(language, text) of each."""
    return BLOCK.findall((ROOT / path).read_text())


ELSEWHERE = ("# spark", "# with Kafka", "# with PostgreSQL", "# with Airflow", "# with Dagster")
"""How a block begins that Spark's tests run, or that needs a broker, a database or a scheduler."""
PYTHON = [
    pytest.param(path, code, id=f"{path} {number}")
    for path in DOCUMENTS
    for number, (language, code) in enumerate(blocks(path))
    if language == "python" and not code.startswith(ELSEWHERE)
]


@pytest.mark.parametrize(("path", "code"), PYTHON)
def test_python_runs(path, code, tmp_path, monkeypatch):
    """As it stands."""
    monkeypatch.chdir(tmp_path)
    if path == "cleaner/README.md":
        Log.create("orders")
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    exec(compile(code, path, "exec"), {})


def test_every_language_is_one_that_is_tested():
    """A block without one is a picture, or commands."""
    languages = {language for path in DOCUMENTS for language, _ in blocks(path)}
    assert languages == {"python", "console", "json", "sql", ""}
    assert len(PYTHON) > 5


def commands():
    """(document, command) of each line of a block, and of each piece of text in `code`, that calls
    something.
    """
    for path in DOCUMENTS:
        text = (ROOT / path).read_text()
        lines = [
            line for lang, block in blocks(path) if lang != "python" for line in block.split("\n")
        ]
        inline = re.findall(r"`(clog [a-z][^`]*)`", BLOCK.sub("", text))
        for line in [*lines, *inline]:
            for part in re.split(r" \| ", line.removeprefix("$ ").partition(" #")[0]):
                if re.match(r"(clog [a-z]|python \S+\.py|\./(demo|test)\b)", part):
                    yield path, part


CLOG = [c for c in commands() if c[1].startswith("clog ")]
PROGRAMS = [c for c in commands() if not c[1].startswith("clog ")]


def test_every_command_of_clog_takes_its_options():
    """Of every document, in blocks and in text."""
    from clog.cli.app import app
    from clog.cli.options import SHARED
    from clog.cli.renamed import OLD, OLD_OPTIONS

    known = app.commands
    assert len(CLOG) > 40
    for path, command in CLOG:
        name = command.split()[1]
        if path == "CHANGELOG.md" and name in {*OLD, *OLD_OPTIONS}:
            continue  # As it was called in an older release.
        assert name in known, f"{path}: {command}"
        options = {o for p in (*known[name].params, *SHARED) for o in (*p.opts, *p.secondary_opts)}
        assert set(OPTION.findall(command)) - {"--help"} <= options, f"{path}: {command}"


def test_every_program_takes_its_options():
    """The program is there, from the root or beside the document, and it or its folder names the
    option.
    """
    assert len(PROGRAMS) > 15
    for path, command in PROGRAMS:
        program = command.removeprefix("python ").split()[0]
        found = [
            base / program for base in (ROOT, (ROOT / path).parent) if (base / program).exists()
        ]
        assert found, f"{path}: {command}"
        folder = found[0].parent
        sources = (
            [*folder.glob("*.py")] if folder != ROOT else [found[0], *ROOT.glob("examples/*/*.py")]
        )
        text = "".join(source.read_text() for source in sources)
        for option in OPTION.findall(command):
            assert option in text, f"{path}: {command}"


@pytest.mark.parametrize(("name", "more"), [("cost", ""), ("cleaner", "--once")])
def test_the_commands_of_the_operations_guide_run(name, more, tmp_path, monkeypatch):
    """On a folder in place of the bucket, on any free port, once."""
    from clog.cli.app import app

    monkeypatch.chdir(tmp_path)
    Log.create("logs/orders").append([{"key": "a", "value": "1"}])
    shown = [command for path, command in CLOG if path == "docs/running.md"]
    first = next(command for command in shown if command.split()[1] == name)
    words = shlex.split(first.replace("s3://my-bucket/", "").replace(":9404", ":0"))
    done = CliRunner().invoke(app, [*words[1:], *more.split()])
    assert done.exit_code == 0, done.output


LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")


def anchors(path):
    """Of the headings of a page, as GitHub and the site make them."""
    found = []
    for heading in re.findall(r"^#+ (.+)", BLOCK.sub("", path.read_text()), re.MULTILINE):
        text = re.sub(r"\]\([^)]*\)", "", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-")
        found.append(f"{anchor}-{found.count(anchor)}" if anchor in found else anchor)
    return found


def test_no_link_leads_nowhere():
    """Each file is there, and each heading."""
    pages = [*DOCUMENTS, *(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/decisions/*.md"))]
    for path in pages:
        for target, anchor in LINK.findall(BLOCK.sub("", (ROOT / path).read_text())):
            there = (ROOT / path).parent / target if target else ROOT / path
            assert there.exists(), f"{path}: {target}"
            if anchor and there.suffix == ".md":
                assert anchor in anchors(there), f"{path}: {target}#{anchor}"


def test_the_index_has_every_page():
    """docs/README.md, those of guests apart; there are at most 21 others."""
    index = {target for target, _ in LINK.findall((ROOT / "docs/README.md").read_text())}
    pages = {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").glob("*.md")}
    guests = {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs/guests").glob("*.md")}
    assert pages - {"README.md"} | guests <= index
    assert len(pages) <= 22


def test_rules_are_named_in_words():
    """The number of a rule stands in parentheses after what it says, or links to it."""
    found = {}
    for path in {*DOCUMENTS} - {"docs/semantics.md", "docs/promises.md"}:
        text = BLOCK.sub("", (ROOT / path).read_text())
        text = re.sub(r"\[S\d+\]\(|\(S\d+[^)]*\)", "", text)
        found[path] = re.findall(r"(?<!\w)S(?!3\b)\d+\b", text)
    assert not {path: rules for path, rules in found.items() if rules}


ODD = re.compile(
    r"\btold\b|\blikewise\b|(?<!gone )\bfor good\b|\bcounts? for nothing\b|\b(all|is) (not )?well\b"
    r"|\bin vain\b|\b(must be|is|are) said\b|\bmeans it\b|\bat (most|least) so\b|\bso many times\b"
    r"|\b(must|has to) say\b|\btells? whether\b|\bthe way it took\b"
    r"|(^[-* ]*|[.:;] )who [a-z]+s\b[^?\n]*[.;]$",
    re.IGNORECASE | re.MULTILINE,
)
"""What reads odd in English, each beside what an editor would write: told (reported, described,
raised), tells whether (returns, shows whether), likewise (in the same way), for good (permanently),
counts for nothing (has no effect), all is well (nothing is wrong), in vain (without effect), is
said (is set, is given), who reads … (a reader …).
"""
FOR_USERS = [
    path
    for path in DOCUMENTS
    if not re.match(
        r"(STYLE|CONTRIBUTING|RELEASE|CHANGELOG)\.md|(tests|integration|benchmarks|\.github)/"
        r"|storage/(FORMAT|COMMIT)\.md|docs/(semantics|benchmarks)\.md",
        path,
    )
]


def texts_of_programs():
    """(where, text) of each text in the product: messages, help, docstrings."""
    for path in sorted(ROOT.glob("*/clog/**/*.py")):
        if path.name == "verify_erasure.py":  # It lists words of the format.
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Constant(value=str(text)) if " " in text:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", text


def test_nothing_that_reads_odd_comes_back():
    """In pages for users, messages, help and docstrings."""
    texts = [(path, BLOCK.sub("", (ROOT / path).read_text())) for path in FOR_USERS]
    assert len(texts) > 25
    assert not {w: m[0] for w, text in [*texts, *texts_of_programs()] if (m := ODD.search(text))}
    assert ODD.search("- Who reads several logs takes a cut.")
    assert not ODD.search("## Who reads, and how far")


EXAMPLES = [
    path
    for folder in ("storage", "cleaner", "connector", "bridge")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if ">>> " in path.read_text()
]


def examples(module):
    """The examples of a module's docstrings; those with a session are run by Spark's tests."""
    found = doctest.DocTestFinder().find(importlib.import_module(module))
    return [
        test for test in found if test.examples and "spark" not in test.docstring.split(">>>", 1)[1]
    ]


def test_examples_in_docstrings_run():
    """What stands after ``>>>`` prints what stands below it, but where it needs a server."""
    assert EXAMPLES
    runner = doctest.DocTestRunner()
    for path in EXAMPLES:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts[1:])
        for test in examples(name):
            assert runner.run(test).failed == 0, test.name
    assert runner.tries > 100


@pytest.mark.parametrize("package", ["connector", "bridge", "jobs"])
def test_every_function_has_an_example(package):
    """In its docstring, which names arguments that it has."""
    module = importlib.import_module(f"clog.{package}")
    functions = [
        getattr(module, n) for n in module.__all__ if inspect.isfunction(getattr(module, n))
    ]
    for function in functions:
        parsed = doctest.DocTestParser().get_examples(function.__doc__)
        calls = [
            node
            for example in parsed
            for node in ast.walk(ast.parse(example.source))
            if isinstance(node, ast.Call) and ast.unparse(node.func) == function.__name__
        ]
        assert calls, function.__name__
        for call in calls:
            given = {keyword.arg: None for keyword in call.keywords}
            inspect.signature(function).bind(*call.args, **given)


HIDDEN = {
    *("append_objects", "object_writer", "commit_at", "followed", "note_content", "name_cut"),
    *("after_fork", "narrowed", "of_key_bytes"),
}
"""Methods that are public for other rooms of ours, and not for users."""


@pytest.mark.parametrize(
    "name",
    [
        *("Log", "Table", "Records", "Frame", "NamedReader", "Following"),
        *("Transaction", "StateTable", "StateStore"),
    ],
)
def test_every_method_has_an_example(name):
    """In its own docstring, or in that of its class, which calls it."""
    import clog.storage

    shown = getattr(clog.storage, name)
    of_class = "\n".join(one.__doc__ or "" for one in shown.__mro__ if ">>>" in (one.__doc__ or ""))
    methods = {n: m for n, m in vars(shown).items() if n[0] != "_" and callable(m)}
    without = {n for n, m in methods.items() if ">>>" not in (getattr(m, "__doc__", "") or "")}
    assert {n for n in without - HIDDEN if f".{n}(" not in of_class} == set()


def test_json_is_json():
    """The policies for S3 can be pasted; `tests/contract/test_s3_permissions.py` tries them."""
    policies = [text for language, text in blocks("docs/permissions.md") if language == "json"]
    assert len(policies) == 7
    assert all(json.loads(policy)["Statement"] for policy in policies)


def test_the_readme_names_the_two_commands():
    """What it says to run is there."""
    text = (ROOT / "README.md").read_text()
    assert "./demo " in text
    assert "./test " in text
    assert (ROOT / "demo").stat().st_mode & 0o111
    assert (ROOT / "test").stat().st_mode & 0o111


def test_wheel_and_image_have_the_version_that_is_built():
    """Wherever a document or a manifest names them; the changelog's newest part is about it."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    manifests = [str(p.relative_to(ROOT)) for p in (ROOT / "deploy").rglob("*.yaml")]
    found = [
        (path, name)
        for path in DOCUMENTS + manifests
        for name in re.findall(r"\b(?:pyspark_clog-|clog:)(\d[\d.]*\d)", (ROOT / path).read_text())
    ]
    paths = {path for path, _ in found}
    assert paths >= {"README.md", "docs/running.md", "deploy/helm/values.yaml"}
    assert [one for one in found if one[1] != version] == []
    newest = re.search(r"^## (.+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert "unreleased" in newest.lower() or newest.partition(",")[0] == version
