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
from clog.storage import administration as creating
from clog.storage.administration import keep_row_texts
from clog.storage.cuts import cuts_of, name_cut
from clog.storage.diagnostics.verify import verify_log
from clog.storage.format import log_info as registry
from clog.storage.format.log_info import DEAD_ROWS, Feature, FeatureNames
from clog.storage.store import open_store

(WHEEL,) = (Path(__file__).parent / "releases").glob("*.whl")
ONE = [{"key": "k", "value": "v"}]
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
def log(tmp_path, monkeypatch):
    """A log without features, with one record."""
    monkeypatch.setattr(creating, "NEW_LOG_FEATURES", FeatureNames())
    made = Log.create(str(tmp_path / "log"), partitions=1)
    made.append(ONE)
    return made


@pytest.fixture
def quill(monkeypatch):
    """A feature that the release does not know, about the readers that a test gives."""

    def announce(*, of_readers):
        feature = Feature("quill", "4", of_readers, "")
        monkeypatch.setitem(registry.FEATURES, "quill", feature)

    return announce


def test_a_log_of_this_release_without_new_features_is_one_of_the_release_before(log, older):
    """It reads and writes it, and this release continues with what it wrote."""
    told = older("cold")
    assert (told["read"], told["table"], told["append"]) == (1, 1, 2)
    assert not [answer for answer in told.values() if isinstance(answer, str)]
    assert log.table().to_arrow().num_rows == 2
    log.append(ONE)


@pytest.mark.parametrize("how", ["cold", "warm"])
def test_it_refuses_a_log_with_a_feature_of_readers(log, older, quill, how):
    """FORMAT.md §0: whether it opens the log or has it open, it reads and writes nothing more."""
    quill(of_readers=True)
    told = older(how, lambda: log.upgrade(["quill"]))
    assert len(told) == 5
    for answer in told.values():
        assert answer.startswith("UnsupportedFormatError: ")
        assert "has the features ['quill'], which this clog does not know; upgrade clog" in answer
    assert log.version == 2


@pytest.mark.parametrize("how", ["cold", "warm"])
def test_it_refuses_to_write_a_log_with_a_feature_of_writers(log, older, quill, how):
    """FORMAT.md §0: by its name, before anything is written."""
    quill(of_readers=False)
    told = older(how, lambda: log.upgrade(["quill"]))
    for name in ("append", "alter", "clean"):
        assert told[name].startswith("UnsupportedFormatError: ")
        assert "has the features ['quill'], which this clog can read but not write" in told[name]
    assert log.version == 2


@pytest.mark.parametrize("how", ["cold", "warm"])
def test_it_reads_a_log_with_rules_of_texts(older, tmp_path, monkeypatch, how):
    """FORMAT.md §19: whatever the rules, as they are beside what it knows; and it refuses to write
    texts of its own beside them.
    """
    monkeypatch.setattr(creating, "NEW_LOG_FEATURES", FeatureNames((), ("row-texts",)))
    log = Log.create(str(tmp_path / "log"), partitions=1)
    log.append(ONE)

    def keep():
        for names in (("id", "region"), ("a", "b")):
            keep_row_texts(log.handle, 2, None, names)

    told = older(how, keep)
    refused = [told.pop(name) for name in ("append", "alter", "clean")]
    assert all("has the features ['row-texts'], which this clog can read" in r for r in refused)
    assert (log.version, told) == (3, {"read": 1, "table": 1})


@pytest.mark.parametrize("how", ["cold", "warm"])
def test_it_reads_a_log_that_is_kept_for_a_cut(older, tmp_path, monkeypatch, how):
    """FORMAT.md §20: keeps and cuts are beside what it knows; and it refuses to clean, so that it
    raises no version above one that is kept.
    """
    monkeypatch.setattr(creating, "NEW_LOG_FEATURES", FeatureNames((), ("named-cuts",)))
    log = Log.create(str(tmp_path / "log"), partitions=1)
    log.append(ONE)
    told = older(how, lambda: name_cut(log.handle, "month-end"))
    refused = [told.pop(name) for name in ("append", "alter", "clean")]
    assert all("has the features ['named-cuts'], which this clog can read" in r for r in refused)
    assert told == {"read": 1, "table": 1}
    assert cuts_of(log.handle)


@pytest.mark.parametrize("how", ["cold", "warm"])
def test_it_reads_a_log_whose_transactions_are_kept_whole(older, tmp_path, how):
    """FORMAT.md §11.5: what is held back is beside what it knows: it ends at the first undecided
    record; and it refuses to append, as it would not hold back what it adds.
    """
    log = Log.create(str(tmp_path / "log"), partitions=1)
    log.append(ONE)
    t, other = (Log.open(log.url).transaction(name, visible=True) for name in ("one", "other"))
    t.append(ONE)
    other.append(ONE)

    def cross():
        t.append(ONE)
        t.commit()

    told = older(how, cross)
    refused = [told.pop(name) for name in ("append", "alter", "clean")]
    names = "has the features ['whole-transactions'], which this clog can read"
    assert all(names in r for r in refused)
    assert told == {"read": 2, "table": 1}
    assert log.stable_offsets() == {0: 1}


def test_it_knows_the_edit_that_adds_a_feature(log, older):
    """Decision 0017: it continues to read, and writes if it knows the feature."""
    log.upgrade([DEAD_ROWS])
    told = older("cold")
    assert (told["read"], told["table"], told["append"], told["alter"]) == (1, 1, 3, 4)
    assert log.handle.refresh().head.log.features.read == (DEAD_ROWS,)
    assert list(verify_log(open_store(log.url)).findings) == []


@pytest.mark.parametrize("how", ["cold", "warm"])
def test_it_writes_beside_transactions(log, older, how):
    """Decision 0017: it knows their features, which the first one adds."""

    versions = []

    def take_up():
        with log.transaction("billing") as t:
            t.append(ONE)
        versions.append(log.version)

    told = older(how, take_up)
    assert told == {"read": 2, "table": 1, "append": 4, "alter": 5, "clean": []}
    assert (versions, log.version) == ([3], 5)
    assert log.table().to_arrow().num_rows == 2


@pytest.mark.parametrize("how", ["cold", "warm"])
def test_its_log_takes_part_in_a_transaction(release, older, tmp_path, how):
    """S50: one that it made gets the features with its first undecided records; it shows none of
    these, and appends after them.
    """
    program = "import sys; from clog.storage import Log; Log.create(sys.argv[1], 1).append(%r)"
    arguments = [sys.executable, "-c", program % ONE, str(tmp_path / "log")]
    subprocess.run(arguments, env={**os.environ, "PYTHONPATH": str(release)}, check=True)
    log, home = Log.open(str(tmp_path / "log")), Log.create(str(tmp_path / "home"), 1)
    assert log.handle.tip.head.log.features == FeatureNames((DEAD_ROWS,))
    told = {}
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
    assert told == {"read": 1, "table": 1, "append": 3, "alter": 4, "clean": []}
    again = Log.open(log.url)
    assert again.handle.tip.head.log.features.read == (DEAD_ROWS, "undecided-records")
    assert again.stable_offsets() == again.end_offsets()
    assert sum(batch.num_rows for batch in again.read()) == 3
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


def test_what_it_refuses_is_in_a_table(release, tmp_path, monkeypatch):
    """docs/upgrading.md has a row for each feature that the release refuses, and says what it does
    with a log that has it; it accepts a log with any other.
    """
    urls = {name: str(tmp_path / name) for name in registry.FEATURES}
    schemas = {
        "typed-columns": pa.schema({"key": pa.string(), "value": pa.int32()}),
        "typed-keys": pa.schema({"key": pa.date32(), "value": pa.int32()}),
    }
    for name, feature in registry.FEATURES.items():
        names = FeatureNames((name,), ()) if feature.of_readers else FeatureNames((), (name,))
        names = FeatureNames() if name in schemas else names
        monkeypatch.setattr(creating, "NEW_LOG_FEATURES", names)
        made = Log.create(urls[name], partitions=1, schema=schemas.get(name))
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
    table = page.read_text().partition("| feature | comes with | 0.1.0 then |")[2]
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
    and their options.
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
    assert theirs - ours == set()
