"""What the release before makes of logs of this one: a wheel of it, in a process of its own.

`releases/` holds the wheel of the newest release.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from clog.storage import Log
from clog.storage.cuts import name_cut
from clog.storage.diagnostics.verify import verify_log
from clog.storage.format import log_info as registry
from clog.storage.format.commits import Edit
from clog.storage.format.log_info import Feature, FeatureNames, lists_of
from clog.storage.format.transactions import Answered, Combining
from clog.storage.store import open_store
from clog_testing.older import as_before

(WHEEL,) = (Path(__file__).parent / "releases").glob("*.whl")
ONE = [{"key": "k", "value": "v"}]
REFUSED = (
    r"UnsupportedFormatError: .* has the features \['foreign-positions', 'named-cuts', 'proposals',"
    r" 'whole-transactions'\], which this clog can read but not write; upgrade clog.*"
)
PROGRAM = """
import json, sys
from pathlib import Path
import clog.storage
from clog.cleaner import Cleaner
from clog.storage import ClogError, Log

assert Path(clog.storage.__file__).is_relative_to(sys.argv[1]), clog.storage.__file__
log = Log.open(sys.argv[2]) if sys.argv[3] == "warm" else None
print("ready", flush=True)
sys.stdin.readline()
steps = {
    "read": lambda log: sum(batch.num_rows for batch in log.read()),
    "table": lambda log: log.table().to_arrow().num_rows,
    "append": lambda log: log.append([{"key": "old", "value": "x"}]).version,
    "alter": lambda log: log.alter({"segment.bytes": 99}) and log.version,
    "clean": lambda log: Cleaner(log).run_once(force=True) and log.version,
}
for name, step in steps.items():
    try:
        print(json.dumps([name, step(log or Log.open(sys.argv[2]))]), flush=True)
    except ClogError as e:
        print(json.dumps([name, f"{type(e).__name__}: {e}"]), flush=True)
"""


@pytest.fixture
def older(release, tmp_path):
    """Runs the program with the release: ``warm`` opens the log before ``change`` is called."""

    def run(how, change=lambda: None):
        arguments = [sys.executable, "-c", PROGRAM, str(release), str(tmp_path / "log"), how]
        with subprocess.Popen(
            arguments,
            env={**os.environ, "PYTHONPATH": str(release)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout.readline() == "ready\n"
            change()
            told, _ = process.communicate("\n")
        assert process.returncode == 0
        return dict(map(json.loads, told.splitlines()))

    return run


@pytest.fixture
def log(release, tmp_path):
    """A log that the release made, with one record."""
    program = "import sys; from clog.storage import Log; Log.create(sys.argv[1], 1).append(%r)"
    arguments = [sys.executable, "-c", program % ONE, str(tmp_path / "log")]
    subprocess.run(arguments, env={**os.environ, "PYTHONPATH": str(release)}, check=True)
    return Log.open(str(tmp_path / "log"))


def check_refused(told):
    """It may write nothing, and says why."""
    for name in ("append", "alter", "clean"):
        assert re.fullmatch(REFUSED, told.pop(name))


def test_a_log_that_this_release_has_only_read_is_one_of_the_release_before(log, older):
    """It reads and writes it, and this release continues with what it wrote."""
    assert log.table().to_arrow().num_rows == 1
    told = older("cold")
    assert told == {"read": 1, "table": 1, "append": 2, "alter": 3, "clean": []}
    assert log.table().to_arrow().num_rows == 2
    log.append(ONE)
    assert list(verify_log(open_store(log.url)).findings) == []


def append(log):
    log.append(ONE)


def cut(log):
    log.append(ONE)
    name_cut(log.handle, "month-end")


def transact(log):
    with log.transaction("billing") as t:
        t.append(ONE)


def cross(log):
    """Of two visible transactions the first is committed, and held back by the other."""
    append(log)
    t, other = (Log.open(log.url).transaction(name, visible=True) for name in ("one", "other"))
    for one in (t, other, t):
        one.append(ONE)
    t.commit()


def combine(log):
    """As a commit that includes what another writer proposed."""
    answer = Combining(0, (Answered("a" * 16, 1, is_applied=True),))
    log.handle.commit(lambda _tip, _ms: Edit(combined=answer), operation="append")
    log.append(ONE)


@pytest.mark.parametrize("how", ["cold", "warm"])
@pytest.mark.parametrize(
    ("change", "shown"), [(append, 2), (cut, 2), (transact, 2), (cross, 3), (combine, 2)]
)
def test_it_reads_what_this_release_wrote_and_refuses_to_write(log, older, how, change, shown):
    """FORMAT.md §0: the first commit adds what each log has; the release reads on, whether it opens
    the log or has it open, and shows what is decided; it names the features before it writes.
    """
    told = older(how, lambda: change(log))
    version = log.handle.refresh().version
    check_refused(told)
    assert told == {"read": shown, "table": 1}
    assert log.handle.refresh().version == version
    assert list(verify_log(open_store(log.url)).findings) == []


@pytest.mark.parametrize("how", ["cold", "warm"])
def test_it_refuses_a_log_with_a_feature_of_readers(log, older, monkeypatch, how):
    """FORMAT.md §0: whether it opens the log or has it open, it reads and writes nothing more."""
    feature = Feature("quill", "4", True, "", is_choice=True)
    monkeypatch.setitem(registry.FEATURES, "quill", feature)
    told = older(how, lambda: log.upgrade(["quill"]))
    assert len(told) == 5
    for answer in told.values():
        assert answer.startswith("UnsupportedFormatError: ")
        assert "has the features ['quill'], which this clog does not know; upgrade clog" in answer
    assert log.version == 2


@pytest.mark.parametrize("how", ["cold", "warm"])
def test_its_log_takes_part_in_a_transaction(log, older, tmp_path, how):
    """S50: what is prepared in a log that the release made is not shown to it."""
    home, told = Log.create(str(tmp_path / "home"), 1), {}
    t = home.transaction("job")
    t.append(ONE)
    t.append(ONE, log=log)
    prepare = t._work.several.prepare

    def prepared(*given):
        done = {}
        told.update(older(how, lambda: done.update(was=prepare(*given))))
        return done["was"]

    t._work.several.prepare = prepared
    t.commit()
    check_refused(told)
    assert told == {"read": 1, "table": 1}
    again = Log.open(log.url)
    assert again.stable_offsets() == again.end_offsets()
    assert sum(batch.num_rows for batch in again.read()) == 2
    assert list(verify_log(open_store(log.url)).findings) == []


FEATURES_PROGRAM = """
import json, sys
from clog.storage import ClogError, Log, UnsupportedFormatError

def may(step, *given):
    try:
        step(*given)
    except ClogError as e:
        return not isinstance(e, UnsupportedFormatError)
    return True

for url in sys.argv[1:]:
    reads = may(lambda: list(Log.open(url).read()))
    rows = [{"key": "k", "value": "v"}]
    print(json.dumps([reads, reads and may(lambda: Log.open(url).append(rows))]))
"""


@pytest.mark.parametrize("how", ["cold", "warm"])
def test_it_reads_no_log_whose_columns_were_renamed(older, how, tmp_path):
    """§12.4: it would find columns by their names; it refuses, also what it has open."""
    schema = {"key": pa.string(), "value": pa.struct([("a", pa.int32()), ("b", pa.int32())])}
    log = Log.create(str(tmp_path / "log"), 1, schema=schema)
    log.append([{"key": "k", "value": {"a": 1, "b": 2}}])

    def swap():
        log.evolve(rename={"value.a": "b", "value.b": "a"})

    if how == "cold":
        swap()
    told = older(how, swap if how == "warm" else lambda: None)
    refused = rf"UnsupportedFormatError: .* \['columns-by-id'\], which this clog .*|{REFUSED}"
    assert all(re.match(refused, str(said)) for said in told.values()), told
    assert "columns-by-id" in told["read"]
    assert "columns-by-id" in told["table"]


def test_what_it_refuses_is_in_a_table(release, tmp_path):
    """docs/upgrading.md has a row for each choice of a log's owner that the release does not know,
    and says what it does with a log that has it.
    """
    choices = {name: f for name, f in registry.FEATURES.items() if f.is_choice}
    urls = {name: str(tmp_path / name) for name in choices}
    schemas = {
        "typed-columns": pa.schema({"key": pa.string(), "value": pa.int32()}),
        "typed-keys": pa.schema({"key": pa.date32(), "value": pa.int32()}),
        "table-columns": pa.schema(
            [pa.field("key", pa.int8(), nullable=False), ("value", pa.struct({"n": pa.int8()}))]
        ),
    }
    configs = {"table-columns": {"table.key.columns": "id"}}
    for name, feature in choices.items():
        with as_before(FeatureNames() if name in schemas else lists_of([feature])):
            made = Log.create(urls[name], 1, configs.get(name), schema=schemas.get(name))
        assert name in made.handle.tip.head.log.features
    told = subprocess.run(
        [sys.executable, "-c", FEATURES_PROGRAM, *urls.values()],
        env={**os.environ, "PYTHONPATH": str(release)},
        check=True,
        stdout=subprocess.PIPE,
    ).stdout.splitlines()
    words = {(False, False): "refuses the log", (True, False): "reads, writes nothing"}
    does = [words.get(tuple(json.loads(line))) for line in told]
    page = Path(__file__).parents[2] / "docs/upgrading.md"
    table = page.read_text().partition("| choice | comes with | 0.1.0 then |")[2]
    said = dict(re.findall(r"^\| `([\w-]+)` \| .* \| (.+) \|$", table, re.MULTILINE))
    assert said == {name: then for name, then in zip(urls, does, strict=True) if then}


NAMES_PROGRAM = """
import inspect
import clog.cleaner, clog.connector, clog.jobs, clog.storage
from clog.storage.config.log_config import LogConfig
try:
    from clog.connector.options.definitions import DEFINITIONS
except ImportError:
    from clog.connector.options import DEFINITIONS

def names(name, given):
    yield name
    if inspect.isroutine(given) or inspect.isclass(given):
        try:
            yield from (f"{name}({parameter})" for parameter in inspect.signature(given).parameters)
        except ValueError:  # An exception's, which C has.
            pass
    for member, value in inspect.getmembers_static(given) if inspect.isclass(given) else ():
        if not member.startswith("_"):
            yield from names(f"{name}.{member}", getattr(value, "__func__", value))

for package in (clog.storage, clog.cleaner, clog.connector, clog.jobs):
    for name in package.__all__:
        print(*names(f"{package.__name__}.{name}", getattr(package, name)), sep="\\n")
print(*LogConfig.__dataclass_fields__, *(option.name for option in DEFINITIONS), sep="\\n")
"""
COMMANDS_PROGRAM = """
import click
from clog.cli.app import app
if not isinstance(app, click.Group):
    from typer.main import get_command
    app = get_command(app)
for name, command in app.commands.items():
    print(name, *(f"{name} {word}" for parameter in command.params for word in parameter.opts),
          sep="\\n")
"""


@pytest.mark.parametrize(
    ("program", "needs"), [(NAMES_PROGRAM, "pyspark"), (COMMANDS_PROGRAM, "typer")]
)
def test_no_name_that_it_has_is_gone(release, program, needs):
    """docs/upgrading.md: public names with their parameters, topic configs, Spark options, commands
    and their options; but for those that it names.
    """
    pytest.importorskip(needs)

    def names(environment):
        command = [sys.executable, "-c", program]
        told = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
        return set(told.stdout.decode().splitlines())

    theirs = names({**os.environ, "PYTHONPATH": str(release)})
    ours = names(os.environ)
    assert len(theirs) > 100
    assert theirs != ours
    gone = (
        "clog.connector.upsert",
        "clog.connector.transaction",
        "clog.connector.BatchTransaction.",
        "clog.storage.Log.changes(",  # It is `latest` now.
    )
    assert {name for name in theirs - ours if not name.startswith(gone)} == set()
