"""A log that was written before everything of a log lay in its folder: refused, in one sentence.

`before/0362e2d` was written by that commit: one partition, five appends of the key `a`.
"""

import importlib
import shutil
from pathlib import Path

import pytest

from clog.storage import Log, UnsupportedFormatError
from clog.storage.diagnostics.verify import verify_log
from clog.storage.store import open_store

BEFORE = Path(__file__).parent / "before" / "0362e2d"
MESSAGE = (
    r"the log at .*/log was written by a clog older than 0\.1\.0, and this release cannot"
    r' read it; nothing was changed; pipe the output of "clog consume URL --json" of the clog that'
    r' wrote it into "clog produce NEW_URL --format jsonl" of this one'
)


@pytest.fixture
def root(tmp_path):
    shutil.copytree(BEFORE, tmp_path / "log")
    return tmp_path / "log"


def files(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    "call",
    [Log.open, Log.create, lambda url: verify_log(open_store(url))],
    ids=["open", "create", "verify"],
)
def test_it_is_refused_and_left_alone(root, call):
    """S47: neither read, nor taken for no log; the remedy is in the sentence."""
    before = files(root)
    with pytest.raises(UnsupportedFormatError, match=f"^{MESSAGE}$"):
        call(str(root))
    assert files(root) == before


@pytest.fixture
def shell():
    """Calls the command line."""
    runner = pytest.importorskip("click.testing").CliRunner()
    app = importlib.import_module("clog.cli.app").app
    return lambda *arguments, **options: runner.invoke(app, list(arguments), **options)


COMMANDS = (
    *("describe", "clean", "consume", "create", "verify", "delete", "alter", "copy"),
    *("describe offsets", "describe history", "clean --sweep", "consume --table --key a"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_line_says_so_once(root, command, shell):
    """One line, and no next step that contradicts it; nothing is changed."""
    more = {"copy": [f"{root}-copy"], "delete": ["--yes"], "alter": ["--roll", "all"]}
    before = files(root)
    name, *rest = command.split()
    result = shell(name, str(root), *rest, *more.get(command, []))
    assert files(root) == before
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: the log at {root} was written by a clog older than 0.1.0")


def test_the_remedy_works(tmp_path, shell):
    """What `clog consume --json` of that commit printed is a log of now, record by record."""
    lines = (BEFORE.parent / "0362e2d.jsonl").read_text()
    url = str(tmp_path / "new")
    assert shell("create", url, "--partitions", "1").exit_code == 0
    done = shell("produce", url, "--format", "jsonl", input=lines)
    assert done.exit_code == 0
    assert shell("consume", url, "--json").stdout == lines
